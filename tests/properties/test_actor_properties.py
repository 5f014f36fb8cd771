"""Mailboxes and admission, whatever happens in whatever order."""

from collections import Counter
from typing import Any

import anyio
from anyio.abc import TaskGroup
from hypothesis import given
from hypothesis import strategies as st

from kitchener.actors.admission.admission import TurnLimiter
from kitchener.errors import Overloaded, SessionBusy, ToolError, TurnReplaced
from kitchener.lanes.mailbox import BACKGROUND, INTERACTIVE, Mailbox
from kitchener.lanes.worker_lane import LaneLimits
from tests.actors.admission.admission_kit import FAR, Message, Place
from tests.actors.time_control import settle

# --- mailboxes ----------------------------------------------------------------------------------------------------------


class Asked:
    """One message: how its handler behaves, and what became of it and of its asker."""

    def __init__(self, number: int, lane: str, *, is_stubborn: bool) -> None:
        self.number, self.lane, self.is_stubborn = number, lane, is_stubborn
        self.scope = anyio.CancelScope()
        self.gate = anyio.Event()
        self.ends_by = "reply"
        self.begun = 0
        self.was_cancelled = False
        self.outcomes: list[object] = []


class Kitchen:
    """A mailbox with a handler that waits for each message's gate, and a record of what must never happen."""

    def __init__(self, concurrency: int, capacity: int, idle_workers: int) -> None:
        limits = LaneLimits(concurrency, capacity, idle_workers)
        self.lanes = {INTERACTIVE: limits, BACKGROUND: LaneLimits(1, 1, idle_workers)}
        self.mailbox: Mailbox[Asked, int] = Mailbox(
            self._handle,
            name="the kitchen",
            lanes=self.lanes,
            max_restarts=10_000,
            restart_window_s=60.0,
            abort_grace_s=60.0,
        )
        self.asked: list[Asked] = []
        self.begun: dict[str, list[int]] = {lane: [] for lane in self.lanes}
        self.asked_for: dict[str, list[int]] = {lane: [] for lane in self.lanes}
        self.running: Counter[str] = Counter()
        self.broken: list[str] = []

    async def _handle(self, message: Asked) -> int:
        message.begun += 1
        self.begun[message.lane].append(message.number)
        self.running[message.lane] += 1
        if self.running[message.lane] > self.lanes[message.lane].concurrency:
            self.broken.append(f"{self.running[message.lane]} handlers run in lane {message.lane}")
        try:
            with anyio.CancelScope(shield=message.is_stubborn):
                await message.gate.wait()
        except anyio.get_cancelled_exc_class():
            message.was_cancelled = True
            raise
        finally:
            self.running[message.lane] -= 1
        if message.ends_by == "known error":
            raise ToolError(str(message.number))
        if message.ends_by == "bug":
            raise ZeroDivisionError(str(message.number))
        return message.number

    async def ask(self, message: Asked) -> None:
        with message.scope:
            self.asked_for[message.lane].append(message.number)
            try:
                message.outcomes.append(await self.mailbox.ask_within(message, lane=message.lane))
            except (ToolError, ZeroDivisionError) as error:
                message.outcomes.append(error)
        if message.scope.cancelled_caught:
            message.outcomes.append("cancelled")

    async def do(self, step: str, first: Any, second: Any, askers: TaskGroup) -> None:
        """One step of a script; only `tick` and `settle` let anybody else run."""
        if step == "ask":
            self.asked.append(Asked(len(self.asked), first, is_stubborn=second))
            askers.start_soon(self.ask, self.asked[-1])
        elif step == "tick":
            for _ in range(first):
                await anyio.lowlevel.checkpoint()
        elif step == "settle":
            await settle()
            self.check_bounds(is_settled=True)
        elif self.asked:
            message = self.asked[first % len(self.asked)]
            if step == "cancel":
                message.scope.cancel()
            elif not message.gate.is_set():
                message.ends_by = second
                message.gate.set()

    def check_bounds(self, *, is_settled: bool = False) -> None:
        for lane, found in self.mailbox.statistics().items():
            limits = self.lanes[lane]
            assert found.waiting <= limits.capacity
            assert 0 <= found.running <= limits.concurrency
            assert 0 <= found.idle <= limits.idle_workers
            if is_settled:  # nobody waits while something is free
                assert found.running == self.running[lane]
                assert not found.waiting or found.running == limits.concurrency
                assert not found.asking_for_room or found.waiting == limits.capacity
        assert self.broken == []

    def check_message(self, message: Asked) -> None:
        """Exactly one outcome, and the one that fits."""
        [outcome] = message.outcomes
        assert message.begun <= 1
        if outcome == "cancelled":
            assert message.scope.cancel_called
            return
        assert message.begun == 1
        assert not message.was_cancelled
        kinds = {"reply": int, "known error": ToolError, "bug": ZeroDivisionError}
        assert type(outcome) is kinds[message.ends_by]
        assert str(outcome) == str(message.number)


