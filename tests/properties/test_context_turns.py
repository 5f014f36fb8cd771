"""The Context Authority over random conversations: what a running session keeps is what its ledger says, at every step.

Turns go on, switch, close, fail and are cut off; users declare, fork, close, abandon and reopen in between; the process ends
and another one goes on.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import anyio
import anyio.lowlevel
from hypothesis import given, settings
from hypothesis import strategies as st

from kitchener.context import base_ref, read_lists
from kitchener.errors import InvalidLifecycle
from kitchener.records import events
from kitchener.testing import FakeClock
from tests.acceptance.context.context_kit import OTHER, SID, Talk, talking, without_hashes
from tests.acceptance.stack import QUICK
from tests.shared.property_examples import examples

Step = tuple[str, int]

_WORDS = ("", "", "", "switch", "back", "close", "unclear", "vague", "ghost", "fail", "empty", "deaf", "done", "1")
_SAYS = st.tuples(st.sampled_from([f"say {word}" for word in _WORDS]), st.integers(0, 5))
_CALLS = st.tuples(
    st.sampled_from(["declare", "fork", "close", "abandon", "reopen", "keep", "cut", "restart"]), st.integers(0, 5)
)
_SHARING = st.tuples(st.sampled_from(["share", "elsewhere", "elsewhere"]), st.integers(0, 5))
steps = st.lists(st.one_of(_SAYS, _SAYS, _CALLS), min_size=4, max_size=12)

configs = st.fixed_dictionaries(
    {
        "intent_mode": st.sampled_from(["bridge", "classified", "classified"]),
        "unclear_policy": st.sampled_from(["continue_and_flag", "continue", "declare", "ask"]),
        "intent_conflict_policy": st.sampled_from(["block", "most_recent_wins"]),
        "admission": st.sampled_from(["newest_first", "lexical"]),
        "recall_scope": st.sampled_from(["intent", "session", "subject"]),
        "context_budget": st.sampled_from([20, 100, 2_400]),
        "newest_turns": st.integers(0, 2),
    }
)


async def hold(request: Any) -> None:
    """A model that never answers a message to be cut off."""
    if request.wo_type == "synthesize" and request.variables["user_message"].endswith("cut"):
        await anyio.sleep_forever()


async def cut_off(ada: Talk, message: str) -> None:
    """A turn that is cancelled while its reply is being made, or ends before that."""
    async with anyio.create_task_group() as tasks:
        done = anyio.Event()

        async def speak() -> None:
            await ada.say(message)
            done.set()

        seen = len(ada.provider.requests)
        tasks.start_soon(speak)
        with anyio.fail_after(10):
            while not done.is_set() and not any(each.wo_type == "synthesize" for each in ada.provider.requests[seen:]):
                await anyio.lowlevel.checkpoint()
        tasks.cancel_scope.cancel()


async def take(ada: Talk, step: Step) -> None:
    """One step of a conversation; what cannot be is refused."""
    what, number = step
    ada.clock.advance(1)
    if what.startswith("say "):
        word = what.removeprefix("say ")
        await ada.say(word if word == "1" else f"[{word}] topic {number}" if word else f"topic {number}")
        return
    if what == "cut":
        await cut_off(ada, f"[{('switch', 'close', 'fail')[number % 3]}] cut")
        return
    us, known = ada.supervisor, [entry.entity_id for entry in await ada.intents() if entry.entry_type == "INTENT_DECLARED"]
    chosen = known[number % len(known)] if known else "INT-none"
    shared = await ada.shared()
    calls: dict[str, Callable[[], Awaitable[Any]]] = {
        "share": lambda: us.declare_intent((SID, OTHER)[number % 2], f"project {number}", scope="PROJECT"),
        "elsewhere": lambda: elsewhere(ada, shared[number % len(shared)] if shared else "INT-none", number),
        "declare": lambda: us.declare_intent(SID, f"aim {number}", parent_intent_id=chosen if known and number % 2 else None),
        "fork": lambda: us.fork_intent(SID, chosen, ["left", "right"], active=number % 2 if number < 4 else None),
        "close": lambda: us.close_intent(SID, chosen, "done"),
        "abandon": lambda: us.abandon_intent(SID, chosen, "no more"),
        "reopen": lambda: us.reopen_intent(SID, chosen, "after all"),
        "keep": lambda: us.resolve_conflict(SID, keep=chosen),
    }
    with suppress(InvalidLifecycle):
        await calls[what]()


async def elsewhere(ada: Talk, project: str, number: int) -> None:
    """What another session of the subject does with an intent that both share."""
    us = ada.supervisor
    if number < 3:
        await us.close_intent(OTHER, project, "done")
    elif number < 5:
        await us.reopen_intent(OTHER, project, "not done")
    else:
        await us.declare_intent(SID, "below it", parent_intent_id=project)


async def check(ada: Talk) -> None:
    """What the session keeps equals a fold of its ledger, and no entry of our own was impossible."""
    thread = (await ada.supervisor.session(SID)).thread
    assert thread is not None
    kept, recomputed = await ada.kept(), await ada.state(shared_to=thread.shared_to)
    assert kept == recomputed.snapshot()
    assert not recomputed.invalid


async def check_lists(ada: Talk) -> None:
    """Every recorded projection can be rebuilt, and names entries of HO2m that stand there."""
    found: dict[str, Any] = {}
    state = await ada.state(shared_to=1_000_000)
    known = {each.declared.ref for each in state.intents.values()} | {each.opened.ref for each in state.work_orders.values()}
    known |= {each.ref for each in state.turns.values()}
    for entry in await ada.decisions(events.PROJECTION_COMPUTED):
        base = base_ref(entry.payload)
        lists = found[entry.entry_id] = read_lists(entry.payload, found[base.entry_id] if base is not None else None)
        assert {*lists.eligible, *lists.visible} <= known
        recalled = set(lists.visible) | {ref for ref, _ in lists.suppressed}
        assert set(lists.eligible) <= recalled


@settings(max_examples=examples(few=5, many=200))
@given(conversation=st.lists(st.one_of(_SAYS, _SHARING, _CALLS), min_size=4, max_size=14), config=configs)
async def test_a_session_keeps_what_its_ledger_says(
    anyio_backend: str, conversation: Sequence[Step], config: Mapping[str, Any]
) -> None:
    clock, left = FakeClock(), list(conversation)
    with TemporaryDirectory() as root:
        while left:
            async with talking(Path(root), clock, context_mode="enforce", gate=hold, **config) as ada:
                await ada.start(OTHER)
                await check(ada)
                while left and (step := left.pop(0))[0] != "restart":
                    await take(ada, step)
                    await check(ada)
                await check_lists(ada)


PLAIN = QUICK.model_copy(update={"seal": False})
"""Runs under several roots are compared, and digests of sealed content depend on keys, of which each root has its own."""


async def run(config: Mapping[str, Any], conversation: Sequence[Step], *, restarts: bool) -> tuple[Any, Any, Any]:
    """What the model was shown, what is on record of it, and what the session keeps in the end."""
    clock, left, shown, kept = FakeClock(), list(conversation), list[Any](), None
    with TemporaryDirectory() as root:
        while left:
            async with talking(Path(root), clock, gate=hold, ledger=PLAIN, **config) as ada:
                while left:
                    step = left.pop(0)
                    if step[0] != "restart":
                        await take(ada, step)
                    elif restarts:
                        break
                shown += [each.variables for each in ada.provider.requests]
                kept, recorded = await ada.kept(), await ada.decisions(events.PROJECTION_COMPUTED)
        async with talking(Path(root), clock, ledger=PLAIN, **config) as ada:
            again = await ada.kept()
            assert again == kept
    return shown, [without_hashes(entry.payload) for entry in recorded], without_refs(kept)


def without_refs(kept: Any) -> Any:
    """What a session keeps, without the hashes of entries: those hold the real time that a turn had left."""
    return {"turns": list(kept["turns"]), "intents": list(kept["intents"]), "live": kept["live_intents"]}


@settings(max_examples=examples(few=4, many=150))
@given(conversation=steps, config=configs)
async def test_a_restart_changes_nothing(anyio_backend: str, conversation: Sequence[Step], config: Mapping[str, Any]) -> None:
    whole = {"context_mode": "enforce", **config}
    assert await run(whole, conversation, restarts=False) == await run(whole, conversation, restarts=True)


@settings(max_examples=examples(few=4, many=150))
@given(
    conversation=st.lists(st.one_of(_SAYS, st.sampled_from([("cut", 0), ("restart", 0)])), min_size=4, max_size=10),
    config=configs,
)
async def test_a_restart_changes_nothing_in_the_shadow(
    anyio_backend: str, conversation: Sequence[Step], config: Mapping[str, Any]
) -> None:
    whole = {"context_mode": "shadow", **config}
    assert await run(whole, conversation, restarts=False) == await run(whole, conversation, restarts=True)
