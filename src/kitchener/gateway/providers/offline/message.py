"""How the offline model reads a message: what kind of utterance it is, what it is about, how it relates to the goal.

Fixed rules over `offline_words`; the same input gives the same output. It reads variables, never rendered prompts.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any

from kitchener.gateway.providers.offline import words as table
from kitchener.gateway.providers.offline.relations import MAX_READ_CHARS, Relation, relation, wants
from kitchener.gateway.providers.offline.words import content_stems, stem, words_of

MAX_OBJECTIVE_CHARS = 120
MAX_GREETING_WORDS = 6

# An opening quotation mark ends at the next one too, or each of many would search through all that follows it.
_QUOTED = re.compile(r"\"([^\"]+)\"|“([^“”]+)”|`([^`]+)`|(?<!\w)'([^']+)'(?!\w)")
_WORD_BORDER = re.compile(r"(?<=[a-z])(?=[A-Z])|[_.-]")
MAX_PATH_CHARS = 256
_MAY_BE_PATH = re.compile(r"[\w./~-]++")
_PATH = re.compile(r"(?<![\w/])(?:[\w.~-]*/[\w./~-]+|[\w-]+\.[A-Za-z]\w{0,4})(?![\w/])")
_GENERIC_TOOL_WORDS = frozenset(
    (
        "all",
        "check",
        "do",
        "fetch",
        "find",
        "get",
        "list",
        "look",
        "lookup",
        "make",
        "query",
        "read",
        "run",
        "search",
        "show",
        "tool",
    )
)
_SHOWING_VERBS = frozenset(
    (
        "check",
        "display",
        "fetch",
        "find",
        "get",
        "give",
        "list",
        "look",
        "open",
        "print",
        "read",
        "retrieve",
        "search",
        "show",
        "tell",
    )
)
_SENTENCE_ENDS = re.compile(r"[.?!]\s+")
_LEAD = (
    r"^(?:(?:hi|hello|hey|ok|okay|so|well|thanks|thank you|yes|yeah|yep|sure|no|great|perfect|cool|nice|good|fine|alright"
    r"|all right|(?:that |it )?sounds (?:good|great|nice))[,.!]+ +|(?:hi|hello|hey|ok|okay|so|well|thanks|yes|sure) +)*"
)
_GREETING_LEAD = re.compile(_LEAD)
_POLITE_LEAD = re.compile(_LEAD + r"(?:(?:can|could|would|will) you )?(?:please[, ]+)?", re.IGNORECASE)

_LATER_REQUEST = re.compile(
    r"[.!?,;]\s+(?:(?:and|but|so|now|then|also)\s+)*(?:(?:can|could|would|will) you (?!tell me wh)|please |i need |i want "
    r"|i'd like |(?:help|find|get|show|give|book) me )"
)


def classify(variables: Mapping[str, Any]) -> dict[str, Any]:
    """Speech act, ambiguity, labels, objective, relation to the active goal, confidence and, if plain, a tool request."""
    message = str(variables.get("user_message") or "").strip()
    words = words_of(message)
    stems = content_stems(words)
    act = speech_act(message, words)
    active = variables.get("active_objective")
    found = relation(message, variables.get("recent_turns") or (), active, words)
    answer: dict[str, Any] = {
        "speech_act": act,
        "ambiguity": "low" if stems or act in ("greeting", "thanks", "farewell") else "high",
        "labels": _labels(words, variables.get("labels_vocabulary") or {}),
        "intent_relation": found.name,
        "confidence": found.confidence,
    }
    if found.offer or (stems and found.name != "close" and act in ("question", "command", "statement")):
        answer["candidate_objective"] = _objective(message, found, active)
    if found.returns and (prior := variables.get("prior_intent_id")):
        answer["intent"] = {"action": "supersede", "prior_intent_id": prior}
    if (tools := variables.get("tools")) and act in ("question", "command"):
        request = choose_tool(message, words, tools)
        if request is not None:
            answer["tool_request"] = {"tool_id": request[0], "arguments": request[1]}
    return answer


def speech_act(message: str, words: Sequence[str]) -> str:
    """`greeting`, `thanks`, `farewell`, `question`, `command` or `statement`."""
    if not words:
        return "question" if message.endswith("?") else "statement"
    if len(words) <= MAX_GREETING_WORDS and (social := _social_act(message, words)) is not None:
        return social
    lowered = _GREETING_LEAD.sub("", message.lower(), count=1)
    if lowered.startswith(table.REQUEST_OPENINGS) and not lowered.startswith(("can you tell me wh", "could you tell me wh")):
        return "command"
    first = next((word for word in words if word not in table.LEAD_WORDS), words[0])
    if first in table.QUESTION_WORDS:
        return "question"
    if _LATER_REQUEST.search(lowered):
        return "command"
    if message.endswith("?"):
        return "question"
    return "command" if first in table.IMPERATIVES else "statement"


def _social_act(message: str, words: Sequence[str]) -> str | None:
    first = words[0]
    if not message.endswith("?") and any(word in table.THANKS for word in words) and not content_stems(words):
        return "thanks"
    if any(word in table.FAREWELLS for word in words) or message.lower().startswith(table.FAREWELL_PHRASES):
        return "farewell"
    greets = first in table.GREETINGS or (first == "good" and len(words) > 1 and words[1] in table.GREETINGS)
    if greets and all(word in table.GREETINGS or word in table.GREETING_FILLERS for word in words):
        return "greeting"
    return None


def _labels(words: Sequence[str], vocabulary: Mapping[str, Sequence[str]]) -> dict[str, str]:
    stems = [stem(word) for word in words]
    labels = {}
    for kind, label_of in (("domain", table.DOMAIN_OF_STEM), ("task", table.TASK_OF_STEM)):
        counts: dict[str, int] = {}
        for label in [label_of[each] for each in stems if each in label_of]:
            counts[label] = counts.get(label, 0) + 1
        if allowed := vocabulary.get(kind):
            counts = {label: counts.get(label, 0) + _mentions(label, stems) for label in allowed}
        best = max(counts, key=counts.__getitem__, default=None)  # of equals, the one that was named first
        if best is not None and counts[best]:
            labels[kind] = best
    return labels


def _mentions(label: str, stems: Sequence[str]) -> int:
    """How often a label of the user's own vocabulary is named by its own words."""
    parts = [stem(word) for word in words_of(label)]
    return min((stems.count(part) for part in parts), default=0)


