"""Whatever stands in any argument of a public call: a `CallerError` that names it, and the next subject is served.

Regression: a number of 5,000 digits or a list nested deep in place of an id was a `ValueError` or `RecursionError` out of the
error's own text; numbers and lists as agent class, namespace, intent or subject were a `TypeError` or `AttributeError`.
"""

import inspect
import tempfile
from collections.abc import Awaitable, Callable, Mapping
from contextlib import aclosing, suppress
from pathlib import Path
from typing import Any, Final

import anyio
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kitchener import HO2Supervisor
from kitchener.config import LedgerConfig
from kitchener.errors import CallerError, TurnTimeout
from kitchener.runtime import Runtime
from kitchener.testing import ScriptedProvider
from tests.acceptance.stack import echo, open_scripted, read_all
from tests.hostile.kit import BYSTANDER
from tests.shared.property_examples import examples

NAMESPACE: Final = "ADMIN/ada"
KIND: Final = "intent:question"


async def read_through(updates: Any) -> None:
    async with aclosing(updates) as items:
        async for _ in items:
            pass


async def at_once(call: Callable[[], object]) -> None:
    call()


def waiting(session_id: str) -> str:
    """The id of a call that could wait for a person."""
    return f"WO-{session_id}-001.1"


Call = Callable[[Runtime, str, str, Any], Awaitable[object]]
"""A runtime, a session, its intent, and what somebody passes."""
CALLS: Mapping[str, Call] = {
    "start_session session_id": lambda r, s, i, v: r.supervisor().start_session(v),
    "start_session subject_id": lambda r, s, i, v: r.supervisor().start_session(subject_id=v),
    "start_session external_id": lambda r, s, i, v: r.supervisor().start_session(external_id=v),
    "find_external external_id": lambda r, s, i, v: r.supervisor().find_external(v),
    "find_external subject_id": lambda r, s, i, v: r.supervisor().find_external("x", subject_id=v),
    "session session_id": lambda r, s, i, v: r.supervisor().session(v),
    "end_session session_id": lambda r, s, i, v: r.supervisor().end_session(v),
    "end_session reason": lambda r, s, i, v: r.supervisor().end_session(s, reason=v),
    "handle_turn message": lambda r, s, i, v: r.supervisor().handle_turn(v),
    "handle_turn session_id": lambda r, s, i, v: r.supervisor().handle_turn("hi", session_id=v),
    "handle_turn subject_id": lambda r, s, i, v: r.supervisor().handle_turn("hi", subject_id=v),
    "handle_turn idempotency_key": lambda r, s, i, v: r.supervisor().handle_turn("hi", idempotency_key=v),
    "handle_turn memory": lambda r, s, i, v: r.supervisor().handle_turn("hi", memory=v),
    "handle_turn deadline": lambda r, s, i, v: r.supervisor().handle_turn("hi", deadline=v),
    "stream_turn message": lambda r, s, i, v: read_through(r.supervisor().stream_turn(v)),
    "stream_turn session_id": lambda r, s, i, v: read_through(r.supervisor().stream_turn("hi", session_id=v)),
    "stream_turn subject_id": lambda r, s, i, v: read_through(r.supervisor().stream_turn("hi", subject_id=v)),
    "stream_turn idempotency_key": lambda r, s, i, v: read_through(r.supervisor().stream_turn("hi", idempotency_key=v)),
    "stream_turn memory": lambda r, s, i, v: read_through(r.supervisor().stream_turn("hi", memory=v)),
    "stream_turn deadline": lambda r, s, i, v: read_through(r.supervisor().stream_turn("hi", deadline=v)),
    "run_consolidation signal_ids": lambda r, s, i, v: r.supervisor().run_consolidation(v, namespace=NAMESPACE),
    "run_consolidation signal_ids of": lambda r, s, i, v: r.supervisor().run_consolidation([v], namespace=NAMESPACE),
    "run_consolidation namespace": lambda r, s, i, v: r.supervisor().run_consolidation([KIND], namespace=v),
    "run_consolidation gate_ts": lambda r, s, i, v: r.supervisor().run_consolidation([KIND], namespace=NAMESPACE, gate_ts=v),
    "declare_intent session_id": lambda r, s, i, v: r.supervisor().declare_intent(v, "a goal"),
    "declare_intent objective": lambda r, s, i, v: r.supervisor().declare_intent(s, v),
    "declare_intent scope": lambda r, s, i, v: r.supervisor().declare_intent(s, "a goal", scope=v),
    "declare_intent parent_intent_id": lambda r, s, i, v: r.supervisor().declare_intent(s, "a goal", parent_intent_id=v),
    "declare_intent targets": lambda r, s, i, v: r.supervisor().declare_intent(s, "a goal", targets=v),
    "fork_intent session_id": lambda r, s, i, v: r.supervisor().fork_intent(v, i, ["a"]),
    "fork_intent intent_id": lambda r, s, i, v: r.supervisor().fork_intent(s, v, ["a"]),
    "fork_intent objectives": lambda r, s, i, v: r.supervisor().fork_intent(s, i, v),
    "fork_intent active": lambda r, s, i, v: r.supervisor().fork_intent(s, i, ["a"], active=v),
    "close_intent intent_id": lambda r, s, i, v: r.supervisor().close_intent(s, v, "done"),
    "close_intent outcome": lambda r, s, i, v: r.supervisor().close_intent(s, i, v),
    "abandon_intent intent_id": lambda r, s, i, v: r.supervisor().abandon_intent(s, v, "no"),
    "abandon_intent reason": lambda r, s, i, v: r.supervisor().abandon_intent(s, i, v),
    "reopen_intent intent_id": lambda r, s, i, v: r.supervisor().reopen_intent(s, v, "yes"),
    "reopen_intent reason": lambda r, s, i, v: r.supervisor().reopen_intent(s, i, v),
    "resolve_conflict keep": lambda r, s, i, v: r.supervisor().resolve_conflict(s, keep=v),
    "supervisor agent_class": lambda r, s, i, v: at_once(lambda: r.supervisor(v)),
    "ledgers agent_class": lambda r, s, i, v: at_once(lambda: r.ledgers(v)),
    "memory agent_class": lambda r, s, i, v: at_once(lambda: r.memory(v)),
    "erase_subject subject_id": lambda r, s, i, v: r.erase_subject(v),
    "handle_turn acceptance": lambda r, s, i, v: r.supervisor().handle_turn("hi", acceptance=v),
    "handle_turn parts": lambda r, s, i, v: r.supervisor().handle_turn("hi", parts=v),
    "handle_turn speaker": lambda r, s, i, v: r.supervisor().handle_turn("hi", speaker=v),
    "handle_turn output": lambda r, s, i, v: r.supervisor().handle_turn("hi", output=v),
    "handle_turn tool_choice": lambda r, s, i, v: r.supervisor().handle_turn("hi", tool_choice=v),
    "handle_turn client_tools": lambda r, s, i, v: r.supervisor().handle_turn("hi", client_tools=v),
    "stream_turn acceptance": lambda r, s, i, v: read_through(r.supervisor().stream_turn("hi", acceptance=v)),
    "stream_turn parts": lambda r, s, i, v: read_through(r.supervisor().stream_turn("hi", parts=v)),
    "stream_turn speaker": lambda r, s, i, v: read_through(r.supervisor().stream_turn("hi", speaker=v)),
    "stream_turn output": lambda r, s, i, v: read_through(r.supervisor().stream_turn("hi", output=v)),
    "stream_turn tool_choice": lambda r, s, i, v: read_through(r.supervisor().stream_turn("hi", tool_choice=v)),
    "stream_turn client_tools": lambda r, s, i, v: read_through(r.supervisor().stream_turn("hi", client_tools=v)),
    "handle_turn listener": lambda r, s, i, v: r.supervisor().handle_turn("hi", listener=v),
    "find_all_external external_id": lambda r, s, i, v: r.supervisor().find_all_external(v),
    "find_all_external subject_id": lambda r, s, i, v: r.supervisor().find_all_external("x", subject_id=v),
    "find_all_external limit": lambda r, s, i, v: r.supervisor().find_all_external("x", limit=v),
    "approve approval_id": lambda r, s, i, v: r.supervisor().approve(v),
    "approve arguments": lambda r, s, i, v: r.supervisor().approve(waiting(s), arguments=v),
    "approve answer": lambda r, s, i, v: r.supervisor().approve(waiting(s), answer=v),
    "approve scope": lambda r, s, i, v: r.supervisor().approve(waiting(s), scope=v),
    "approve answered_by": lambda r, s, i, v: r.supervisor().approve(waiting(s), answered_by=v),
    "approve message": lambda r, s, i, v: r.supervisor().approve(waiting(s), message=v),
    "approve listener": lambda r, s, i, v: r.supervisor().approve(waiting(s), listener=v),
    "deny approval_id": lambda r, s, i, v: r.supervisor().deny(v),
    "deny reason": lambda r, s, i, v: r.supervisor().deny(waiting(s), reason=v),
    "deny answered_by": lambda r, s, i, v: r.supervisor().deny(waiting(s), answered_by=v),
    "deny listener": lambda r, s, i, v: r.supervisor().deny(waiting(s), listener=v),
    "answer_client_calls outputs": lambda r, s, i, v: r.supervisor().answer_client_calls(v),
    "answer_client_calls listener": lambda r, s, i, v: r.supervisor().answer_client_calls({waiting(s): "x"}, listener=v),
    "close_intent session_id": lambda r, s, i, v: r.supervisor().close_intent(v, i, "done"),
    "abandon_intent session_id": lambda r, s, i, v: r.supervisor().abandon_intent(v, i, "no"),
    "reopen_intent session_id": lambda r, s, i, v: r.supervisor().reopen_intent(v, i, "yes"),
    "resolve_conflict session_id": lambda r, s, i, v: r.supervisor().resolve_conflict(v, keep=i),
    "sessions agent_class": lambda r, s, i, v: r.sessions(v),
    "sessions subject_id": lambda r, s, i, v: r.sessions(subject_id=v),
    "sessions limit": lambda r, s, i, v: r.sessions(limit=v),
    "pending_approvals agent_class": lambda r, s, i, v: r.pending_approvals(v),
    "pending_approvals session_id": lambda r, s, i, v: r.pending_approvals(session_id=v),
    "pending_approvals subject_id": lambda r, s, i, v: r.pending_approvals(subject_id=v),
}
IDS: Final = [name for name in CALLS if name.endswith(("_id", "idempotency_key", "agent_class", "namespace", "keep"))]


