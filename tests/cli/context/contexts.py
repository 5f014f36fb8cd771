"""Sessions for the commands of the Context Authority: through the command line, and by another program's hand."""

from pathlib import Path
from typing import Any, Final

import anyio

from kitchener.ledger import LedgerClient, LedgerEntry
from kitchener.records.index_keys import index_keys
from kitchener.runtime import open_runtime
from tests.cli.conftest import Cli

HO2M: Final = Path(".kitchener/HO2/ADMIN/ho2m.jsonl")
CONTEXT: Final = HO2M.with_name("context.jsonl")
TALK: Final = (
    "which python packages are installed on the system?",
    "and which version is anyio?",
    "and is trio there?",
    "By the way, I also need a hotel in Oslo for the weekend.",
    "which hotels are near the station?",
)
"""Five turns under two intents: the fourth message is about something else."""


def configure(directory: Path = Path(), /, **settings: Any) -> None:
    """Writes a settings file in which the Context Authority decides."""
    known = {"context_mode": '"enforce"', "intent_mode": '"classified"', "standing_rules": '["Never delete files."]'}
    if "context_mode" not in settings:
        known["recent_turns"] = "0"  # only what belongs to the intent
    lines = [f"{key} = {value}" for key, value in {**known, **settings}.items()]
    (directory / "kitchener.toml").write_text("[agents.ADMIN]\n" + "\n".join(lines) + "\n", encoding="utf-8")


def talk(cli: Cli, *messages: str) -> str:
    """The id of a session with these messages."""
    assert cli("chat", "--subject", "ada", stdin="\n".join(messages).encode()).code == 0
    return str(cli("session", "list", "--json").json[-1]["session_id"])


def say(directory: Path, *messages: str) -> str:
    """The id of a session with these messages in a directory that has settings, by a runtime: for roots that tests copy."""

    async def record() -> str:
        async with open_runtime(directory / "kitchener.toml", root=directory / ".kitchener") as runtime:
            session = await runtime.supervisor().start_session(subject_id="ada")
            for message in messages:
                await runtime.supervisor().handle_turn(message, session_id=session)
            return session

    return anyio.run(record)


def turn(session_id: str, number: int) -> str:
    """The id of a session's n-th turn."""
    return f"T-{session_id[4:]}-{number:06d}"


def intents(cli: Cli, session_id: str) -> list[dict[str, Any]]:
    """What `intent list` says."""
    rows: list[dict[str, Any]] = cli("intent", "list", "--session", session_id, "--json").json
    return rows


def append(path: Path, *entries: tuple[str, str, dict[str, Any]]) -> list[str]:
    """Appends entries to a supervisor's ledger, as any program may; returns their ids."""

    async def write() -> list[str]:
        index = path.parents[2] / "index"
        opened = LedgerClient.open(path, ledger_id="HO2M:ADMIN", index_dir=index, index_keys=index_keys)
        async with opened as ledger:
            return [(await ledger.write(LedgerEntry(*entry))).entry_id for entry in entries]

    return anyio.run(write)


def declared(intent_id: str, **more: Any) -> tuple[str, str, dict[str, Any]]:
    """`INTENT_DECLARED` with no more than it needs."""
    return (
        "INTENT_DECLARED",
        intent_id,
        {"intent_id": intent_id, "scope": "SESSION", "objective": f"goal {intent_id}", **more},
    )


def superseded(intent_id: str, by: str, **more: Any) -> tuple[str, str, dict[str, Any]]:
    """`INTENT_SUPERSEDED`."""
    fields = {"intent_id": intent_id, "superseded_by_intent_id": by, "reason": "another"}
    return ("INTENT_SUPERSEDED", intent_id, {**fields, **more})


def completed(turn_id: str, intent_id: str, **more: Any) -> tuple[str, str, dict[str, Any]]:
    """`TURN_COMPLETED` with no more than it needs."""
    fields = {"turn_id": turn_id, "intent_id": intent_id, "user_message": f"question {turn_id}", "response": "answer"}
    return ("TURN_COMPLETED", turn_id, {**fields, **more})
