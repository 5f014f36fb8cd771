"""Two people ask and answer in any order, with restarts between: an effect happens once, and only if it is allowed."""

from collections import Counter
from contextlib import AsyncExitStack
from itertools import count
from pathlib import Path

import anyio
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kitchener.errors import ApprovalAnswered, UnknownApproval
from kitchener.records.prompt import PromptRequest, PromptResponse
from kitchener.runtime import Runtime
from kitchener.testing import FakeClock, ScriptedProvider
from tests.acceptance.approval.kit import Desk, model, open_desk
from tests.shared.property_examples import examples

Step = tuple[str, int]
KINDS = st.sampled_from(["ask", "approve", "deny", "grant", "wait", "restart"])
STEPS = st.lists(st.tuples(KINDS, st.integers(0, 5)), min_size=6, max_size=14)
SUBJECTS = ("ada", "bo")
EXPIRES_S = 60


class Life:
    """An agent, and what must be true of it."""

    def __init__(self, root: Path) -> None:
        self._root, self._clock, self.desk = root, FakeClock(), Desk()
        self._stack = AsyncExitStack()
        self.sessions: dict[str, str] = {}
        self.asked: list[tuple[str, str]] = []
        """Each request with its effect."""
        self.allowed: Counter[str] = Counter()
        self.granted: set[str] = set()
        self._names = count()
        self.name = ""

    async def open(self) -> Runtime:
        async def answer(request: PromptRequest) -> PromptResponse:
            return await model([("delete", {"path": self.name})]).complete(request)

        opened = open_desk(self._root, self.desk, ScriptedProvider(answer), self._clock, approval={"expires_s": EXPIRES_S})
        return await self._stack.enter_async_context(opened)

    async def run(self, steps: list[Step]) -> None:
        runtime = await self.open()
        for kind, which in steps:
            if kind == "restart":
                await self._stack.aclose()
                runtime = await self.open()
            elif kind == "wait":
                self._clock.advance(EXPIRES_S / 2)
            elif kind == "ask":
                await self._ask(runtime, SUBJECTS[which % 2])
            elif self.asked:
                await self._answer(runtime, kind, *self.asked[which % len(self.asked)])
            assert Counter(self.desk.done) == self.allowed
        await self._stack.aclose()

    async def _ask(self, runtime: Runtime, subject_id: str) -> None:
        self.name = f"{subject_id} {next(self._names)}"
        result = await runtime.supervisor().handle_turn(
            "tidy up", session_id=self.sessions.get(subject_id), subject_id=subject_id
        )
        self.sessions[subject_id] = result.session_id
        effect = f"delete {self.name}"
        if subject_id in self.granted:
            assert result.pending_approval == ()
            self.allowed[effect] = 1
        else:
            (approval_id,) = result.pending_approval
            self.asked.append((approval_id, effect))

    async def _answer(self, runtime: Runtime, kind: str, approval_id: str, effect: str) -> None:
        supervisor, scope = runtime.supervisor(), "session" if kind == "grant" else "once"
        self.name = effect.removeprefix("delete ")
        try:
            if kind == "deny":
                await supervisor.deny(approval_id)
                return
            await supervisor.approve(approval_id, scope=scope)  # type: ignore[arg-type]
        except (ApprovalAnswered, UnknownApproval):
            return  # it has another answer, or has expired
        self.allowed[effect] = 1
        if kind == "grant":
            self.granted.add(effect.split()[1])


@pytest.mark.hypothesis
@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_an_effect_happens_once_and_only_if_it_was_allowed(tmp_path: Path, backend: str) -> None:
    numbers = count()

    @settings(max_examples=examples(few=5, many=200))
    @given(STEPS)
    def lived(steps: list[Step]) -> None:
        life = Life(tmp_path / str(next(numbers)) / "root")
        anyio.run(life.run, steps, backend=backend)

    lived()
