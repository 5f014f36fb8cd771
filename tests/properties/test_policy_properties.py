"""What a session adds up to, what it may spend, what it is shown: the pure modules under every input."""

import tempfile
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import fields
from functools import partial
from pathlib import Path
from typing import Any

import anyio
from hypothesis import given, settings
from hypothesis import strategies as st

from kitchener import HO2Config
from kitchener.actors import AttentionRetriever, ContextFragment, QualityGate, TokenBudgeter
from kitchener.actors.attention.templates import AttentionTemplate
from kitchener.actors.sessions.active_session import SessionManager
from kitchener.actors.sessions.session_state import MAX_FAILED_KEPT, SessionState, fold
from kitchener.actors.work.budget import Budget
from kitchener.actors.work.plan import plan_chain, tighter
from kitchener.canonical import digest
from kitchener.clock import SystemClock
from kitchener.ids import SessionId, SubjectId
from kitchener.ledger import open_ledgers
from kitchener.records import events
from kitchener.records.entries import CommonPayload, payload_as
from kitchener.records.ref import Ref
from kitchener.records.tokens import estimate_tokens
from kitchener.records.work_order import Constraints, Cost
from tests.shared.property_examples import examples

# --- the state of a session ---------------------------------------------------------------------------------------------


def cost(tokens: int) -> dict[str, Any]:
    return {"input_tokens": tokens, "output_tokens": 1, "llm_calls": 1, "tool_calls": 0}


@st.composite
def histories(draw: st.DrawFn) -> list[tuple[str, Mapping[str, Any], Ref]]:
    """A session's entries as a supervisor could have written them, crashes included."""
    items: list[tuple[str, Mapping[str, Any]]] = [(events.SESSION_START, {"agent_class": "ADMIN"})]
    work_orders = 0
    failed: list[str] = []
    for turn in range(1, draw(st.integers(0, 6)) + 1):
        items.append((events.TURN_STARTED, {"turn_id": f"T-{turn}", "user_message": draw(st.text(max_size=8))}))
        still_open = []
        for _ in range(draw(st.integers(0, 4))):
            work_orders += 1
            wo_id = f"WO-{work_orders}"
            items.append((events.WO_PLANNED, {"wo_id": wo_id, "wo_type": draw(st.sampled_from(["classify", "synthesize"]))}))
            end = draw(st.sampled_from([events.WO_COMPLETED, events.WO_FAILED, events.WO_ABANDONED, None]))
            if end is None:
                still_open.append(wo_id)
                continue
            spent = {"cost": cost(draw(st.integers(0, 99)))} if end != events.WO_ABANDONED else {}
            items.append((end, {"wo_id": wo_id, **spent}))
            if end == events.WO_FAILED:
                failed.append(wo_id)
        put_away = draw(st.lists(st.sampled_from(failed), unique=True)) if failed else []
        for wo_id in put_away:
            failed.remove(wo_id)
            items.append((draw(st.sampled_from([events.WO_SUPERSEDED, events.WO_ABANDONED])), {"wo_id": wo_id}))
        if draw(st.booleans()):
            spent = {"cost_summary": cost(draw(st.integers(0, 99)))}
            items.append((events.TURN_COMPLETED, {"turn_id": f"T-{turn}", "response": draw(st.text(max_size=8)), **spent}))
        else:
            items.append((events.TURN_ABORTED, {"turn_id": f"T-{turn}", "reason": "crash"}))
            items += [(events.WO_ABANDONED, {"wo_id": wo_id}) for wo_id in still_open]
        if draw(st.booleans()):
            items.append((events.TURN_REJECTED, {"user_message": "x", "reason": "busy"}))
    whole = draw(st.integers(0, len(items)))  # a crash may have come at any point
    return [(kind, payload, Ref("HO2M", f"E-{n}", "sha256:0")) for n, (kind, payload) in enumerate(items[:whole], 1)]


def facts(state: SessionState) -> dict[str, Any]:
    """A state in a form in which two of them can be compared."""
    plain = {each.name: getattr(state, each.name) for each in fields(state) if each.name != "window"}
    return {**plain, "window": [(past.turn_id, past.user_message, past.response) for past in state.window]}


