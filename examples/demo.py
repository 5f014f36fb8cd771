"""`make demo`: one conversation, what stands behind it in the ledger, and what a changed byte does to it. Under a minute.

python -m examples.demo
"""

import tempfile
from pathlib import Path

import anyio

from examples.admin_bot.tools import directory_tools
from kitchener import HO2Config, LedgerDamaged, Runtime, RuntimeConfig, open_runtime

BOLD, DIM, PLAIN = "\x1b[1m", "\x1b[2m", "\x1b[0m"
MESSAGES = ("hello", "list files", "read file notes.txt", "thanks, that is all")


def title(text: str) -> None:
    """A heading."""
    print(f"\n{BOLD}{text}{PLAIN}")


async def talk(runtime: Runtime) -> str:
    """Part one: a conversation with tools."""
    supervisor = runtime.supervisor("ADMIN")
    session_id = await supervisor.start_session(subject_id="ada")
    for message in MESSAGES:
        result = await supervisor.handle_turn(message, session_id=session_id)
        chain = " → ".join(summary["wo_type"] for summary in result.wo_chain_summary)
        cost = result.cost_summary
        print(f"{BOLD}ada{PLAIN}  {message}")
        print(f"{BOLD}bot{PLAIN}  " + result.response.replace("\n", "\n     "))
        print(f"{DIM}     {chain} · {cost['input_tokens'] + cost['output_tokens']} tokens · {result.turn_id}{PLAIN}\n")
    return session_id


async def show_ledger(runtime: Runtime, session_id: str) -> None:
    """Part two: the last turn as HO2 and HO1 wrote it down."""
    ledgers = runtime.ledgers("ADMIN")
    start = (await ledgers.ho2m.last(session_id=session_id))[0]
    turn_id = start.payload["turn_id"]
    for ledger in (ledgers.ho2m, ledgers.ho1m):
        print(f"{DIM}{ledger.path}{PLAIN}")
        async for entry in ledger.read(session_id=session_id):
            if entry.payload.get("turn_id") == turn_id:
                print(f"  {entry.entry_id}  {entry.entry_type:<18} {entry.entity_id:<22} {entry.entry_hash[:19]}…")
    for ledger in (ledgers.ho2m, ledgers.ho1m):
        report = await ledger.verify()
        print(f"{ledger.ledger_id}: {report.entries} entries, every hash recomputed: {'ok' if report.ok else 'DAMAGED'}")


async def tamper(config: RuntimeConfig, path: Path) -> None:
    """Part three: somebody edits one word of the past."""
    ledger = anyio.Path(path)
    await ledger.write_bytes((await ledger.read_bytes()).replace(b"hello", b"hallo", 1))
    try:
        async with open_runtime(
            config.model_copy(update={"ledger": config.ledger.model_copy(update={"verify_on_open": "full"})})
        ):
            raise SystemExit("the change was not noticed")
    except LedgerDamaged as damage:
        print(f"refused: {damage}")


async def main(folder: Path) -> None:
    """All three parts."""
    home = folder / "home"
    home.mkdir()
    (home / "notes.txt").write_text("The backup runs at 02:00.\n")
    (home / "todo.txt").write_text("Renew the certificate.\n")
    config = RuntimeConfig(
        plane_root=str(folder / "plane"),
        agents={"ADMIN": HO2Config(instructions="You look after this directory.", standing_rules=("Never change a file.",))},
    )
    async with open_runtime(config, tools=directory_tools(home)) as runtime:
        title("A conversation (offline model, real tools)")
        session_id = await talk(runtime)
        title("What stands behind its last turn")
        await show_ledger(runtime, session_id)
        path = Path(runtime.ledgers("ADMIN").ho2m.path)
    title("One word of the past is changed on disk")
    await tamper(config, path)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as name:
        anyio.run(main, Path(name))
