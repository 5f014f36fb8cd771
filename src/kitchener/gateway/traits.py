"""Reads what a provider states about itself beyond its `complete`, for the gateway.

A provider states it in an attribute `traits`. Without that attribute, it is treated as a remote service.
"""

from dataclasses import dataclass
from typing import Final

from kitchener.records.prompt import Provider

TEXT_FILES: Final = ("text/*",)
"""What every model takes, because the content of such a file is text."""
ALL_CONTENT: Final = ("image/*", "application/pdf", *TEXT_FILES)


@dataclass(frozen=True, slots=True)
class ProviderTraits:
    """The properties of a provider."""

    built_in: bool = False
    """Whether it answers in this process without a model, and stays allowed when model calls are forbidden."""
    needs_timeout: bool = True
    """Whether each attempt gets a time limit; False only for a provider that answers at once."""
    media_types: tuple[str, ...] = ()
    """Types of images and files that it takes, such as `image/*`; empty: text only."""
    model_id: str | None = None
    """Name of the model if the request names none; None: the provider's id."""


_REMOTE = ProviderTraits()


def traits_of(provider: Provider) -> ProviderTraits:
    """Returns the provider's own traits, or a remote service's traits if it has none."""
    traits = getattr(provider, "traits", _REMOTE)
    return traits if isinstance(traits, ProviderTraits) else _REMOTE