def new_state() -> SessionState:
    return SessionState(SessionId("SES-00000001"), SubjectId("ada"))


@given(histories(), st.data())
def test_a_state_folded_as_it_happens_is_the_state_folded_at_once(
    history: list[tuple[str, Mapping[str, Any], Ref]], data: st.DataObject
) -> None:
    at_once = fold(new_state(), history)
    step_by_step, done = new_state(), 0
    while done < len(history):
        size = data.draw(st.integers(1, len(history) - done))
        step_by_step = fold(step_by_step, history[done : done + size])
        done += size
    assert facts(step_by_step) == facts(at_once)


@given(histories())
def test_a_state_says_what_its_entries_say(history: list[tuple[str, Mapping[str, Any], Ref]]) -> None:
    found = fold(new_state(), history)
    kinds = Counter(kind for kind, _, _ in history)
    assert (found.turn_count, found.completed_turns) == (kinds[events.TURN_STARTED], kinds[events.TURN_COMPLETED])
    assert found.wo_count == kinds[events.WO_PLANNED]
    assert found.tokens_used == sum(
        payload["cost"]["input_tokens"] + payload["cost"]["output_tokens"] for _, payload, _ in history if "cost" in payload
    )
    assert found.cost["llm_calls"] == kinds[events.TURN_COMPLETED]
    assert found.head == (history[-1][2].entry_id if history else "")
    lasting = [(kind, p["wo_id"]) for kind, p, _ in history if kind.startswith("WO_") and kind != events.WO_PLANNED]
    newest = {wo_id: kind for kind, wo_id in lasting}
    assert sorted(found.failed_work_orders) == sorted(wo for wo, kind in newest.items() if kind == events.WO_FAILED)
    assert len(found.failed_work_orders) <= MAX_FAILED_KEPT
    open_turns = kinds[events.TURN_STARTED] - kinds[events.TURN_COMPLETED] - kinds[events.TURN_ABORTED]
    assert (found.open_turn is not None) == (open_turns == 1)
    if found.open_turn is not None:
        planned = {p["wo_id"] for kind, p, _ in history if kind == events.WO_PLANNED and p["wo_id"] not in newest}
        assert set(found.open_turn.work_orders) <= planned
    assert [past.turn_id for past in found.window] == [p["turn_id"] for kind, p, _ in history if kind == events.TURN_COMPLETED]


@settings(max_examples=examples(few=15, many=500))
@given(histories(), st.data())
def test_a_session_that_writes_has_the_state_that_its_ledger_adds_up_to(
    history: list[tuple[str, Mapping[str, Any], Ref]], data: st.DataObject
) -> None:
    """One by one or several in a commit; read back by another process."""
    sizes = [data.draw(st.integers(1, 4)) for _ in history]

    async def check() -> None:
        with tempfile.TemporaryDirectory() as root:
            folder = Path(root)
            opened = partial(open_ledgers, ho1m=folder / "ho1m", ho2m=folder / "ho2m", context=folder / "context")
            async with opened(agent_class="ADMIN") as ledgers:
                session = SessionManager(
                    new_state(), agent_class="ADMIN", ledgers=ledgers, config=HO2Config(), clock=SystemClock()
                )
                left = [(kind, "entity", payload_as(CommonPayload, payload)) for kind, payload, _ in history]
                while left:
                    now, left = left[: sizes[0]], left[sizes.pop(0) :]
                    if len(now) == 1:
                        await session.write(*now[0])
                    else:
                        await session.write_all(now)
                await session.commit()
            async with opened(agent_class="ADMIN") as ledgers:
                read = [(each.entry_type, each.payload, each.ref) async for each in ledgers.ho2m.read()]
        assert len(read) == len(history)
        assert facts(fold(new_state(), read)) == facts(session.state)

    anyio.run(check)


# --- budgets ------------------------------------------------------------------------------------------------------------

