"""What the hostile stories share: a second subject who is served all the while somebody attacks.

Each story lets one user, model or tool misbehave through the public API while `bystander` talks beside it. What is asserted
of the second subject is counted in work, never in seconds: every message is answered, by the model and not by an apology,
and between the start and the end of each of those turns only so many entries of others were written.
"""

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import anyio
from anyio.abc import TaskStatus

from kitchener.actors.supervisor import HO2Supervisor
from kitchener.records.prompt import PromptRequest
from kitchener.records.turn import TurnCompleted, TurnResult
from kitchener.runtime import Runtime
from tests.acceptance.stack import echo, read_all

BYSTANDER = "bo"
"""The subject who does nothing wrong."""
PAUSE_S = 0.005
"""The bystander's rest between two messages: shorter than a turn, so that attacks of a few turns meet messages on their way."""
MAX_ENTRIES_BETWEEN = 600
"""Entries of others that may be written while one turn of the bystander runs: some thirty turns of everybody else."""


def unless_bystander(attack: Callable[[PromptRequest], Any]) -> Callable[[PromptRequest], Any]:
    """A scripted model that answers the bystander properly and everybody else as the attack does."""

    def answer(request: PromptRequest) -> Any:
        return echo(request) if request.subject_id == BYSTANDER else attack(request)

    return answer


async def streamed_turn(runtime: Runtime, message: str, **options: Any) -> TurnResult:
    """A turn that is read to its end as it happens."""
    updates = [update async for update in runtime.supervisor().stream_turn(message, **options)]
    last = updates[-1]
    assert isinstance(last, TurnCompleted)
    return last.result


@dataclass
class Bystander:
    """The second subject, who talks until told to stop."""

    supervisor: HO2Supervisor
    results: list[TurnResult] = field(default_factory=list)
    """One per message, in order."""
    pause_s: float = PAUSE_S
    """Rest between two messages, so that the processor works for the attack too, or for a command in a process of its own."""
    _is_over: bool = False
    _answered: anyio.Event = field(default_factory=anyio.Event)
    _hurries: anyio.Event = field(default_factory=anyio.Event)

    async def talk(self, *, task_status: TaskStatus[None] = anyio.TASK_STATUS_IGNORED) -> None:
        """Sends one message after the other in one session; started once the first is answered."""
        session_id = await self.supervisor.start_session(subject_id=BYSTANDER)
        while not self._is_over:
            message = f"bystander {len(self.results)}"
            result = await self.supervisor.handle_turn(message, session_id=session_id, subject_id=BYSTANDER)
            assert result.error is None, f"the bystander's turn failed: {result.error}"
            assert not result.degraded, "the bystander got an apology"
            self.results.append(result)
            if len(self.results) == 1:
                task_status.started()
            self._answered.set()
            self._answered = anyio.Event()
            with anyio.move_on_after(self.pause_s):
                await self._hurries.wait()

    async def talk_again(self) -> None:
        """Rests no longer, and returns when one more message has been answered."""
        self._hurries.set()
        await self._answered.wait()

    def stop(self) -> None:
        """The message that is on its way is the last one."""
        self._is_over = True


@asynccontextmanager
async def bystander(runtime: Runtime, agent_class: str = "ADMIN", *, pause_s: float = PAUSE_S) -> AsyncIterator[Bystander]:
    """Has a second subject talk while the block runs, then checks that nothing kept them waiting.

    Args:
        runtime: what serves them
        agent_class: whom they talk to
        pause_s: their rest between two messages

    Raises:
        AssertionError: a message was not answered as it should have been, or others were served before it for too long
    """
    supervisor = runtime.supervisor(agent_class)
    second = Bystander(supervisor, pause_s=pause_s)
    async with anyio.create_task_group() as tasks:
        await tasks.start(second.talk)
        yield second
        with anyio.fail_after(20):
            await second.talk_again()  # still served after the attack
        second.stop()
    await _check_waits(runtime, agent_class, second)


async def _check_waits(runtime: Runtime, agent_class: str, second: Bystander) -> None:
    begun: dict[str, int] = {}
    mine = {result.turn_id for result in second.results}
    own = 0
    for entry in await read_all(runtime.ledgers(agent_class).ho2m):
        turn_id = entry.payload.get("turn_id")
        if turn_id not in mine:
            continue
        own += 1
        if entry.entry_type == "TURN_STARTED":
            begun[turn_id] = entry.seq - own
        elif entry.entry_type == "TURN_COMPLETED":
            others = entry.seq - own - begun[turn_id]
            assert others <= MAX_ENTRIES_BETWEEN, f"{others} entries of others before {turn_id} was answered"
    assert begun.keys() == mine
