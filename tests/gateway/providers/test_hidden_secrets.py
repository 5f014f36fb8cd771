"""Keys and passwords of proxies are nowhere in an error: not in its text, and not in what lies behind it (docs/gateway.md)."""

import traceback
from typing import Any

import pytest

from kitchener.config import ProviderConfig, RouterConfig
from kitchener.config.embeddings import EmbeddingsConfig
from kitchener.errors import ProviderError
from kitchener.errors.nested import all_behind
from kitchener.gateway import build_providers
from kitchener.gateway.embedding_providers.remote import open_endpoint
from kitchener.gateway.providers.endpoint_errors import Hiding
from kitchener.gateway.providers.redaction import Redaction
from tests.gateway.shared.fake_server import Answer, error, fake_server
from tests.gateway.shared.gateway_kit import ask

# Under trio the vendor's library leaves its own generators to the garbage collector once it has read the end of a stream.
pytestmark = pytest.mark.filterwarnings("ignore:Async generator '(openai|httpx2|httpcore2|pydantic_ai):ResourceWarning")

KEY, PASSWORD = "sk-this-must-never-be-seen", "secret-word"
KINDS: dict[str, dict[str, Any]] = {
    "openai_compatible": {"kind": "openai_compatible", "model": "m"},
    "library": {"kind": "model", "model": "openai-chat:m"},
}
QUOTING: dict[str, Answer] = {
    "401": error(401, f"Incorrect API key provided: {KEY}"),
    "500": error(500, KEY),
    "no JSON": Answer(KEY.encode()),
    "no answer": Answer(f'{{"choices": [], "id": "{KEY}"}}'.encode()),
    "an error of status 200": Answer(f'{{"error": {{"message": "{KEY}"}}}}'.encode()),
    "wrong types": Answer(f'{{"choices": [{{"message": "{KEY}"}}]}}'.encode()),
}


def told_by(failure: BaseException) -> str:
    """All that logs, debuggers and error trackers may show of an error."""
    behind = [f"{each} {each!r} {vars(each)!r}" for each in all_behind(failure)]
    return "\n".join([*behind, *traceback.format_exception(failure)])


@pytest.fixture
def environment(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    monkeypatch.setenv("A_KEY", KEY)
    monkeypatch.delenv("REQUEST_METHOD", raising=False)
    for scheme in ("http", "https", "all", "no"):
        for name in (f"{scheme}_proxy", f"{scheme}_proxy".upper()):
            monkeypatch.delenv(name, raising=False)
    return monkeypatch


async def failure_of(kind: str, url: str, *, streams: bool = False, **settings: Any) -> ProviderError:
    config = ProviderConfig(**{"base_url": url, "timeout_s": 20.0, "api_key": "env:A_KEY", **KINDS[kind], **settings})
    async with build_providers(RouterConfig(providers={"it": config})) as providers:
        provider: Any = providers["it"]
        with pytest.raises(ProviderError) as caught:
            await (_read(provider) if streams else provider.complete(ask()))
    return caught.value


async def _read(provider: Any) -> None:
    async for _ in provider.stream(ask()):
        pass


@pytest.mark.parametrize("streams", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize("answer", QUOTING)
@pytest.mark.parametrize("kind", KINDS)
async def test_a_key_that_an_endpoint_repeats_is_nowhere_in_the_error(
    kind: str, answer: str, environment: pytest.MonkeyPatch, *, streams: bool
) -> None:
    async with fake_server(QUOTING[answer]) as server:
        failure = await failure_of(kind, server.url, streams=streams)
    assert KEY not in told_by(failure)


@pytest.mark.parametrize("streams", [False, True], ids=["whole", "stream"])
@pytest.mark.parametrize("scheme", ["http", "https"])
@pytest.mark.parametrize("kind", KINDS)
async def test_the_password_of_a_proxy_that_refuses_is_nowhere_in_the_error(
    kind: str, scheme: str, environment: pytest.MonkeyPatch, *, streams: bool
) -> None:
    """Regression: the context of the error held the answer, which repeats the password."""
    async with fake_server(error(407, f"who is {PASSWORD}?")) as proxy:
        address = proxy.url.removesuffix("/v1").replace("//", f"//me:{PASSWORD}@")
        environment.setenv("A_PROXY", address)
        failure = await failure_of(kind, f"{scheme}://model.example/v1", streams=streams, proxy="env:A_PROXY")
    assert failure.reason == "authentication"
    assert PASSWORD not in told_by(failure)
    assert KEY not in told_by(failure)


@pytest.mark.parametrize("scheme", ["http", "https"])
async def test_nor_is_that_of_the_environments_proxy_or_of_one_that_is_not_there(
    scheme: str, environment: pytest.MonkeyPatch
) -> None:
    for kind in KINDS:
        environment.setenv(f"{scheme}_proxy".upper(), f"http://me:{PASSWORD}@127.0.0.1:9")
        failure = await failure_of(kind, f"{scheme}://model.example/v1")
        assert failure.reason == "connection"
        assert PASSWORD not in told_by(failure)


@pytest.mark.parametrize("status", [200, 401, 407])
async def test_the_endpoint_of_embeddings_hides_the_same(status: int, environment: pytest.MonkeyPatch) -> None:
    async with fake_server(Answer(f'{{"data": "{KEY}"}}'.encode(), status=status)) as server:
        config = EmbeddingsConfig(kind="openai_compatible", base_url=server.url, model="m")
        async with open_endpoint(config, KEY) as embeddings:
            with pytest.raises(ProviderError) as caught:
                await embeddings.embed(["hello"])
    assert KEY not in told_by(caught.value)


def test_a_cause_is_kept_where_it_holds_no_key_and_nothing_is_where_anything_behind_it_does() -> None:
    redaction = Redaction(KEY)

    def translate(error: Exception) -> None:
        try:
            raise error
        except (OSError, ExceptionGroup) as caught:
            with Hiding(caught, redaction) as cause:
                raise ValueError("told") from cause

    def raised(error: Exception) -> Exception:
        with pytest.raises(ValueError, match="told") as caught:
            translate(error)
        return caught.value

    plain = OSError("no route")
    assert (raised(plain).__cause__, raised(plain).__context__) == (plain, plain)
    in_context, in_cause, noted, made = (OSError("no route") for _ in range(4))
    in_context.__cause__, in_context.__context__ = OSError("plain"), OSError(KEY)
    in_cause.__cause__ = OSError(KEY)
    noted.add_note(KEY)
    made.body = {"message": KEY}  # type: ignore[attr-defined] # as the libraries' errors have it
    for each in (in_context, in_cause, noted, made, ExceptionGroup("two", [OSError("plain"), OSError(KEY)])):
        assert (raised(each).__cause__, raised(each).__context__) == (None, None)
