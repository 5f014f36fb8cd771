"""What a model was shown, as one text that a test can search."""

from collections.abc import Mapping
from itertools import cycle
from typing import Any


def shown_text(assembled: Mapping[str, Any]) -> str:
    """The goals, the history with a label at each message, and the context of the turn."""
    roles = cycle(("user", "assistant"))
    history = [f"{role}: {text}" for role, text in zip(roles, assembled.get("history", ()), strict=False)]
    return "\n".join((assembled.get("stable_text", ""), *history, assembled["context_text"]))
