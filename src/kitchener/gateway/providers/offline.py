"""The built-in model for trying Kitchener: it classifies by `gateway.rules` and replies in fixed sentences, without a network.

It reads a request's `variables`, so it works with any wording of the prompts; of the messages it reads only tool results. It
quotes and arranges what it was given, knows nothing else, and says so. Explained in `docs/gateway.md`.
"""

import re
from collections import Counter
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import suppress
from typing import Final

import orjson

from kitchener.choices import LABEL_KINDS
from kitchener.gateway.providers.rules_provider import classified
from kitchener.gateway.providers.scripted import word_by_word
from kitchener.gateway.rules.classification import RuleClassification, classify
from kitchener.gateway.rules.filled_object import filled
from kitchener.gateway.rules.relation import MAX_READ_CHARS
from kitchener.gateway.rules.vocabulary import content_stems, lower_words
from kitchener.gateway.traits import ProviderTraits
from kitchener.model_usage import Usage
from kitchener.records.prompt import PromptRequest, PromptResponse, TextPiece, ToolSpec, ToolUse
from kitchener.records.tokens import tokens_of_bytes

MODEL_ID = "offline-rules-1"
MAX_CONTEXT_CHARS = 20_000
MAX_REPLY_CHARS = 2_000
MAX_QUOTE_CHARS = 240

_BLOCK: Final = re.compile(r"From [^\n]*\n<(data-\w+)>\n(?P<text>.*)\n</\1>(?:\n\[[^\n]*\])?", re.DOTALL)
"""A result of a source that is not trusted, perhaps with a line about a page."""
_SELF = "I am Kitchener's offline model: fixed rules, no language model. Configure a provider for real answers."
_QUOTES = "From our conversation: "
_KEEPS = "I keep in mind: "
_GOALS = ("Goal: ", "Wider goal: ")
"""Begin lines of intents, whose words are those of the messages that began them."""
_SOCIAL = {"greeting": f"Hello! {_SELF}", "thanks": "You are welcome.", "farewell": "Goodbye!", "statement": "All right."}
_LESSONS = {
    "domain": ("topic_affinity", "Often talks about {}."),
    "task": ("task_pattern", "Often asks for help with {}."),
    "tool": ("task_pattern", "Requests often need the tool {}."),
    "intent": ("interaction_style", "Most messages are of this kind: {}."),
    "outcome": ("constraint", "Turns often end with this outcome: {}."),
}


class OfflineProvider:
    """Answers by fixed rules: the same request always gets the same answer.

    Its classifications, verdicts and lessons have the form of the contracts that ship with Kitchener, whatever an output schema
    requires. In place of a reply's text it fills a schema with that text and the smallest numbers.

    Args:
        provider_id: the provider that its responses name
    """

    traits: ProviderTraits = ProviderTraits(built_in=True, needs_timeout=False, model_id=MODEL_ID)

    def __init__(self, provider_id: str = "offline") -> None:
        self._provider_id = provider_id

    async def complete(self, request: PromptRequest) -> PromptResponse:
        """Returns the answer that the rules give."""
        if (answer := _ANSWERS.get(request.wo_type)) is not None:
            return self._response(request, answer(request))
        results = _tool_results(request)
        use = None if results else _tool_use(request)
        reply = "" if use else _reply(request, results)
        if request.output_schema is not None:
            return self._response(request, {} if use else filled(request.output_schema, reply), use)
        return self._response(request, {"response_text": reply}, use)

    async def stream(self, request: PromptRequest) -> AsyncIterator[TextPiece | PromptResponse]:
        """Yields the text of the same answer word by word, then the answer."""
        for item in word_by_word(await self.complete(request)):
            yield item

    def _response(self, request: PromptRequest, answer: Mapping[str, object], use: ToolUse | None = None) -> PromptResponse:
        is_plain = use is not None or (request.output_schema is None and request.wo_type not in _ANSWERS)
        text = str(answer.get("response_text", "")) if is_plain else orjson.dumps(answer).decode()
        return PromptResponse(
            provider_id=self._provider_id,
            model_id=MODEL_ID,
            text=text,
            structured=None if is_plain else dict(answer),
            tool_uses=() if use is None else (use,),
            usage=Usage(tokens_of_bytes(request.text_bytes), tokens_of_bytes(len(text.encode()))),
            finish_reason="stop" if use is None else "tool_use",
        )


def _fitted(text: str, limit: int) -> str:
    return text if len(text) <= limit else text[: limit - 1].rstrip() + "…"


def _classified(request: PromptRequest) -> RuleClassification:
    return classified(request.variables, [ToolSpec(**each) for each in request.variables.get("tools", ())])


def _tool_use(request: PromptRequest) -> ToolUse | None:
    """The tool call that the message asks for, or that the request demands; None: there is none."""
    choice, message = request.tool_choice, str(request.variables.get("user_message") or "")
    tools = [each for each in request.tools if choice in (None, "required", each.tool_id)]
    found = classify(message, tools=tools).get("tool_request")
    if found is not None:
        return ToolUse(f"offline-{request.call}", found["tool_id"], found["arguments"])
    if choice is None or not tools:
        return None
    return ToolUse(f"offline-{request.call}", tools[0].tool_id, filled(tools[0].parameters, message))


