"""Reads answers in OpenAI's chat-completions format, whole or event by event. Nothing is sent from here.

Servers differ in what they leave out, so each field is read by itself and checked. A model's thoughts are counted. They
are kept only with tool requests, to go back to the server with the results.
"""

from collections.abc import Iterable, Sequence
from itertools import chain
from typing import Final, Literal, NamedTuple

import orjson

from kitchener.errors import ProviderError
from kitchener.gateway.providers.bodies import UnusableAnswer
from kitchener.gateway.providers.chat_completions.request_body import DETAILS, SIGNED, THOUGHTS
from kitchener.gateway.providers.chat_completions.token_counts import TokenCounts
from kitchener.gateway.providers.checked_answers import (
    MAX_PARTS,
    ReadAnswer,
    answer_text,
    checked_response,
    checked_tool_use,
    completed_usage,
    object_in,
    value_without_halves,
)
from kitchener.gateway.providers.endpoint_errors import reason_of, redacted_line, status_in, told_by
from kitchener.gateway.providers.redaction import Redaction
from kitchener.model_usage import Usage
from kitchener.records.entries import FinishReason
from kitchener.records.prompt import Echo, PromptRequest, PromptResponse, ToolSpec, ToolUse

_FINISH_REASONS: Final[dict[str, FinishReason]] = {
    "stop": "stop",
    "end_turn": "stop",
    "eos": "stop",
    "eos_token": "stop",
    "stop_sequence": "stop",
    "length": "length",
    "max_tokens": "length",
    "max_output_tokens": "length",
    "model_length": "length",
    "content_filter": "content_filter",
    "prohibited_content": "content_filter",
    "recitation": "content_filter",
    "refusal": "content_filter",
    "safety": "content_filter",
    "sensitive": "content_filter",
    "tool_calls": "tool_use",
    "tool_use": "tool_use",
    "function_call": "tool_use",
}
"""What OpenAI sends, in lower case, and what gateways pass on from others: Anthropic, Google, Together, Zhipu, and Mistral, for
a full context (`model_length`)."""
_FAILURES: Final = ("error", "insufficient_system_resource", "abort", "network_error")
"""Finish reasons of answers that the server broke off: of OpenRouter and Mistral, DeepSeek, vLLM, and Zhipu."""
_OF_THOUGHTS: Final = frozenset((*THOUGHTS, DETAILS))
"""Fields of a message that hold thoughts."""
_TEXT_OF_DETAIL: Final = {"reasoning.text": "text", "reasoning.summary": "summary"}
"""The field of a listed thought whose pieces are joined, by its type. Encrypted ones come whole."""
_ENVELOPE: Final = frozenset(("object", "type", "usage", "id", "model"))
"""Fields that an event has which is no error, although it has no choices and may have a message."""
_BEGIN: Final = "<think>"
_END: Final = "</think>"
_END_OF_LINE: Final = "</think>\n"
"""The end of thoughts in a text that does not begin them. Text that speaks of the tag goes on in the same line."""
_MAX_HELD: Final = 200
"""White space before an answer that is held back at most, characters."""


class _Call:
    """A tool request that arrives in parts over a stream."""

    __slots__ = ("arguments", "name", "signed", "use_id")

    def __init__(self) -> None:
        self.use_id = self.name = ""
        self.signed: object = None
        self.arguments: list[str] | dict[str, object] = []

    def take(self, part: "_CallPart", tools: Iterable[ToolSpec]) -> None:
        """Takes the next part; `tools` are those that were offered."""
        self.use_id = self.use_id or part.use_id
        if not self.name:
            self.name = part.name
        elif part.name and not self.arguments:
            self.name = _longer_name(self.name, part.name, [each.tool_id for each in tools])
        self.signed = self.signed or part.signed
        if isinstance(part.arguments, dict):
            self.arguments = value_without_halves(part.arguments)
        elif isinstance(self.arguments, list) and part.arguments:
            self.arguments.append(part.arguments)

    @property
    def argument_text(self) -> str:
        """Its arguments as a text, for an estimate of its tokens."""
        return "".join(self.arguments) if isinstance(self.arguments, list) else orjson.dumps(self.arguments).decode()

    def is_followed_by(self, part: "_CallPart") -> bool:
        """Whether a part of a stream begins the next request, although it does not have another number.

        Some servers number nothing, and some give each of several requests the number 0.
        """
        if part.use_id and self.use_id:
            return part.use_id != self.use_id and (part.number is None or bool(part.name))
        if part.number is None:
            return bool(part.use_id or part.name)
        return bool(part.name and part.arguments) and self._came_whole()

    def _came_whole(self) -> bool:
        """Whether its first part brought all of its arguments."""
        arguments = self.arguments
        return isinstance(arguments, dict) or (len(arguments) == 1 and object_in(arguments[0]) is not None)


