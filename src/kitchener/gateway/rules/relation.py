"""Decides by rules how a message relates to the active objective: it continues, switches, closes, or is unclear.

An objective is an action on a topic: to search for a hotel, to book it, to hear a song. A message switches the objective if it
requests another topic, or a transaction where so far there was only a search. A message that answers, refines or asks about the
objective continues it. Each rule gives a reason. `vocabulary` has the phrases and words.
"""

import re
from collections.abc import Sequence
from typing import Literal, NamedTuple, TypedDict

from kitchener.gateway.rules import vocabulary as table
from kitchener.gateway.rules.vocabulary import content_stems, is_greeting, lower_words, singular
from kitchener.records.entries import IntentRelation

RECENT_TURNS_READ = 3
MAX_READ_CHARS = 2_000
MAX_QUESTION_CHARS = 300
SHORT_REPLY_WORDS = 4
MAX_CLOSING_STEMS = 4
MIN_NEW_STEMS = 2

# How sure a rule is: said outright; a clear sign; a sign that can mislead; a guess that still decides; no idea.
PLAIN, CLEAR, LIKELY, GUESS, UNKNOWN = 0.9, 0.8, 0.7, 0.6, 0.4

_SENTENCE_ENDS = re.compile(r"[.!;]")
_PIECES = re.compile(r"[^\W_]+(?:'[^\W_]+)?|[.?!;,:]")

# Later entries win: "transfer" and "purchase" are verbs first, and nouns where no verb can stand.
_Role = Literal["request", "circumstance", "negation", "transaction noun", "transaction verb", "stop", "pause"]
_ROLES: dict[str, _Role] = {
    **dict.fromkeys(table.REQUEST_WORDS, "request"),
    **dict.fromkeys(table.CIRCUMSTANCE_WORDS, "circumstance"),
    **dict.fromkeys(table.NEGATIONS, "negation"),
    **dict.fromkeys(table.TRANSACTION_NOUNS, "transaction noun"),
    **dict.fromkeys(table.TRANSACTION_VERBS, "transaction verb"),
    **dict.fromkeys(".?!;", "stop"),
    **dict.fromkeys(",:", "pause"),
    "but": "stop",
}

Question = Literal["what else", "that is all", "offer", "confirm", "proposal", "detail", "none"]
"""What the assistant last asked: whether anything else is wanted, whether this is all, whether to do something, whether what
was said is right, whether a proposal suits, a detail, or nothing."""


class RecentTurn(TypedDict):
    """One earlier exchange."""

    user: str
    assistant: str


class ObjectiveRelation(NamedTuple):
    """How a message relates to the active objective."""

    name: IntentRelation
    """The relation; `unclear` if no rule decides."""
    confidence: float
    """How reliable the rule is, from 0 to 1."""
    reason: str
    """One fixed phrase for each rule."""
    offer: str = ""
    """The offer that the message accepts, in the assistant's words; "" if it accepts none."""
    keeps_topic: bool = False
    """Whether a switch requests a transaction on the topic that was searched for."""
    returns: bool = False
    """Whether a switch goes back to an earlier matter."""


class Requested(NamedTuple):
    """What a text requests."""

    topics: tuple[str, ...]
    """The topics in order of mention."""
    is_transaction: bool
    """Whether it requests a transaction: to book, buy, send, play, and so on."""

    @property
    def is_specific(self) -> bool:
        """Whether it names a topic or a transaction."""
        return self.is_transaction or bool(self.topics)


class _Evidence(NamedTuple):
    """Everything that the rules look at, in lower case."""

    text: str
    words: list[str]
    stems: set[str]
    requested: Requested
    question: Question
    offered: str
    objective: str
    objective_topics: frozenset[str]
    objective_transacts: bool
    turns: Sequence[tuple[str, str]]

    def is_known(self, stem: str) -> bool:
        """Whether the objective or a recent turn has a word that begins with the stem."""
        return any(f" {stem}" in f" {text}" for text in (self.objective, *(text for turn in self.turns for text in turn)))


