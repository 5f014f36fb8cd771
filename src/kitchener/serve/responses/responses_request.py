"""Turns the body of a request to `/v1/responses` into a message for an agent, or into answers about waiting tool calls.

Knows no session and no runtime. `docs/server.md` lists the fields that are used, ignored or refused.
"""

from collections.abc import Mapping, Sequence
from itertools import takewhile
from typing import Annotated, ClassVar, Final, NamedTuple

from pydantic import ConfigDict, Field, StrictBool, ValidationError

from kitchener.config.field_docstrings import DescribedModel
from kitchener.records.parts import FilePart
from kitchener.serve.chat_completions.chat_request import (
    MAX_MESSAGES,
    TEXT_PARTS,
    ChatBody,
    ChatMessage,
    SaidPair,
    attached_file,
    chat_text,
    pairs_of,
    schema_of,
    spoken_text,
)
from kitchener.serve.chat_completions.client_functions import OUTPUT, GivenOutputs, late_outputs, read_outputs
from kitchener.serve.chat_completions.client_history import SpokenAnswer
from kitchener.serve.operations_table import checked_body, read_json
from kitchener.serve.problems import RequestRefused

_MESSAGE: Final = "message"
_ANSWER: Final = "mcp_approval_response"
_CALL: Final = "function_call"


_SentItems = Annotated[list[dict[str, object]], Field(max_length=MAX_MESSAGES - 1)]  # of any kind, narrowed when read
"""The items of a plain model call, which follow its instructions."""


class ResponsesBody(DescribedModel):
    """The fields of a request that count."""

    model_config: ClassVar[ConfigDict] = ConfigDict(extra="ignore", hide_input_in_errors=True)

    model: str | None = Field(None, max_length=256)
    """The agent class. None: ADMIN, or the only one of this key."""
    input: str | _SentItems = Field(min_length=1)
    """The message, or items whose last one is the user's message or answers about tool calls."""
    stream: StrictBool | None = None
    """Whether the answer is a stream of events."""
    background: StrictBool | None = None
    """Whether the answer comes when the turn begins, and the reply is retrieved later."""
    previous_response_id: str | None = Field(None, max_length=256)
    """The response that the session continues after."""
    conversation: str | dict[str, object] | None = None  # an id, or an object with `id`
    """A session id, or any name of the conversation."""
    text: dict[str, object] | None = None  # has a JSON schema in it; checked by the agent
    """`format`: the object that is wanted in place of text."""
    tools: list[dict[str, object]] | None = None  # of any type; functions are read, others ignored
    """Functions that the client runs."""
    tool_choice: str | dict[str, object] | None = None  # names one of the functions, if it is an object
    """`auto`, `none`, `required`, or one of the functions."""
    prompt_cache_key: str | None = None
    """Names the conversation, if the settings say so."""
    instructions: str | None = None
    """Used only for plain model calls: an agent has instructions of its own."""

    @property
    def conversation_name(self) -> str | None:
        """The name of the conversation; None: it has none."""
        named = self.conversation.get("id") if isinstance(self.conversation, dict) else self.conversation
        if named is not None and not isinstance(named, str):
            raise RequestRefused(400, "invalid_request", "conversation: expected its id, or an object with `id`")
        return named


class ResponsesRequest(NamedTuple):
    """What a body of `POST /v1/responses` asks an agent for."""

    message: str
    """"" if it brings answers."""
    parts: tuple[FilePart, ...]
    earlier: tuple[SaidPair, ...]
    """The history that the client claims, oldest first. Messages without a reply are left out."""
    output: Mapping[str, object] | None
    """JSON schema of the object that is wanted; None: text."""
    answers: tuple[SpokenAnswer, ...] = ()
    """Answers about tool calls that wait, in their order."""
    outputs: GivenOutputs | None = None
    """Outputs of functions, after which a turn continues. If a message follows, outputs that were given before are ignored.
    None: there are none."""


def read_responses_body(data: bytes) -> ResponsesBody:
    """The body of a request.

    Raises:
        RequestRefused: it is no such body; the error repeats none of it
    """
    found = read_json(data)
    if isinstance(found, dict) and "input" not in found and "messages" in found:
        raise RequestRefused(
            400, "wrong_api", "this body is for the Chat Completions API; send `input`, or send it to /v1/chat/completions"
        )
    return checked_body(ResponsesBody, found)