def _longer_name(name: str, more: str, offered: Sequence[str]) -> str:
    """The name of a tool after a further piece: most servers send it whole, some in pieces, some again, and some so far."""
    joined = name + more
    if any(each.startswith(joined) for each in offered):
        return joined
    if more.startswith(name):
        return more
    return name if name in offered else joined


class _CallPart(NamedTuple):
    """What one event, or a whole answer, says of a tool request."""

    number: int | None
    use_id: str
    name: str
    arguments: str | dict[str, object]
    signed: object
    """What Google sends with its first part; None: nothing."""

    @classmethod
    def of(cls, call: dict[str, object]) -> "_CallPart":
        function = _dict(call.get("function") or {}, "a function")
        number, arguments = call.get("index"), function.get("arguments")
        return cls(
            number if type(number) is int else None,
            _text(call.get("id")),
            _text(function.get("name")),
            arguments if isinstance(arguments, dict) else _text(arguments),
            call.get(SIGNED),
        )


class AnswerReader:
    """Gathers one answer out of the parsed body, or out of the events of a stream.

    Args:
        request: what was asked
        provider_id: who was asked
        asked: the model that was asked for
        redaction: the keys
        counts: reads the counts of tokens
    """

    def __init__(self, request: PromptRequest, provider_id: str, asked: str, redaction: Redaction, counts: TokenCounts) -> None:
        self._request, self._provider_id, self._asked, self._redaction = request, provider_id, asked, redaction
        self._counts = counts
        self._texts: list[str] = []
        self._refusals: list[str] = []
        self._calls: list[_Call] = []
        self._newest: dict[int | None, _Call] = {}
        """The newest tool request of each number; None: of those without one."""
        self._finish: str | None = None
        self._model = ""
        self._usage: Usage | None = None
        self._thoughts = _Thoughts()
        self._sent_thoughts: dict[str, list[str]] = {}
        """Thoughts that come apart from the text, by the field that has them."""
        self._details: list[dict[str, object]] = []
        """Thoughts that come as a list."""
        self._has_choice = False

    def take(self, body: object, *, streams: bool) -> str:
        """Takes the whole body of an answer or the next event, and returns the text that it brings.

        Raises:
            ProviderError: the answer is the report of an error
            UnusableAnswer: it does not have the format
        """
        answer = body if type(body) is dict else _dict(body, "the answer")
        if usage := answer.get("usage"):
            self._count(usage)
        if error := answer.get("error"):
            raise self._reported(error)
        if "choices" not in answer and _is_error(answer):
            raise self._reported(answer)
        if not self._model:
            self._model = _text(answer.get("model"))
        choices = answer.get("choices")
        if not choices:
            return ""
        if type(choices) is not list:
            raise UnusableAnswer("malformed", "`choices` is no list")
        self._has_choice = True
        choice = choices[0] if type(choices[0]) is dict else _dict(choices[0], "a choice")
        if finish := choice.get("finish_reason"):
            self._take_end(answer, choice, _text(finish))
        said = choice.get("delta" if streams else "message")
        if type(said) is not dict:
            if streams and said is None:  # what Azure's filter found comes in an event of its own
                return ""
            said = _dict(said, "a message")
        if (
            len(said) == 1 and self._thoughts.state == "text" and type(text := said.get("content")) is str
        ):  # most events of a stream
            if text:
                self._texts.append(text)
            return text
        return self._say(said, streams=streams)

    def rest(self) -> str:
        """Returns text that was held back, after the last event."""
        if rest := self._thoughts.rest():
            self._texts.append(rest)
        return rest

    def response(self, *, is_whole: bool) -> PromptResponse:
        """Returns the whole answer.

        Args:
            is_whole: whether it needs no finish reason to be whole: it is no stream, or one with its end mark

        Raises:
            ProviderError: it holds neither text nor a tool request
            UnusableAnswer: it was cut off, or its tool requests are unusable
        """
        if not self._has_choice:
            raise ProviderError(self._provider_id, "empty", "the answer holds no choices", usage=self.told_usage)
        if self._finish is None and not is_whole:
            told = "the stream ended without a finish reason or an end mark, so the answer may be cut off"
            raise UnusableAnswer("malformed", told)
        text = answer_text((self._thoughts.cut_unopened("".join(self._texts)),), self._redaction)
        if self._refusals and not text and not self._calls:
            told = redacted_line("".join(self._refusals), self._redaction)
            raise ProviderError(self._provider_id, "refused", told, usage=self._counted(self._refusals))
        read = ReadAnswer(
            text=text,
            tool_uses=self._tool_uses(),
            usage=self._counted((text,)),
            finish_reason=_FINISH_REASONS.get((self._finish or "stop").lower(), "other"),
            served_model=self._model,
        )
        return checked_response(read, self._request, self._provider_id, self._asked, self._redaction)

    @property
    def told_usage(self) -> Usage | None:
        """The tokens of the answer as far as the server has told them; None: it has not, or told zeros."""
        usage = self._usage
        return usage if usage is not None and (usage.input_tokens or usage.output_tokens) else None

    def _counted(self, texts: Iterable[str]) -> Usage:
        """The tokens of the whole answer, with these texts. What the server does not count is estimated."""
        counted = self._usage or Usage(0, 0)
        if counted.input_tokens and counted.output_tokens:
            return counted
        calls = chain.from_iterable((call.name, call.argument_text) for call in self._calls)
        received = chain(texts, self._thoughts.texts, *self._sent_thoughts.values(), calls)
        return completed_usage(counted, self._request, "".join(received))

    def _take_end(self, answer: dict[str, object], choice: dict[str, object], finish: str) -> None:
        """Takes why the answer ended, which comes last, and what some servers tell only there."""
        self._finish = finish
        groq = answer.get("x_groq")
        holders = [each for each in (choice, groq) if isinstance(each, dict)]
        if error := next((each["error"] for each in holders if each.get("error")), None):
            raise self._reported(error)
        if finish in _FAILURES:
            raise self._reported(f"the model stopped with {finish!r}")
        if not answer.get("usage") and (usage := next((each["usage"] for each in holders if each.get("usage")), None)):
            self._count(usage)  # of Moonshot and Groq

    def _count(self, usage: object) -> None:
        counted = self._counts.usage(usage)
        if self._usage is None or counted.input_tokens or counted.output_tokens:  # some servers end with zeros
            self._usage = counted

    def _tool_uses(self) -> tuple[ToolUse, ...]:
        uses: dict[str, ToolUse] = {}
        for number, call in enumerate(self._calls, 1):
            is_name = call.use_id and call.use_id not in uses  # results are told apart by it
            use_id = call.use_id if is_name else f"call-{self._request.call}-{number}"
            arguments = "".join(call.arguments) if isinstance(call.arguments, list) else call.arguments
            echo = self._echo(call.signed, has_thoughts=not uses)
            uses[use_id] = checked_tool_use(use_id, call.name, arguments, self._redaction, echo)
        return tuple(uses.values())

    def _echo(self, signed: object, *, has_thoughts: bool) -> Echo | None:
        """What the server wants back with a tool request: its signature and, with the first request, the thoughts before it."""
        fields: dict[str, object] = {}
        if has_thoughts and self._details:
            fields[DETAILS] = self._details
        elif has_thoughts and (name := next((each for each in THOUGHTS if each in self._sent_thoughts), None)):
            fields[name] = "".join(self._sent_thoughts[name])
        if signed:
            fields[SIGNED] = signed
        if not fields:
            return None
        return Echo(self._provider_id, orjson.dumps(self._redaction.value(value_without_halves(fields))).decode())

    def _say(self, said: dict[str, object], *, streams: bool) -> str:
        if not _OF_THOUGHTS.isdisjoint(said):
            self._take_thoughts(said, streams=streams)
        if refusal := said.get("refusal"):
            self._refusals.append(_text(refusal))
        if calls := said.get("tool_calls"):
            self._take_calls(calls, streams=streams)
        content = said.get("content")
        if not content:
            return ""
        said_text = content if isinstance(content, str) else _text_of_parts(content)
        text = self._thoughts.without(said_text)
        if not streams:
            text = self._thoughts.cut_unopened(text)
        if text:
            self._texts.append(text)
        return text

    def _take_thoughts(self, said: dict[str, object], *, streams: bool) -> None:
        for name in THOUGHTS:
            if isinstance(thought := said.get(name), str) and thought:
                self._sent_thoughts.setdefault(name, []).append(thought)
        if isinstance(details := said.get(DETAILS), list):
            self._take_details(details, streams=streams)

    def _take_details(self, details: list[object], *, streams: bool) -> None:
        """Takes the list of thoughts, or the next parts of it: a stream sends a text in pieces with the number of its part."""
        for each in details:
            if not isinstance(each, dict):
                continue
            last = self._details[-1] if streams and self._details else {}
            name = _TEXT_OF_DETAIL.get(str(each.get("type")), "")
            pieces = [last.get(name) or "", each.get(name) or ""]
            is_next = (last.get("type"), last.get("index")) == (each.get("type"), each.get("index"))
            if name and is_next and all(isinstance(piece, str) for piece in pieces):
                last.update({key: value for key, value in each.items() if value is not None})
                last[name] = "".join(map(str, pieces))
            elif len(self._details) < MAX_PARTS:
                self._details.append(dict(each))
            else:
                raise UnusableAnswer("malformed", f"the answer has more than {MAX_PARTS} parts")

    def _take_calls(self, calls: object, *, streams: bool) -> None:
        if not isinstance(calls, list):
            raise UnusableAnswer("malformed", "`tool_calls` is no list")
        for each in calls:
            part = _CallPart.of(_dict(each, "a tool request"))
            call = self._newest.get(part.number) if streams else None
            if call is None or call.is_followed_by(part):
                if len(self._calls) >= MAX_PARTS:
                    raise UnusableAnswer("malformed", f"the answer has more than {MAX_PARTS} parts")
                call = self._newest[part.number] = _Call()
                self._calls.append(call)
            call.take(part, self._request.tools)

    def _reported(self, error: object) -> ProviderError:
        """Returns the error that an answer with status 200 reports, as gateways in front of models do."""
        status = status_in(error)
        detail = redacted_line(told_by(status, error), self._redaction)
        return ProviderError(self._provider_id, reason_of(status, error), detail, status=status, usage=self.told_usage)