def relation(message: str, recent_turns: Sequence[RecentTurn] = (), active_objective: str | None = None) -> ObjectiveRelation:
    """Returns how the message relates to the active objective, with a confidence and a reason.

    Args:
        message: what the user says; its last `MAX_READ_CHARS` characters are read
        recent_turns: earlier turns, oldest first; the newest `RECENT_TURNS_READ` are read
        active_objective: the open goal; None or "" if there is none
    """
    text = _lowered(message).strip()
    words = lower_words(text)
    if not active_objective:
        return _without_objective(text, words, _recent(recent_turns))
    turns = _recent(recent_turns)
    question, offered = question_of(turns[-1][1]) if turns else ("none", "")
    objective = _lowered(active_objective)
    goal = requested(objective)
    found = _Evidence(
        text=text,
        words=words,
        stems=content_stems(words),
        requested=requested(text),
        question=question,
        offered=offered,
        objective=objective,
        objective_topics=frozenset(goal.topics or _mentioned(objective) or _last_requested(turns)),
        objective_transacts=goal.is_transaction,
        turns=turns,
    )
    return _closing(found) or _announced(found) or _another_goal(found) or _small_talk(found) or _continuing(found)


# --- the rules, in their order ------------------------------------------------------------------------------------------


def _without_objective(text: str, words: list[str], turns: Sequence[tuple[str, str]]) -> ObjectiveRelation:
    stems, goal = content_stems(words), requested(text)
    if "?" not in text and not goal.is_specific:
        is_reply = turns and (_refuses(text) or table.THANKING_PHRASES.search(text))
        if is_reply or _says_goodbye(text):
            return ObjectiveRelation("close", CLEAR, "takes leave")
    leans = not table.BACK_REFERENCES.isdisjoint(words) if stems else "?" in text  # "what is its address?", "and then?"
    if turns and leans and not goal.is_specific:
        return ObjectiveRelation("continue", GUESS, "takes up what was closed")
    if stems and not is_greeting(words):
        return ObjectiveRelation("switch", CLEAR, "states the first goal")
    return ObjectiveRelation("unclear", 0.5, "names no goal")


def _closing(found: _Evidence) -> ObjectiveRelation | None:
    text, question = found.text, found.question
    if "?" in text or found.requested.is_specific:
        # "That's all about the hotel. Now a taxi, please?" and "write a poem that says goodbye" request something.
        return None
    agrees = table.AGREEING_PHRASES.search(text) is not None
    # "Yes, that's it" answers a question whether something is right.
    answers = (agrees and question == "confirm") or (question == "proposal" and text.startswith("yes"))
    if not answers and _says_goodbye(text):
        return ObjectiveRelation("close", PLAIN, "says that nothing more is wanted")
    if question == "that is all" and agrees:
        return ObjectiveRelation("close", PLAIN, "says that nothing more is wanted")
    if _refuses(text):
        if question == "what else":
            return ObjectiveRelation("close", PLAIN, "wants nothing else")
        if question == "offer" and found.offered and not any(word[0].isdigit() for word in found.words):
            return ObjectiveRelation("close", GUESS, "declines an offer")  # "no, on the 5th" corrects a detail
    elif question == "what else" and table.THANKING_PHRASES.search(text):
        return ObjectiveRelation("close", CLEAR, "only thanks when asked what else")
    return None


def _says_goodbye(text: str) -> bool:
    """Whether a sentence of a text, in few words, says that nothing more is wanted, or takes leave."""
    return any(
        len(content_stems(lower_words(sentence))) <= MAX_CLOSING_STEMS
        for sentence in map(str.strip, _SENTENCE_ENDS.split(text))
        if table.CLOSING_PHRASES.search(sentence)
    )


def _refuses(text: str) -> bool:
    return table.REFUSING_PHRASES.search(text) is not None


def _announced(found: _Evidence) -> ObjectiveRelation | None:
    topics = found.requested.topics
    if topics and found.objective_topics.issuperset(topics):
        return None
    if not topics and table.ALTERNATIVE_PHRASES.search(found.text):
        return None
    if table.RETURNING_PHRASES.search(found.text):
        return ObjectiveRelation("switch", CLEAR, "goes back to something earlier", returns=True)
    phrase = table.SWITCHING_PHRASES.search(found.text)
    if phrase is not None and (topics or table.DEFINITE_WORDS.isdisjoint(lower_words(found.text[phrase.end() :]))):
        return ObjectiveRelation("switch", CLEAR, "announces another matter")
    return None


