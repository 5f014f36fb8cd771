"""What the offline model writes: replies from what it was given, verdicts, lessons from signals, and minimal objects.

It quotes and arranges; it does not know anything. Each reply that is not plainly an answer says that it is made by rules.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import islice
from typing import Any

import orjson

from kitchener.gateway.providers.offline.relations import MAX_READ_CHARS
from kitchener.gateway.providers.offline.words import content_stems, stem, words_of

MAX_RESULT_LINES = 30
MAX_RESULT_CHARS = 2_000
MAX_QUOTE_CHARS = 240
MAX_CONTEXT_CHARS = 20_000
MAX_WANTED_STEMS = 64
MAX_MIND_CHARS = 160
MAX_LESSON_CHARS = 160
MAX_SHOWN_CHARS = 80
MAX_LABELS = 3
MAX_SPEAKER_WORDS = 2
MAX_SCHEMA_DEPTH = 16

_SELF = "Kitchener's offline model"
_QUOTE_LEAD = "From our conversation: "
_MIND_LEAD = "I keep in mind: "
# A reply must not quote an earlier one of its own, or quotations would nest deeper with every turn.
_OWN_MARKS = (_SELF, _QUOTE_LEAD, _MIND_LEAD)

_SOCIAL = {
    "greeting": f"Hello! I am {_SELF}: fixed rules, no language model. Ask me something, or ask for one of the tools I have.",
    "thanks": "You are welcome.",
    "farewell": "Goodbye!",
}
_UNDERSTOOD = {"question": "a question", "command": "a request", "statement": "a statement"}


def reply(variables: Mapping[str, Any], tool_results: Sequence[Mapping[str, Any]]) -> str:
    """A short reply from tool results, the classification and the context; never empty."""
    context = variables.get("assembled_context")
    context = context if isinstance(context, Mapping) else {}
    kept = _kept_in_mind(context.get("ho3_biases") or ())
    if tool_results:
        return "\n\n".join([*(_told_result(each) for each in tool_results), *kept])
    classification = _classification(variables)
    social = _SOCIAL.get(str(classification.get("speech_act")))
    if social is not None:
        return social
    if classification.get("speech_act") == "statement" and not classification.get("candidate_objective"):
        return "All right."
    message = str(variables.get("user_message") or "")
    parts = []
    quote = relevant_line(message, str(context.get("context_text") or ""))
    if quote:
        parts.append(f"{_QUOTE_LEAD}“{quote}”.")
    parts.append(f"I understood {_understood(classification)}.")
    parts.append(
        f"I am {_SELF}: fixed rules, no language model, so that is as far as I get. Configure a provider for real answers."
    )
    return " ".join([*parts, *kept])


def _kept_in_mind(lines: Sequence[Any]) -> list[str]:
    """One short sentence with as many of the learned lines as fit, to show that they arrived; none if there are none."""
    kept: list[str] = []
    room = MAX_MIND_CHARS
    for line in lines:
        text = _in_one_line(str(line), MAX_MIND_CHARS).rstrip(". ")
        room -= len(text) + 2
        if text and (room >= 0 or not kept):
            kept.append(text)
    return [f"({_MIND_LEAD}{'; '.join(kept)}.)"] if kept else []


def _in_one_line(text: str, limit: int) -> str:
    """Without control characters and line breaks, runs of white space as one space, shortened to the limit."""
    text = " ".join("".join(each if each.isprintable() else " " for each in text).split())
    return text if len(text) <= limit else text[: limit - 1].rstrip() + "…"


def _classification(variables: Mapping[str, Any]) -> Mapping[str, Any]:
    for result in variables.get("prior_results") or ():
        if isinstance(result, Mapping) and "speech_act" in result:
            return result
    return {}


def _understood(classification: Mapping[str, Any]) -> str:
    kind = _UNDERSTOOD.get(str(classification.get("speech_act")), "your message")
    labels = classification.get("labels")
    labels = labels if isinstance(labels, Mapping) else {}
    about = f" about {labels['domain']}" if labels.get("domain") else ""
    task = f" ({labels['task']})" if labels.get("task") else ""
    objective = classification.get("candidate_objective")
    return f"{kind}{about}{task}" + (f": “{objective}”" if objective else "")


def relevant_line(message: str, context_text: str) -> str:
    """The line of the context that shares most words with the message, shortened; "" if none shares any."""
    text = context_text[-MAX_CONTEXT_CHARS:]
    lowered = text.lower()
    asked = words_of(message)
    wanted = set(islice((each for each in _telling_stems(message) if each in lowered), MAX_WANTED_STEMS))
    if not wanted:
        return ""
    best, best_score = "", 0.0
    for line in text.splitlines():
        low = line.lower()
        if not any(each in low for each in wanted) or any(mark in line for mark in _OWN_MARKS):
            continue
        words = words_of(low)
        if words[-len(asked) :] == asked and len(words) - len(asked) <= MAX_SPEAKER_WORDS:
            continue  # the same question, asked before
        stems = content_stems(words)
        score = len(wanted & stems) - (0.5 if line.rstrip().endswith("?") else 0.0)
        if score > 0 and score >= best_score:  # of equals the latest, since it may correct the earlier ones
            best, best_score = line, score
    best = best.strip().rstrip(".")
    return best if len(best) <= MAX_QUOTE_CHARS else best[:MAX_QUOTE_CHARS].rsplit(" ", 1)[0] + "…"


def _telling_stems(message: str) -> Iterable[str]:
    """The stems that say what a message is about, each once; of a long one those of its end, where it says what is asked."""
    words = words_of(message[-MAX_READ_CHARS:])
    return dict.fromkeys(stem(word) for word in words if content_stems((word,)))


def _told_result(result: Mapping[str, Any]) -> str:
    name = result.get("tool_id", "the tool")
    if result.get("error") is not None:
        return f"{name} failed: {_one_line(result['error'])}"
    found = result.get("result")
    if found in (None, "", [], {}):
        return f"{name} ran and returned nothing."
    if isinstance(found, Mapping) and set(found) == {"result"}:
        found = found["result"]
    if isinstance(found, Mapping):
        lines = [f"{key}: {_one_line(value)}" for key, value in found.items()]
    elif isinstance(found, list | tuple):
        lines = [f"- {_one_line(item)}" for item in found]
    else:
        lines = _one_line(found).splitlines()
        if len(lines) == 1:
            return _shortened(f"{name}: {lines[0]}")
    kept = lines[:MAX_RESULT_LINES]
    if len(lines) > len(kept):
        kept.append(f"… and {len(lines) - len(kept)} more")
    return _shortened("\n".join([f"Here is what {name} returned:", *kept]))


def _one_line(value: Any) -> str:
    if isinstance(value, str):
        return value
    return orjson.dumps(value, default=str).decode()


def _shortened(text: str) -> str:
    return text if len(text) <= MAX_RESULT_CHARS else text[: MAX_RESULT_CHARS - 1] + "…"


def verify(variables: Mapping[str, Any]) -> dict[str, Any]:
    """Accepts a reply that says something; with criteria, one that says something about the question or a criterion."""
    text = str(variables.get("response_text") or variables.get("response") or "").strip()
    if not text:
        return {"decision": "reject", "reason": "the response is empty"}
    criteria = [str(each) for each in variables.get("acceptance") or ()]
    if not criteria:
        return {"decision": "accept", "reason": "the response is not empty, and no criteria were given"}
    stems = content_stems(words_of(text))
    missed = [each for each in criteria if not _is_touched(each, stems)]
    if missed:
        return {"decision": "reject", "reason": f"the response says nothing on: {'; '.join(missed)}"}
    return {"decision": "accept", "reason": f"the response is not empty and touches each of {len(criteria)} criteria"}


def _is_touched(criterion: str, stems: set[str]) -> bool:
    """Rules cannot judge whether a criterion is met, only whether the response speaks of it at all."""
    wanted = content_stems(words_of(criterion))
    return not wanted or not wanted.isdisjoint(stems)


# For each kind of signal: the category, the lesson about the user, and the line for a later prompt.
_LESSONS = {
    "domain": ("topic_affinity", "The user often talks about {}.", "Often talks about {}."),
    "task": ("task_pattern", "The user often asks for help with {}.", "Often asks for help with {}."),
    "tool": ("task_pattern", "The user's requests often need the tool {}.", "Requests often need the tool {}."),
    "intent": ("interaction_style", "The user's messages are often of the kind {}.", "Messages are often of the kind {}."),
    "outcome": ("constraint", "Turns of this user often end with the outcome {}.", "Turns often end with the outcome {}."),
}
_OTHER_LESSON = ("interaction_style", "The signal {} recurs for this user.", "Recurring signal: {}.")
_KNOWN_LINES = {
    "intent:question": "Mostly asks questions: answer first, explain after.",
    "intent:command": "Mostly gives commands: do it, then report briefly.",
    "intent:statement": "Often states facts without asking: take note of them.",
    "intent:greeting": "Likes to begin with a greeting.",
    "intent:thanks": "Says thanks when something helped.",
    "outcome:success": "Turns usually succeed: the usual way of answering works.",
    "outcome:failed": "Turns often fail: say early what cannot be done.",
}


def consolidate(variables: Mapping[str, Any]) -> dict[str, Any]:
    """One sentence about what a signal's recurrence shows, weighted by how often and in how many sessions it came.

    It applies where the signal's own label does; a signal that is no label (a tool, a kind of message, an outcome) gets the
    labels that came together with it in most of the events.
    """
    signal_id = str(variables.get("signal_id") or "unknown")
    kind, _, value = signal_id.partition(":")
    known = bool(value) and kind in _LESSONS
    category, bias, line = _LESSONS[kind] if known else _OTHER_LESSON
    shown = _in_one_line((value if known else signal_id).replace("_", " "), MAX_SHOWN_CHARS)
    if known and kind in ("domain", "task"):
        labels = {each: [value] if each == kind else [] for each in ("domain", "task")}
    else:
        labels = _usual_labels(variables.get("recent_events") or ())
    about = ", ".join(_in_one_line(each.replace("_", " "), MAX_SHOWN_CHARS) for each in labels["domain"] or labels["task"])
    line = _KNOWN_LINES.get(signal_id) or line.format(shown)
    if about and kind not in ("domain", "task"):
        line = f"{line.rstrip('.')} (mostly {about})."
    count, sessions = _number(variables.get("count")), _number(variables.get("session_count"))
    return {
        "bias": bias.format(shown),
        "category": category,
        "salience_weight": round(min(1.0, 0.3 + 0.03 * count + 0.05 * sessions), 2),
        "decay_modifier": 0.5,
        "labels": labels,
        "context_line": _in_one_line(line, MAX_LESSON_CHARS),
    }


def _usual_labels(events: Sequence[Any]) -> dict[str, list[str]]:
    """The domain and task labels that more than half of the events came with, the most frequent first, then by name."""
    told = [
        each["co_signals"] for each in events if isinstance(each, Mapping) and isinstance(each.get("co_signals"), list | tuple)
    ]
    counts = Counter(signal for signals in told for signal in {str(each) for each in signals})
    usual = sorted((-count, signal) for signal, count in counts.items() if 2 * count > len(told))
    found = [signal.partition(":") for _, signal in usual]
    return {each: [value for kind, _, value in found if kind == each and value][:MAX_LABELS] for each in ("domain", "task")}


def _number(value: Any) -> int:
    return value if isinstance(value, int) else 0


def minimal(schema: Any, root: Mapping[str, Any] | None = None, depth: int = 0) -> Any:
    """A small value that the JSON schema takes, for the common keywords; {} where there is no schema."""
    if not isinstance(schema, Mapping) or depth > MAX_SCHEMA_DEPTH:
        return {} if depth == 0 else None
    root = schema if root is None else root
    for key in ("const", "default"):
        if key in schema:
            return schema[key]
    for key in ("enum", "examples"):
        if schema.get(key):
            return schema[key][0]
    if "$ref" in schema:
        return minimal(_resolved(str(schema["$ref"]), root), root, depth + 1)
    for key in ("anyOf", "oneOf"):
        if schema.get(key):
            return minimal(schema[key][0], root, depth + 1)
    if schema.get("allOf"):
        merged: dict[str, Any] = {}
        for part in schema["allOf"]:
            value = minimal(part, root, depth + 1)
            merged |= value if isinstance(value, dict) else {}
        return merged
    return _of_type(schema, root, depth)


def _resolved(reference: str, root: Mapping[str, Any]) -> Any:
    target: Any = root
    for part in reference.removeprefix("#").strip("/").split("/"):
        target = target.get(part) if isinstance(target, Mapping) and part else target
    return target


def _of_type(schema: Mapping[str, Any], root: Mapping[str, Any], depth: int) -> Any:
    kind = schema.get("type", "object" if "properties" in schema or depth == 0 else "null")
    kind = kind[0] if isinstance(kind, list) else kind
    if kind == "object":
        properties = schema.get("properties") or {}
        return {name: minimal(properties.get(name) or {}, root, depth + 1) for name in schema.get("required") or ()}
    if kind == "array":
        return [minimal(schema.get("items") or {}, root, depth + 1) for _ in range(schema.get("minItems") or 0)]
    if kind == "string":
        return "-" * max(schema.get("minLength") or 0, 0)
    if kind in ("integer", "number"):
        low = schema.get("minimum")
        above = schema.get("exclusiveMinimum")
        return low if low is not None else above + 1 if above is not None else min(0, schema.get("maximum", 0))
    return False if kind == "boolean" else None
