"""Turns the input of an AG-UI run into a message for an agent, the history that the client claims, and answers to interrupts.

It knows no session and no runtime. `docs/server.md` lists the fields that are used, ignored or refused.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, ClassVar, Final, Literal, NamedTuple

from pydantic import ConfigDict, Field

from kitchener.actors.admission.argument_checks import MAX_NAME
from kitchener.config.field_docstrings import DescribedModel
from kitchener.records.parts import FilePart
from kitchener.records.tools.client_tools import ClientOutput
from kitchener.serve.chat_completions.chat_request import (
    ATTACHED,
    MAX_MESSAGES,
    AnyParts,
    SaidPair,
    attached_file,
    joined_rounds,
)
from kitchener.serve.chat_completions.client_functions import GivenOutputs, late_outputs, read_outputs
from kitchener.serve.operations_table import checked_body, read_json
from kitchener.serve.problems import RequestRefused

RESUMED: Final = "resumed"
"""Stands in the id of a message that continues after an answer. Its text is no reply to a message of the user."""
CONTINUED: Final = "continued"
"""Part of the id of a message that continues with outputs of the front end's tools. Its text belongs to the reply before."""
ROLES_OF_CLIENT: Final = ("activity", "reasoning")
"""Roles of messages that the client makes and keeps for itself."""
_MEDIA: Final = ("image", "audio", "video", "document")


class RunMessage(DescribedModel):
    """One message of the conversation that a client sends along."""

    model_config: ClassVar[ConfigDict] = ConfigDict(extra="ignore", hide_input_in_errors=True)

    id: str
    """Names the message within the conversation."""
    role: Literal["developer", "system", "user", "assistant", "tool", "activity", "reasoning"]
    """The role of the author."""
    content: str | AnyParts | dict[str, object] | None = None  # narrowed where it is read
    """Text, or parts; of an activity an object."""
    tool_calls: list[dict[str, object]] | None = Field(None, alias="toolCalls")  # only their ids and names are read
    """Tool calls of the assistant."""
    tool_call_id: str | None = Field(None, alias="toolCallId")
    """The call whose result this is."""
    error: str | None = None
    """The error of the front end's tool."""

    @property
    def is_output(self) -> bool:
        """Whether the front end gives the output of a tool of its own. Results of this server have other ids."""
        return self.role == "tool" and self.tool_call_id is not None and self.id != result_message_id(self.tool_call_id)

    def calls_one_of(self, names: Collection[str]) -> bool:
        """Whether it calls one of these tools."""
        functions = [each.get("function") for each in self.tool_calls or ()]
        return any(isinstance(each, dict) and each.get("name") in names for each in functions)


class ResumeAnswer(DescribedModel):
    """The answer to one interrupt."""

    model_config: ClassVar[ConfigDict] = ConfigDict(extra="ignore", hide_input_in_errors=True)

    interrupt_id: str = Field(alias="interruptId", max_length=MAX_NAME)
    """The interrupt: a request for approval."""
    status: Literal["resolved", "cancelled"]
    """`cancelled`: the call is denied."""
    payload: Any = None  # any JSON value, checked against the request
    """About a tool call: `approved`, and optionally `editedArgs`, `message`, `scope`. About a question of a tool: the
    answer."""


class RunInput(DescribedModel):
    """The fields of the input of an AG-UI run that count."""

    model_config: ClassVar[ConfigDict] = ConfigDict(extra="ignore", hide_input_in_errors=True)

    thread_id: str = Field(alias="threadId", min_length=1, max_length=MAX_NAME)
    """A session id, or any name of the conversation."""
    run_id: str = Field(alias="runId", min_length=1, max_length=MAX_NAME)
    """The run. The same run sent again gets the reply of its one turn."""
    parent_run_id: str | None = Field(None, alias="parentRunId", max_length=MAX_NAME)
    """Returned to the client, otherwise ignored."""
    messages: list[RunMessage] = Field(max_length=MAX_MESSAGES)
    """The conversation. The last message of the user is the one to reply to. Without messages the answer tells the thread's."""
    resume: list[ResumeAnswer] | None = Field(None, max_length=1_000)
    """Answers to interrupts. With an answer to one that is open, messages do not count."""
    tools: list[dict[str, object]] | None = None  # read by `client_functions`
    """Tools that the front end runs."""


