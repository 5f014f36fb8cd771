"""Who classifies a message, `classify` of an agent class: a model, the built-in rules, or nobody (docs/gateway.md)."""

from pathlib import Path
from typing import Any, Final

import pytest
from anyio.from_thread import start_blocking_portal

from kitchener import tool
from kitchener.config import HO2Config, ModelChoice, RouterConfig
from kitchener.errors import ConfigError, ProviderError
from kitchener.gateway import LLMGateway
from kitchener.ledger import StoredEntry
from kitchener.records import events
from kitchener.records.prompt import Attempt, PromptRequest
from kitchener.records.turn import TurnResult
from kitchener.replaying import replay_session
from kitchener.runtime import open_runtime
from kitchener.testing import ScriptedProvider, prompt_request, use_tool
from tests.acceptance.memory.memory_kit import signal_ids
from tests.acceptance.stack import QUICK, echo, open_scripted, read_all, scripted_config
from tests.cli.conftest import Cli, cli
from tests.gateway.shared.fake_server import events as streamed
from tests.gateway.shared.fake_server import fake_server

__all__ = ["cli"]
SID: Final = "SES-0000000a"
MESSAGES: Final = (
    "Find me a hotel in Oslo",
    "Does it have a sauna?",
    "Great. What's the weather like in Bergen?",
    "Thanks, that's all.",
)


@tool(read_only=True)
async def list_packages() -> list[str]:
    """List the installed packages."""
    return ["kitchener"]


class Talk:
    """A conversation, and what is on record of it."""

    def __init__(self, root: Path, **settings: Any) -> None:
        self.provider = ScriptedProvider(settings.pop("model", echo))
        self._root, self._settings = root, settings
        self.results: list[TurnResult] = []
        self.entries: list[StoredEntry] = []

    async def say(self, *messages: str) -> None:
        """Says the messages as one subject, reads the ledgers, and replays the session."""
        async with open_scripted(self._root, self.provider, tools=[list_packages], **self._settings) as runtime:
            supervisor, ledgers = runtime.supervisor(), runtime.ledgers()
            await supervisor.start_session(SID, subject_id="ada")
            self.results = [await supervisor.handle_turn(each, session_id=SID) for each in messages]
            for ledger in (ledgers.ho1m, ledgers.ho2m):
                self.entries += await read_all(ledger, session_id=SID)
        report = await replay_session(
            SID, config=scripted_config(self._root, **self._settings, tools=("*",)), tools=[list_packages]
        )
        assert report.is_identical, report.text()

    def of(self, entry_type: str) -> list[Any]:
        """The payloads of one type."""
        return [entry.payload for entry in self.entries if entry.entry_type == entry_type]

    def asked(self) -> list[str]:
        """The types of the work orders for which the model was asked."""
        return [request.wo_type for request in self.provider.requests]


async def test_with_rules_a_turn_makes_one_model_call_and_its_classification_is_a_work_order_on_record(tmp_path: Path) -> None:
    talk = Talk(tmp_path, classify="rules")
    await talk.say("Which hotels are there in Oslo?")
    assert talk.asked() == ["synthesize"]
    (result,) = talk.results
    assert [(each["wo_type"], each["state"]) for each in result.wo_chain_summary] == [
        ("classify", "completed"),
        ("synthesize", "completed"),
    ]
    assert result.cost_summary["llm_calls"] == 1
    planned = talk.of(events.WO_PLANNED)[0]["constraints"]
    assert (planned["provider_id"], planned["prompt_contract_id"]) == ("rules", "PRC-CLASSIFY-001")
    answered = talk.of(events.LLM_CALL)[0]
    route = (answered["provider_id"], answered["model_id"], answered["route_reason"])
    assert route == ("rules", "kitchener-rules-1", "explicit")
    assert answered["usage"] == {"input_tokens": 0, "output_tokens": 0}
    (classified,) = [each for each in talk.provider.requests[0].variables["prior_results"] if "speech_act" in each]
    assert (classified["speech_act"], classified["labels"]) == ("question", {"domain": "travel", "task": "lookup"})


async def test_rules_request_no_tool_and_the_reply_is_offered_all(tmp_path: Path) -> None:
    """The offline model, which classifies by the same rules, requests the tool of this command while it classifies."""

    def model(request: PromptRequest) -> Any:
        has_result = any(message.role == "tool" for message in request.messages)
        return {"response_text": "one package"} if has_result else use_tool("list_packages")

    talk = Talk(tmp_path, classify="rules", model=model)
    await talk.say("List the installed packages")
    assert [spec.tool_id for spec in talk.provider.requests[0].tools] == ["list_packages"]
    assert [each["wo_type"] for each in talk.results[0].wo_chain_summary] == ["classify", "synthesize"]
    assert talk.results[0].cost_summary["tool_calls"] == 1
    assert talk.results[0].response == "one package"


