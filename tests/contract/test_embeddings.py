"""What every `EmbeddingProvider` does, in whatever way it gets its vectors."""

import json
from array import array
from base64 import b64encode
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack
from importlib.util import find_spec
from operator import mul
from typing import Any

import anyio
import pytest

from kitchener.actors.similarity.vectors import unit_vector
from kitchener.config import EmbeddingsConfig, RuntimeConfig
from kitchener.gateway.embedding_providers.configured_provider import open_embeddings
from kitchener.records.embedding import EmbeddingProvider
from tests.actors.similarity.kit import Meanings, vector
from tests.gateway.shared.fake_server import Answer, Hit, fake_server

TEXTS = ("The dog slept on the sofa all day.", "A car broke down in the tunnel.", "", "  \n", "Žluťoučký kůň 🐎", "x" * 5_000)
NEEDS_EXTRA = pytest.mark.skipif(
    any(find_spec(name) is None for name in ("wordllama", "tokenizers", "safetensors")), reason="needs the extra `embeddings`"
)


def as_base64(numbers: list[float]) -> Any:
    return b64encode(array("f", numbers)).decode()


def answering(form: Callable[[list[float]], Any], *, is_reversed: bool = False) -> Callable[[Hit], Answer]:
    """A server's answers, with each vector in this form."""

    def answer(hit: Hit) -> Answer:
        found = [{"index": n, "embedding": form(vector(text))} for n, text in enumerate(hit.body["input"])]
        return Answer(json.dumps({"object": "list", "data": found[::-1] if is_reversed else found}).encode())

    return answer


@pytest.fixture(params=["program", "hashing", pytest.param("static", marks=NEEDS_EXTRA), "base64", "lists", "reversed"])
async def provider(request: pytest.FixtureRequest) -> AsyncIterator[EmbeddingProvider]:
    """One of the implementations, open."""
    async with AsyncExitStack() as stack:
        if request.param in ("program", "hashing", "static"):
            given = Meanings() if request.param == "program" else None
            config = RuntimeConfig(embeddings=EmbeddingsConfig(kind="off" if given else request.param))
        else:
            given, server = None, await stack.enter_async_context(fake_server())
            server.respond = answering(list if request.param == "lists" else as_base64, is_reversed=request.param == "reversed")
            endpoint = EmbeddingsConfig(kind="openai_compatible", base_url=server.url, model="m", deadline_s=60.0)
            config = RuntimeConfig(embeddings=endpoint)
        found = await stack.enter_async_context(open_embeddings(config, given=given))
        assert found is not None
        yield found


async def test_each_text_gets_a_vector_of_one_size_in_order(provider: EmbeddingProvider) -> None:
    """Also the empty text, a text of blanks, one beyond ASCII and a long one."""
    together = await provider.embed(TEXTS)
    alone = [(await provider.embed([text]))[0] for text in TEXTS]
    assert [[*each] for each in together] == [pytest.approx([*each], abs=1e-5) for each in alone]
    assert len({len(unit_vector(each)) for each in together}) == 1


async def test_equal_texts_get_equal_vectors_at_any_time(provider: EmbeddingProvider) -> None:
    first = await provider.embed([TEXTS[0], TEXTS[0]])
    later = await provider.embed([TEXTS[0]])
    assert [*first[0]] == [*first[1]] == [*later[0]]


async def test_a_text_is_nearer_to_one_like_it_than_to_another(provider: EmbeddingProvider) -> None:
    vectors = [unit_vector(each) for each in await provider.embed([*TEXTS[:2], "My dog sleeps all day long."])]
    near, far = [sum(map(mul, each, vectors[2])) for each in vectors[:2]]
    assert near > far


async def test_calls_may_overlap(provider: EmbeddingProvider) -> None:
    found: dict[int, Any] = {}

    async def ask(number: int) -> None:
        found[number] = [*(await provider.embed([TEXTS[number % 2]]))[0]]

    async with anyio.create_task_group() as tasks:
        for number in range(8):
            tasks.start_soon(ask, number)
    assert [found[number] for number in range(8)] == [found[0], found[1]] * 4


async def test_the_model_has_one_name(provider: EmbeddingProvider) -> None:
    assert provider.model_id
    assert provider.model_id == provider.model_id.strip()


@NEEDS_EXTRA
async def test_in_the_static_model_words_of_form_and_marks_do_not_count() -> None:
    async with open_embeddings(RuntimeConfig(embeddings=EmbeddingsConfig(kind="static"))) as static:
        assert static is not None
        plain, framed, empty = [
            unit_vector(each) for each in await static.embed(["dog sofa", "What, the dog is on a sofa?", "What is it?"])
        ]
    assert sum(map(mul, plain, framed)) == pytest.approx(1.0, abs=1e-3)
    assert not any(empty)
