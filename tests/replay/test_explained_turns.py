"""Every projection of the recorded sessions is made again from the ledgers alone when somebody asks why."""

from pathlib import Path

import pytest

from kitchener.inspection.ledger_files import LedgerPaths
from kitchener.inspection.turns.recorded_turn import read_turn
from kitchener.replaying import open_replays
from kitchener.runtime.ledger_paths import settings_of
from tests.replay import corpus


@pytest.mark.parametrize("agent_class", ["RESIDENT:declare", "RESIDENT:recall", "RESIDENT:clerk"])
async def test_each_turn_that_recalled_others_of_its_subject_is_explained_exactly(
    recorded_root: Path, agent_class: str
) -> None:
    """The ranking counts words over all turns of the subject, also over those that it did not offer."""
    settings = settings_of(recorded_root / corpus.SETTINGS.name, None)
    async with open_replays(settings, agent_class) as replays:
        tapes = [await replays.tape_of(each) for each in await replays.sessions()]
    turns = [turn.turn_id for tape in tapes for turn in tape.turns]
    views = [await read_turn(LedgerPaths(settings), agent_class, each) for each in turns]
    assert [view.turn_id for view in views if not view.is_exact] == []
    recalled = [item for view in views if view.projection is not None for item in view.projection.recalled]
    assert len({item.session_id for item in recalled}) > 1
