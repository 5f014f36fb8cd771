"""What is recorded of a decision, and that long lists come back whole."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kitchener.canonical import canonical_bytes, digest
from kitchener.context import (
    BaseProjection,
    ContextState,
    Flag,
    Projection,
    ProjectionLists,
    Projector,
    Resolution,
    base_of,
    base_of_lists,
    base_ref,
    conflict_flag_payload,
    evidence_item,
    lists_of,
    projection_payload,
    read_base,
    read_lists,
    resolve_active,
)
from kitchener.context.fold.items import Item
from kitchener.context.projection.ref_lists import apply_edits, edit_script, positions_of, runs_of, written_edits
from kitchener.context.ruleset import Ruleset
from kitchener.records.ref import Ref, refs_in
from tests.context.history import (
    CONTEXT_REF,
    ESTIMATE,
    NEWEST,
    SESSION,
    WORD_RANK,
    History,
    Ranked,
    entry_ref,
    second,
    text_of,
)

SEVERAL = 16


def stored(projection: Projection, *bases: BaseProjection | None, **more: Any) -> dict[str, Any]:
    """The payload as it comes back from a ledger."""
    given = [each for each in bases if each is not None]
    payload = projection_payload(projection, text_of(projection), timestamp=second(1), turn_id="T-1", bases=given, **more)
    read: dict[str, Any] = orjson.loads(canonical_bytes(payload))
    return read


def context_ref(number: int) -> Ref:
    return Ref("CONTEXT:ADMIN", f"E-2026-02-18-{number:012d}", digest(str(number).encode()))


def test_a_first_projection_has_all_references_once() -> None:
    history = History()
    declared = history.declare("INT-1")
    opened = history.open("WO-1", "INT-1")
    failed = history.fail("WO-1")
    done = history.turn("T-1", "INT-1", words=900)
    projection = history.project(Ruleset(admission="newest_first", context_budget=100))
    refs = {name: found.ref.as_mapping() for name, found in [("INT-1", declared), ("WO-1", opened), ("T-1", done)]}
    payload = stored(projection, transition_refs=[context_ref(7)])
    rendering = text_of(projection)
    assert payload == {
        "v": 5,
        "overlay_type": "PROJECTION_COMPUTED",
        "timestamp": second(1),
        "intent_id": "INT-1",
        "turn_id": "T-1",
        "mode": "enforce",
        "token_budget": 100,
        "tokens_used": projection.tokens_used,
        "eligible_refs": {"edits": [{"add": [{"ref": refs["INT-1"]}, {"ref": refs["WO-1"]}, {"ref": refs["T-1"]}]}]},
        "visible_refs": {"eligible": [[0, 2]]},
        "suppressed_refs": {"rest": "LOW_URGENCY", "BUDGET_EVICTION": [[2, 3]]},
        "eligibility_reasons": {
            "*": ["REACHABLE_FROM_INTENT"],
            f"HO2M:ADMIN/{declared.ref.entry_id}": ["DEFINES_INTENT"],
            f"HO2M:ADMIN/{opened.ref.entry_id}": ["FAILED_WO", "REACHABLE_FROM_INTENT"],
        },
        "flags": [],
        "ruleset_hash": projection.ruleset_hash,
        "proof_refs": [{"ref": each.as_mapping()} for each in (failed.ref, context_ref(7))],
        "stable_prefix_tokens": rendering.stable_prefix_tokens,
        "stable_prefix_hash": digest(rendering.stable_prefix.encode()),
        "authority": {"tier": "HO2", "signer": None, "sig": None},
    }


def test_lists_that_an_older_version_wrote_out_say_the_same() -> None:
    """Up to version 2 of the payload, the lists of at most 16 eligible entries were written out."""
    history = History()
    history.declare("INT-1")
    history.open("WO-1", "INT-1")
    history.fail("WO-1")
    history.turn("T-1", "INT-1", words=900)
    projection = history.project(Ruleset(admission="newest_first", context_budget=100))
    lists = lists_of(projection)
    older = stored(projection) | {
        "v": 2,
        "eligible_refs": [ref.as_listed() for ref in lists.eligible],
        "visible_refs": [ref.as_listed() for ref in lists.visible],
        "suppressed_refs": [{"ref": ref.as_mapping(), "reason": reason} for ref, reason in lists.suppressed],
        "eligibility_reasons": lists.reasons,
    }
    assert base_ref(older) is None
    assert read_lists(older) == read_lists(stored(projection)) == lists


def recalling(*found: Item) -> Projection:
    """A projection that considers these items of other sessions."""
    history = History()
    history.declare("INT-1")
    history.turn("T-1", "INT-1")
    state, ruleset = history.state(), Ruleset(context_budget=4_000)
    projector = Projector(ruleset, estimate=ESTIMATE)
    return projector.project(state, resolve_active(state, ruleset), ranking=WORD_RANK, message="answer of T-1", recalled=found)


def test_recalled_items_are_grouped_by_ledger_and_their_usual_reason_is_written_once() -> None:
    found = [evidence(900 + n, n, ledger) for n, ledger in enumerate(LEDGERS_OF_EVIDENCE)]
    payload = stored(recalling(*found))
    pairs = [[item.ref.entry_id, item.ref.entry_hash] for item in found]
    assert payload["visible_refs"]["recalled"] == [
        {"ledger_id": "CONTEXT:ADMIN", "entries": pairs[:1]},
        {"ledger_id": "HO2M:ADMIN", "entries": pairs[1:3]},
    ]
    assert payload["suppressed_refs"]["recalled"] == [
        {"ledger_id": "CONTEXT:ADMIN", "reason": "BUDGET_EVICTION", "entries": pairs[3:]}
    ]
    assert payload["eligibility_reasons"]["recalled"] == ["RECALLED"]
    assert not [key for key in payload["eligibility_reasons"] if "00000000090" in key]
    assert {ref for _, ref in refs_in(payload["visible_refs"], "visible_refs")} == {item.ref for item in found[:3]}


def test_recalled_items_that_an_older_version_listed_one_by_one_say_the_same() -> None:
    """Up to version 3 of the payload."""
    found = [evidence(900 + n, n, ledger) for n, ledger in enumerate(LEDGERS_OF_EVIDENCE)]
    projection = recalling(*found)
    payload, lists = stored(projection), lists_of(projection)
    shown, hidden = (
        [item.ref.as_listed() for item in found[:3]],
        {"ref": found[3].ref.as_mapping(), "reason": "BUDGET_EVICTION"},
    )
    reasons = {f"{item.ref.ledger_id}/{item.ref.entry_id}": ["RECALLED"] for item in found}
    older = payload | {
        "v": 3,
        "visible_refs": payload["visible_refs"] | {"recalled": shown},
        "suppressed_refs": payload["suppressed_refs"] | {"recalled": [hidden]},
        "eligibility_reasons": {key: each for key, each in payload["eligibility_reasons"].items() if key != "recalled"}
        | reasons,
    }
    assert read_lists(older) == read_lists(payload) == lists


def test_a_recalled_item_takes_little_more_than_its_id_and_its_hash() -> None:
    few, many = ([evidence(n, n, "HO2M:ADMIN") for n in range(count)] for count in (10, 110))
    payloads = [stored(recalling(*found)) for found in (few, many)]
    assert "recalled" not in payloads[1]["suppressed_refs"]
    sizes = [len(canonical_bytes([payload["visible_refs"], payload["eligibility_reasons"]])) for payload in payloads]
    assert sizes[1] - sizes[0] == 100 * len('["E-2026-02-18-000000000001","sha256:%s"],' % ("0" * 64))


MANY_INTENTS = Ruleset(prompt_layout="chat", recent_turns=None, excerpt_tokens=200, context_budget=6_000)


class Talk:
    """A session whose turns belong to several intents, each projection recorded as a change of an earlier one."""

    def __init__(self, ruleset: Ruleset) -> None:
        self.history, self._projector, self.turns = History(), Projector(ruleset), 0
        self.state: ContextState = ContextState(ESTIMATE, SESSION, is_split=True)
        self.bases: dict[str | None, BaseProjection] = {}
        self.known: dict[Ref, ProjectionLists] = {}
        for number in range(5):
            self.state.apply(self.history.declare(f"INT-{number}"))

    def say(self, intent_id: str, words: int = 1, recalled: Sequence[Item] = ()) -> dict[str, Any]:
        """A turn of an intent. Returns the payload of the projection that the next turn would be shown."""
        self.turns += 1
        name = f"T-{self.turns:04d}"
        for event in (
            self.history.add("TURN_STARTED", name, user_message=f"question {self.turns}", session_id=SESSION),
            self.history.add("TURN_COMPLETED", name, intent_id=intent_id, response="word " * words, session_id=SESSION),
        ):
            self.state.apply(event)
        resolved, ranking = Resolution(intent_id, None, (), ()), Ranked(lambda message, items: (), lambda message, items: [])
        projection = self._projector.project(self.state, resolved, ranking=ranking, turn_ts=second(1), recalled=recalled)
        bases = [self.bases.pop(intent_id, None), next(reversed(self.bases.values()), None)]
        payload = stored(projection, *bases)
        wanted = base_ref(payload)
        lists = read_lists(payload, self.known[wanted] if wanted is not None else None)
        assert lists == lists_of(projection)
        assert read_base(payload, self.known[wanted] if wanted is not None else None)[:2] == lists[:2]
        ref = context_ref(self.turns)
        self.known[ref] = lists
        self.bases[intent_id] = base_of(projection, ref)
        assert self.bases[intent_id].shown == base_of_lists(lists, ref).shown
        return payload


@given(st.lists(st.tuples(st.integers(0, 4), st.integers(0, 60), st.booleans()), max_size=40), st.integers(100, 6_000))
def test_the_lists_of_a_session_with_many_intents_come_back(turns: list[tuple[int, int, bool]], budget: int) -> None:
    talk = Talk(replace(MANY_INTENTS, context_budget=budget, ruleset_hash=""))
    for step, (intent, words, recalls) in enumerate(turns):
        found = [evidence(900 + n, step, ledger) for n, ledger in enumerate(LEDGERS_OF_EVIDENCE)] if recalls else []
        talk.say(f"INT-{intent}", words, found)


@pytest.mark.parametrize("intents", [2, 5])
def test_bytes_of_a_turn_do_not_grow_with_the_shown_turns_of_other_intents(intents: int) -> None:
    """Regression: each of them was named with its hash, and its reason once more. 120 turns took 31 kB."""
    talk = Talk(MANY_INTENTS)
    sizes = []
    for number in range(120):
        payload = talk.say(f"INT-{number // 6 % intents}")
        sizes.append(len(canonical_bytes(payload)))
    assert payload["history"]["items"] == 240
    assert max(sizes[-6 * intents :]) < 9_000  # at a change of the intent, its own turns are eligible again, and named as such
    assert sorted(sizes[-6 * intents :])[-1 - intents] < 2_000


def test_recalled_items_that_the_base_showed_are_not_named_again() -> None:
    talk = Talk(MANY_INTENTS)
    for intent in ("INT-1", "INT-1", "INT-1", "INT-2"):
        payload = talk.say(intent)
    assert base_ref(payload) == context_ref(3)
    assert payload["visible_refs"] == {
        "eligible": [[0, 3]],
        "recalled": {"edits": [[1, 7]]},
        "recent": [[0, 6]],
    }  # the goal is first
    assert len(payload["eligibility_reasons"]) == 3  # the usual ones, and the goal's
    with pytest.raises(ValueError, match=context_ref(3).entry_id):
        read_lists(payload)


def test_while_the_last_projection_of_the_intent_is_close_that_of_another_intent_is_not_read() -> None:
    """Regression: where two intents took turns, comparing with both cost time that grew with the session."""
    talk = Talk(MANY_INTENTS)
    for number in range(60):
        talk.say(f"INT-{number % 2}")
    read: list[Ref] = []

    def bases() -> Iterator[BaseProjection]:
        for each in reversed([*talk.bases.values()]):
            read.append(each.ref)
            yield each

    resolved, ranking = Resolution("INT-1", None, (), ()), Ranked(lambda message, items: (), lambda message, items: [])
    projection = Projector(MANY_INTENTS).project(talk.state, resolved, ranking=ranking, turn_ts=second(1))
    projection_payload(projection, text_of(projection), timestamp=second(1), turn_id="T-1", bases=bases())
    assert read == [context_ref(60)]


def test_recalled_items_that_an_older_version_grouped_say_the_same() -> None:
    """Up to version 4 of the payload, also where the base was named."""
    talk = Talk(MANY_INTENTS)
    for intent in ("INT-1", "INT-1", "INT-2", "INT-2"):
        payload = talk.say(intent)
    lists = talk.known[context_ref(4)]
    ref = base_ref(payload)
    assert ref is not None
    shown = lists.visible[-4:]
    groups = [{"ledger_id": shown[0].ledger_id, "entries": [[each.entry_id, each.entry_hash] for each in shown]}]
    reasons = payload["eligibility_reasons"] | {f"{each.ledger_id}/{each.entry_id}": ["RECENT"] for each in shown}
    visible = {"eligible": payload["visible_refs"]["eligible"], "recalled": groups}
    older = payload | {"v": 4, "visible_refs": visible, "eligibility_reasons": reasons}
    assert read_lists(older, talk.known[ref]) == lists


def test_a_flag_is_recorded_with_what_it_is_about() -> None:
    history = History()
    history.declare("INT-1")
    history.declare("INT-2")
    flag: Flag = history.resolve().flags[0]
    payload = conflict_flag_payload(
        flag, timestamp=second(1), intent_id=None, ruleset_hash=NEWEST.ruleset_hash, proof_refs=[context_ref(1), entry_ref(2)]
    )
    assert orjson.loads(canonical_bytes(payload)) == {
        "v": 2,
        "overlay_type": "CONFLICT_FLAG",
        "timestamp": second(1),
        "kind": "COMPETING_INTENTS",
        "detail": "2 intents are live and none gave way: INT-1, INT-2; keep one of them",
        "intent_id": None,
        "involved_refs": [{"ref": entry_ref(1).as_mapping()}, {"ref": entry_ref(2).as_mapping()}],
        "proof_refs": [{"ref": entry_ref(2).as_mapping()}, {"ref": context_ref(1).as_mapping()}],
        "ruleset_hash": NEWEST.ruleset_hash,
    }


def test_bytes_of_a_turn_do_not_grow_with_the_session() -> None:
    history = History()
    history.declare("INT-1")
    state, projector, base = history.state(), Projector(NEWEST), None
    sizes = []
    for n in range(1, 500):
        for event in (
            history.open(f"WO-{n}", "INT-1"),
            history.add("WO_COMPLETED", f"WO-{n}"),
            history.turn(f"T-{n}", "INT-1"),
        ):
            state.apply(event)
        projection = projector.project(state, resolve_active(state, NEWEST))
        payload = stored(projection, base)
        base = base_of(projection, context_ref(n))
        sizes.append(len(canonical_bytes(payload)))
    assert sizes[-1] <= 1.05 * sizes[60]
    assert sizes[-1] < 2_000


def test_an_intent_that_shares_nothing_with_the_base_is_written_out() -> None:
    history = History()
    history.declare("INT-1")
    for n in range(40):
        history.turn(f"T-{n:02d}", "INT-1")
    base = base_of(history.project(), CONTEXT_REF)
    assert base_ref(stored(history.project(), base)) == CONTEXT_REF
    history.declare("INT-2")
    history.supersede("INT-1", "INT-2")
    for n in range(50, 90):
        history.turn(f"T-{n:02d}", "INT-2")
    assert base_ref(stored(history.project(), base)) is None


def test_a_change_cannot_be_read_without_its_base_nor_with_another_one() -> None:
    history = History()
    history.declare("INT-1")
    for n in range(SEVERAL):
        history.turn(f"T-{n:02d}", "INT-1")
    payload = stored(history.project(), base_of(history.project(), CONTEXT_REF))
    with pytest.raises(ValueError, match=CONTEXT_REF.entry_id):
        read_lists(payload)
    with pytest.raises(ValueError, match="not the base"):
        read_lists(payload, ProjectionLists((entry_ref(1),)))


_moves = st.lists(
    st.sampled_from(["turn", "turn", "turn", "turns", "open", "end", "fail", "defer", "abandon", "switch", "back", "resume"]),
    max_size=16,
)


@given(_moves, st.sampled_from(["newest_first", "lexical"]), st.integers(30, 600))
def test_the_lists_of_every_projection_of_a_session_come_back(moves: list[str], admission: Any, budget: int) -> None:
    """Over a session that moves on, switches its intent, comes back and is resumed from the ledger in between."""
    ruleset = Ruleset(admission=admission, context_budget=budget, max_stubs=3, max_failed_items=1, standing_rules=("Brief.",))
    projector = Projector(ruleset)
    history = History()
    history.declare("INT-1")
    history.declare("INT-2", "INT-1")
    state = history.state()
    bases: dict[str | None, BaseProjection] = {}
    known: dict[Ref, ProjectionLists] = {}
    for step, move in enumerate(["turns", *moves], 1):
        done = len(history.events)
        play(history, move, step)
        for event in history.events[done:]:
            state.apply(event)
        assert not state.invalid
        if move == "resume":
            state = history.state()
            bases = {name: base_of_lists(known[each.ref], each.ref) for name, each in bases.items()}
        resolution = resolve_active(state, ruleset)
        found = [] if step % 3 else [evidence(900 + n, step, ledger) for n, ledger in enumerate(LEDGERS_OF_EVIDENCE)]
        projection = projector.project(state, resolution, ranking=WORD_RANK, message="answer of T-1", recalled=found)
        base = bases.get(resolution.active)
        payload = stored(projection, base)
        wanted = base_ref(payload)
        read = read_lists(payload, known[wanted] if wanted is not None else None)
        assert read == lists_of(projection)
        known[context_ref(step)] = read
        bases[resolution.active] = base_of(projection, context_ref(step))


LEDGERS_OF_EVIDENCE = ("CONTEXT:ADMIN", "HO2M:ADMIN", "HO2M:ADMIN", "CONTEXT:ADMIN")


def evidence(number: int, step: int, ledger_id: str) -> Item:
    """An item of another session; the fourth is so long that it is not shown."""
    text = "question answer" * (4_000 if number == 903 else 1)
    return evidence_item(f"T-{number}", context_ref(number)._replace(ledger_id=ledger_id), second(step), text, ESTIMATE)


def play(history: History, move: str, step: int) -> None:
    """One thing that may happen in a session."""
    state = history.state()
    active = history.resolve().active
    assert active is not None
    work = [record for record in state.attached(active).work_orders.values() if record.status == "open"]
    failed = [record for record in state.attached(active).work_orders.values() if record.status == "failed"]
    if move == "turn":
        history.turn(f"T-{step}", active)
    elif move == "turns":
        for n in range(SEVERAL):
            history.turn(f"T-{step}-{n}", active)
    elif move == "open":
        history.open(f"WO-{step}", active)
    elif move in ("end", "fail", "defer") and work:
        entry_type = {"end": "WO_COMPLETED", "fail": "WO_FAILED", "defer": "WO_DEFERRED"}[move]
        history.add(entry_type, work[0].wo_id, reason="so")
    elif move == "abandon" and failed:
        history.add("WO_ABANDONED", failed[0].wo_id, reason="turn_over")
    elif move == "switch":
        history.declare(f"INT-of-{step}", "INT-1")
        history.supersede(active, f"INT-of-{step}")
    elif move == "back":
        gone = [each.intent_id for each in state.intents.values() if each.status == "superseded"]
        if gone:
            history.add("INTENT_REOPENED", gone[0], reason="back")
            history.supersede(active, gone[0])


_refs = st.lists(st.integers(1, 40).map(entry_ref), unique=True, max_size=30)


@given(_refs, _refs)
def test_a_script_makes_the_one_list_into_the_other(before: list[Ref], after: list[Ref]) -> None:
    edits, added = written_edits(edit_script(before, after))
    assert apply_edits(orjson.loads(orjson.dumps(edits)), before) == tuple(after)
    assert added >= len(set(after) - set(before))


@pytest.mark.parametrize("edits", [[[0, 2], [1, 3]], [[0, 3], [0, 3]], [[2, 1]], [[0, 4]], [[-1, 2]]])
def test_positions_that_a_base_has_not_or_not_in_this_order_are_refused(edits: list[Any]) -> None:
    """So a forged record of a few bytes makes no list without end."""
    before = [entry_ref(n) for n in (1, 2, 3)]
    with pytest.raises(ValueError, match="not the base"):
        apply_edits(edits, before)
    with pytest.raises(ValueError, match="not the base"):
        positions_of(edits, 3)


@given(st.sets(st.integers(0, 50)))
def test_runs_are_positions(indexes: set[int]) -> None:
    assert positions_of(runs_of(sorted(indexes)), 51) == sorted(indexes)