steps = st.lists(
    st.one_of(
        st.tuples(st.just("ask"), st.sampled_from([INTERACTIVE, INTERACTIVE, BACKGROUND]), st.booleans()),
        st.tuples(st.just("ask"), st.just(INTERACTIVE), st.just(False)),
        st.tuples(st.just("cancel"), st.integers(0, 50), st.none()),
        st.tuples(st.just("finish"), st.integers(0, 50), st.sampled_from(["reply", "known error", "bug"])),
        st.tuples(st.just("tick"), st.integers(1, 3), st.none()),
        st.tuples(st.just("settle"), st.none(), st.none()),
    ),
    max_size=30,
)


@given(steps, st.integers(1, 3), st.integers(1, 3), st.integers(0, 2))
async def test_every_ask_ends_once_and_leaves_nothing_behind(
    script: list[tuple[str, Any, Any]], concurrency: int, capacity: int, idle_workers: int
) -> None:
    kitchen = Kitchen(concurrency, capacity, idle_workers)
    with anyio.fail_after(20):
        async with kitchen.mailbox.open(), anyio.create_task_group() as askers:
            for step, first, second in script:
                await kitchen.do(step, first, second, askers)
                kitchen.check_bounds()
            for message in kitchen.asked:
                message.gate.set()
            await settle()
            for message in kitchen.asked:
                kitchen.check_message(message)
            for lane, limits in kitchen.lanes.items():
                found = kitchen.mailbox.statistics()[lane]
                assert (found.running, found.waiting, found.asking_for_room) == (0, 0, 0)
                if limits.concurrency == 1:  # with one worker, what began began in the order of asking
                    assert kitchen.begun[lane] == sorted(kitchen.begun[lane], key=kitchen.asked_for[lane].index)
            await check_all_slots_work(kitchen, askers)


async def check_all_slots_work(kitchen: Kitchen, askers: TaskGroup) -> None:
    """As many messages run at once as the lanes allow: no slot was lost on the way."""
    fresh = [
        Asked(len(kitchen.asked) + n, lane, is_stubborn=False)
        for lane, limits in kitchen.lanes.items()
        for n in range(limits.concurrency)
    ]
    for message in fresh:
        askers.start_soon(kitchen.ask, message)
    await settle()
    assert kitchen.running == Counter({lane: limits.concurrency for lane, limits in kitchen.lanes.items()})
    for message in fresh:
        message.gate.set()
    await settle()
    for message in fresh:
        kitchen.check_message(message)
    kitchen.check_bounds(is_settled=True)


# --- admission ----------------------------------------------------------------------------------------------------------

turns = st.lists(
    st.one_of(
        st.tuples(st.just("send"), st.integers(0, 1), st.booleans()),
        st.tuples(st.just("call"), st.integers(0, 1), st.none()),
        st.tuples(st.just("cancel"), st.integers(0, 50), st.none()),
        st.tuples(st.just("finish"), st.integers(0, 50), st.none()),
        st.tuples(st.just("tick"), st.integers(1, 3), st.none()),
        st.tuples(st.just("settle"), st.none(), st.none()),
    ),
    max_size=25,
)