def _tool_result(content: str) -> object:
    """A tool result: an object or a text. That of a source that is not trusted stands in a data block below a line about it."""
    if (block := _BLOCK.fullmatch(content)) is not None:
        content = block["text"]
    with suppress(orjson.JSONDecodeError):
        return orjson.loads(content)
    return content


def _tool_results(request: PromptRequest) -> list[tuple[str | None, object]]:
    """Tools by name, each with what it returned or with {"error": …}."""
    before = [(each["tool_id"], each) for each in request.variables.get("prior_results", ()) if "tool_id" in each]
    return before + [(each.tool_id, _tool_result(each.content)) for each in request.messages if each.role == "tool"]


def _reply(request: PromptRequest, results: Sequence[tuple[str | None, object]]) -> str:
    """A short reply from tool results, the classification and the context; never empty."""
    given = request.variables
    context = given.get("assembled_context") or {}
    learned = " ".join(context.get("ho3_biases", ()))
    kept = [f"({_KEEPS}{_fitted(learned, MAX_QUOTE_CHARS)})"] if learned else []
    if results:
        return "\n\n".join([*(_result_text(name, found) for name, found in results), *kept])
    shown = (given.get("classification") or {}, *given.get("prior_results", ()))
    classified: Mapping[str, object] = next((each for each in shown if "speech_act" in each), {})
    act, objective = str(classified.get("speech_act")), classified.get("candidate_objective")
    if act in _SOCIAL and not objective:
        return _SOCIAL[act]
    quote = _quote(given.get("user_message", ""), "\n".join((*context.get("history", ()), context.get("context_text", ""))))
    quoted = [f"{_QUOTES}“{quote}”."] if quote else []
    return " ".join([*quoted, *([f"I understood: “{objective}”."] if objective else []), _SELF, *kept])


def _quote(message: str, context_text: str) -> str:
    """The latest said line that shares most words with the message, without questions and own replies; "" if none does."""
    wanted = content_stems(lower_words(message[-MAX_READ_CHARS:]))
    best, most = "", 1
    for line in context_text[-MAX_CONTEXT_CHARS:].splitlines() if wanted else ():
        shared = len(wanted & content_stems(lower_words(line)))
        is_said = not line.startswith(_GOALS) and not any(own in line for own in (_SELF, _QUOTES, _KEEPS))
        if shared >= most and is_said and not line.rstrip().endswith("?"):
            best, most = line, shared
    return _fitted(best.strip().rstrip("."), MAX_QUOTE_CHARS)


def _result_text(name: str | None, found: object) -> str:
    """What a tool returned, a list line by line."""
    while isinstance(found, Mapping) and "result" in found:
        found = found["result"]
    if isinstance(found, Mapping) and "item_id" in found and "text" in found:  # a page of a long result
        found = found["text"]
    if isinstance(found, Mapping) and "error" in found:
        return _fitted(f"{name} failed: {_text(found['error'])}", MAX_REPLY_CHARS)
    lines = [f"\n- {_text(each)}" for each in found] if isinstance(found, list) else [f" {_text(found)}"]
    return _fitted(f"{name}:{''.join(lines)}", MAX_REPLY_CHARS)


def _text(value: object) -> str:
    return value if isinstance(value, str) else orjson.dumps(value, default=str).decode()


def _verdict(request: PromptRequest) -> dict[str, object]:
    """Accepts a response that is not empty and has a word of each criterion. Rules cannot judge more."""
    stems = content_stems(lower_words(request.variables["response_text"]))
    wanted = {each: content_stems(lower_words(each)) for each in request.variables.get("acceptance", ())}
    missed = [f"nothing on “{each}”" for each, words in wanted.items() if words and words.isdisjoint(stems)]
    problems = missed if request.variables["response_text"].strip() else ["the response is empty"]
    return {"decision": "reject" if problems else "accept", "reason": "; ".join(problems) or "not empty, on each criterion"}


def _lesson(request: PromptRequest) -> dict[str, object]:
    """One sentence on what recurs. It applies where the signal's label does, or else those of more than half of its events."""
    given = request.variables
    signal_id = str(given["signal_id"])
    kind, _, value = signal_id.partition(":")
    category, template = _LESSONS.get(kind, ("interaction_style", "A signal recurs: {}."))
    line = template.format(value.replace("_", " ") or signal_id)
    events = [each.get("co_signals", ()) for each in given["recent_events"]]
    counts = Counter(signal for signals in events for signal in {*signals})
    usual = [signal_id] if kind in LABEL_KINDS else [each for each in counts if 2 * counts[each] > len(events)]
    labels = {each: sorted(name[len(each) + 1 :] for name in usual if name.startswith(f"{each}:")) for each in LABEL_KINDS}
    weight = round(min(1.0, 0.3 + 0.03 * given["count"] + 0.05 * given["session_count"]), 2)
    lesson = {"bias": line, "category": category, "salience_weight": weight, "decay_modifier": 0.5}
    return {**lesson, "labels": labels, "context_line": line}


_ANSWERS = {"classify": _classified, "verify": _verdict, "consolidate": _lesson}