def _objective(message: str, found: Relation, active: Any) -> str:
    """The goal in the user's own words, without politeness and what stands before the sentence that asks.

    Where the message asks to act on what was looked for, the old goal is added in brackets: "book it" alone would not say what.
    """
    asking = _from_what_is_asked(message) if found.name == "switch" else message
    text = found.offer or " ".join(_POLITE_LEAD.sub("", asking, count=1).split()).rstrip(" .!?")
    if found.keeps_thing and isinstance(active, str):
        before = active.split(" (", 1)[0]
        text = f"{_shortened(text, MAX_OBJECTIVE_CHARS // 2)} ({_shortened(before, MAX_OBJECTIVE_CHARS // 2 - 3)})"
    return _shortened(text or message, MAX_OBJECTIVE_CHARS)


def _from_what_is_asked(message: str) -> str:
    """The message from the first sentence on that names a wanted thing or action; all of it if none does."""
    starts = [0, *[found.end() for found in _SENTENCE_ENDS.finditer(message)]]
    if len(starts) == 1:
        return message
    ends = [*starts[1:], len(message)]
    wanted = (
        start
        for start, end in zip(starts, ends, strict=True)
        if wants(message[max(start, end - MAX_READ_CHARS) : end].lower()).something
    )
    return message[next(wanted, 0) :]


