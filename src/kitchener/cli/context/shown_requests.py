"""Shows a turn's requests to models word for word, with their parts and the providers' token counts."""

import json
from collections.abc import Iterator

from kitchener.canonical import canonical_bytes
from kitchener.cli.terminal.output import table_lines
from kitchener.errors import NotOnRecord
from kitchener.inspection.spending import Spending
from kitchener.ledger import StoredEntry
from kitchener.model_usage import UsageMapping
from kitchener.plain_names import counted
from kitchener.records.entries import ModelCallPayload, payload_as
from kitchener.records.prompt import RULES_PROVIDER, Message, PromptRequest
from kitchener.replaying import RecordedPrompt, TurnPrompts


def totals_line(spent: Spending, turn_id: str) -> str:
    """The total tokens of a turn's model calls, as text. The built-in rules are not a model."""
    if not spent.has_answers:
        return "  no model answered in it"
    return f"  {spent.text()}; word for word: kitchener context explain {turn_id} --prompt"


def chosen_calls(prompts: TurnPrompts, number: int | None) -> list[tuple[int, RecordedPrompt]]:
    """The rebuilt calls with their numbers in the turn, from 1. If a number is given, only that call.

    Raises:
        NotOnRecord: the turn has no call of this number
    """
    calls = list(enumerate(prompts.calls, 1))
    if number is None:
        return calls
    if not 1 <= number <= len(calls):
        has = f"requests 1 to {len(calls)}" if calls else "no requests that can be shown"
        reason = f": {prompts.problem}" if prompts.problem is not None else ""
        raise NotOnRecord(f"request {number}: turn {prompts.turn_id} has {has}{reason}")
    return [calls[number - 1]]


def prompts_json(prompts: TurnPrompts, number: int | None) -> dict[str, object]:
    """The output of `context explain --prompt --json`."""
    return {
        "turn_id": prompts.turn_id,
        "agent_class": prompts.agent_class,
        "config_hash": prompts.config_hash or None,
        "calls": [_call_json(place, each) for place, each in chosen_calls(prompts, number)],
        "missing": [
            {"wo_id": each.entity_id, "call": call.get("call"), "request_hash": call.get("request_hash")}
            for each, call in _missing(prompts)
        ],
        "problem": prompts.problem,
    }


def _call_json(number: int, prompt: RecordedPrompt) -> dict[str, object]:
    request, answer = prompt.request, prompt.answer
    return {
        "number": number,
        "wo_id": request.wo_id,
        "wo_type": request.wo_type,
        "call": request.call,
        "contract_id": request.contract_id,
        "prompt_pack_version": request.prompt_pack_version,
        "messages": [each.as_mapping() for each in request.messages],
        "tools": offered_tools(request),
        "tool_choice": request.tool_choice,
        "answer_schema": request.output_schema,
        "model_id": request.model_id,
        "temperature": temperature_of(prompt),
        "max_tokens": request.max_tokens,
        "request_fields": dict(prompt.request_fields),
        "request_hash": prompt.request_hash,
        "recorded_hash": answer["request_hash"] if answer is not None else None,
        "is_verified": prompt.is_verified,
        "parts": [each._asdict() for each in prompt.parts],
        "estimated_tokens": prompt.tokens,
        "usage": prompt.usage,
        "answered_by": None if answer is None else {"provider_id": answer["provider_id"], "model_id": answer["model_id"]},
        "ref": prompt.ref.as_mapping() if prompt.ref is not None else None,
    }


def prompt_lines(prompts: TurnPrompts, number: int | None = None) -> Iterator[str]:
    """The requests as lines of text, with each message as the model read it."""
    chosen = chosen_calls(prompts, number)
    yield f"turn {prompts.turn_id} of {prompts.agent_class}: {counted(len(prompts.calls), 'request')}"
    for place, each in chosen:
        yield ""
        yield from _call_lines(f"request {place} of {len(prompts.calls)}", each)
    if prompts.problem is not None:
        yield ""
        yield from missing_lines(prompts)
        yield f"why: {prompts.problem}"


def missing_lines(prompts: TurnPrompts) -> Iterator[str]:
    """The requests that could not be rebuilt."""
    for entry, call in _missing(prompts):
        yield f"not shown: call {call.get('call')} of {entry.entity_id}, {call.get('request_hash')}"