def test_every_argument_of_these_calls_is_among_them() -> None:
    named: dict[str, set[str]] = {}
    for call, argument in (each.split()[:2] for each in CALLS):
        named.setdefault(call, set()).add(argument)
    for call, arguments in named.items():
        function = getattr(HO2Supervisor, call, None) or getattr(Runtime, call)
        assert arguments == {*inspect.signature(function).parameters} - {"self"}, call


def nested(levels: int) -> Any:
    value: Any = 1
    for _ in range(levels):
        value = [value]
    return value


NO_IDS: Final[Mapping[str, Any]] = {
    "a number": 5,
    "a fraction": 1.5,
    "a bool": True,
    "5,000 digits": 10**5_000,
    "a list": ["ada"],
    "a list of 5,000 digits": [10**5_000],
    "a deep list": nested(5_000),
    "an object": {"a": 1},
    "infinity": float("inf"),
    "bytes": b"ada",
}


def open_to_all(root: Path) -> Any:
    """A runtime with everything on: intents, long-term memory and a keyring."""
    ledger = LedgerConfig(durability="os", linger_ms=0, keyring=str(root / "keys"))
    return open_scripted(root, ScriptedProvider(lenient), context_mode="enforce", ho3_enabled=True, ledger=ledger)


def lenient(request: Any) -> Any:
    return {"line": "is fond of greetings"} if request.wo_type == "consolidate" else echo(request)


