"""Classifies a message by rules: what kind of utterance it is, what it is about, and how it relates to the active objective.

The answer has the form that the contract `PRC-CLASSIFY-001` requires. `relation` and `tool_choice` decide parts of it.
"""

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Literal, NotRequired, TypedDict

from kitchener.gateway.rules import vocabulary as table
from kitchener.gateway.rules.relation import MAX_READ_CHARS, ObjectiveRelation, RecentTurn, relation, requested
from kitchener.gateway.rules.tool_choice import ChosenTool, choose_tool
from kitchener.gateway.rules.vocabulary import content_stems, is_greeting, lower_words, singular
from kitchener.records.entries import IntentRelation
from kitchener.records.prompt import ToolSpec

MAX_OBJECTIVE_CHARS = 120
MAX_GREETING_WORDS = 6

_SENTENCE_ENDS = re.compile(r"[.?!]\s+")

SpeechAct = Literal["greeting", "thanks", "farewell", "question", "command", "statement"]


class EarlierObjective(TypedDict):
    """The proposal of a message that takes up what an earlier one was about."""

    action: Literal["supersede"]
    prior_intent_id: str


class RuleClassification(TypedDict):
    """What the rules say about a message."""

    speech_act: SpeechAct
    ambiguity: Literal["low", "high"]
    labels: dict[str, str]
    """At most one label each for `domain` and `task`."""
    intent_relation: IntentRelation
    confidence: float
    """How reliable `intent_relation` is, from 0 to 1."""
    candidate_objective: NotRequired[str]
    """The goal in the user's words, at most `MAX_OBJECTIVE_CHARS` characters."""
    intent: NotRequired[EarlierObjective]
    tool_request: NotRequired[ChosenTool]


def classify(
    message: str,
    *,
    active_objective: str | None = None,
    prior_intent_id: str | None = None,
    recent_turns: Sequence[RecentTurn] | None = None,
    labels_vocabulary: Mapping[str, Sequence[str]] | None = None,
    tools: Sequence[ToolSpec] = (),
) -> RuleClassification:
    """Classifies one message. The same arguments always give the same result.

    Args:
        message: what the user says
        active_objective: the open goal; None if there is none
        prior_intent_id: the intent before, named again if the message returns to it; None if there is none
        recent_turns: earlier turns of the session, oldest first; None: there are none
        labels_vocabulary: the allowed labels by `domain` and `task`; without any, those of the built-in tables
        tools: the tools that the message may request
    """
    message = message.strip()
    words = lower_words(message)
    stems = content_stems(words)
    act = speech_act(message, words)
    found = relation(message, recent_turns or (), active_objective)
    answer: RuleClassification = {
        "speech_act": act,
        "ambiguity": "low" if stems or act in ("greeting", "thanks", "farewell") else "high",
        "labels": _labels(words, labels_vocabulary or {}),
        "intent_relation": found.name,
        "confidence": found.confidence,
    }
    if found.offer or (stems and found.name != "close" and act in ("question", "command", "statement")):
        answer["candidate_objective"] = _objective(message, found, active_objective)
    if found.returns and prior_intent_id:
        answer["intent"] = {"action": "supersede", "prior_intent_id": prior_intent_id}
    if act in ("question", "command") and (tool := choose_tool(message, words, tools)) is not None:
        answer["tool_request"] = tool
    return answer


def speech_act(message: str, words: Sequence[str]) -> SpeechAct:
    """Returns what the user does with a message of these words."""
    if not words:
        return "question" if message.endswith("?") else "statement"
    if len(words) <= MAX_GREETING_WORDS and (social := _social_act(message, words)) is not None:
        return social
    lowered = table.GREETING_LEAD.sub("", message.lower(), count=1)
    if lowered.startswith(table.REQUEST_OPENINGS) and not lowered.startswith(("can you tell me wh", "could you tell me wh")):
        return "command"
    first = next((word for word in words if word not in table.LEAD_WORDS), words[0])
    if first in table.QUESTION_WORDS:
        return "question"
    if table.LATER_REQUEST.search(lowered):
        return "command"
    if message.endswith("?"):
        return "question"
    return "command" if first in table.IMPERATIVES else "statement"


def _social_act(message: str, words: Sequence[str]) -> SpeechAct | None:
    if not message.endswith("?") and any(word in table.THANK_WORDS for word in words) and not content_stems(words):
        return "thanks"
    if any(word in table.FAREWELL_WORDS for word in words) or message.lower().startswith(table.FAREWELL_PHRASES):
        return "farewell"
    return "greeting" if is_greeting(words) else None


def _labels(words: Sequence[str], vocabulary: Mapping[str, Sequence[str]]) -> dict[str, str]:
    stems = [singular(word) for word in words]
    labels = {}
    for dimension, label_of in (("domain", table.DOMAIN_OF_STEM), ("task", table.TASK_OF_STEM)):
        counts = Counter(label_of[each] for each in stems if each in label_of)
        if allowed := vocabulary.get(dimension):
            counts = Counter({label: counts[label] + _mentions(label, stems) for label in allowed})
        best = max(counts, key=counts.__getitem__, default=None)  # of equals, the first in the message or the vocabulary
        if best is not None and counts[best]:
            labels[dimension] = best
    return labels


def _mentions(label: str, stems: Sequence[str]) -> int:
    """How often the message contains all words of a label."""
    return min((stems.count(singular(word)) for word in lower_words(label)), default=0)


def _objective(message: str, found: ObjectiveRelation, active: str | None) -> str:
    """The goal in the user's own words, without politeness and without sentences before the one that requests something.

    If the message requests a transaction on what was searched for, the old goal follows in brackets: "book it" alone would not
    say what.
    """
    request = _from_request(message) if found.name == "switch" else message
    text = found.offer or " ".join(table.POLITE_LEAD.sub("", request, count=1).split()).rstrip(" .!?")
    if found.keeps_topic and active:
        before = active.split(" (", 1)[0]
        text = f"{_cut_at_word(text, MAX_OBJECTIVE_CHARS // 2)} ({_cut_at_word(before, MAX_OBJECTIVE_CHARS // 2 - 3)})"
    return _cut_at_word(text or message, MAX_OBJECTIVE_CHARS)


def _from_request(message: str) -> str:
    """The message from the first sentence that names a requested topic or transaction; all of it if none does."""
    starts = [0, *[found.end() for found in _SENTENCE_ENDS.finditer(message)]]
    ends = [*starts[1:], len(message)]
    requests = (
        start
        for start, end in zip(starts, ends, strict=True)
        if requested(message[max(start, end - MAX_READ_CHARS) : end].lower()).is_specific
    )
    return message[next(requests, 0) :]


def _cut_at_word(text: str, limit: int) -> str:
    return text if len(text) <= limit else text[: limit - 1].rsplit(" ", 1)[0] + "…"