def _shortened(text: str, limit: int) -> str:
    return text if len(text) <= limit else text[: limit - 1].rsplit(" ", 1)[0] + "…"


def choose_tool(message: str, words: Sequence[str], tools: Iterable[Any]) -> tuple[str, dict[str, Any]] | None:
    """The tool that the message plainly asks for, with arguments taken from its text; None if no tool fits.

    A tool fits if each telling word of its name is in the message, and the message does not command something else ("delete
    the file" is no case for `read_file`); words of its description decide between several. A required argument that is not
    text, or for which the message has no text, is never made up: then the tool does not fit.
    """
    stems = {stem(word) for word in words}
    verb = _commanded(message)
    best: tuple[int, str, dict[str, Any]] | None = None
    for tool in tools:
        tool_id, description, parameters = _described(tool)
        name_stems, telling, described = _tool_stems(tool_id, description)
        if not telling <= stems or not _does(verb, name_stems, described):
            continue
        score = 2 * len(name_stems & stems) + len(described & stems)
        if best is not None and score <= best[0]:
            continue
        arguments = _arguments(message, words, parameters, name_stems | described)
        if arguments is not None:
            best = (score, tool_id, arguments)
    return None if best is None else best[1:]


def _commanded(message: str) -> str | None:
    """The verb with which the message begins, politeness aside; None if it does not begin with one that we know."""
    words = words_of(_POLITE_LEAD.sub("", message, count=1))
    return words[0] if words and words[0] in table.IMPERATIVES else None


def _does(verb: str | None, name: frozenset[str], described: frozenset[str]) -> bool:
    if verb is None or stem(verb) in name or stem(verb) in described:
        return True
    return verb in _SHOWING_VERBS and not _SHOWING_VERBS.isdisjoint(name)


def _described(tool: Any) -> tuple[str, str, Mapping[str, Any]]:
    if isinstance(tool, Mapping):
        return str(tool.get("tool_id", "")), str(tool.get("description") or ""), tool.get("parameters") or {}
    return tool.tool_id, tool.description, tool.parameters


@lru_cache(1_024)
def _tool_stems(tool_id: str, description: str) -> tuple[frozenset[str], frozenset[str], frozenset[str]]:
    """Stems of the name, those of them that say what the tool is about, and those of the description."""
    name = frozenset(stem(word) for word in words_of(_WORD_BORDER.sub(" ", tool_id)))
    telling = name - _GENERIC_TOOL_WORDS
    return name, telling or name, frozenset(content_stems(words_of(description)))


def _arguments(
    message: str, words: Sequence[str], parameters: Mapping[str, Any], known_stems: frozenset[str]
) -> dict[str, Any] | None:
    """The required arguments, from quoted text, paths, or the last noun-like word; None if one cannot be had."""
    required = parameters.get("required") or ()
    if not required:
        return {}
    properties = parameters.get("properties") or {}
    if any((properties.get(name) or {}).get("type") != "string" for name in required):
        return None
    texts = ["".join(groups) for groups in _QUOTED.findall(message)] or _paths(message.rstrip(".?! "))
    if not texts and len(required) == 1:
        texts = _last_noun(message, words, known_stems)
    return dict(zip(required, texts, strict=True)) if len(texts) == len(required) else None


def _paths(text: str) -> list[str]:
    """The paths and file names in a text. Searching takes the square of a run's length, so a long one is none."""
    runs = [run for run in _MAY_BE_PATH.findall(text) if len(run) <= MAX_PATH_CHARS]
    return [path for run in runs for path in _PATH.findall(run)]


def _last_noun(message: str, words: Sequence[str], known_stems: frozenset[str]) -> list[str]:
    if not words or words[-1] in table.STOP_WORDS or words[-1] in table.IMPERATIVES or stem(words[-1]) in known_stems:
        return []
    return [table.WORD.findall(message)[-1]]  # as it was written: names keep their capitals