class _Thoughts:
    """Separates the thoughts that some models write in `<think>` before their text."""

    def __init__(self) -> None:
        self.texts: list[str] = []
        self._held = ""
        self.state: Literal["start", "thought", "gap", "text"] = "start"
        """What is read now; "text": the text has begun, so that all that follows is text."""
        self._has_thoughts = False

    def without(self, text: str) -> str:
        """Returns the next piece of text without thoughts. Holds back what may be the beginning of a tag."""
        if self.state == "start":
            self._held += text
            begun = self._held.lstrip()
            if len(begun) < len(_BEGIN) and _BEGIN.startswith(begun) and len(self._held) < _MAX_HELD:
                return ""
            if not begun.startswith(_BEGIN):
                return self.rest()
            text, self._held, self.state, self._has_thoughts = begun[len(_BEGIN) :], "", "thought", True
        if self.state == "thought":
            thought, mark, text = (self._held + text).partition(_END)
            kept = len(thought) if mark else max(0, len(thought) - len(_END) + 1)
            self.texts.append(thought[:kept])
            self._held = thought[kept:]
            if not mark:
                return ""
            self.state = "gap"
        if self.state == "gap":
            text = text.lstrip()
            self.state = "text" if text else "gap"
        return text

    def cut_unopened(self, text: str) -> str:
        """Returns a whole text without thoughts whose `<think>` was in the prompt, as of DeepSeek R1.

        Before the end of the thoughts has come, nothing tells them from text. So a stream has passed them on as text, and its
        last item, which is whole, has not.
        """
        thought, mark, rest = text.partition(_END_OF_LINE)
        if self._has_thoughts or not mark or _BEGIN in thought:
            return text
        self.texts.append(thought)
        self._has_thoughts = True
        return rest.lstrip()

    def rest(self) -> str:
        """Returns the text that was held back and is not a thought."""
        if self.state != "start":
            return ""
        held, self._held, self.state = self._held, "", "text"
        return held


def _is_error(answer: dict[str, object]) -> bool:
    """Whether an answer without choices is the report of an error, as vLLM and web frameworks in front of models write it."""
    told = answer.get("message") or answer.get("detail")
    return bool(told) and ("error" in (answer.get("object"), answer.get("type")) or not _ENVELOPE.intersection(answer))


def _dict(value: object, what: str) -> dict[str, object]:
    if isinstance(value, dict):
        return value
    raise UnusableAnswer("malformed", f"{what} is no JSON object")


def _text(value: object) -> str:
    if value is None:
        return ""
    if isinstance(value, str):
        return value
    raise UnusableAnswer("malformed", "a text of the answer is no text")


def _text_of_parts(parts: object) -> str:
    """Returns the text of content that comes in parts, without the parts that are thoughts."""
    if not isinstance(parts, list):
        raise UnusableAnswer("malformed", "the content of the answer is neither text nor parts")
    found = [_dict(each, "a part") for each in parts]
    return "".join(_text(each.get("text")) for each in found if each.get("type") == "text")
