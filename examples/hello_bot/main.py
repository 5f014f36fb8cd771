"""The smallest agent: a conversation of two messages, and what the ledger holds of it.

    python -m examples.hello_bot.main [ROOT]

It needs no key and no network: the built-in offline model answers, and says that it is one.
"""

import sys
import tempfile

import anyio

from kitchener import open_runtime


async def main(root: str) -> None:
    """Says hello twice in one session and reads the turns back from the ledger."""
    async with open_runtime(root=root) as runtime:
        supervisor = runtime.supervisor("ADMIN")
        session_id = await supervisor.start_session(subject_id="ada")
        for message in ("hello", "what can you do?"):
            result = await supervisor.handle_turn(message, session_id=session_id)
            print(f"ada: {message}\nbot: {result.response}\n")
            assert result.response
            assert result.error is None
        ledger = runtime.ledgers("ADMIN").ho2m
        turns = [entry async for entry in ledger.read(session_id=session_id, entry_type="TURN_COMPLETED")]
        print(f"{session_id}: {len(turns)} turns on record, the last as {turns[-1].entry_id}")
        assert len(turns) == 2


if __name__ == "__main__":
    if len(sys.argv) > 1:
        anyio.run(main, sys.argv[1])
    else:
        with tempfile.TemporaryDirectory() as folder:
            anyio.run(main, folder)
