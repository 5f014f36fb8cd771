"""What a session keeps of its projections, and what it reads back of records that nobody should have written."""

from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import pytest

from kitchener.actors.authority.session_thread import SessionThread
from kitchener.context import BaseProjection, ContextState
from kitchener.context.ruleset import Ruleset
from kitchener.records.ref import Ref
from tests.context.history import ESTIMATE, SESSION

GOAL = Ref("HO2M:ADMIN", "E-2026-02-18-000000000009", "sha256:9")
WRONG: dict[str, Any] = {
    "positions beyond the list": {"eligible": [[0, 999]]},
    "no positions": {"eligible": None},
    "half a run": {"eligible": [[0]]},
    "nothing": {},
    "ids of several types": {"eligible": [], "recalled": [{"ledger_id": "L", "entries": [["a", "b"], [3, "b"]]}]},
    "ids that are objects": {"eligible": [], "recalled": [{"ledger_id": "L", "entries": [[{}, "b"], [{}, "b"]]}]},
    "recalled text": {"eligible": [], "recalled": "x"},
    "edits without a base": {"eligible": [], "recalled": {"edits": [[0, 3]]}},
}


def thread() -> SessionThread:
    return SessionThread(ContextState(ESTIMATE, SESSION, is_split=True), Ruleset(), is_shadow=False)


class Recorded:
    """A ledger with one projection for each that is said to be visible; each is a change of the one before it."""

    def __init__(self, version: int, *visible: Any) -> None:
        self.entries: list[Any] = []
        for number, each in enumerate(visible, 1):
            ref = Ref("CONTEXT:ADMIN", f"E-2026-02-18-{number:012d}", f"sha256:{number}")
            before = {"base": self.entries[-1].ref.as_mapping()} if self.entries else {}
            edits = [[0, 1]] if self.entries else [{"add": [GOAL.as_listed()]}]
            payload = {
                "v": version,
                "intent_id": "INT-1",
                "eligible_refs": {**before, "edits": edits},
                "visible_refs": each,
            }
            self.entries.append(
                SimpleNamespace(entry_type="PROJECTION_COMPUTED", entry_id=ref.entry_id, ref=ref, payload=payload)
            )

    async def read(self, session_id: str) -> AsyncIterator[Any]:
        for each in self.entries:
            yield each


@pytest.mark.parametrize("version", [3, 4, 5])
@pytest.mark.parametrize("visible", WRONG.values(), ids=WRONG)
async def test_a_projection_that_cannot_be_read_is_no_base_and_keeps_no_session_shut(visible: Any, version: int) -> None:
    session, context = thread(), Recorded(version, visible)
    await session.read_back(SESSION, [], context)  # type: ignore[arg-type]
    assert session.bases_for("INT-1") == []


async def test_a_projection_is_the_base_of_the_next_one() -> None:
    session, context = thread(), Recorded(5, {"eligible": [[0, 1]]})
    await session.read_back(SESSION, [], context)  # type: ignore[arg-type]
    for intent_id in ("INT-1", "INT-2"):
        (base,) = session.bases_for(intent_id)
        assert (base.ref, base.head, base.shown) == (context.entries[-1].ref, (GOAL,), (GOAL,))


async def test_what_a_base_showed_twice_counts_once_so_that_no_chain_of_changes_grows() -> None:
    """Each shows its eligible item, and recalls what the one before it showed: the same item."""
    again = {"eligible": [[0, 1]], "recalled": {"edits": [[0, 1]]}}
    session, context = thread(), Recorded(5, {"eligible": [[0, 1]]}, *[again] * 20)
    await session.read_back(SESSION, [], context)  # type: ignore[arg-type]
    (base,) = session.bases_for("INT-1")
    assert (base.ref, base.shown) == (context.entries[-1].ref, (GOAL,))
    longer = {"eligible": [[0, 1]], "recalled": {"edits": [[0, 2]]}}
    session, context = thread(), Recorded(5, {"eligible": [[0, 1]]}, again, longer)
    await session.read_back(SESSION, [], context)  # type: ignore[arg-type]
    assert session.bases_for("INT-1") == [], "its base has one item, not two"


def test_what_was_shown_is_kept_for_a_few_intents_only() -> None:
    session = thread()
    for number in range(30):
        ref = Ref("CONTEXT:ADMIN", f"E-{number}", "sha256:1")
        session.keep_base(f"INT-{number}", BaseProjection(ref, (GOAL,), shown=(GOAL,)))
    assert [name for name, base in session.bases.items() if base.shown] == [f"INT-{number}" for number in range(22, 30)]
    assert [base.ref.entry_id for base in session.bases_for("INT-3")] == ["E-3", "E-29"]
