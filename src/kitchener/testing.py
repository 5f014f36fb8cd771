"""For tests of programs that use Kitchener: scripted answers, a clock that stands still, a lock on real model calls, replays.

A recorded session is a test: `assert_replays` fails with the first decision that comes out otherwise. With pytest there is the
fixture `replayed`, after `from kitchener.testing import replayed` in a `conftest.py`.
"""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import anyio

from kitchener.config import RuntimeConfig
from kitchener.gateway.providers.scripted import ScriptedProvider, use_tool
from kitchener.gateway.switch import forbid_model_calls
from kitchener.records.entries import WorkOrderType
from kitchener.records.prompt import Message, PromptRequest
from kitchener.replaying import ReplayReport, replay_session

__all__ = [
    "FakeClock",
    "ScriptedProvider",
    "assert_replays",
    "forbid_model_calls",
    "prompt_request",
    "replay_session",
    "use_tool",
]


async def assert_replays(
    session_id: str,
    *,
    items: Mapping[str, Sequence[str]] | None = None,
    config: RuntimeConfig | str | Path | None = None,
    root: str | Path | None = None,
    tools: Sequence[Callable[..., Any]] = (),
) -> ReplayReport:
    """A recorded session as a regression test: it replays identical, and shows the model what it should.

    Args:
        session_id: which session
        items: ids of what the model is shown, by turn id; turns that are left out are not looked at
        config, root, tools: as for `replay_session`

    Raises:
        AssertionError: with the first divergence, or the first turn that shows something else
    """
    report = await replay_session(session_id, config=config, root=root, tools=tools)
    if not report.is_identical:
        raise AssertionError(report.text())
    for turn_id, expected in (items or {}).items():
        shown = report.visible.get(turn_id)
        if shown != tuple(expected):
            raise AssertionError(f"{turn_id} shows {shown}, expected {tuple(expected)}")
    return report


try:
    import pytest
except ImportError:  # programs that replay their sessions otherwise have no need of it
    pass
else:

    @pytest.fixture
    def replayed() -> Callable[..., Any]:
        """`await replayed("SES-…", root="tests/recorded", items={…})`: see `assert_replays`."""
        return assert_replays

    __all__ += ["replayed"]


def prompt_request(text: str, *, wo_type: WorkOrderType = "synthesize", within_s: float = 30.0, **fields: Any) -> PromptRequest:
    """A request as the executor would make it, for tests that call a gateway or a provider directly.

    Args:
        text: the user's message; it is the only message and the only variable
        wo_type: what kind of work it is
        within_s: seconds from now until its deadline, on the running event loop's clock
        **fields: any other field of `PromptRequest`
    """
    name = wo_type.upper()
    plain: dict[str, Any] = {
        "contract_id": f"PRC-{name}-001",
        "wo_type": wo_type,
        "prompt_pack_version": f"PRM-{name}-001@00000000",
        "messages": (Message("user", text),),
        "variables": {"user_message": text},
        "call": 1,
        "session_id": "SES-00000001",
        "wo_id": "WO-SES-00000001-001",
        "subject_id": "ada",
        "deadline": anyio.current_time() + within_s,
        "max_tokens": 512,
        "temperature": 0.0,
    }
    return PromptRequest(**{**plain, **fields})


class FakeClock:
    """A time of day that moves only when told to. It is a `kitchener.clock.Clock`.

    Args:
        time_us: where it starts, microseconds since the Unix epoch; the default is 2026-01-01T00:00:00Z
    """

    def __init__(self, time_us: int = 1_767_225_600_000_000) -> None:
        self._time_us = time_us

    def time_us(self) -> int:
        """Microseconds since the Unix epoch, UTC."""
        return self._time_us

    def set(self, time_us: int) -> None:
        """Puts the clock to a time, forwards or back, microseconds since the Unix epoch."""
        self._time_us = time_us

    def advance(self, seconds: float = 0.0, *, us: int = 0) -> None:
        """Moves the clock on, by seconds and microseconds."""
        self._time_us += round(seconds * 1_000_000) + us
