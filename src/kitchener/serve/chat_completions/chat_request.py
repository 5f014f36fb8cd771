"""Turns the body of a chat completions request into a message for an agent and the history that the client claims.

It knows no session and no runtime. `docs/server.md` lists the fields that are used, ignored or refused.
"""

import base64
import binascii
from collections.abc import Mapping, Sequence
from typing import Annotated, ClassVar, Final, Literal, NamedTuple

from pydantic import ConfigDict, Field, StrictBool

from kitchener.config.field_docstrings import DescribedModel
from kitchener.records.parts import FilePart
from kitchener.records.prompt import Message
from kitchener.serve.chat_completions.client_functions import GivenOutputs, late_outputs, read_outputs
from kitchener.serve.operations_table import checked_body, read_json
from kitchener.serve.problems import RequestRefused

UTILITY: Final = "-utility"
"""Ends the model that stands for an agent's plain model calls: titles, tags, suggestions."""
CONTINUE: Final = "Go on with your last reply from where it ends."
"""The message of a turn if the client sends no new one, but the last reply to be continued."""
TEXT_PARTS: Final = ("text", "input_text")
"""The types of parts of a user's message that hold text."""
ATTACHED: Final = "(attached)"
"""The message of a turn if the client sends a file without text."""
WITHDRAWN: Final = "\n\n---\n*The text above was withdrawn.*\n\n"
"""Precedes a reply that replaces streamed text. This API cannot withdraw text."""
STILL_WAITING: Final = "Noted. Other calls of the same message still wait for an answer."
"""The reply to an answer about a tool call after which others are still missing."""
_TO_ANSWER: Final = "\n\nTo answer here, write `approve "

MAX_MESSAGES: Final = 20_000
"""Most messages of one request."""
AnyParts = Annotated[list[dict[str, object]], Field(max_length=2_000)]
"""The parts of one message, of any kind; each is narrowed where it is read."""


class ChatMessage(DescribedModel):
    """One message of the conversation that a client sends along."""

    model_config: ClassVar[ConfigDict] = ConfigDict(extra="ignore", hide_input_in_errors=True)

    role: Literal["system", "developer", "user", "assistant", "tool", "function"]
    """The role of the author."""
    content: str | AnyParts | None = None
    """Text, or parts: text, images and files."""
    tool_calls: list[dict[str, object]] | None = None  # only whether there are any
    """Tool calls of the assistant."""
    tool_call_id: str | None = None
    """The call whose output this is."""


class StreamOptions(DescribedModel):
    """How a stream ends."""

    model_config: ClassVar[ConfigDict] = ConfigDict(extra="ignore")

    include_usage: StrictBool = False
    """Whether the stream ends with the tokens that were used."""


class ChatBody(DescribedModel):
    """The fields of a request that count."""

    model_config: ClassVar[ConfigDict] = ConfigDict(extra="ignore", hide_input_in_errors=True)

    model: str = Field(max_length=256)
    """The agent class. With `-utility` at its end, the agent's model is asked without the agent."""
    messages: list[ChatMessage] = Field(min_length=1, max_length=MAX_MESSAGES)
    """The conversation, oldest message first. The last one is answered."""
    stream: StrictBool = False
    """Whether the answer is a stream of events."""
    stream_options: StreamOptions | None = None
    """Whether the stream ends with its token counts."""
    n: int | None = None
    """How many replies are wanted; more than one is refused."""
    response_format: dict[str, object] | None = None  # a JSON schema in it; checked by the agent
    """The form of the reply: text, `json_object`, or `json_schema` with a schema."""
    tools: list[dict[str, object]] | None = None  # in either form; read by `client_functions`
    """Functions that the client runs."""
    tool_choice: str | dict[str, object] | None = None  # names one of the functions, if it is an object
    """`auto`, `none`, `required`, or one of the functions."""
    prompt_cache_key: str | None = None
    """Names the conversation, if the settings say so."""

    @property
    def includes_usage(self) -> bool:
        """Whether a stream ends with the tokens that were used."""
        return self.stream_options is not None and self.stream_options.include_usage


