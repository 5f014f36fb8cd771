"""Every projection of the recorded sessions is made again from the ledgers alone when somebody asks why."""

from pathlib import Path

import pytest

from kitchener.inspection.ledger_files import LedgerPaths
from kitchener.inspection.spending import Spending, read_spending
from kitchener.inspection.turn_views.recorded_turn import read_turn
from kitchener.inspection.turn_views.turn_breaks import read_breaks
from kitchener.replaying import open_replays
from kitchener.runtime.root_layout import settings_of
from tests.replay import corpus


@pytest.mark.parametrize("agent_class", ["RESIDENT:recall", "RESIDENT:clerk"])
@pytest.mark.parametrize("count", [6, pytest.param(1_000, id="all", marks=pytest.mark.soak)])
async def test_what_is_read_of_one_turn_alone_is_what_its_whole_session_says(
    recorded_root: Path, agent_class: str, count: int
) -> None:
    """Why its prompt begins differently, what was called, and the turns that its tools ran: of its first turns, or of all."""
    settings = settings_of(recorded_root / corpus.SETTINGS.name, None)
    paths = LedgerPaths(settings)
    async with open_replays(settings, agent_class) as replays:
        tape = max([await replays.tape_of(each) for each in await replays.sessions()], key=lambda each: len(each.turns))
    turns = [turn.turn_id for turn in tape.turns][:count]
    breaks = await read_breaks(paths, agent_class, tape.session_id)
    spent = await read_spending(paths, agent_class, tape.session_id)
    for view in [await read_turn(paths, agent_class, each) for each in turns]:
        whole = spent.get(view.turn_id, Spending())
        assert view.breaks == breaks.get(view.turn_id)
        assert (view.spent.llm_calls, view.spent.nested_turns) == (whole.llm_calls, whole.nested_turns)
    assert len(turns) > 3
    assert any(breaks.values()), "some prompt of the session begins differently"


@pytest.mark.parametrize("agent_class", ["RESIDENT:declare", "RESIDENT:recall", "RESIDENT:clerk"])
@pytest.mark.parametrize("one_in", [5, pytest.param(1, marks=pytest.mark.soak)])
async def test_each_turn_that_recalled_others_of_its_subject_is_explained_exactly(
    recorded_root: Path, agent_class: str, one_in: int
) -> None:
    """The ranking counts words over all turns of the subject, also over those that it did not offer."""
    settings = settings_of(recorded_root / corpus.SETTINGS.name, None)
    async with open_replays(settings, agent_class) as replays:
        tapes = [await replays.tape_of(each) for each in await replays.sessions()]
    turns = [turn.turn_id for tape in tapes for turn in tape.turns][one_in - 1 :: one_in]
    views = [await read_turn(LedgerPaths(settings), agent_class, each) for each in turns]
    assert [view.turn_id for view in views if not view.is_exact] == []
    recalled = [item for view in views if view.projection is not None for item in view.projection.recalled]
    assert len({item.session_id for item in recalled}) > 1
