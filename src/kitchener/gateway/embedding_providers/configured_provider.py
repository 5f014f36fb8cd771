"""Opens the provider of vectors that the settings name, and closes it at the end."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import anyio.to_thread

from kitchener.config import RuntimeConfig
from kitchener.config.shown import address_problem
from kitchener.errors import ConfigError
from kitchener.errors.root import CONFIGURATION
from kitchener.gateway.embedding_providers.hashing import HashingEmbeddings
from kitchener.gateway.embedding_providers.static import open_static
from kitchener.gateway.providers.factory import read_secret
from kitchener.records.embedding import EmbeddingProvider


@asynccontextmanager
async def open_embeddings(
    config: RuntimeConfig, *, given: EmbeddingProvider | None = None
) -> AsyncIterator[EmbeddingProvider | None]:
    """Opens the configured provider for the block; None: none is configured, or model calls are not allowed. Sends no request.

    Args:
        config: the settings
        given: a provider of the program, which takes the place of the configured one

    Raises:
        ConfigError: a library is missing, the address cannot be used, or the reference to the key points to nothing
    """
    settings = config.embeddings
    if given is not None:
        yield given
    elif settings.kind == "hashing":
        yield HashingEmbeddings()
    elif settings.kind == "static":
        yield await anyio.to_thread.run_sync(open_static)
    elif settings.kind == "openai_compatible" and config.router.allow_model_calls:
        if (problem := address_problem(settings.base_url or "")) is not None:
            raise ConfigError(CONFIGURATION, "embeddings.base_url", "", problem)
        secret = read_secret(settings.api_key, "embeddings.api_key")
        # Imported here because most runtimes need no client for it.
        from kitchener.gateway.embedding_providers.remote import open_endpoint

        async with open_endpoint(settings, secret) as endpoint:
            yield endpoint
    else:
        yield None