def _another_goal(found: _Evidence) -> ObjectiveRelation | None:
    now, transacts, question = found.requested, found.objective_transacts, found.question
    if now.is_specific and not (question == "detail" and _is_statement(found)):
        is_other = not found.objective_topics.issuperset(now.topics) and not _wants_alternative(found)
        if is_other and (found.objective_topics or _are_new(now.topics, found.turns)):
            return ObjectiveRelation("switch", LIKELY, "requests another topic")
        if now.is_transaction and not transacts:
            return ObjectiveRelation("switch", GUESS, "requests a transaction after a search", keeps_topic=True)
    if _introduces(found):
        return ObjectiveRelation("switch", GUESS, "requests a new thing")
    accepts = found.offered and not transacts and "?" not in found.text and table.AGREEING_PHRASES.search(found.text)
    if question == "offer" and accepts:
        return ObjectiveRelation("switch", GUESS, "accepts an offer", found.offered, keeps_topic=True)
    return None


def _wants_alternative(found: _Evidence) -> bool:
    """Whether the message asks for others of what the last turn was about: "are there other hotels?"."""
    named = {topic for turn in found.turns[-1:] for text in turn for topic in _mentioned(text)}
    return named.issuperset(found.requested.topics) and table.ALTERNATIVE_PHRASES.search(found.text) is not None


def _introduces(found: _Evidence) -> bool:
    """Whether the message requests a thing that was not mentioned before: "find me a plumber", "I also need some paint"."""
    if found.question in ("detail", "confirm") or table.ALTERNATIVE_PHRASES.search(found.text):
        return False
    return any(
        table.TOPIC_OF_STEM.get(thing[-1]) not in found.objective_topics and not any(map(found.is_known, thing))
        for thing in _requested_things(found.text)
    )


def _requested_things(text: str) -> list[list[str]]:
    """The stems of each thing that a text in lower case requests without a definite word, its noun last."""
    things: list[list[str]] = []
    thing: list[str] | None = None
    before = ""
    for piece in (*_PIECES.findall(text), "."):
        may_precede = before != "to" and (piece in table.BEFORE_THINGS or (piece[0].isdigit() and before in ("a", "an")))
        if piece in table.THING_REQUESTS or (piece == "like" and before in table.WOULD):
            thing = []
        elif thing is not None and not (may_precede and not thing):
            if before != "to" and piece[0].isalpha() and piece not in table.THING_ENDS and piece not in _ROLES:
                thing.append(singular(piece))
            else:
                if thing and thing[-1] not in table.GENERIC_STEMS:
                    things.append(thing)
                thing = None
        before = piece
    return things


def _is_statement(found: _Evidence) -> bool:
    """Whether the message neither asks nor commands: "I want to go by bus" answers a question for a detail."""
    first = next((word for word in found.words if word not in table.LEAD_WORDS), "")
    return "?" not in found.text and first not in table.IMPERATIVES


def _small_talk(found: _Evidence) -> ObjectiveRelation | None:
    if is_greeting(found.words):
        return ObjectiveRelation("unclear", 0.5, "only greets")
    if not found.stems:
        return ObjectiveRelation("continue", LIKELY, "gives a short reply")
    if table.THANKING_PHRASES.search(found.text) and not (found.requested.is_specific or "?" in found.text):
        return ObjectiveRelation("continue", LIKELY, "thanks for a step")
    return None


def _continuing(found: _Evidence) -> ObjectiveRelation:
    if found.question in ("detail", "confirm", "proposal", "offer"):
        return ObjectiveRelation("continue", CLEAR, "answers the question")
    words = found.words
    if any(map(found.is_known, found.stems)):
        return ObjectiveRelation("continue", CLEAR, "repeats an earlier word")
    if not table.BACK_REFERENCES.isdisjoint(words):
        return ObjectiveRelation("continue", LIKELY, "refers back")
    if len(words) <= SHORT_REPLY_WORDS or len(found.stems) < MIN_NEW_STEMS:
        return ObjectiveRelation("continue", LIKELY, "gives a short reply")
    return ObjectiveRelation("unclear", UNKNOWN, "no sign")


# --- what the rules look at ---------------------------------------------------------------------------------------------