class Call(Message):
    """A call that is no turn, such as the end of a session."""

    async def send(self, place: Place) -> None:
        with self.caller:
            try:
                async with place.admission.call(place.session):
                    place.running.append(self.text)
                    place.most_running = max(place.most_running, len(place.running))
                    self.outcome = "running"
                    try:
                        await self.go.wait()
                    finally:
                        place.running.remove(self.text)
                self.outcome = "done"
            except Overloaded as error:
                self.outcome = error
        if self.caller.cancelled_caught:
            self.outcome = f"cancelled while {self.outcome}"


@given(turns, st.sampled_from(["queue", "reject", "replace"]), st.integers(1, 2), st.integers(0, 2), st.integers(1, 2))
async def test_slots_of_sessions_and_of_the_runtime_never_leak(
    script: list[tuple[str, Any, Any]], policy: str, max_running: int, max_waiting: int, session_queue: int
) -> None:
    limiter = TurnLimiter(max_running, max_waiting)
    places = [Place(limiter=limiter, overlap_policy=policy, session_queue=session_queue) for _ in range(2)]
    messages: list[tuple[Message, Place]] = []

    def check_bounds() -> None:
        assert 0 <= limiter.running <= max_running
        assert 0 <= limiter.waiting <= max_waiting
        for place in places:
            assert place.most_running <= 1
            assert place.session.queue is None or len(place.session.queue.waiting) <= session_queue + 1

    with anyio.fail_after(20):
        async with anyio.create_task_group() as tasks:
            for step, first, second in script:
                if step in ("send", "call"):
                    text = f"m{len(messages)}"
                    message = Message(text, nested=second) if step == "send" else Call(text)
                    messages.append((message, places[first]))
                    tasks.start_soon(message.send, places[first])
                elif step == "tick":
                    for _ in range(first):
                        await anyio.lowlevel.checkpoint()
                elif step == "settle":
                    await settle()
                elif messages:
                    message = messages[first % len(messages)][0]
                    message.caller.cancel() if step == "cancel" else message.go.set()
                check_bounds()
            for message, _ in messages:
                message.go.set()
            with anyio.fail_after(5):
                await limiter.wait_idle()
        for message, place in messages:
            check_outcome(message, place)
        for place in places:
            assert place.session.queue is None
            last = Message("last")
            last.go.set()
            await last.send(place)
            assert last.outcome == "done"
        assert (limiter.running, limiter.waiting) == (0, 0)


def check_outcome(message: Message, place: Place) -> None:
    """One of the outcomes there are; a refusal is on record once, with its reason, and nothing else is."""
    refusals = {Overloaded: "overloaded", SessionBusy: "busy", TurnReplaced: "replaced"}
    recorded = [reason for text, reason in place.written.rejections() if text == message.text]
    outcome = message.outcome
    if isinstance(outcome, Exception):
        assert message.text not in place.order
        assert recorded == ([refusals[type(outcome)]] if not isinstance(message, Call) else [])
        return
    assert outcome in ("done", "replaced while running") or (
        message.caller.cancel_called and str(outcome).startswith("cancelled while")
    )
    assert len(recorded) <= (1 if message.caller.cancel_called else 0)


@given(st.lists(st.tuples(st.integers(0, 9), st.sampled_from(["cancel", "leave", "tick"])), max_size=30), st.integers(1, 2))
async def test_a_limiter_closed_at_any_moment_comes_to_rest(script: list[tuple[int, str]], max_running: int) -> None:
    limiter = TurnLimiter(max_running, 10)
    scopes = [anyio.CancelScope() for _ in range(10)]
    gates = [anyio.Event() for _ in range(10)]

    async def turn(n: int) -> None:
        with scopes[n]:
            try:
                await limiter.enter(FAR)
            except Exception:  # noqa: BLE001  overloaded or closed, both are fine here
                return
            try:
                await gates[n].wait()
            finally:
                limiter.leave()

    with anyio.fail_after(10):
        async with anyio.create_task_group() as tasks:
            for n in range(10):
                tasks.start_soon(turn, n)
            for n, step in script:
                if step == "cancel":
                    scopes[n].cancel()
                elif step == "leave":
                    gates[n].set()
                else:
                    await anyio.lowlevel.checkpoint()
            limiter.close()
            for gate in gates:
                gate.set()
            await limiter.wait_idle()
    assert (limiter.running, limiter.waiting) == (0, 0)