scopes = st.lists(st.sampled_from("ab"), min_size=1, max_size=3).map(tuple)
bookings = st.lists(
    st.one_of(
        st.tuples(st.just("allocate"), scopes, st.none() | st.integers(0, 500)),
        st.tuples(st.just("debit"), scopes, st.integers(0, 200)),
        st.tuples(st.just("release"), scopes, st.none()),
    ),
    max_size=30,
)


@given(bookings)
def test_the_books_of_all_scopes_balance(script: list[tuple[str, tuple[str, ...], Any]]) -> None:
    books = TokenBudgeter()
    limits: dict[tuple[str, ...], int | None] = {}
    spent: dict[tuple[str, ...], int] = {}
    for step, scope, value in script:
        if step == "allocate":
            books.allocate(scope, value)
            limits[scope] = value
            spent.setdefault(scope, 0)
        elif step == "debit":
            books.debit(scope, Cost(input_tokens=value, output_tokens=1))
            for depth in range(1, len(scope) + 1):
                if scope[:depth] in spent:
                    spent[scope[:depth]] += value + 1
        else:
            books.release(scope)
            limits.pop(scope, None)
            spent.pop(scope, None)
        around = [scope[:depth] for depth in range(1, len(scope) + 1)]
        left = [limit - spent[each] for each in around if (limit := limits.get(each)) is not None]
        assert books.check(scope) == Budget(min(left) if left else None, limits.get(scope))
        outer = books.check(scope[:1]).remaining
        inner = books.check(scope).remaining
        assert outer is None or (inner is not None and inner <= outer)


@given(st.text(), st.text())
def test_an_estimate_grows_with_the_text_and_is_never_more_than_its_bytes(one: str, other: str) -> None:
    for estimator in ("utf8/3", "chars/4"):
        whole, part = estimate_tokens(one + other, estimator), estimate_tokens(one, estimator)
        assert part <= whole <= part + estimate_tokens(other, estimator)
        assert whole <= len((one + other).encode("utf-8"))
    assert estimate_tokens(one, "utf8/3") == -(-len(one.encode()) // 3)


# --- chains and the gate ------------------------------------------------------------------------------------------------

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)
classifications = st.fixed_dictionaries(
    {},
    optional={
        "speech_act": st.sampled_from(["greeting", "question", "command", "tool_query", "unknown"]) | json_values,
        "tool_request": json_values
        | st.fixed_dictionaries(
            {"tool_id": st.sampled_from(["look", "send", "other"]) | json_values},
            optional={"arguments": json_values | st.dictionaries(st.text(max_size=3), json_values, max_size=2)},
        ),
    },
)


@given(classifications, st.sets(st.sampled_from(["look", "send"])), st.integers(-1, 5), st.integers(1, events.POLICY_VERSION))
def test_a_plan_is_never_longer_than_the_room_and_runs_only_what_is_allowed(
    classification: Any, allowed: set[str], room: int, version: int
) -> None:
    plan = plan_chain(classification, allowed=allowed, read_only=allowed & {"look"}, room=room, policy_version=version)
    if plan.tool_request is not None:
        assert plan.offers_tools is (version > 1)  # since version 2, the model may ask for more tools after it
    assert allowed or not plan.offers_tools
    if plan.tool_request is not None:
        assert room >= 2
        assert plan.tool_request.tool_id in allowed
        assert isinstance(plan.tool_request.arguments, Mapping)
        if plan.tool_request.tool_id == "send":  # an effect needs a command
            assert classification["speech_act"] in ("command", "tool_query", "request")


@given(st.integers(1, 100_000), st.integers(0, 50), st.integers(1, 5))
def test_retries_only_ever_get_tighter(budget: int, rounds: int, attempts: int) -> None:
    limits = Constraints(token_budget=budget, turn_limit=rounds, allowed_tools=("look",), temperature=1.0)
    for attempt in range(1, attempts + 1):
        retry = tighter(limits, attempt)
        assert 1 <= retry.token_budget <= limits.token_budget
        assert retry.turn_limit <= limits.turn_limit
        assert set(retry.allowed_tools) <= set(limits.allowed_tools)
        assert retry.temperature == 0.0
        limits = retry