@pytest.mark.parametrize(
    ("classify", "actions", "signals"),
    [
        (
            "rules",
            ["INTENT_DECLARED", "INTENT_DECLARED", "INTENT_SUPERSEDED", "INTENT_CLOSED"],
            {"intent:command", "intent:question", "intent:thanks", "domain:travel", "domain:weather", "task:lookup"},
        ),
        ("off", ["INTENT_DECLARED"], set()),
    ],
)
async def test_intents_and_signals_follow_from_the_classification(
    tmp_path: Path, classify: str, actions: list[str], signals: set[str]
) -> None:
    intents: dict[str, Any] = {"context_mode": "enforce", "intent_mode": "classified", "ho3_enabled": True}
    talk = Talk(tmp_path, classify=classify, ledger=QUICK.model_copy(update={"seal": False}), **intents)
    await talk.say(*MESSAGES)
    assert talk.asked() == ["synthesize"] * len(MESSAGES)
    assert [each.entry_type for each in talk.entries if each.entry_type.startswith("INTENT_")] == actions
    assert talk.of(events.INTENT_DECLARED)[0]["objective"] == "Find me a hotel in Oslo"
    assert set(signal_ids(tmp_path)) == {*signals, "outcome:success"}


async def test_without_classification_a_turn_has_no_such_work_order_and_the_reply_is_offered_tools(tmp_path: Path) -> None:
    talk = Talk(tmp_path, classify="off")
    await talk.say("List the installed packages")
    assert [each["wo_type"] for each in talk.results[0].wo_chain_summary] == ["synthesize"]
    (request,) = talk.provider.requests
    assert [spec.tool_id for spec in request.tools] == ["list_packages"]
    assert list(request.variables["prior_results"]) == []


async def test_the_library_asks_a_model_by_default_and_it_may_have_a_provider_of_its_own(tmp_path: Path) -> None:
    assert HO2Config().classify == "model"
    talk = Talk(tmp_path)
    await talk.say("hello")
    assert talk.asked() == ["classify", "synthesize"]
    assert talk.results[0].cost_summary["llm_calls"] == 2
    small = ScriptedProvider(echo, provider_id="small")
    large = ScriptedProvider(echo, provider_id="scripted")
    config = scripted_config(tmp_path / "own", models={"classification": ModelChoice(provider="small")})
    async with open_runtime(config, providers={"scripted": large, "small": small}) as runtime:
        await runtime.supervisor().handle_turn("hello")
    assert [request.wo_type for request in small.requests] == ["classify"]
    assert [request.wo_type for request in large.requests] == ["synthesize"]


async def test_rules_classify_also_where_model_calls_are_forbidden(tmp_path: Path) -> None:
    config = scripted_config(tmp_path, classify="rules")
    router = config.router.model_copy(update={"allow_model_calls": False})
    model = ScriptedProvider(echo)
    async with open_runtime(config.model_copy(update={"router": router}), providers={"scripted": model}) as runtime:
        result = await runtime.supervisor().handle_turn("hello")
    assert result.wo_chain_summary[0]["state"] == "completed"


async def test_a_provider_with_the_id_of_the_rules_is_refused_where_they_classify(tmp_path: Path) -> None:
    """Elsewhere it is a provider as any other: earlier settings may have one of that name."""
    mine = {"scripted": ScriptedProvider(echo), "rules": ScriptedProvider(echo, provider_id="rules")}
    with pytest.raises(ConfigError, match="give it another id") as refused:
        async with open_runtime(scripted_config(tmp_path, classify="rules"), providers=mine):
            pass
    assert refused.value.key == "agents.ADMIN.classify"
    config = scripted_config(tmp_path, models={"classification": ModelChoice(provider="rules")})
    async with open_runtime(config, providers=mine) as runtime:
        await runtime.supervisor().handle_turn("hello")
    assert len(mine["rules"].requests) == 1


async def test_the_rules_answer_nothing_but_classifications() -> None:
    async def listen(_: Attempt) -> None:
        pass

    request = prompt_request("hello", provider_id="rules", wo_type="synthesize")
    with pytest.raises(ProviderError, match="a synthesize needs a model") as refused:
        async with LLMGateway(RouterConfig()).open() as gateway:
            await gateway.complete(request, on_attempt=listen)
    assert refused.value.reason == "bad_request"


def test_chat_with_the_settings_that_init_writes_asks_the_model_once_a_turn(cli: Cli) -> None:
    """Also for a message that needs a tool or names a new goal: who classifies never is the model."""
    answers = [streamed(["It has."])] * 8
    with start_blocking_portal() as portal, portal.wrap_async_context_manager(fake_server(*answers)) as server:
        assert cli("init", "--provider", server.url, "--model", "m").code == 0
        outcome = cli("chat", stdin="\n".join([*MESSAGES, "/cost"]).encode())
        assert outcome.code == 0, outcome.err
        assert len(server.hits) == len(MESSAGES)
    assert outcome.out.splitlines()[:-1] == ["It has."] * len(MESSAGES)
    assert "4 model calls" in outcome.out.splitlines()[-1]
