"""How a message stands to the active objective, by rules that each have a reason to give.

An objective is taken to be an *action on a thing*: to look for a hotel, to book it, to hear a song. A message that asks for
another thing, or for doing what so far was only looked for, states another objective; one that answers, refines or asks about
what is there continues. `offline_cues` has the phrases and words, `offline_reading` puts the result into a classification.
"""

import re
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any, Literal, NamedTuple

from kitchener.gateway.providers.offline import cues
from kitchener.gateway.providers.offline.words import (
    GREETING_FILLERS,
    GREETINGS,
    IMPERATIVES,
    LEAD_WORDS,
    content_stems,
    stem,
    words_of,
)

RECENT_TURNS_READ = 3
MAX_READ_CHARS = 2_000
MAX_QUESTION_CHARS = 300
SHORT_REPLY_WORDS = 4
MAX_CLOSING_STEMS = 4
MIN_NEW_STEMS = 2

# How sure a rule is: said outright; a clear sign; a sign that can mislead; a guess that still decides; no idea.
PLAIN, CLEAR, LIKELY, GUESS, UNKNOWN = 0.9, 0.8, 0.7, 0.6, 0.4

_PIECES = re.compile(r"[^\W_]+(?:'[^\W_]+)?|[.?!;,:]")

# Later entries win: "transfer" and "purchase" are verbs first, and nouns where no verb can stand.
_ROLES: dict[str, str] = {
    **dict.fromkeys(cues.ASKING, "asks"),
    **dict.fromkeys(cues.ENDS_ASKING, "circumstance"),
    **dict.fromkeys(cues.NEGATING, "negates"),
    **dict.fromkeys(cues.ACTING_NOUNS, "acting noun"),
    **dict.fromkeys(cues.ACTING, "acts"),
    **dict.fromkeys(".?!;", "stop"),
    **dict.fromkeys(",:", "pause"),
    "but": "stop",
}

Question = Literal["what else", "offer", "confirm", "proposal", "detail", "none"]


class Relation(NamedTuple):
    """How a message stands to the active objective.

    `confidence` is from 0 to 1, `reason` one fixed phrase for each rule. `offer` holds what the assistant had offered, in the
    assistant's words, where the message takes it up. `keeps_thing` says that a switch is to acting on the very thing that was
    looked for, `returns` that it goes back to an earlier matter.
    """

    name: Literal["continue", "switch", "close", "unclear"]
    confidence: float
    reason: str
    offer: str = ""
    keeps_thing: bool = False
    returns: bool = False


class Wants(NamedTuple):
    """What a text asks for: the things in order of mention, whether it asks to act on one, whether it asks at all."""

    things: tuple[str, ...]
    acts: bool
    asks: bool

    @property
    def something(self) -> bool:
        """Whether it names a thing or an action that is wanted."""
        return self.acts or bool(self.things)


class _Reading(NamedTuple):
    """All that the rules look at."""

    text: str
    words: list[str]
    stems: set[str]
    now: Wants
    question: Question
    offered: str
    objective: str
    goal_things: frozenset[str]
    goal_acts: bool
    recent_turns: Sequence[Any]


def relation(
    message: str, recent_turns: Sequence[Any] = (), active_objective: str | None = None, words: list[str] | None = None
) -> Relation:
    """How the message stands to the active objective, how sure that is, and by which rule. Never raises.

    Args:
        recent_turns: mappings with `user` and `assistant`, oldest first; the newest `RECENT_TURNS_READ` are read
        active_objective: the goal that is open; None or "" if none is
        words: the words of the message, where the caller has them already
    """
    text = _lowered(message).strip()
    words = words_of(text) if words is None or len(message) > MAX_READ_CHARS else words
    if not active_objective:
        return _without_objective(text, words)
    newest = recent_turns[-1] if recent_turns else None
    question, offered = asked(_lowered(newest.get("assistant"))) if isinstance(newest, Mapping) else ("none", "")
    objective = _lowered(active_objective)
    goal = wants(objective)
    read = _Reading(
        text,
        words,
        content_stems(words),
        wants(text),
        question,
        offered,
        objective,
        frozenset(goal.things or _mentioned(objective) or _asked_before(recent_turns)),
        goal.acts,
        recent_turns,
    )
    return _closing(read) or _announced(read) or _another_goal(read) or _small_talk(read) or _going_on(read)


# --- the rules, in the order in which they are asked --------------------------------------------------------------------


def _without_objective(text: str, words: list[str]) -> Relation:
    stems = content_stems(words)
    if len(stems) <= MAX_CLOSING_STEMS and cues.CLOSERS.search(text) and not wants(text).something:
        return Relation("close", CLEAR, "takes leave")
    if stems and not _greets(words):
        return Relation("switch", CLEAR, "the first goal")
    return Relation("unclear", 0.5, "names no goal")


