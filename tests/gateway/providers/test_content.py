"""Images and files on their way to a real endpoint, and to providers that take none (docs/content.md)."""

from base64 import b64encode

import pytest

from kitchener.config import ProviderConfig, RouterConfig
from kitchener.errors import ProviderError
from kitchener.gateway import LLMGateway, build_providers
from kitchener.records.parts import MessagePart, StoredPart
from kitchener.records.prompt import Message, PromptRequest
from tests.acceptance.replies.content_kit import NOTES, png
from tests.gateway.shared.fake_server import completion, fake_server
from tests.gateway.shared.gateway_kit import Told, ask

pytestmark = pytest.mark.filterwarnings("ignore:Async generator '(openai|httpx2|httpcore2|pydantic_ai):ResourceWarning")


def bringing(*parts: tuple[str, str, bytes]) -> PromptRequest:
    """A request whose message brings these, each as name, type and content."""
    brought = tuple(
        MessagePart(StoredPart(name, kind, len(data), 9, "sha256:0", "sha256:0"), data) for name, kind, data in parts
    )
    return ask()._replace(messages=(Message("system", "Be kind."), Message("user", "look", parts=brought)))


async def test_an_endpoint_gets_each_part_behind_a_line_with_its_name() -> None:
    async with fake_server(completion("seen")) as server:
        provider = ProviderConfig(base_url=server.url, model="m", max_retries=0, media_types=("image/*", "text/*"))
        config = RouterConfig(default_provider="local", providers={"local": provider})
        request = bringing(("a.png", "image/png", png()), ("n.md", "text/markdown", NOTES))
        async with build_providers(config) as providers, LLMGateway(config, providers).open() as gateway:
            response = await gateway.complete(request, on_attempt=Told())
    assert response.text == "seen"
    (hit,) = server.hits
    text, line, image, named, *rest = hit.body["messages"][-1]["content"]
    assert (text["text"], named["text"]) == ("look", f"[file n.md, text/markdown, {len(NOTES)} bytes]")
    assert line["text"].startswith("[image a.png, image/png, ")
    assert image["image_url"]["url"] == f"data:image/png;base64,{b64encode(png()).decode()}"
    assert "The door code is 4711." in str(rest)


async def test_an_endpoint_of_which_nothing_is_known_takes_text_files_only() -> None:
    """No request goes out."""
    async with fake_server() as server:
        config = RouterConfig(default_provider="local", providers={"local": ProviderConfig(base_url=server.url, model="m")})
        async with build_providers(config) as providers, LLMGateway(config, providers).open() as gateway:
            assert gateway.media_types(None, None, ()) == ("text/*",)
            with pytest.raises(ProviderError, match="image/png, which no provider of its route takes") as caught:
                await gateway.complete(bringing(("a.png", "image/png", png())), on_attempt=Told())
    assert (caught.value.reason, server.hits) == ("bad_request", [])


@pytest.mark.parametrize(
    ("model", "takes_images"),
    [("openai:gpt-5", True), ("anthropic:claude-sonnet-4-6", True), ("groq:llama-3", False)],
)
async def test_what_a_vendor_takes_is_known_without_a_setting(
    monkeypatch: pytest.MonkeyPatch, model: str, takes_images: bool
) -> None:
    monkeypatch.setenv("THE_KEY", "sk-test")
    provider = ProviderConfig(kind="model", model=model, api_key="env:THE_KEY")
    config = RouterConfig(default_provider="it", providers={"it": provider})
    async with build_providers(config) as providers:
        assert ("image/*" in LLMGateway(config, providers).media_types(None, None, ())) is takes_images