@pytest.mark.parametrize("anyio_backend", ["asyncio"])  # arguments are checked without waiting
@pytest.mark.parametrize("what", NO_IDS)
async def test_what_is_no_id_is_a_callers_error_in_every_call_that_takes_one(tmp_path: Path, what: str) -> None:
    async with open_to_all(tmp_path) as runtime:
        session_id = await runtime.supervisor().start_session(subject_id="mallory")
        intent_id = await runtime.supervisor().declare_intent(session_id, "a goal")
        before = len(await read_all(runtime.ledgers().ho2m))
        for name in IDS:
            with pytest.raises(CallerError) as caught:
                await CALLS[name](runtime, session_id, intent_id, NO_IDS[what])
            assert len(str(caught.value)) < 400, name
        assert len(await read_all(runtime.ledgers().ho2m)) == before, "nothing was started"


JSON: Final = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters(), max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=10), inner, max_size=3),
    max_leaves=5,
)
# Hypothesis cannot print a number of 5,000 digits or a deep list, so those are drawn by the names that `NO_IDS` has for them.
ATTEMPTS: Final = st.lists(
    st.tuples(st.sampled_from(sorted(CALLS)), JSON | st.sampled_from(sorted(NO_IDS))), min_size=1, max_size=20
)


@pytest.mark.parametrize("anyio_backend", ["asyncio"])  # arguments are checked without waiting
@settings(max_examples=examples(few=12, many=200), deadline=None)
@given(attempts=ATTEMPTS)
async def test_any_value_in_any_argument_is_a_callers_error_or_right_and_the_next_subject_is_served(
    anyio_backend: str, attempts: list[tuple[str, Any]]
) -> None:
    with tempfile.TemporaryDirectory() as folder, anyio.fail_after(60):
        async with open_to_all(Path(folder)) as runtime:
            supervisor = runtime.supervisor()
            for name, value in attempts:
                given_value = NO_IDS.get(value, value) if isinstance(value, str) else value
                session_id = await supervisor.start_session(subject_id="mallory")
                intent_id = await supervisor.declare_intent(session_id, "a goal")
                with suppress(CallerError, TurnTimeout):  # 1e-9 is a deadline
                    await CALLS[name](runtime, session_id, intent_id, given_value)
                result = await supervisor.handle_turn("hello", subject_id=BYSTANDER)
                assert result.response == "echo: hello", name
