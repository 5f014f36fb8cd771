"""Turns the input of an AG-UI run into a message for an agent, the history that the client claims, and answers to interrupts.

Knows no session and no runtime. What of an input counts, is ignored or is refused is in `docs/server.md`.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, Literal, NamedTuple

from pydantic import BaseModel, ConfigDict, Field

from kitchener.actors.admission.requests import MAX_NAME
from kitchener.records.parts import FilePart
from kitchener.serve.chat.chat_request import ATTACHED, SaidPair, attached_file
from kitchener.serve.operations_table import checked_body, read_json
from kitchener.serve.problems import RequestRefused

RESUMED: Final = "resumed"
"""Stands in the id of a message that goes on after an answer. Its text is no reply to a message of the user."""
_MEDIA: Final = ("image", "audio", "video", "document")


class RunMessage(BaseModel):
    """One message of the conversation that a client sends along."""

    model_config = ConfigDict(extra="ignore", hide_input_in_errors=True, use_attribute_docstrings=True)

    id: str
    """Names the message within the conversation."""
    role: Literal["developer", "system", "user", "assistant", "tool", "activity", "reasoning"]
    """Who said it."""
    content: str | list[dict[str, object]] | dict[str, object] | None = None  # narrowed where it is read
    """Text, or parts; of an activity an object."""
    tool_calls: list[dict[str, object]] | None = Field(None, alias="toolCalls")  # only their ids are read
    """Tool calls of the assistant."""
    tool_call_id: str | None = Field(None, alias="toolCallId")
    """The call whose result this is."""


class ResumeAnswer(BaseModel):
    """The answer to one interrupt."""

    model_config = ConfigDict(extra="ignore", hide_input_in_errors=True, use_attribute_docstrings=True)

    interrupt_id: str = Field(alias="interruptId", max_length=MAX_NAME)
    """The interrupt: a request for approval."""
    status: Literal["resolved", "cancelled"]
    """`cancelled`: the call is denied."""
    payload: Any = None  # any JSON value, checked against the request
    """About a tool call: `approved`, and maybe `editedArgs`, `message`, `scope`. About a question of a tool: the answer."""


class RunInput(BaseModel):
    """The fields of the input of an AG-UI run that count."""

    model_config = ConfigDict(extra="ignore", hide_input_in_errors=True, use_attribute_docstrings=True)

    thread_id: str = Field(alias="threadId", min_length=1, max_length=MAX_NAME)
    """A session id, or any name of the conversation."""
    run_id: str = Field(alias="runId", min_length=1, max_length=MAX_NAME)
    """The run. The same run sent again gets the reply of its one turn."""
    parent_run_id: str | None = Field(None, alias="parentRunId", max_length=MAX_NAME)
    """Told back, otherwise ignored."""
    messages: list[RunMessage] = Field(max_length=20_000)
    """The conversation. The last message of the user is the one to reply to. Without messages the answer tells the thread's."""
    resume: list[ResumeAnswer] | None = Field(None, max_length=1_000)
    """Answers to interrupts. With an answer to one that is open, messages do not count."""


class AskedRun(NamedTuple):
    """A run that a client asks for."""

    body: RunInput
    message: str
    """"" if there is none: it only brings answers, or asks for what was said."""
    parts: tuple[FilePart, ...]
    earlier: tuple[SaidPair, ...]
    """What the client says was said before, oldest first. Messages without a reply are left out."""
    shown: Sequence[Mapping[str, object]]
    """The messages that the client shows, as it sent them, without what an earlier try at this run left."""
    is_tried_again: bool
    """Whether there were messages of an earlier try, which have to go."""
    calls: frozenset[str]
    """The ids of the tool calls that the client shows."""
    skipped: tuple[int, ...]
    """The numbers of parts of the message that this server cannot use, from 1."""


def message_id(of: str, number: int, *, is_resumed: bool = False) -> str:
    """The id of a text message of the agent.

    Args:
        of: the run, or the turn
        number: among the messages of the run
        is_resumed: whether it goes on after an answer
    """
    return f"{of}:{RESUMED}:{number}" if is_resumed else f"{of}:{number}"


