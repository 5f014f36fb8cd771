"""Holds what an endpoint is sent with every request besides its body: the key, and the headers and the query of its settings.

`factory.py` reads the references to secrets; `chat_completions/transport.py` sends the values.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from kitchener.gateway.providers.redaction import Redaction, password_in


@dataclass(frozen=True, slots=True)
class SentValues:
    """What the references in a provider's settings lead to, beside the values that are no secrets."""

    key: str | None = field(default=None, repr=False)
    """The API key; None: no key is sent."""
    headers: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Further headers."""
    query: Mapping[str, str] = field(default_factory=dict, repr=False)
    """Parameters behind the address."""
    secrets: tuple[str, ...] = field(default=(), repr=False)
    """The secrets among these values."""

    def redaction(self) -> Redaction:
        """Returns what removes the secrets from answers.

        Of `Bearer KEY`, it also removes the key alone, and of `Basic LOGIN` the password in it.
        """
        parts = (part for each in self.secrets for part in (each.rpartition(" ")[2], password_in(each)))
        return Redaction(self.key, *self.secrets, *parts)