def _missing(prompts: TurnPrompts) -> Iterator[tuple[StoredEntry, ModelCallPayload]]:
    return ((each, payload_as(ModelCallPayload, each.payload)) for each in prompts.missing)


def _call_lines(title: str, prompt: RecordedPrompt) -> Iterator[str]:
    request = prompt.request
    yield f"{title}: {request.wo_type}, call {request.call} of {request.wo_id}"
    yield f"  contract    {request.contract_id}, prompt pack {request.prompt_pack_version}"
    yield f"  asked       {asked_words(prompt)}"
    if prompt.request_fields:
        yield f"  fields      {fields_words(prompt)}"
    yield f"  hash        {prompt.request_hash}, {hash_verdict(prompt)}"
    yield f"  tokens      {prompt.tokens:,} estimated{usage_words(prompt.usage)}"
    for line in table_lines(("tokens", "part"), [{"tokens": each.tokens, "part": each.name} for each in prompt.parts]):
        yield f"    {line}"
    yield from request_lines(request)


def asked_words(prompt: RecordedPrompt) -> str:
    """The model that answered a request, and the limits of the request."""
    limits = f"temperature {temperature_of(prompt):g}, at most {prompt.request.max_tokens:,} tokens"
    if prompt.answer is None:
        return f"{limits}; no provider answered"
    if prompt.answer["provider_id"] == RULES_PROVIDER:
        return "the built-in rules; no model saw this"
    return f"{prompt.answer['model_id']} of {prompt.answer['provider_id']}, {limits}"


def fields_words(prompt: RecordedPrompt) -> str:
    """The fields that the settings of the provider added to a request."""
    return f"{canonical_bytes(prompt.request_fields).decode()}, from the provider's settings"


def temperature_of(prompt: RecordedPrompt) -> float:
    """The temperature that was asked for: the one in the provider's settings, else the request's. Some models take none."""
    own = prompt.request_fields.get("temperature")
    return float(own) if isinstance(own, int | float) else prompt.request.temperature


def request_lines(request: PromptRequest) -> Iterator[str]:
    """A request word for word: messages, tools and the schema of the answer, each below a line that names it."""
    for message in request.messages:
        yield f"--- {message_title(message)}"
        yield from message_lines(message)
    for tool in offered_tools(request):
        yield f"--- {tool_title(request, tool['tool_id'])}"
        yield as_readable(tool)
    if request.output_schema is not None:
        yield "--- schema of the answer"
        yield as_readable(request.output_schema)


def as_readable(value: object) -> str:
    """A JSON value as text, one part a line."""
    return json.dumps(value, ensure_ascii=False, indent=2)


def message_title(message: Message) -> str:
    """The role of a message's author."""
    return message.role + (f", result of {message.tool_id}" if message.tool_id is not None else "")


def message_lines(message: Message) -> Iterator[str]:
    """The text of a message, and the tools that it asks for."""
    if message.content:
        yield message.content
    for use in message.tool_uses:
        yield f"asks for {use.tool_id} {canonical_bytes(use.arguments).decode()}"


def hash_verdict(prompt: RecordedPrompt) -> str:
    """Whether a request has the recorded hash, in words."""
    if prompt.is_verified is None:
        return "of which none is on record"
    if prompt.is_verified or prompt.answer is None:
        return "as recorded"
    return f"NOT the recorded {prompt.answer['request_hash']}: this is not what was asked"


def usage_words(usage: UsageMapping | None) -> str:
    """The provider's count of tokens, in words that follow an estimate."""
    if usage is None:
        return ""
    cached = f" ({usage['cached_tokens']:,} of them from its cache)" if usage.get("cached_tokens") else ""
    return f"; the provider counted {usage['input_tokens']:,} in{cached}, {usage['output_tokens']:,} out"


def tool_title(request: PromptRequest, tool_id: object) -> str:
    """The line above a tool, which says whether the model may or must call it."""
    if not request.may_call_tools:
        return f"tool shown, not to be called: {tool_id}"
    return f"tool to be called: {tool_id}" if request.tool_choice == tool_id else f"tool offered: {tool_id}"


def offered_tools(request: PromptRequest) -> list[dict[str, object]]:
    """The tools that a model may ask for, in the form that the model sees."""
    return [
        {"tool_id": each.tool_id, "description": each.description, "parameters": dict(each.parameters)}
        for each in request.tools
    ]