def read_responses_request(body: ResponsesBody) -> ResponsesRequest:
    """What a body asks for.

    Raises:
        RequestRefused: it asks for something that this server does not do
    """
    if body.previous_response_id is not None and body.conversation is not None:
        raise RequestRefused(400, "invalid_request", "previous_response_id and conversation: send one of the two")
    output = schema_of(_chat_format(body.text))
    if isinstance(body.input, str):
        return ResponsesRequest(spoken_text(body.input if body.input.strip() else "", ()), (), (), output)
    items, last = body.input, body.input[-1]
    outputs = [(each.get("call_id"), each.get("output")) for each in items if each.get("type") == OUTPUT]
    if last.get("type") in (_ANSWER, OUTPUT):
        has_outputs = any(each.get("type") == OUTPUT for each in _ending(items))
        return ResponsesRequest("", (), (), output, tuple(_answers(items)), read_outputs(outputs) if has_outputs else None)
    if last.get("type", _MESSAGE) != _MESSAGE or last.get("role") != "user":
        raise RequestRefused(
            400, "invalid_request", f"input: the last item must be the user's message, or an item of type {_ANSWER} or {OUTPUT}"
        )
    message = _message(last)
    parts = tuple(_parts(last.get("content")))
    earlier = pairs_of(_messages(items[:-1]))
    return ResponsesRequest(spoken_text(chat_text(message), parts), parts, earlier, output, (), late_outputs(outputs))


def as_chat_body(body: ResponsesBody, model: str) -> ChatBody:
    """Returns a request to the Responses API as a plain model call."""
    items: Sequence[Mapping[str, object]] = (
        [{"role": "user", "content": body.input}] if isinstance(body.input, str) else body.input
    )
    told = [ChatMessage(role="system", content=body.instructions)] if body.instructions else []
    wanted = _chat_format(body.text)
    return ChatBody(
        model=model,
        messages=[*told, *_messages(items)] or [ChatMessage(role="user")],
        response_format=dict(wanted) if wanted is not None else None,
    )


def _ending(items: Sequence[Mapping[str, object]]) -> list[Mapping[str, object]]:
    """The answers and outputs that the items end with, the last one first."""
    return list(takewhile(lambda each: each.get("type") in (_ANSWER, OUTPUT), reversed(items)))


def _answers(items: Sequence[Mapping[str, object]]) -> list[SpokenAnswer]:
    """The answers that the items end with."""
    found = list[SpokenAnswer]()
    for each in _ending(items):
        if each.get("type") != _ANSWER:
            continue
        approval_id, is_approved, reason = each.get("approval_request_id"), each.get("approve"), each.get("reason")
        if not isinstance(approval_id, str) or not isinstance(is_approved, bool) or not isinstance(reason, str | None):
            raise RequestRefused(400, "invalid_request", f"{_ANSWER}: expected approval_request_id, approve, optionally reason")
        found.append(SpokenAnswer(is_approved, approval_id, (reason or "").strip()))
    return found[::-1]


def _messages(items: Sequence[Mapping[str, object]]) -> list[ChatMessage]:
    """The messages among items. A call of a function belongs to the text before it; all other items are left out."""
    found = list[ChatMessage]()
    for each in items:
        kind = each.get("type", _MESSAGE)
        if kind == _MESSAGE:
            found.append(_message(each))
        elif kind == _CALL:
            text = found.pop().content if found and found[-1].role == "assistant" else None
            found.append(ChatMessage(role="assistant", content=text, tool_calls=[{}]))
    return found


def _message(item: Mapping[str, object]) -> ChatMessage:
    try:
        return ChatMessage(role=item.get("role"), content=item.get("content"))  # type: ignore[arg-type]  # checked here
    except ValidationError:
        raise RequestRefused(
            400, "invalid_request", "input: a message has a `role`, and `content` that is text or a list of parts"
        ) from None


def _parts(content: object) -> list[FilePart]:
    """The files of a message."""
    found = list[FilePart]()
    for number, each in enumerate(content if isinstance(content, list) else (), 1):
        kind = each.get("type")
        if kind == "input_image":
            found.append(attached_file(each.get("image_url"), None, number))
        elif kind == "input_file":
            found.append(attached_file(each.get("file_data"), each.get("filename"), number))
        elif kind not in TEXT_PARTS:
            raise RequestRefused(
                400, "unsupported", f"part {number} of the message: expected input_text, input_image or input_file"
            )
    return found


def _chat_format(text: Mapping[str, object] | None) -> Mapping[str, object] | None:
    """The wanted form of the reply as a request for a chat completion has it."""
    wanted = text.get("format") if text is not None else None
    if wanted is not None and not isinstance(wanted, dict):
        raise RequestRefused(400, "invalid_request", "text.format: expected an object")
    return {"type": wanted.get("type"), "json_schema": wanted} if wanted is not None else None