kinds_of_criteria = st.sampled_from(["min_chars:", "max_chars:", "contains:", "not_contains:", ""])
criteria = st.lists(st.builds("{}{}".format, kinds_of_criteria, st.integers() | st.text(max_size=5)), max_size=4)
outputs = st.none() | st.dictionaries(st.sampled_from(["response_text", "error", "x"]), json_values, max_size=3)


@given(outputs, criteria)
def test_the_gate_has_a_verdict_with_a_reason_on_everything(output: Any, wanted: list[str]) -> None:
    gate = QualityGate(HO2Config())
    verdict = gate.verify(output, wanted, "WO-1")
    assert verdict.decision in ("accept", "reject")
    assert verdict.reason
    assert verdict == gate.verify(output, wanted, "WO-1")
    if verdict.is_accepted:
        assert output is not None
        assert str(output["response_text"]).strip()
        assert not output.get("error")
        assert gate.verify(output, (), "WO-1").is_accepted  # criteria only ever take away


# --- attention ----------------------------------------------------------------------------------------------------------

fragments = st.lists(
    st.builds(
        lambda n, tokens: ContextFragment("HO2M", f"T-{n:03d}", f"turn {n}", tokens), st.integers(0, 20), st.integers(0, 40)
    ),
    max_size=12,
    unique_by=lambda fragment: fragment.source_id,
)
rules = st.lists(
    st.builds(
        lambda n, tokens: ContextFragment("standing_rule", f"INV-{n}", f"rule {n}", tokens),
        st.integers(1, 9),
        st.integers(0, 20),
    ),
    max_size=4,
    unique_by=lambda fragment: fragment.source_id,
)


class Shelf:
    """A context provider with what it is given, in that order."""

    never_waits = True

    def __init__(
        self, newest: Sequence[ContextFragment], matching: Sequence[ContextFragment], registry: Sequence[ContextFragment]
    ) -> None:
        self._newest, self._matching, self._registry = newest, matching, registry

    async def read_ledger_entries(self, session_id: str, *, limit: int) -> Sequence[ContextFragment]:
        return self._newest[-limit:]

    async def search_text(self, session_id: str, query: str, *, limit: int) -> Sequence[ContextFragment]:
        return self._matching[:limit]

    async def read_registry(self) -> Sequence[ContextFragment]:
        return self._registry


@given(fragments, fragments, rules, st.integers(1, 120))
async def test_a_context_keeps_its_budget_its_order_and_its_hash(
    newest: list[ContextFragment], matching: list[ContextFragment], registry: list[ContextFragment], tokens: int
) -> None:
    newest.sort(key=lambda fragment: fragment.source_id)
    sizes = {each.source_id: each.token_estimate for each in newest}
    matching = [each for each in matching if sizes.get(each.source_id, each.token_estimate) == each.token_estimate]
    template = AttentionTemplate.model_validate(
        {
            "template_id": "ATT-TEST",
            "applies_to": {"agent_class": ["*"]},
            "budget": {"max_context_tokens": tokens, "max_queries": 5, "timeout_ms": 1_000},
        }
    )
    attention = AttentionRetriever(Shelf(newest, matching, registry), HO2Config(), template)
    horizontal = await attention.horizontal_scan("SES-00000001", "x")
    found = attention.assemble_wo_context(horizontal, await attention.priority_probe(), "x", {})
    ids = [(fragment.source, fragment.source_id) for fragment in found.fragments]
    assert len(ids) == len(set(ids))
    assert ids == sorted(ids, key=lambda pair: (pair[0] != "standing_rule", pair[1]))
    assert found.budget_used.tokens == sum(fragment.token_estimate for fragment in found.fragments) <= tokens
    shown = [fragment.content for fragment in found.fragments if fragment.source == "HO2M"]
    assert found.context_text == "\n\n".join(shown)
    assert found.context_hash == digest(found.context_text.encode())
    wanted = {fragment.source_id for fragment in (*newest[-6:], *registry)}
    if found.budget_used.cut_by is None:
        assert wanted <= {source_id for _, source_id in ids}