class SaidPair(NamedTuple):
    """A message of the user and the reply to it."""

    message: str
    reply: str
    has_calls: bool = False
    """Whether the reply called functions of the client. Then it is the text of all rounds together, which may be empty."""

    @property
    def is_unanswered(self) -> bool:
        """Whether the client shows no reply, for instance because it stopped reading before one began."""
        return not self.reply and not self.has_calls


class ChatRequest(NamedTuple):
    """A request for a reply."""

    body: ChatBody
    message: str
    """"" if it brings outputs only."""
    parts: tuple[FilePart, ...]
    earlier: tuple[SaidPair, ...]
    """The history that the client claims, oldest first."""
    output: Mapping[str, object] | None
    """JSON schema of the object that is wanted; None: text."""
    outputs: GivenOutputs | None = None
    """Outputs of functions, after which a turn continues. If a message follows, outputs that were given before are ignored.
    None: there are none."""


def read_body(data: bytes) -> ChatBody:
    """The body of a request.

    Raises:
        RequestRefused: it is no such body; the error repeats none of it
    """
    found = read_json(data)
    if isinstance(found, dict) and "messages" not in found and "input" in found:
        found["messages"] = _messages_of(found["input"])
    return checked_body(ChatBody, found)


def _messages_of(items: object) -> object:
    """The messages of a body for the Responses API, which some clients send here. They expect a chat completion back."""
    if not isinstance(items, list):
        return [{"role": "user", "content": items}]
    return [each for each in items if not isinstance(each, dict) or each.get("type", "message") == "message"]


def read_request(body: ChatBody) -> ChatRequest:
    """The request in a body.

    Raises:
        RequestRefused: it asks for something that this server does not do
    """
    if body.n not in (None, 1):
        raise RequestRefused(400, "unsupported", "n: this server gives one reply")
    messages, output = list(body.messages), schema_of(body.response_format)
    while len(messages) > 1 and messages[-1].role == "assistant" and not (messages[-1].tool_calls or chat_text(messages[-1])):
        messages.pop()  # the place of the reply
    last, earlier = messages[-1], pairs_of(messages, keeps_unanswered=True)
    if last.role == "tool":
        return ChatRequest(body, "", (), earlier, output, read_outputs(_outputs(messages)))
    if last.role == "assistant" and not last.tool_calls and earlier and earlier[-1].message:
        return ChatRequest(body, CONTINUE, (), earlier, output)
    if last.role != "user":
        raise RequestRefused(
            400,
            "invalid_request",
            "messages: the last one must be the user's, the output of a function, or a reply to continue",
        )
    text, parts = _content(last)
    return ChatRequest(body, spoken_text(text, parts), parts, earlier, output, late_outputs(_outputs(messages)))


def _outputs(messages: Sequence[ChatMessage]) -> list[tuple[object, object]]:
    """The outputs of functions among messages."""
    return [(each.tool_call_id, each.content) for each in messages if each.role == "tool"]


def spoken_text(text: str, parts: Sequence[FilePart]) -> str:
    """The message of a turn.

    Args:
        text: what the user wrote
        parts: images and files of the message

    Raises:
        RequestRefused: there is neither
    """
    if not text and not parts:
        raise RequestRefused(400, "invalid_request", "the last message is empty")
    return text or ATTACHED


def plain_messages(body: ChatBody) -> tuple[Message, ...]:
    """All messages as they are, for a call of a model without an agent."""
    roles: Final[Mapping[str, Literal["system", "user", "assistant"]]] = {
        "system": "system",
        "developer": "system",
        "user": "user",
        "assistant": "assistant",
    }
    found = ((roles.get(each.role), chat_text(each)) for each in body.messages)
    return tuple(Message(role, text) for role, text in found if role is not None and text)


