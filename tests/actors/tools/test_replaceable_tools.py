"""Tools that come and change while sessions run: a turn keeps the set that it began with. See docs/tools.md."""

import json
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import anyio
import pytest

from kitchener.actors.executor.executor import HO1Executor
from kitchener.actors.executor.prompts import PromptLibrary
from kitchener.actors.supervisor import HO2Supervisor
from kitchener.actors.tools.registry import ToolRegistry
from kitchener.actors.tools.tool import Tool, tool
from kitchener.actors.work.budget import TokenBudgeter
from kitchener.clock import SystemClock
from kitchener.config import ApprovalConfig, HO2Config, RouterConfig
from kitchener.errors import ToolError
from kitchener.gateway import LLMGateway
from kitchener.ledger import Ledgers, open_ledgers
from kitchener.records.prompt import PromptRequest, ToolSpec, ToolUse
from kitchener.records.tools.runnable_tool import ToolIdentity, ToolQuestion, ToolSource, ToolTraits
from kitchener.records.tools.tool_context import ToolContext
from kitchener.testing import ScriptedProvider
from tests.acceptance.stack import QUICK, places
from tests.shared.tool_calls import a_call

FILES = ToolSource("mcp:files")
WEB = ToolSource("mcp:web")
WORST = ToolTraits()


@dataclass(frozen=True)
class ServersTool:
    """A tool of a server, whose calls a function answers."""

    tool_id: str
    answer: Callable[[], object]
    description: str = "looks"
    source: ToolSource = FILES
    traits: ToolTraits = WORST
    requires_approval: bool = False
    is_read_only: bool = False
    timeout_s: float | None = None
    acceptance: tuple[str, ...] = ()
    closes_intent: bool = False
    is_async: bool = False

    @property
    def policy_name(self) -> str:
        return self.tool_id.replace("__", ".", 1)

    @property
    def parameters(self) -> Mapping[str, object]:
        return {"type": "object", "properties": {"place": {"type": "string"}}}

    @property
    def spec(self) -> ToolSpec:
        return ToolSpec(self.tool_id, self.description, self.parameters)

    def bind(self, arguments: Mapping[str, object]) -> dict[str, Any] | str:
        return dict(arguments) if self.description in arguments.get("place", self.description) else "wrong place"  # type: ignore[operator]

    def prepared(self, bound: Mapping[str, object], context: ToolContext) -> Callable[[], object]:
        return self.answer


def look(answer: Callable[[], object] = lambda: "seen", description: str = "looks") -> ServersTool:
    return ServersTool("files__look", answer, description)


@tool(read_only=True)
def own() -> str:
    """A function of the program."""
    return "own"


@tool
def effect() -> str:
    """Has an effect."""
    return "done"


def test_replaced_tools_follow_the_functions_in_the_order_of_their_sources() -> None:
    registry = ToolRegistry([own], replaceable=[FILES, WEB])
    registry.replace(WEB, [ServersTool("web__get", lambda: 1, source=WEB)])
    registry.replace(FILES, [look()])
    assert registry.tool_ids == ("own", "files__look", "web__get")
    assert registry.generation == 2
    registry.replace(FILES, [])
    assert [spec.tool_id for spec in registry.toolset(("own", "files__look", "web__get")).specs] == ["own", "web__get"]


def test_a_replacement_with_a_name_that_is_taken_changes_nothing() -> None:
    registry = ToolRegistry([own], builtin=[effect], replaceable=[FILES])
    registry.replace(FILES, [look()])
    for taken in ("own", "effect"):
        with pytest.raises(ToolError, match=taken):
            registry.replace(FILES, [ServersTool(taken, lambda: 1)])
    assert (registry.tool_ids, registry.generation) == (("own", "files__look"), 1)
    assert registry.toolset(("files__look", "effect")).specs[1].tool_id == "effect"
    with pytest.raises(ToolError, match="'mcp:web' cannot be replaced; these can: mcp:files"):
        registry.replace(WEB, [])


def test_tools_in_place_earlier_stay_as_they_were() -> None:
    registry = ToolRegistry(replaceable=[FILES])
    registry.replace(FILES, [look()])
    earlier = registry.present()
    registry.hold("T-1", earlier)
    registry.replace(FILES, [look(description="listens")])
    assert [spec.description for spec in earlier.toolset(("files__look",)).specs] == ["looks"]
    assert registry.in_turn("T-1") is earlier
    assert registry.in_turn("T-2") is registry
    registry.hold("T-1", None)
    registry.hold("T-1", None)
    assert [spec.description for spec in registry.in_turn("T-1").toolset(("files__look",)).specs] == ["listens"]


def test_a_function_says_nothing_of_its_source_on_record() -> None:
    """So that the configurations of earlier versions keep their hashes."""
    registry = ToolRegistry([own, effect])
    shared = {"acceptance": (), "built_in": False, "parameters": own.parameters}
    assert registry.definitions() == [
        {**shared, "tool_id": "own", "description": "A function of the program.", "read_only": True},
        {**shared, "tool_id": "effect", "description": "Has an effect.", "read_only": False},
    ]
    assert registry.identity("nothing") is None
    identity = registry.identity("effect")
    assert identity is not None
    assert (identity.policy_name, identity.source, identity.requires_approval) == ("effect", "tool:effect", False)
    assert identity.traits == ToolTraits(read_only=False, destructive=True, idempotent=False, is_trusted=True)