def _closing(read: _Reading) -> Relation | None:
    text, question = read.text, read.question
    if "?" in text or read.now.something:
        # "That's all about the hotel. Now a taxi, please?" and "write a poem that says goodbye" want something.
        return None
    agrees = question == "confirm" and cues.AFFIRMS.search(text) is not None  # "yes, that's it" is an answer there
    if not agrees and len(read.stems) <= MAX_CLOSING_STEMS and cues.CLOSERS.search(text):
        return Relation("close", PLAIN, "says that nothing more is wanted")
    if cues.REFUSES.search(text):
        if question == "what else":
            return Relation("close", PLAIN, "wants nothing else")
        if question == "offer" and not any(word[0].isdigit() for word in read.words):  # "no, on the 5th" corrects a detail
            return Relation("close", GUESS, "declines what was offered")
    elif question == "what else" and cues.THANKS.search(text):
        return Relation("close", CLEAR, "only thanks when asked what else")
    return None


def _announced(read: _Reading) -> Relation | None:
    things = read.now.things
    if cues.ANNOUNCING_WORDS.isdisjoint(read.words) or (things and read.goal_things.issuperset(things)):
        return None
    if cues.RETURNS.search(read.text):
        return Relation("switch", CLEAR, "goes back to something earlier", returns=True)
    opener = cues.OPENERS.search(read.text)
    if opener is not None and (things or cues.GIVEN.isdisjoint(words_of(read.text[opener.end() :]))):
        return Relation("switch", CLEAR, "announces another matter")
    return None


def _another_goal(read: _Reading) -> Relation | None:
    now, asks_back = read.now, "?" in read.text
    if now.something and not (read.question == "detail" and _states(read)):
        if not read.goal_things.issuperset(now.things) and (read.goal_things or _is_unheard(now.things, read.recent_turns)):
            return Relation("switch", LIKELY, "asks for another thing")
        if now.acts and not read.goal_acts:
            return Relation("switch", GUESS, "asks to act on what was looked for", keeps_thing=True)
    if read.question == "offer" and read.offered and not (read.goal_acts or asks_back) and cues.AFFIRMS.search(read.text):
        return Relation("switch", GUESS, "takes up what was offered", read.offered, keeps_thing=True)
    return None


def _states(read: _Reading) -> bool:
    """Whether it neither asks nor commands. Who is asked for a detail answers so: "I want to go by bus"."""
    return "?" not in read.text and next((word for word in read.words if word not in LEAD_WORDS), "") not in IMPERATIVES


def _small_talk(read: _Reading) -> Relation | None:
    if _greets(read.words):
        return Relation("unclear", 0.5, "only greets")
    if not read.stems:
        return Relation("continue", LIKELY, "a short reply")
    if cues.THANKS.search(read.text) and not (read.now.something or "?" in read.text):
        return Relation("continue", LIKELY, "thanks for a step")
    return None


def _going_on(read: _Reading) -> Relation:
    if read.question in ("detail", "confirm", "proposal", "offer"):
        return Relation("continue", CLEAR, "answers the question")
    now, words, stems = read.now, read.words, read.stems
    turns = _texts(read.recent_turns)
    if _speaks_of(stems, read.objective, turns):
        return Relation("continue", CLEAR, "speaks of the same")
    if not cues.BACK_REFERENCES.isdisjoint(words):
        return Relation("continue", LIKELY, "refers back")
    if read.question == "what else" and now.asks:
        return Relation("switch", LIKELY, "names what else is wanted")
    if len(words) <= SHORT_REPLY_WORDS or len(stems) < MIN_NEW_STEMS:
        return Relation("continue", LIKELY, "a short reply")
    if now.asks and not cues.INDEFINITE.isdisjoint(words):
        return Relation("switch", GUESS, "asks for something new")
    return Relation("unclear", UNKNOWN, "no sign")


# --- what they look at --------------------------------------------------------------------------------------------------