def pairs_of(messages: Sequence[ChatMessage], *, keeps_unanswered: bool = False) -> tuple[SaidPair, ...]:
    """The messages of the user that have a reply, each with its reply.

    Args:
        messages: the conversation
        keeps_unanswered: whether messages that another one of the user follows are there, too
    """
    pairs, said = list[SaidPair](), ""
    rounds: list[str] | None = None  # the texts of a reply that calls functions
    for each in messages:
        text = chat_text(each)
        if each.role == "user":
            if rounds is not None:
                pairs.append(SaidPair(said, joined_rounds(rounds), has_calls=True))
            elif said and keeps_unanswered:
                pairs.append(SaidPair(said, ""))
            said, rounds = text or ATTACHED, None
        elif each.role == "assistant" and (rounds is not None or each.tool_calls):
            rounds = rounds if rounds is not None else []
            rounds.append(text)
        elif each.role == "assistant" and text:
            pairs.append(SaidPair(said, text))
            said = ""
    if rounds is not None:
        pairs.append(SaidPair(said, joined_rounds(rounds), has_calls=True))
    return tuple(pairs)


def joined_rounds(texts: Sequence[str]) -> str:
    """The text of a reply in several rounds, between which the client ran functions."""
    shown = (as_sent(each) for each in texts)
    return "\n".join(each for each in shown if each and each != STILL_WAITING)


def as_sent(reply: str) -> str:
    """The reply that a client shows, without what this server put around it."""
    shown = reply.rpartition(WITHDRAWN.strip())[2].strip()
    before, is_told, after = shown.rpartition(_TO_ANSWER)
    return before.strip() if is_told and how_to_answer(after.partition("`")[0]) == f"{is_told}{after}" else shown


def how_to_answer(approval_id: str) -> str:
    """What follows a reply that waits for a person, for a user who knows only the chat."""
    return f"{_TO_ANSWER}{approval_id}`, or `deny {approval_id} because …`."


def chat_text(message: ChatMessage) -> str:
    """The text of a message, without its files."""
    if not isinstance(message.content, list):
        return (message.content or "").strip()
    texts = (part.get("text") for part in message.content if part.get("type") in (*TEXT_PARTS, "output_text"))
    return "\n".join(each for each in texts if isinstance(each, str)).strip()


def _content(message: ChatMessage) -> tuple[str, tuple[FilePart, ...]]:
    """The text and the files of the message to answer."""
    if not isinstance(message.content, list):
        return chat_text(message), ()
    parts = list[FilePart]()
    for number, each in enumerate(message.content, 1):
        kind = each.get("type")
        inner = each.get(kind) if isinstance(kind, str) else None
        if kind in TEXT_PARTS:
            continue
        if kind == "image_url" and isinstance(inner, dict):
            parts.append(attached_file(inner.get("url"), None, number))
        elif kind == "input_image":
            parts.append(attached_file(each.get("image_url"), None, number))
        elif kind == "file" and isinstance(inner, dict):
            parts.append(attached_file(inner.get("file_data"), inner.get("filename"), number))
        else:
            raise RequestRefused(400, "unsupported", f"part {number} of the message: expected text, image_url or file")
    return chat_text(message), tuple(parts)


def attached_file(url: object, name: object, number: int) -> FilePart:
    """A file that is in the request itself. The server fetches nothing for a client.

    Args:
        url: its `data:` URL
        name: the name that the client gave it, if that is text
        number: of the part within the message, for the error

    Raises:
        RequestRefused: the URL is none of this kind
    """
    refused = RequestRefused(400, "unsupported", f"part {number} of the message: expected a `data:` URL in base64")
    if not isinstance(url, str) or not url.startswith("data:"):
        raise refused
    head, comma, coded = url.partition(",")
    if not comma or not head.endswith(";base64"):
        raise refused
    try:
        data = base64.b64decode(coded, validate=True)
    except (binascii.Error, ValueError):
        raise refused from None
    return FilePart(data, head.removeprefix("data:").partition(";")[0] or None, name if isinstance(name, str) else None)


def schema_of(wanted: Mapping[str, object] | None) -> Mapping[str, object] | None:
    """The JSON schema of the object that `response_format` asks for; None: text.

    Raises:
        RequestRefused: it asks for something else
    """
    kind = wanted.get("type") if wanted is not None else "text"
    if wanted is None or kind == "text":
        return None
    if kind == "json_object":
        return {"type": "object"}
    inner = wanted.get("json_schema")
    schema = inner.get("schema") if isinstance(inner, dict) else None
    if kind != "json_schema" or not isinstance(schema, dict):
        raise RequestRefused(
            400, "unsupported", "the format of the reply: expected text, json_object, or json_schema with a `schema`"
        )
    return schema
