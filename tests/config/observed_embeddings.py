"""What a user sees of a setting of `[embeddings]`: what providers are asked, what is on record, and which vectors are kept.

As in `observed_turns.py`, each function runs one small scene under one value of a setting and returns what was seen.
"""

from collections.abc import Hashable, Sequence
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from typing import Any

import anyio

from kitchener.config import EmbeddingsConfig, RuntimeConfig
from kitchener.errors import KitchenerError
from kitchener.gateway.embedding_providers.configured_provider import open_embeddings
from tests.actors.similarity.kit import CHATTER, DOG, QUESTION, Meanings, config, opened, say, similarities
from tests.actors.similarity.test_store import count
from tests.config.observed_turns import CLOCK
from tests.contract.test_embeddings import answering
from tests.gateway.shared.fake_server import fake_server


async def talked(root: Path, **embeddings: Any) -> Hashable:
    """What a conversation has on record, what the provider was asked for, and how many vectors are kept."""
    program = Meanings() if embeddings.get("kind", "off") == "off" else None
    async with opened(config(root, **embeddings), program) as runtime:
        session_id = await say(runtime, DOG, *CHATTER, QUESTION)
        on_record = repr(await similarities(runtime, session_id))
    return on_record, repr(program and program.calls), count(root)


async def first_of_a_history(root: Path, **embeddings: Any) -> Hashable:
    """The calls for the first turn with vectors after many without."""
    program = Meanings()
    async with opened(config(root), None) as runtime:
        session_id = await say(runtime, DOG, *CHATTER)
    async with opened(config(root, **embeddings), program) as runtime:
        await say(runtime, QUESTION, session_id=session_id)
    return tuple(map(len, program.calls))


async def waited(root: Path, **embeddings: Any) -> Hashable:
    """What is on record where a provider takes ten seconds."""

    async def late(texts: Sequence[str]) -> None:
        asked.set()
        await anyio.sleep(10.0)

    asked, found = anyio.Event(), list[Hashable]()

    async def talk() -> None:
        async with opened(config(root, **embeddings), Meanings(late)) as runtime:
            session_id = await say(runtime, DOG, QUESTION)
            found.append(repr((await similarities(runtime, session_id))[-1]))

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(talk)
        await asked.wait()
        CLOCK.jump(11.0)
    return found[0]


async def over_http(root: Path, **embeddings: Any) -> Hashable:
    """What an endpoint is asked, or the refusal of the settings. `{}` in a value is the endpoint's root."""
    async with AsyncExitStack() as stack:
        server = await stack.enter_async_context(fake_server())
        server.respond = answering(list)
        given = {"kind": "openai_compatible", "base_url": "{}", "model": "small", "deadline_s": 60.0, **embeddings}
        settings = {key: value.format(server.url) if isinstance(value, str) else value for key, value in given.items()}
        try:
            open_it = partial(open_embeddings, RuntimeConfig(embeddings=EmbeddingsConfig.model_validate(settings)))
            provider = await stack.enter_async_context(open_it())
        except KitchenerError as error:
            return type(error).__name__
        assert provider is not None
        await provider.embed(["one"])
        (hit,) = server.hits
        return hit.path, repr(hit.body), hit.headers.get("authorization") is None