def requested(text: str) -> Requested:
    """Returns what a text in lower case requests. Reads it once from left to right."""
    topics: list[str] = []
    pieces = _PIECES.findall(table.THANKS_FOR.sub("", text))
    is_transaction = table.ENJOYMENT_PHRASES.search(text) is not None
    request, before, is_negated, was_topic = "", ".", False, False
    for piece in pieces:
        role = _ROLES.get(piece)
        if role is not None and (not is_negated or role in ("stop", "pause")):
            if role == "request":
                request = piece
            elif role == "transaction verb" and (before in table.BEFORE_TRANSACTION_VERBS or not before[0].isalnum()):
                request, is_transaction = piece, True
            elif role in ("transaction verb", "transaction noun"):
                is_transaction = is_transaction or (bool(request) and request not in table.SEARCH_WORDS)
            else:
                request, is_negated = request if role == "pause" else "", role == "negation"
        is_verb = request == piece  # to show something is no show
        topic = table.TOPIC_OF_STEM.get(singular(piece)) if (request or was_topic) and not is_verb else None
        if topic is not None:
            if was_topic:
                topics.pop()  # of "music events" the last noun is what is meant
            topics.append(topic)
            request = ""
        was_topic, before = topic is not None, piece
    return Requested(tuple(topics), is_transaction)


def question_of(reply: str) -> tuple[Question, str]:
    """Returns the kind of question that ends a reply in lower case and, if it is an offer, what is offered."""
    reply = reply[-MAX_QUESTION_CHARS:].rstrip()
    end = reply.rfind("?") + 1 or len(reply)
    start = max(reply.rfind(mark, 0, end - 1) for mark in ".?!\n")
    question = reply[start + 1 : end]
    words = lower_words(question)
    if table.ELSE_PHRASES.search(question):
        return "what else", ""
    if table.ALL_PHRASES.search(question):
        return "that is all", ""
    confirms = "confirm" in reply or not table.CONFIRMATION_WORDS.isdisjoint(words)
    if confirms and table.CONFIRMATION_PHRASES.search(reply):
        return "confirm", ""
    if table.PROPOSING_PHRASES.search(question):
        return "proposal", ""
    if words and words[0] in table.DETAIL_WORDS:
        return "detail", ""
    if not question.endswith("?"):
        return "none", ""
    if not table.DETAIL_WORDS.isdisjoint(words):
        return "detail", ""
    offered = _offered(question)
    return ("proposal", "") if offered is None else ("offer", offered)


def _offered(question: str) -> str | None:
    """What an offer proposes, "reserve a table there"; "" if nothing in particular, None if it is no offer."""
    found = table.OFFER_PHRASES.search(question)
    rest = (question if found is None else question[found.end() :]).strip(" ?")
    words = rest.split()
    for at, word in enumerate(words):
        if word in table.TRANSACTION_VERBS:
            return " ".join(words[at:])
    if found is None:
        return None
    if table.ENJOYMENT_PHRASES.search(rest):
        return rest
    if table.TRANSACTION_NOUNS.isdisjoint(lower_words(rest)):
        return ""
    return rest if rest.startswith(("make ", "get ")) else f"get {rest}"


def _last_requested(turns: Sequence[tuple[str, str]]) -> tuple[str, ...]:
    """The topics of the newest turn in which the user requested any."""
    return next((topics for user, _ in reversed(turns) if (topics := requested(user).topics)), ())


def _are_new(topics: Sequence[str], turns: Sequence[tuple[str, str]]) -> bool:
    """Whether neither the user nor the assistant mentioned any of the topics in the recent turns."""
    return all(set(topics).isdisjoint(_mentioned(text)) for turn in turns for text in turn)


def _mentioned(text: str) -> tuple[str, ...]:
    return tuple(topic for word in lower_words(text) if (topic := table.TOPIC_OF_STEM.get(singular(word))) is not None)


def _recent(turns: Sequence[RecentTurn]) -> list[tuple[str, str]]:
    return [(_lowered(turn["user"]), _lowered(turn["assistant"])) for turn in turns[-RECENT_TURNS_READ:]]


def _lowered(text: str) -> str:
    """The end of a text, where a message says what it requests, in lower case with straight apostrophes."""
    return text[-MAX_READ_CHARS:].lower().replace("’", "'")
