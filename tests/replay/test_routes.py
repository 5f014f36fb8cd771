"""Which provider a model call goes to is a decision, so a replay holds it against the record."""

from pathlib import Path
from typing import Any

import pytest

from kitchener.config import ProviderConfig, Route, RouterConfig, RuntimeConfig
from kitchener.errors import ProviderError
from kitchener.records.prompt import Attempt
from kitchener.replaying import open_replays, replay_session
from kitchener.replaying.on_record.route_differences import Routes
from kitchener.runtime import open_runtime
from kitchener.runtime.root_layout import ledger_paths, settings_of
from kitchener.testing import ScriptedProvider, prompt_request
from tests.acceptance.stack import echo, scripted_config
from tests.replay import corpus, golden_roots
from tests.replay.test_replay_diverges import found_in

ROUTER = RouterConfig(
    default_provider="main",
    default_model="large",
    providers={"main": ProviderConfig(kind="offline", max_retries=0)},
    fallbacks={"main": ("spare",)},
)
OTHERS: dict[str, RouterConfig] = {
    "default provider": ROUTER.model_copy(update={"default_provider": "spare"}),
    "default model": ROUTER.model_copy(update={"default_model": "small"}),
    "fallback": ROUTER.model_copy(update={"fallbacks": {"main": ("offline",)}}),
    "no fallback": ROUTER.model_copy(update={"fallbacks": {}}),
    "fallback's model": ROUTER.model_copy(
        update={"providers": {**ROUTER.providers, "spare": ProviderConfig(kind="offline", model="tiny")}}
    ),
}


async def recorded(root: Path) -> tuple[RuntimeConfig, str]:
    """A session of two turns, whose second reply comes from the provider that stands in."""

    def main(request: Any) -> Any:
        return ProviderError("main", "server_error", "down") if request.variables["user_message"] == "down" else echo(request)

    config = scripted_config(root).model_copy(update={"router": ROUTER})
    providers = {"main": ScriptedProvider(main), "spare": ScriptedProvider(echo, model_id="spare-1")}
    async with open_runtime(config, providers=providers) as runtime:
        session_id = await runtime.supervisor().start_session()
        for message in ("hello", "down"):
            await runtime.supervisor().handle_turn(message, session_id=session_id)
    return config, session_id


async def test_same_routes_are_identical(tmp_path: Path) -> None:
    """Provider objects need not be at hand, and a provider that was never asked changes nothing."""
    config, session_id = await recorded(tmp_path)
    longer = ROUTER.model_copy(update={"fallbacks": {"main": ("offline", "spare")}})
    for router in (ROUTER, longer):
        report = await replay_session(session_id, config=config.model_copy(update={"router": router}))
        assert report.is_identical, report.text()
        assert len(report.turns) == 2


@pytest.mark.parametrize("name", OTHERS)
async def test_other_route_is_caught(tmp_path: Path, name: str) -> None:
    """By what the attempt was sent to, and what it would be sent to now."""
    config, session_id = await recorded(tmp_path)
    report = await replay_session(session_id, config=config.model_copy(update={"router": OTHERS[name]}))
    turn = 2 if "fallback" in name else 1
    assert found_in(report) == ("LLM_CALL", "route", turn)
    assert report.divergence is not None
    assert "fallbacks" in report.divergence.stems_from


async def test_attempts_in_the_order_of_the_plan() -> None:
    """Providers may be left out, as an open circuit does, but none comes back."""
    routes = Routes(ROUTER, ("spare",))

    def attempt(number: int, provider_id: str, model_id: str, reason: str) -> Attempt:
        return Attempt("started", 1, number, provider_id, model_id, reason)

    first, second = attempt(1, "main", "large", "default"), attempt(2, "spare", "any", "fallback")
    assert routes.difference(prompt_request("hi"), (first, first, second)) is None
    assert routes.difference(prompt_request("hi"), (second,)) is None
    back = routes.difference(prompt_request("hi"), (second, first))
    assert back is not None
    assert back[0] == {"provider_id": "main", "model_id": "large", "route_reason": "default"}
    explicit = routes.difference(prompt_request("hi", provider_id="main", model_id="x"), (first,))
    assert explicit is not None
    assert explicit[1] == {"provider_id": "main", "model_id": "x", "route_reason": "explicit"}


@pytest.mark.parametrize(
    "archive",
    [
        pytest.param(each, id=each.name, marks=[pytest.mark.soak] * (at % 2 == 0))
        for at, each in enumerate(golden_roots.VERSION_1)
    ],
)
async def test_a_route_by_type_changes_nothing_in_older_records(tmp_path: Path, archive: Path) -> None:
    """Their work orders carried no tag, so the route had no effect then; the tags on record decide in a replay."""
    root = golden_roots.unpacked(archive, tmp_path)
    settings = settings_of(root / corpus.SETTINGS.name, None)
    routes = {tag: Route(provider_id="spare") for tag in ("classification", "synthesis", "verification")}
    router = settings.router.model_copy(update={"domain_tag_routes": settings.router.domain_tag_routes | routes})
    replayed = 0
    for agent_class in settings.agents:
        if not ledger_paths(settings, agent_class)["ho2m"].exists():
            continue
        async with open_replays(settings.model_copy(update={"router": router}), agent_class, verify=False) as replays:
            for session_id in await replays.sessions():
                report = await replays.replay(session_id)
                assert report.is_identical, report.text()
                replayed += len(report.turns)
    assert replayed > 0
