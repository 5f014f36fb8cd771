"""An agent with real tools over a real directory: it lists files, reads one, lists installed packages.

    python -m examples.admin_bot.main [DIRECTORY]

The tools are confined to the directory: what leads out of it is refused by the tool, and the refusal is on record.
"""

import sys
import tempfile
from pathlib import Path

import anyio

from examples.admin_bot.tools import directory_tools
from kitchener import HO2Config, RuntimeConfig, open_runtime

PERSONA = HO2Config(
    instructions="You look after this directory.",
    standing_rules=("Never change a file.",),
    tools=("list_files", "read_file", "list_packages"),
)


async def main(directory: str, root: str) -> None:
    """Three commands and one that must not work."""
    config = RuntimeConfig(plane_root=root, agents={"ADMIN": PERSONA})
    async with open_runtime(config, tools=directory_tools(directory)) as runtime:
        supervisor = runtime.supervisor("ADMIN")
        session_id = await supervisor.start_session(subject_id="operator")
        for message in ("list files", "read file notes.txt", "list packages", "read file ../secret.txt"):
            result = await supervisor.handle_turn(message, session_id=session_id)
            kinds = [summary["wo_type"] for summary in result.wo_chain_summary]
            print(f"operator: {message}\nbot: {shortened(result.response)}\n     ({' → '.join(kinds)})\n")
            assert "tool_call" in kinds, f"no tool ran for {message!r}"
            assert "the secret" not in result.response
        used = [
            entry.payload["tool_id"]
            async for entry in runtime.ledgers("ADMIN").ho1m.read(session_id=session_id, entry_type="TOOL_CALL")
        ]
        assert used == ["list_files", "read_file", "list_packages", "read_file"]


def shortened(text: str, lines: int = 6) -> str:
    """The first lines of a long reply."""
    kept = text.splitlines()
    return "\n     ".join(kept[:lines] + ([f"… and {len(kept) - lines} more lines"] if len(kept) > lines else []))


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        home = Path(folder, "home")
        home.mkdir()
        (home / "notes.txt").write_text("The backup runs at 02:00.\n")
        Path(folder, "secret.txt").write_text("the secret\n")
        anyio.run(main, sys.argv[1] if len(sys.argv) > 1 else str(home), str(Path(folder, "plane")))
