"""Checks the vendors of `kind = "model"` by tables, without importing their libraries.

Settings are checked with these tables. `models.py` asks the library itself when it opens a provider.
"""

from collections.abc import Collection
from typing import Final

from kitchener.config import RouterConfig, SettingPath, described, dotted_key
from kitchener.errors import ConfigError
from kitchener.errors.root import CONFIGURATION

ASYNCIO_ONLY_VENDORS: Final = frozenset(("bedrock-mantle", "cohere", "mistral"))
"""Vendors whose client needs asyncio. On trio, opening them fails."""
FORMER_HTTPX_VENDORS: Final = frozenset(("cohere", "groq"))
"""Vendors whose library takes an `httpx` client, but none of its successor `httpx2`."""
OPENAI_VENDORS: Final = frozenset(("openai", "openai-chat", "openai-responses", "azure"))
"""Vendors whose library takes a key for OpenAI's prompt cache."""
OWN_CLIENT_VENDORS: Final = {
    "bedrock": "https://bedrock-runtime.<region>.amazonaws.com/openai/v1",
    "huggingface": "https://router.huggingface.co/v1",
    "xai": "https://api.x.ai/v1",
}
"""Vendors whose library takes no HTTP client, each with the vendor's OpenAI-compatible endpoint."""

VENDORS_WITH_CONTENT: Final = frozenset(
    ("anthropic", "google", "google-gla", "google-vertex", "google-cloud", "openai", "openai-chat", "openai-responses")
)
"""Vendors of whose models is known that they take images and PDFs. The setting `media_types` says it of others."""


def check_vendors(config: RouterConfig, *, given: Collection[str] = (), source: str = CONFIGURATION) -> None:
    """Checks that the answers of every configured vendor can be bounded.

    Args:
        config: the router's settings
        given: ids of provider objects that the program passes in; their settings are not used
        source: the file or argument to name in errors

    Raises:
        ConfigError: names the setting, the vendor and what to configure in its place
    """
    for provider_id, provider in config.providers.items():
        vendor = (provider.model or "").partition(":")[0]
        if provider.kind == "model" and vendor in OWN_CLIENT_VENDORS and provider_id not in given:
            raise unbounded_vendor(vendor, provider.model, ("router", "providers", provider_id), source)


def unbounded_vendor(vendor: str, model: str | None, at: SettingPath, source: str = CONFIGURATION) -> ConfigError:
    """Returns the error for a vendor whose library brings its own HTTP client; `at` is the path of the provider's settings."""
    endpoint = OWN_CLIENT_VENDORS.get(vendor)
    remedy = "an OpenAI-compatible endpoint" if endpoint is None else f'`base_url = "{endpoint}"`'
    expected = (
        f"the library for {vendor!r} brings its own HTTP client, so `max_response_bytes` would not bound its answers;"
        f" use kind 'openai_compatible' with {remedy}, or give `open_runtime` a provider of your own"
    )
    return ConfigError(source, dotted_key((*at, "model")), described(model), expected)
