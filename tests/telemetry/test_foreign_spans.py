"""The vendors' library has spans of its own, with content. They stay off for our calls, and ours are not told twice."""

from collections.abc import Iterator
from contextlib import aclosing

import pytest
from pydantic_ai import Agent
from pydantic_ai.models.instrumented import InstrumentationSettings

from kitchener.config import ProviderConfig, RouterConfig
from kitchener.gateway import build_providers
from kitchener.records.prompt import PromptResponse
from tests.gateway.shared.fake_server import completion, events, fake_server
from tests.gateway.shared.gateway_kit import ask
from tests.telemetry.watch import Watch

# Under trio the vendor's library leaves its own generators to the garbage collector once it has read the end of a stream.
pytestmark = pytest.mark.filterwarnings("ignore:Async generator '(openai|httpx2|httpcore2|pydantic_ai):ResourceWarning")


@pytest.fixture
def watch(monkeypatch: pytest.MonkeyPatch) -> Iterator[Watch]:
    """A program that has switched on the library's spans for its own agents."""
    monkeypatch.setenv("A_KEY", "sk-some-key")
    found = Watch()
    Agent.instrument_all(InstrumentationSettings(tracer_provider=found.tracers, meter_provider=found.meters))
    yield found
    Agent.instrument_all(False)


async def test_the_vendors_library_tells_nothing_of_our_calls(watch: Watch) -> None:
    whole = completion("Hello, Ada.")
    async with fake_server(whole, events(["Hello"])) as server:
        local = ProviderConfig(kind="model", model="openai-chat:m", api_key="env:A_KEY", base_url=server.url)
        config = RouterConfig(default_provider="local", providers={"local": local})
        async with build_providers(config) as providers:
            assert (await providers["local"].complete(ask("a secret"))).text == "Hello, Ada."
            async with aclosing(providers["local"].stream(ask("a secret"))) as items:  # type: ignore[attr-defined]
                assert [each async for each in items if isinstance(each, PromptResponse)]
    assert watch.spans == []
    assert watch.metrics() == {}
