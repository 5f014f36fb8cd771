"""Checks the vendors of `kind = "model"` by tables, without importing their libraries.

Settings are checked with these tables. A vendor that no table names may be misspelt, or belong to a newer library: then the
library is imported and asked. `models.py` always asks it, when it opens a provider.
"""

import difflib
from collections.abc import Collection
from typing import Final

from kitchener.config import RouterConfig
from kitchener.config.settings_parser import SettingPath, dotted_key
from kitchener.config.shown import described
from kitchener.errors import ConfigError
from kitchener.errors.root import CONFIGURATION
from kitchener.gateway.routing import FIXED_URL_VENDORS

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

_COMPARED_CHARS: Final = 80
LISTED_VENDORS: Final = (
    frozenset(
        ("alibaba", "anthropic", "google", "google-cloud", "groq", "heroku", "moonshotai", "ollama", "sambanova", "vllm", "zai")
    )
    | ASYNCIO_ONLY_VENDORS
    | FIXED_URL_VENDORS
    | OPENAI_VENDORS
    | OWN_CLIENT_VENDORS.keys()
)
"""Vendors that the library knows, so that it need not be imported to check settings that name one of them."""


def check_vendors(config: RouterConfig, *, given: Collection[str] = (), source: str = CONFIGURATION) -> None:
    """Checks that every configured vendor exists, and that its answers can be bounded.

    Imports the library only if a vendor is not one of `LISTED_VENDORS`.

    Args:
        config: the router's settings
        given: ids of provider objects that the program passes in; their settings are not used
        source: the file or argument to name in errors

    Raises:
        ConfigError: names the setting, the vendor and what to configure in its place
    """
    for provider_id, provider in config.providers.items():
        if not provider.is_vendor or provider_id in given:
            continue
        vendor, at = (provider.model or "").partition(":")[0], ("router", "providers", provider_id)
        if not _is_known(vendor):
            raise unknown_vendor(vendor, provider.model, at, source)
        if vendor in OWN_CLIENT_VENDORS:
            raise unbounded_vendor(vendor, provider.model, at, source)


def _is_known(vendor: str) -> bool:
    if vendor in LISTED_VENDORS:
        return True
    try:
        from pydantic_ai.providers import infer_provider_class  # takes a second, and may be missing
    except ImportError:
        return False
    try:
        infer_provider_class(vendor)
    except ValueError:
        return False
    except ImportError:  # it knows the vendor; opening the provider says which package is missing
        return True
    return True


def unknown_vendor(vendor: str, model: str | None, at: SettingPath, source: str = CONFIGURATION) -> ConfigError:
    """Returns the error for a vendor that the library does not know; `at` is the path of the provider's settings."""
    closest = difflib.get_close_matches(vendor[:_COMPARED_CHARS].casefold(), sorted(LISTED_VENDORS), n=1)
    meant = f"; did you mean `{closest[0]}:…`?" if closest else ""
    expected = f"the library knows no such vendor; expected `vendor:model`, such as `anthropic:claude-sonnet-4-6`{meant}"
    return ConfigError(source, dotted_key((*at, "model")), described(model), expected)


def unbounded_vendor(vendor: str, model: str | None, at: SettingPath, source: str = CONFIGURATION) -> ConfigError:
    """Returns the error for a vendor whose library brings its own HTTP client; `at` is the path of the provider's settings."""
    endpoint = OWN_CLIENT_VENDORS.get(vendor)
    remedy = "an OpenAI-compatible endpoint" if endpoint is None else f'`base_url = "{endpoint}"`'
    expected = (
        f"the library for {vendor!r} brings its own HTTP client, so `max_response_bytes` would not bound its answers;"
        f" use kind 'openai_compatible' with {remedy}, or give `open_runtime` a provider of your own"
    )
    return ConfigError(source, dotted_key((*at, "model")), described(model), expected)
