"""Chooses the tool that a message plainly requests, with arguments taken from its text."""

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import TypedDict

from kitchener.gateway.rules import vocabulary as table
from kitchener.gateway.rules.vocabulary import content_stems, lower_words, singular, word_set
from kitchener.records.prompt import ToolSpec

MAX_PATH_CHARS = 256

# An opening quotation mark ends at the next one too, or each of many would search through all that follows it.
_QUOTED = re.compile(r"\"([^\"]+)\"|“([^“”]+)”|`([^`]+)`|(?<!\w)'([^']+)'(?!\w)")
_WORD_BORDER = re.compile(r"(?<=[a-z])(?=[A-Z])|[_.-]")
_MAY_BE_PATH = re.compile(r"[\w./~-]++")
_PATH = re.compile(r"(?<![\w/])(?:[\w.~-]*/[\w./~-]+|[\w-]+\.[A-Za-z]\w{0,4})(?![\w/])")
_GENERIC_WORDS = word_set("all check do fetch find get list look lookup make query read run search show tool")
_READING_VERBS = word_set("check display fetch find get give list look open print read retrieve search show tell")


class ChosenTool(TypedDict):
    """A tool and the arguments for it."""

    tool_id: str
    arguments: dict[str, str]


def choose_tool(message: str, words: Sequence[str], tools: Iterable[ToolSpec]) -> ChosenTool | None:
    """Returns the tool that the message plainly requests, or None if no tool fits.

    A tool fits if the message contains each specific word of its name and does not command something else: "delete the file"
    does not fit `read_file`. Words of the description decide between several. Arguments are never made up: a tool does not fit
    if it requires an argument that is not text, or that the message does not contain.

    Args:
        message: what the user says
        words: the words of the message
        tools: the tools to choose from, in order of preference
    """
    stems = {singular(word) for word in words}
    verb = _commanded(message)
    best: ChosenTool | None = None
    best_score = -1
    for tool in tools:
        name = {singular(word) for word in lower_words(_WORD_BORDER.sub(" ", tool.tool_id))}
        description = content_stems(lower_words(tool.description))
        if not (name - _GENERIC_WORDS or name) <= stems or not _does(verb, name, description):
            continue
        score = 2 * len(name & stems) + len(description & stems)
        arguments = _arguments(message, words, tool, name | description) if score > best_score else None
        if arguments is not None:
            best, best_score = {"tool_id": tool.tool_id, "arguments": arguments}, score
    return best


def _commanded(message: str) -> str | None:
    """The verb with which the message begins, politeness aside; None if it begins with no known one."""
    words = lower_words(table.POLITE_LEAD.sub("", message, count=1))
    return words[0] if words and words[0] in table.IMPERATIVES else None


def _does(verb: str | None, name: set[str], description: set[str]) -> bool:
    if verb is None or singular(verb) in name or singular(verb) in description:
        return True
    return verb in _READING_VERBS and not _READING_VERBS.isdisjoint(name)


def _arguments(message: str, words: Sequence[str], tool: ToolSpec, tool_stems: set[str]) -> dict[str, str] | None:
    """The required arguments: quoted texts, paths, or the last noun of the message; None if one is missing."""
    required, properties = tool.parameters.get("required"), tool.parameters.get("properties")
    if not isinstance(required, list | tuple) or not required:
        return {}
    schemas = [properties.get(name) for name in required] if isinstance(properties, Mapping) else []
    if not schemas or any(not isinstance(each, Mapping) or each.get("type") != "string" for each in schemas):
        return None
    texts = ["".join(groups) for groups in _QUOTED.findall(message)] or _paths(message.rstrip(".?! "))
    if not texts and len(required) == 1:
        texts = _last_noun(message, words, tool_stems)
    return dict(zip(required, texts, strict=True)) if len(texts) == len(required) else None


def _paths(text: str) -> list[str]:
    """The paths and file names in a text. Searching takes the square of a run's length, so a long run is no path."""
    runs = [run for run in _MAY_BE_PATH.findall(text) if len(run) <= MAX_PATH_CHARS]
    return [path for run in runs for path in _PATH.findall(run)]


def _last_noun(message: str, words: Sequence[str], tool_stems: set[str]) -> list[str]:
    last = words[-1] if words else ""
    if not last or last in table.STOP_WORDS or last in table.IMPERATIVES or singular(last) in tool_stems:
        return []
    return [table.WORD.findall(message)[-1]]  # as it was written: names keep their capitals
