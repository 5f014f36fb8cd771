"""A companion that gets to know whom it talks to: what recurs over several sessions shows in the next one, and only theirs.

    python -m examples.companion_bot.main

Ada asks about her tomatoes on three evenings. Nobody tells the companion to remember anything: signals are counted, a gate
opens when one has recurred often enough in enough sessions, and after the reply one line is learned from it. On the fourth
evening the model is shown what was learned about Ada. Grace asks the same question, and nothing of it reaches her.
"""

import tempfile
from typing import Annotated

import anyio
from pydantic import Field

from kitchener import HO2Config, HO2Supervisor, Runtime, RuntimeConfig, open_runtime, tool
from kitchener.config import GateThresholds, HO3MemoryConfig, RouterConfig
from kitchener.gateway import OfflineProvider, PromptRequest, PromptResponse

EVENINGS = (
    ("what does the garden calendar say about tomatoes?", "how often do tomatoes need water on a balcony?"),
    ("what does the garden calendar say about basil?", "which herbs grow well beside tomatoes?", "do tomatoes need a stake?"),
    ("what does the garden calendar say about roses?", "why do my tomatoes have yellow leaves?"),
)
QUESTION = "should tomatoes come inside in October?"
OTHER_QUESTION = "when are roses pruned?"
ADA, GRACE = "ADMIN/ada", "ADMIN/grace"
TOMATOES, CALENDAR = "domain:tomatoes", "tool:garden_calendar"
TOMATOES_LINE, CALENDAR_LINE = "Often talks about tomatoes.", "Requests often need the tool garden calendar."

SEASONS = {
    "tomatoes": "sow in March, plant out in May, harvest from July to October",
    "basil": "sow in April, plant out in June, harvest until the first frost",
    "roses": "plant in November, prune in March, enjoy from June on",
}


@tool(read_only=True)
def garden_calendar(plant: Annotated[str, Field(description="which plant, e.g. tomatoes")]) -> str:
    """Show the months in which a plant is sown, planted out and harvested."""
    return f"{plant}: {SEASONS.get(plant, 'not in the calendar')}"


class Overheard:
    """The offline model, and a note of the learned lines that it was shown with the latest message."""

    def __init__(self) -> None:
        self._offline = OfflineProvider()
        self.lines: list[str] = []

    async def complete(self, request: PromptRequest) -> PromptResponse:
        """Passes the request on."""
        if request.wo_type == "synthesize":
            self.lines = list(request.variables["assembled_context"].get("ho3_biases", ()))
        return await self._offline.complete(request)


def settings(root: str) -> RuntimeConfig:
    """Long-term memory on, with the usual thresholds of 5 events in 3 sessions; but 3 uses make a tool a habit, and that
    somebody asks questions says nothing about them."""
    companion = HO2Config(
        instructions="You help people with their balcony gardens.",
        tools=("garden_calendar",),
        labels_vocabulary={"domain": ("tomatoes", "roses"), "task": ("planning",)},
        ho3_enabled=True,
    )
    memory = HO3MemoryConfig(
        gate_overrides={"tool": GateThresholds(count=3, sessions=3)}, gate_exclude=("outcome:success", "intent:question")
    )
    return RuntimeConfig(
        plane_root=root,
        router=RouterConfig(default_provider="overheard"),
        memory=memory,
        agents={"ADMIN": companion},
    )


async def meet(runtime: Runtime) -> list[str]:
    """Three evenings with Ada; returns the signals whose gate opened, in the order in which they did."""
    supervisor, opened = runtime.supervisor(), list[str]()
    for evening, messages in enumerate(EVENINGS, 1):
        session_id = await supervisor.start_session(subject_id="ada")
        for message in messages:
            result = await supervisor.handle_turn(message, session_id=session_id)
            print(f"evening {evening}, ada: {message}\n           bot: {shortened(result.response)}")
            opened += result.consolidation_candidates
            await runtime.drain()  # learning comes after the reply and never delays one; here we want to see it
        print()
    return opened


def shortened(reply: str) -> str:
    """A reply without what the offline model says about itself each time."""
    before, _, rest = reply.partition(" I am Kitchener's offline model")
    return before + rest.partition("real answers.")[2]


async def ask(supervisor: HO2Supervisor, overheard: Overheard, subject_id: str, message: str) -> tuple[str, list[str]]:
    """A first message in a new session: the reply, and the learned lines that the model was shown."""
    result = await supervisor.handle_turn(message, subject_id=subject_id)
    shown = " | ".join(overheard.lines) or "nothing"
    print(f"{subject_id}: {message}\nbot: {shortened(result.response)}\n     (learned lines shown to the model: {shown})\n")
    return result.response, list(overheard.lines)


async def main(root: str) -> None:
    """The three evenings, what was learned from them, and who benefits."""
    overheard = Overheard()
    async with open_runtime(settings(root), tools=[garden_calendar], providers={"overheard": overheard}) as runtime:
        opened, supervisor, memory = await meet(runtime), runtime.supervisor(), runtime.memory()
        signals = {each.signal_id: each for each in await memory.read_signals(namespace=ADA)}
        learned = await memory.read_overlays(namespace=ADA)
        for overlay in learned:
            print(f"learned from {overlay.signal_id}, {len(overlay.source_event_ids)} events: “{overlay.line}”")
        print()
        assert (signals[TOMATOES].count, len(signals[TOMATOES].session_ids)) == (5, 3)
        assert (signals[CALENDAR].count, len(signals[CALENDAR].session_ids)) == (3, 3)
        assert sorted(each.signal_id for each in learned) == [TOMATOES, CALENDAR], "one artifact a gate"
        # A turn names what a gate learned from by its stored id, which says nothing to whoever has no key.
        assert set(opened) == {memory.stored_id(each, namespace=ADA) for each in (TOMATOES, CALENDAR)}
        assert all(set(each.source_event_ids) <= set(signals[each.signal_id].event_ids) for each in learned)

        reply, lines = await ask(supervisor, overheard, "ada", QUESTION)
        assert lines == [TOMATOES_LINE, CALENDAR_LINE]
        assert "Often talks about tomatoes" in reply
        _, lines = await ask(supervisor, overheard, "ada", OTHER_QUESTION)
        assert lines == [CALENDAR_LINE], "what is about tomatoes has no say about roses"
        reply, lines = await ask(supervisor, overheard, "grace", QUESTION)
        assert lines == []
        assert "Often talks about" not in reply
        assert await memory.read_overlays(namespace=GRACE) == []
        assert [each.count for each in await memory.read_signals(TOMATOES, namespace=GRACE)] == [1]


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        anyio.run(main, folder)
