"""Replays sessions of the recorded root one after the other, until one diverges."""

import time
from collections.abc import Sequence
from pathlib import Path

import anyio

from kitchener.replaying import open_replays
from kitchener.runtime.root_layout import settings_of
from tests.replay import corpus

Session = tuple[str, str]
"""Agent class and session id."""


def sessions_of(root: Path) -> dict[Session, float]:
    """Every session, all of which must be identical, and the CPU time that its replay takes, seconds."""
    return anyio.run(_all, root)


def first_divergence(root: Path, sessions: Sequence[Session]) -> str:
    """Agent class, entry type and field of the first divergence in these sessions; "" if there is none."""
    return anyio.run(_until_divergence, root, sessions)


async def _all(root: Path) -> dict[Session, float]:
    settings = settings_of(root / corpus.SETTINGS.name, None)
    found = {}
    for agent_class in settings.agents:
        async with open_replays(settings, agent_class) as replays:
            for session_id in [*await replays.sessions(), *await replays.consolidations()]:
                started = time.process_time()
                report = await replays.replay(session_id)
                assert report.is_identical, report.text()
                found[agent_class, session_id] = time.process_time() - started
    return found


async def _until_divergence(root: Path, sessions: Sequence[Session]) -> str:
    settings = settings_of(root / corpus.SETTINGS.name, None)
    for agent_class in dict.fromkeys(name for name, _ in sessions):
        async with open_replays(settings, agent_class, verify=False) as replays:
            for session_id in (each for name, each in sessions if name == agent_class):
                report = await replays.replay(session_id)
                if report.divergence is not None:
                    return f"{agent_class} {report.divergence.entry_type} {report.divergence.field}"
    return ""
