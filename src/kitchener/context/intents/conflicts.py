"""Asks the user to choose while several intents compete, and interprets the answer without a model."""

from collections.abc import Mapping, Sequence

from kitchener.context.fold.items import shortened
from kitchener.context.fold.lifecycle import IntentRecord
from kitchener.context.intents.transitions import IntentEvent, superseded


def describe_conflict(competing: Sequence[str], intents: Mapping[str, IntentRecord]) -> str:
    """The numbered threads, as a reply to the user."""
    lines = [f"{n}. {shortened(intents[each].facts.objective)}" for n, each in enumerate(competing, 1)]
    return "\n".join(["Several threads are open. Which one shall we go on with? Answer with its number.", *lines])


def choose_thread(message: str, competing: Sequence[str], intents: Mapping[str, IntentRecord]) -> str | None:
    """The intent that a message names by its number or its objective, or None if it names none or more than one."""
    said = " ".join(message.split()).strip(".!#) ").casefold()
    # Plain digits only: other numerals are digits to Python that nobody types as an answer.
    if said.isascii() and said.isdigit() and len(said) <= len(str(len(competing))):
        number = int(said)
        return competing[number - 1] if 1 <= number <= len(competing) else None
    named = [
        each
        for each in competing
        if (objective := " ".join(intents[each].facts.objective.split()).casefold()) and _names(said, objective)
    ]
    return named[0] if len(named) == 1 else None


def keep_intent(keep: str, competing: Sequence[str]) -> tuple[IntentEvent, ...]:
    """The entries that settle a conflict: every other intent gives way to the one that is kept."""
    return tuple([superseded(each, keep, "settled in favour of another") for each in competing if each != keep])


def _names(said: str, objective: str) -> bool:
    return said == objective or objective in said