def read_run(data: bytes) -> AskedRun:
    """What the body of a request asks for.

    Raises:
        RequestRefused: it is no such body, or the last message is not the user's; the error repeats none of it
    """
    found = read_json(data)
    body = checked_body(RunInput, found)
    assert isinstance(found, dict)
    raw: list[dict[str, object]] = found["messages"]
    end = max((number for number, each in enumerate(body.messages, 1) if each.role == "user"), default=0)
    calls = frozenset(
        name for each in body.messages for call in each.tool_calls or () if isinstance(name := call.get("id"), str)
    )
    answers = _only_answers(body, raw, calls)
    if not body.messages:
        return answers
    left = [each for each in body.messages[end:] if each.role not in ("activity", "reasoning")]
    own = f"{body.run_id}:"
    if not end or any(not (each.id.startswith(own) or each.role == "tool" or each.tool_calls) for each in left):
        if body.resume:
            return answers
        raise RequestRefused(400, "invalid_request", "messages: the last one must be the user's")
    last = body.messages[end - 1]
    text, parts, skipped = _content(last)
    earlier = tuple(_pairs(body.messages[: end - 1]))
    return AskedRun(body, text or ATTACHED, parts, earlier, raw[:end], bool(left), calls, skipped)


def _only_answers(body: RunInput, raw: Sequence[Mapping[str, object]], calls: frozenset[str]) -> AskedRun:
    """A run without a message."""
    own, answered = f"{body.run_id}:", {each.interrupt_id for each in body.resume or ()}
    shown = [
        told
        for told, each in zip(raw, body.messages, strict=True)
        if not each.id.startswith(own) and each.tool_call_id not in answered
    ]
    return AskedRun(body, "", (), (), shown, len(shown) < len(raw), calls, ())


def _pairs(messages: Sequence[RunMessage]) -> Iterator[SaidPair]:
    """The messages of the user that have a reply, each with its reply: the texts of the first run after it, together."""
    said, run, texts = "", "", list[str]()
    for each in messages:
        if each.role == "user":
            if texts:
                yield SaidPair(said, "".join(texts))
            said, run, texts = _text(each) or ATTACHED, "", []
        elif each.role == "assistant" and isinstance(each.content, str) and each.content:
            of = each.id.rpartition(":")[0] or each.id
            if of == (run or of) and not of.endswith(f":{RESUMED}"):
                run = of
                texts.append(each.content)
    if texts:
        yield SaidPair(said, "".join(texts))


def _text(message: RunMessage) -> str:
    """The text of a message of the user, without its files."""
    if isinstance(message.content, str):
        return message.content.strip()
    parts = message.content if isinstance(message.content, list) else ()
    texts = (part.get("text") for part in parts if part.get("type") == "text")
    return "\n".join(each for each in texts if isinstance(each, str)).strip()


def _content(message: RunMessage) -> tuple[str, tuple[FilePart, ...], tuple[int, ...]]:
    """The text and the files of the message to answer, and the numbers of the parts that cannot be used."""
    files, skipped = list[FilePart](), list[int]()
    for number, part in enumerate(message.content if isinstance(message.content, list) else (), 1):
        kind, source = part.get("type"), part.get("source")
        if kind == "text":
            continue
        if kind in _MEDIA and isinstance(source, dict) and source.get("type") == "data":
            files.append(_file(part, source, number))
        else:
            skipped.append(number)
    return _text(message), tuple(files), tuple(skipped)


def _file(part: Mapping[str, object], source: Mapping[str, object], number: int) -> FilePart:
    metadata = part.get("metadata")
    name = metadata.get("filename") if isinstance(metadata, dict) else None
    media_type, value = source.get("mimeType"), source.get("value")
    if not isinstance(media_type, str) or not isinstance(value, str):
        raise RequestRefused(400, "invalid_request", f"part {number} of the message: expected `mimeType` and `value` in base64")
    return attached_file(f"data:{media_type};base64,{value}", name, number)
