"""What the gateway may assume about a provider beyond its `complete`.

A provider states it in an attribute `traits`; one that says nothing is taken for a remote service.
"""

from dataclasses import dataclass

from kitchener.records.prompt import Provider


@dataclass(frozen=True, slots=True)
class Traits:
    """What a provider says about itself."""

    built_in: bool = False
    """It answers in this process without a model: it stays allowed where model calls are forbidden."""
    needs_timeout: bool = True
    """It may take time, so each attempt gets a time limit. False saves that cost for one that answers at once."""
    model_id: str | None = None
    """The model that answers where nobody named one; None: named after the provider."""


_REMOTE = Traits()


def traits_of(provider: Provider) -> Traits:
    """The provider's own statement, or that of a remote service."""
    traits = getattr(provider, "traits", _REMOTE)
    return traits if isinstance(traits, Traits) else _REMOTE