def test_the_identity_of_a_tool_can_be_read_back_from_its_definition() -> None:
    traits = ToolTraits(read_only=True, destructive=False, idempotent=True, open_world=False, is_trusted=True)
    found = ServersTool("files__look", lambda: 1, traits=traits, requires_approval=True)
    registry = ToolRegistry(replaceable=[FILES])
    registry.replace(FILES, [found])
    recorded = json.loads(json.dumps(registry.definitions()[0]))
    identity = ToolIdentity.of(recorded)
    assert identity == registry.identity("files__look")
    assert (identity.policy_name, identity.source, identity.traits) == ("files.look", FILES, traits)
    assert identity.requires_approval


@pytest.mark.parametrize(
    "change",
    [
        {"tool_id": "files__peek"},
        {"description": "peeks"},
        {"parameters": {"type": "object"}},
        {"source": "mcp:other"},
        {"traits": {**WORST.as_mapping(), "trusted": True}},
    ],
    ids=lambda each: next(iter(each)),
)
def test_a_changed_definition_has_another_hash(change: Mapping[str, Any]) -> None:
    registry = ToolRegistry(replaceable=[FILES])
    registry.replace(FILES, [look()])
    (definition,) = registry.definitions()
    changed: Any = {**definition, **change}
    assert ToolIdentity.of(definition).definition_hash != ToolIdentity.of(changed).definition_hash


@asynccontextmanager
async def open_desk(
    root: Path, registry: ToolRegistry, provider: ScriptedProvider
) -> AsyncIterator[tuple[HO2Supervisor, Ledgers]]:
    """A supervisor whose tools a test replaces."""
    async with (
        open_ledgers(**places(root), config=QUICK) as ledgers,
        LLMGateway(RouterConfig(default_provider="scripted"), {"scripted": provider}).open() as gateway,
    ):
        executor = HO1Executor(
            ledgers=ledgers,
            gateway=gateway,
            prompts=PromptLibrary.load(),
            tools=registry,
            clock=SystemClock(),
            config=HO2Config(approval=ApprovalConfig(mcp_default="allow")),
        )
        supervisor = HO2Supervisor(
            agent_class="ADMIN",
            ho1_executor=executor,
            ledgers=ledgers,
            token_budgeter=TokenBudgeter(),
            config=HO2Config(approval=ApprovalConfig(mcp_default="allow")),
            tools=registry,
        )
        await supervisor.recover()
        yield supervisor, ledgers


def descriptions(request: PromptRequest) -> list[str]:
    return [spec.description for spec in request.tools]


async def test_a_running_turn_keeps_its_tools_and_the_next_one_has_the_new_ones(tmp_path: Path) -> None:
    """The model may call what it was shown, under the schema that it was shown; and the record names what was shown."""
    registry = ToolRegistry([own], replaceable=[FILES])

    def replacing() -> str:
        registry.replace(FILES, [look(lambda: "new", "listens")])
        return "replaced"

    registry.replace(FILES, [look(replacing)])
    again = ToolUse("2", "files__look", {"place": "looks"})

    def answers(request: PromptRequest) -> Any:
        if request.wo_type != "synthesize":
            return {"speech_act": "question", "ambiguity": "low"}
        said = [message.content for message in request.messages if message.role == "tool"]
        if request.variables["user_message"] == "look" and len(said) < 2:
            return ToolUse("1", "files__look", {}) if not said else again
        return {"response_text": " ".join(said) or "nothing"}

    provider = ScriptedProvider(answers)
    async with open_desk(tmp_path / "root", registry, provider) as (supervisor, ledgers):
        session_id = await supervisor.start_session()
        first = await supervisor.handle_turn("look", session_id=session_id)
        assert first.response.count("\nreplaced\n") == 2
        await supervisor.handle_turn("and now?", session_id=session_id)
        entries = [entry async for entry in ledgers.ho2m.read(entry_type=("SOURCE_RECORDED", "TURN_STARTED"))]
    replies = [descriptions(each) for each in provider.requests if each.wo_type == "synthesize"]
    before, after = ["A function of the program.", "looks"], ["A function of the program.", "listens"]
    assert replies == [before, before, before, after]
    starts = [place for place, entry in enumerate(entries) if entry.entry_type == "TURN_STARTED"]
    hashes = [entries[place].payload["config_hash"] for place in starts]
    assert len(set(hashes)) == 2
    assert entries[starts[1] - 1].payload["hash"] == hashes[1]


async def test_definitions_are_recorded_once_for_turns_that_begin_together(tmp_path: Path) -> None:
    registry = ToolRegistry(replaceable=[FILES])
    async with open_desk(tmp_path / "root", registry, ScriptedProvider.replies("yes")) as (supervisor, ledgers):
        registry.replace(FILES, [look()])
        async with anyio.create_task_group() as tasks:
            for _ in range(3):
                tasks.start_soon(supervisor.handle_turn, "hello")
        recorded = [entry.payload["name"] async for entry in ledgers.ho2m.read(entry_type="SOURCE_RECORDED")]
        hashes = {entry.payload["config_hash"] async for entry in ledgers.ho2m.read(entry_type="TURN_STARTED")}
    assert recorded.count("files__look") == 1
    assert recorded.count("ADMIN") == 2
    assert len(hashes) == 1


def test_tools_are_given_as_functions_or_as_tools() -> None:
    def plain(a: int) -> int:
        """Counts."""
        return a

    given: list[Tool[..., object] | Callable[..., object]] = [own, plain]
    assert ToolRegistry(given).tool_ids == ("own", "plain")


async def test_a_question_is_an_outcome_of_its_own_that_a_model_can_read() -> None:
    question = ToolQuestion("Which of the two?", {"type": "string"}, state={"page": 1}, reason="input_required")
    registry = ToolRegistry(replaceable=[FILES])
    registry.replace(FILES, [look(lambda: question)])
    outcome = await registry.run("files__look", {}, a_call())
    assert outcome.question is question
    assert outcome.error == "the tool asks a person, and has done nothing yet: Which of the two?"