@lru_cache(512)  # the newest turns and the goal are asked for again in each turn
def wants(text: str) -> Wants:
    """What a text in lower case asks for, read once from left to right; one of at most `MAX_READ_CHARS`, since it is kept."""
    things: list[str] = []
    pieces = _PIECES.findall(text)
    acts = asks = not cues.ENJOYING.isdisjoint(pieces) and cues.ENJOYS.search(text) is not None
    asking, before, negated, was_thing = "", ".", False, False
    for piece in pieces:
        role = _ROLES.get(piece)
        if role is None and not asking and not was_thing:
            before = piece
            continue
        if role is not None and (not negated or role in ("stop", "pause")):
            if role == "asks":
                asking, asks = piece, True
            elif role == "acts" and (before in cues.BEFORE_ACTING or not before[0].isalnum()):
                asking, acts, asks = piece, True, True
            elif role in ("acts", "acting noun"):
                acts = acts or (bool(asking) and asking not in cues.SEARCHING)
            else:
                asking, negated = asking if role == "pause" else "", role == "negates"
        if (asking or was_thing) and (thing := cues.THING_OF_STEM.get(stem(piece))) is not None:
            if was_thing:
                things.pop()  # of "music events" the last noun is what is meant
            things.append(thing)
            asking, was_thing = "", True
        else:
            was_thing = False
        before = piece
    return Wants(tuple(things), acts, asks)


@lru_cache(512)
def asked(reply: str) -> tuple[Question, str]:
    """What kind of question the assistant's reply in lower case ends with, and, of an offer to act, what is offered."""
    reply = reply[-MAX_QUESTION_CHARS:].rstrip()
    end = reply.rfind("?")
    end = len(reply) if end < 0 else end + 1
    start = max(
        reply.rfind(".", 0, end - 1), reply.rfind("?", 0, end - 1), reply.rfind("!", 0, end - 1), reply.rfind("\n", 0, end - 1)
    )
    question = reply[start + 1 : end]
    words = words_of(question)
    if not cues.ELSE_WORDS.isdisjoint(words) and cues.ASKS_WHAT_ELSE.search(question):
        return "what else", ""
    if ("confirm" in reply or not cues.CONFIRMING.isdisjoint(words)) and cues.CONFIRMS.search(reply):
        return "confirm", ""
    if words and words[0] in cues.QUESTION_LEADS:
        return "detail", ""
    if not question.endswith("?"):
        return "none", ""
    if not cues.QUESTION_LEADS.isdisjoint(words):
        return "detail", ""
    offered = _offered(question)
    return ("proposal", "") if offered is None else ("offer", offered)


def _offered(question: str) -> str | None:
    """What an offer proposes, "reserve a table there"; "" if nothing in particular, None if it is no offer."""
    found = cues.OFFERS.search(question)
    rest = (question if found is None else question[found.end() :]).strip(" ?")
    words = rest.split()
    for at, word in enumerate(words):
        if word in cues.ACTING:
            return " ".join(words[at:])
    if found is None or cues.ENJOYS.search(rest):
        return None if found is None else rest
    if cues.ACTING_NOUNS.isdisjoint(words_of(rest)):
        return ""
    return rest if rest.startswith(("make ", "get ")) else f"get {rest}"


def _asked_before(recent_turns: Sequence[Any]) -> tuple[str, ...]:
    """The things that the newest turn asked for that asked for any."""
    for user, _ in reversed(_texts(recent_turns)):
        if things := wants(user).things:
            return things
    return ()


@lru_cache(512)
def _mentioned(text: str) -> tuple[str, ...]:
    return tuple(thing for word in words_of(text) if (thing := cues.THING_OF_STEM.get(stem(word))) is not None)


def forget_texts() -> None:
    """Drops the texts that are kept because they are often asked for again."""
    for kept in (wants, asked, _mentioned):
        kept.cache_clear()


def _is_unheard(things: Sequence[str], recent_turns: Sequence[Any]) -> bool:
    """Whether none of the things was mentioned in the newest turns, by whomever."""
    return all(set(things).isdisjoint(_mentioned(text)) for turn in _texts(recent_turns) for text in turn)


def _speaks_of(stems: set[str], objective: str, turns: Sequence[tuple[str, str]]) -> bool:
    """Whether a word of what was said before begins with one of the stems."""
    earlier = " ".join(("", objective, *(text for turn in turns for text in turn)))
    return any(f" {each}" in earlier for each in stems)


def _greets(words: Sequence[str]) -> bool:
    leads = bool(words) and (words[0] in GREETINGS or (words[0] == "good" and len(words) > 1 and words[1] in GREETINGS))
    return leads and all(word in GREETINGS or word in GREETING_FILLERS for word in words)


def _texts(recent_turns: Sequence[Any]) -> list[tuple[str, str]]:
    """What user and assistant said in the newest turns, oldest first, in lower case."""
    newest = recent_turns[-RECENT_TURNS_READ:]
    return [(_lowered(turn.get("user")), _lowered(turn.get("assistant"))) for turn in newest if isinstance(turn, Mapping)]


def _lowered(text: Any) -> str:
    """The end of a text in lower case with straight apostrophes; the end, since there stands what a message asks for."""
    return text[-MAX_READ_CHARS:].lower().replace("’", "'") if isinstance(text, str) else ""
