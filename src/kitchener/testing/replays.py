"""Recorded sessions as regression tests."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path

from kitchener.config import RuntimeConfig
from kitchener.replaying import ReplayReport, replay_session


async def assert_replays(
    session_id: str,
    *,
    items: Mapping[str, Sequence[str]] | None = None,
    config: RuntimeConfig | str | Path | None = None,
    root: str | Path | None = None,
    tools: Sequence[Callable[..., object]] = (),
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
    def replayed() -> Callable[..., Awaitable[ReplayReport]]:
        """`await replayed("SES-…", root="tests/recorded", items={…})`: see `assert_replays`."""
        return assert_replays