class AskedRun(NamedTuple):
    """A run that a client asks for."""

    body: RunInput
    message: str
    """"" if there is none: it only brings answers, or asks for what was said."""
    parts: tuple[FilePart, ...]
    earlier: tuple[SaidPair, ...]
    """The history that the client claims, oldest first. Messages without a reply are left out."""
    shown: Sequence[Mapping[str, object]]
    """The messages that the client shows, as it sent them, except messages of an earlier attempt at this run."""
    is_tried_again: bool
    """Whether there were messages of an earlier attempt, which have to be removed."""
    calls: frozenset[str]
    """The ids of the tool calls that the client shows."""
    skipped: tuple[int, ...]
    """The numbers of parts of the message that this server cannot use, from 1."""
    outputs: GivenOutputs | None = None
    """Outputs of the front end's tools. If a message follows, outputs that were given before are ignored. None: there are
    none."""


def message_id(of: str, number: int, goes_on: str = "") -> str:
    """The id of a text message of the agent.

    Args:
        of: the run, or the turn
        number: among the messages of the run
        goes_on: `RESUMED` or `CONTINUED`; "": it replies to a message
    """
    return f"{of}:{goes_on}:{number}" if goes_on else f"{of}:{number}"


def result_message_id(call_id: str) -> str:
    """The id of the message with the result of a tool of the agent."""
    return f"{call_id}:result"


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
    left = [each for each in body.messages[end:] if each.role not in ROLES_OF_CLIENT]
    own = f"{body.run_id}:"
    last_one = next((each for each in reversed(left) if not each.id.startswith(own)), None)
    if last_one is not None and last_one.is_output:
        return answers._replace(outputs=read_outputs(_outputs(body.messages)))
    if not end or any(not (each.id.startswith(own) or each.role == "tool" or each.tool_calls) for each in left):
        if body.resume:
            return answers
        raise RequestRefused(400, "invalid_request", "messages: the last one must be the user's")
    last = body.messages[end - 1]
    text, parts, skipped = _content(last)
    names = {name for each in body.tools or () if isinstance(name := each.get("name"), str)}
    earlier, late = tuple(_pairs(body.messages[: end - 1], names)), late_outputs(_outputs(body.messages[:end]))
    return AskedRun(body, text or ATTACHED, parts, earlier, raw[:end], bool(left), calls, skipped, late)


def _outputs(messages: Sequence[RunMessage]) -> list[tuple[object, object]]:
    """The outputs of the front end's tools among messages."""
    return [
        (each.tool_call_id, each.content if each.error is None else ClientOutput(error=each.error))
        for each in messages
        if each.is_output
    ]


def _only_answers(body: RunInput, raw: Sequence[Mapping[str, object]], calls: frozenset[str]) -> AskedRun:
    """A run without a message."""
    own, answered = f"{body.run_id}:", {each.interrupt_id for each in body.resume or ()}
    shown = [
        told
        for told, each in zip(raw, body.messages, strict=True)
        if not each.id.startswith(own) and each.tool_call_id not in answered
    ]
    return AskedRun(body, "", (), (), shown, len(shown) < len(raw), calls, ())


def _pairs(messages: Sequence[RunMessage], names: Collection[str]) -> Iterator[SaidPair]:
    """The messages of the user that have a reply, each with its reply: the texts of the first run after it, together.

    Texts of runs that continued with outputs of the front end's tools belong to the reply, too.

    Args:
        messages: the conversation
        names: the tools that the front end runs
    """
    said, rounds, calls = "", list[list[str]](), False
    run: str | None = None  # of the last text; an id may be empty
    for each in messages:
        if each.role == "user":
            if rounds or calls:
                yield _pair(said, rounds, has_calls=calls)
            said, run, rounds, calls = _text(each) or ATTACHED, None, [], False
        elif each.is_output or each.calls_one_of(names):
            calls = True
        elif each.role == "assistant" and isinstance(each.content, str) and each.content:
            of = each.id.rpartition(":")[0] or each.id
            if of == run:
                rounds[-1].append(each.content)
            elif not of.endswith(f":{RESUMED}") and (run is None or of.endswith(f":{CONTINUED}")):
                run = of
                rounds.append([each.content])
    if rounds or calls:
        yield _pair(said, rounds, has_calls=calls)


def _pair(said: str, rounds: Sequence[Sequence[str]], *, has_calls: bool) -> SaidPair:
    texts = ["".join(each) for each in rounds]
    return SaidPair(said, texts[0] if len(texts) == 1 else joined_rounds(texts), has_calls)


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
