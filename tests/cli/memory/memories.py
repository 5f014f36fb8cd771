"""A root with long-term memory, made by the runtime with the offline model."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anyio

from kitchener.runtime import open_runtime
from tests.cli.shared.commands import Outcome

SETTINGS = """
[ledger]
durability = "none"
[memory]
gate_window_hours = 87600
[agents.ADMIN]
ho3_enabled = true
[agents."RESIDENT:solo"]
ho3_enabled = true
"""
PACKAGES = "which python packages are installed on the system?"
DISK = "how much disk space is free on this server?"
SIGNALS = Path(".kitchener/HOT/memory/signals.jsonl")
OVERLAYS = Path(".kitchener/HOT/memory/overlays.jsonl")


def fill(directory: Path) -> None:
    """Ada and Bo teach ADMIN two lines each, of which Ada is shown hers in three turns; Cy alone teaches RESIDENT:solo."""
    (directory / "kitchener.toml").write_text(SETTINGS, encoding="utf-8")
    anyio.run(_fill, directory)


async def _fill(directory: Path) -> None:
    async with open_runtime(directory / "kitchener.toml", root=directory / ".kitchener") as runtime:
        for agent_class, subject, sessions in (("ADMIN", "ada", 4), ("ADMIN", "bo", 3), ("RESIDENT:solo", "cy", 3)):
            supervisor = runtime.supervisor(agent_class)
            for _ in range(sessions):
                session = await supervisor.start_session(subject_id=subject)
                for message in (PACKAGES, DISK):
                    await supervisor.handle_turn(message, session_id=session)
                    await runtime.drain()


def learned(cli: Callable[..., Outcome], subject: str = "ada", *more: str) -> dict[str, Any]:
    """What was learned about a subject, by signal."""
    outcome = cli("memory", "biases", "--subject", subject, "--all", "--json", *more)
    assert outcome.code == 0
    return {each["signal_id"]: each for each in outcome.json["biases"]}


def is_one_line(outcome: Outcome, code: int) -> bool:
    """Whether a command failed as a user's mistake should."""
    return outcome.code == code and not outcome.out and outcome.err.startswith("kitchener: ") and outcome.err.count("\n") == 1


def as_lines(*values: Any) -> str:
    """JSON lines."""
    return "".join(f"{json.dumps(value)}\n" for value in values)
