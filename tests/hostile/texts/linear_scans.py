"""Measures whether functions that read foreign text take time in proportion to its length, in a process of its own.

    python -m tests.hostile.texts.linear_scans [sample] GROUP ...

Prints a line of JSON for each case where eight times the text took more than `MAX_RATIO` times the processor time, and the
number of cases at the end. Nothing counts the steps of an expression, so this is the one place that measures time; it is
processor time, never the wall's.
"""

import contextlib
import gc
import importlib
import json
import pkgutil
import re
import resource
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import chain as chained
from itertools import product
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, Final, TypeAlias
from zlib import crc32

from cyclopts import UnknownCommandError
from starlette.requests import Request

import kitchener
from kitchener import criteria, ids, signing
from kitchener.actors.admission import argument_checks, request_checks
from kitchener.actors.attention import retriever as attention
from kitchener.actors.authority.ranking import TurnWords
from kitchener.actors.executor.answers import is_stored_by_text, read_answer, read_object
from kitchener.actors.executor.packs import compile_pack, fence
from kitchener.actors.executor.reply_stream import ReplyText
from kitchener.actors.executor.tool_rounds.result_pages import page_of
from kitchener.actors.tools import schema as tool_schema
from kitchener.actors.tools.call_limits import ToolCallLimits
from kitchener.actors.tools.results import fitting_start
from kitchener.actors.tools.tool import Tool
from kitchener.canonical import canonical_bytes, digest
from kitchener.cli.app import build_app
from kitchener.cli.config.init import init
from kitchener.cli.context.turn_page.request_rows import request_diff
from kitchener.cli.ledger.ledger import check_type
from kitchener.cli.session.session_search import moment_of, searchable
from kitchener.cli.terminal.output import table_lines
from kitchener.cli.terminal.word_wrap import WordWrap
from kitchener.cli.usage import usage_line
from kitchener.config import (
    HO2Config,
    LimitsConfig,
    McpServerConfig,
    RouterConfig,
    RuntimeConfig,
    ServeConfig,
    ToolLimits,
    shown,
)
from kitchener.config.approval import condition_terms
from kitchener.config.settings_parser import meant_key, parse_settings
from kitchener.context import ToolResult, choose_thread, estimator, result_item
from kitchener.context.fold import excerpts, tool_results
from kitchener.context.fold.context_events import Asked
from kitchener.context.fold.items import first_line, turn_item
from kitchener.context.lexical import features as lexical_features
from kitchener.context.lexical import relayed_speakers
from kitchener.context.lexical import words as lexical_words
from kitchener.context.lexical.questions import asks
from kitchener.context.lexical.turn_index import LexicalIndex, LexicalTurn
from kitchener.errors import KitchenerError
from kitchener.gateway.providers.bodies import UnusableAnswer
from kitchener.gateway.providers.library.vendors import unknown_vendor
from kitchener.gateway.providers.offline import OfflineProvider
from kitchener.gateway.routing import check_router
from kitchener.gateway.rules import relation, tool_choice
from kitchener.gateway.rules.classification import classify, speech_act
from kitchener.gateway.rules.filled_object import filled
from kitchener.gateway.rules.vocabulary import lower_words
from kitchener.inspection.shown_text import harmless
from kitchener.ledger.bundles import bundle_check as proof_check
from kitchener.ledger.bundles.bundle_sections import BundleFault
from kitchener.ledger.format import checks as verifier
from kitchener.ledger.format import lines as chain
from kitchener.ledger.verify import checkpoint
from kitchener.mcp.command import LineReader
from kitchener.mcp.definitions import read_tools
from kitchener.media import content_store, media_types
from kitchener.memory import learned_lines, signals, timestamps
from kitchener.model_usage import Usage
from kitchener.records import spoken
from kitchener.records.entries import ToolDefinition
from kitchener.records.entries.work_orders import WorkOrderType
from kitchener.records.prompt import PromptRequest, PromptResponse, ToolSpec
from kitchener.records.ref import Ref
from kitchener.records.tools.client_tools import ClientTool, ClientToolset
from kitchener.replaying.comparison import line_diff
from kitchener.runtime.portable.source_file import imported_sources
from kitchener.runtime.setting_checks import check_is_configured
from kitchener.schemas.schema_steps import steps
from kitchener.serve.agui.run_input import read_run
from kitchener.serve.chat_completions.chat_request import CONTINUE, ChatBody, SaidPair
from kitchener.serve.chat_completions.client_history import ClaimedHistory
from kitchener.serve.chat_completions.utility_calls import UtilityCalls
from kitchener.serve.problems import RequestRefused
from kitchener.serve.responses.response_objects import turn_of_response
from tests.hostile.texts import wire

_REQUESTS: Final = request_checks.RequestChecks(LimitsConfig(max_message_chars=10**9))
TIMES: Final = 8
"""So many times longer is the longer of two texts."""
REACHED: Final = "reached"
"""Tells which functions the registered scans give a long text to, and measures nothing."""
MIN_REACHED_CHARS: Final = 60
"""So long is a text at least for a function that counts as measured: terms are cut at 64 characters."""
SAMPLE: Final = "sample"
"""Before the groups: measures some of the cases of each scan."""
EXPRESSIONS: Final = "expressions"
"""The group of all that is compiled, which needs no registration."""
MAX_RATIO: Final = 30.0
"""Between 8, what a linear scan takes, and 64, what a quadratic one does."""
UNMEASURABLE_S: Final = 0.01
"""A scan of the longer text that takes less processor time than this is fast enough, whatever its shape."""
SHORTER: Final = 8
"""Of a sample, texts so many times shorter tell which cases need be measured: what is quadratic takes a 64th there."""
SUSPECT_RATIO: Final = 12.0
"""What takes 36 times the time, a part of it linear and a part quadratic, takes 14.2 times on texts `SHORTER`. The rest is for
what disturbs a measurement. What takes less than that and more than `MAX_RATIO` is found where all cases are measured."""
MANY_UNITS, UNITS_ONE_IN = 32, 3
"""Of so many units a sample takes one in three."""
MAX_CPU_S: Final = 120
"""Processor time after which the process is ended; it takes a tenth of that."""

UNITS: Final = (
    *("\n", " ", "\t", "\r\n", "-", "“", '"', "'", "`", "```", "{", "[", "<a", "</", "(", "\\", "/", ".", ",", ":", "*", "~"),
    *(
        "a",
        "ab ",
        "a,",
        "a:",
        "1 ",
        "12/",
        "'a ",
        "i ",
        "mind ",
        "never, ",
        "always ",
        "; and ",
        "so ",
        "hi, ",
        "ok ",
        "is it ",
    ),
    *('"a":1,', "漢", "漢、", "한국 ", "שלום ", "\u0301\u0316", "e\u0301", "\u0301\uff9e", "\ufdfa", "\U0001f600", "may 1 "),
    *(
        "2024-01-",
        "T-",
        "=",
        "&",
        "@",
        "ignore ",
        "{%",
        "\\u00",
        "\\ud83d",
        "[agents.RESIDENT:",
        "- ",
        "#",
        "%",
        "0",
        "\U0001f3f4\U000e0067",
    ),
)
"""What hostile texts are made of."""
JSON_UNITS: Final = (" ", "\n", "`", "{", "[", '"', "\\", "a", "漢", "\\u00", "\\ud83d", '"a":1,', ":")
"""The same for answers that are read by the character, which takes longer."""
FRAMES: Final = (("", ""), ("x ", "x"), ("mind never? ", "!"), ("read the file ", "?"), ("please, “", ""))
"""What stands before and behind: so that a scan begins, and fails at the very end."""
OFFLINE_FRAMES: Final = (*FRAMES, ("please find a book. ", ""), ("what about it? ", " bye"))
KEY_UNITS: Final = ("a", "[", "ab ", "漢", "aaaaaaab")
CUT_UNITS: Final = ("a", "\n", "\r\n", "漢", "a\n")
"""For a text that is cut at a length or at the ends of lines, and not read any further."""
ANSWER_FRAMES: Final = (
    ("", ""),
    ("```json\n", "x"),
    ("```", ""),
    ('{"response_text": "', '"}'),
    ('{"response_text":', ""),
    ('{"', '": 1, "response_text": "a"}'),
    ('{"a": "', ""),
    ('{"a": {', "\n```"),
)
"""The same for what a model answers."""


REFERENCE_FRAMES: Final = (("", ""), ("#/", ""), ("#/prefixItems/", ""), ("#/prefixItems/1", ""), ("#/properties/~0", "/a"))
"""The same for what stands in a schema."""


@dataclass(frozen=True, slots=True)
class Scan:
    """A way by which foreign text reaches a function."""

    name: str
    call: Callable[[str], object]
    frames: tuple[tuple[str, str], ...] = FRAMES
    chars: int = 2_000
    """Of the shorter text."""
    units: tuple[str, ...] = UNITS
    """What the texts are made of."""


def _as_jpeg(text: str) -> bytes:
    """An image of as many segments of two bytes as the text has characters."""
    return b"\xff\xd8" + b"\xff\xe0\x00\x02" * len(text)


def _size_of_picture(text: str) -> object:
    return media_types.estimate_content("image/jpeg", _as_jpeg(text), len)


def _asked_response(text: str) -> None:
    """No id of a response is that long, and saying so reads all of it."""
    with contextlib.suppress(RequestRefused):
        turn_of_response(f"resp_{text}")


def _claimed(text: str) -> object:
    """A conversation of a client, in which the text is a reply that was continued again and again."""
    pieces = [text[at : at + 16] for at in range(0, len(text), 16)]
    return ClaimedHistory.of([SaidPair(CONTINUE if at else "say it", piece) for at, piece in enumerate(pieces)])


def _served(text: str) -> object:
    """A server's tool, whose name, description and schema say the same."""
    schema = {"type": "object", "properties": {text: {"description": text}}}
    return read_tools("web", McpServerConfig(command="true"), [{"name": text, "description": text, "inputSchema": schema}])


def _asks_for_title(text: str) -> bool:
    """A message that a server compares with the prompts of clients for titles and summaries."""
    body = ChatBody(model="ADMIN", messages=[{"role": "user", "content": text}])  # type: ignore[list-item]  # as a client sends it
    return UtilityCalls(None, ServeConfig()).is_asked(Request({"type": "http", "headers": []}), body)  # type: ignore[arg-type]  # calls no model


def _as_run(text: str) -> object:
    """A run of a client, whose messages, calls and tools are pieces of the text, each with an id of its own."""
    pieces = [text[at : at + 16] for at in range(0, min(len(text), 16 * 4_000), 16)]
    said = [{"id": f"{at}", "role": "user", "content": each} for at, each in enumerate(pieces)]
    called = {"id": "c", "role": "assistant", "toolCalls": [{"id": each, "function": {"name": "t"}} for each in pieces]}
    tools = [{"name": each} for each in pieces]
    body = {"threadId": "t", "runId": "r", "messages": [called, *said], "tools": tools}
    return read_run(json.dumps(body).encode())


def _of_client(text: str) -> object:
    """The definition of a tool of a client, which says the text in its description and its schema."""
    schema = {"type": "object", "properties": {text: {"description": text}}}
    tools = ClientToolset.of([ClientTool("t", text, schema)])
    kept = imported_sources(
        "sources.json", canonical_bytes({tools.hash: tools.text}) + b"\n", [("client_tools", tools.hash)], "A"
    )
    return kept, tools.runnable(is_trusted=False)


def _lines_in_pieces(text: str) -> object:
    lines, data = LineReader(20_000), text.encode("utf-8", "replace")
    return [line for at in range(0, len(data), 70) for line in lines.add(data[at : at + 70])]


def _referring(text: str) -> dict[str, Any]:
    refers = {"$ref": text}
    return {"type": "object", "prefixItems": [True], "properties": {"a": refers}, "required": ["a"]}


def _response(text: str) -> PromptResponse:
    return PromptResponse(provider_id="scripted", model_id="scripted-1", text=text, usage=Usage(1, 1), finish_reason="stop")


def _in_pieces(size: int) -> Callable[[str], object]:
    def feed(text: str) -> str:
        reply = ReplyText(is_object=True)
        for start in range(0, len(text), size):
            reply.feed(text[start : start + size])
        return reply.given

    return feed


def _features(text: str) -> object:
    folded = text.casefold()
    return lexical_features.features_of(text, lexical_words.words_of(folded), ())


def _index(text: str) -> object:
    index = LexicalIndex()
    for speaker in ("user", "assistant", "user"):
        index.append(LexicalTurn(text, "s", speaker, "2026-01-01"))
    return index.rank(text, wanted=3)


def _as_said(text: str) -> object:
    """As the user's, a named speaker's and an assistant's, with the label read back."""
    shown = [spoken.message_text(text), spoken.message_text(text, text), spoken.reply_text(text)]
    shown += [spoken.imported_text(text, each, is_reply=True) for each in (None, text)]
    return [spoken.speaker_of(spoken.label_of(each)) for each in (text, *shown)]


def _words_of_turns(text: str) -> object:
    words = TurnWords(1_024)
    words.note(_turn(text))
    return words.rank(text, 1, 1)


def _turn(text: str) -> Any:
    class Known:
        entity_id, ref, key = "T-1", None, ("2026-01-01T00:00:00", "E-1", "L")

    class Answer:
        response, session_id = text, "SES-00000001"

    known: Any = Known
    answer: Any = Answer
    return turn_item(known, answer, Asked(text, text), None, len)


TOOLS: Final = (ToolSpec("read_file", "Reads a file", {"required": ["path"], "properties": {"path": {"type": "string"}}}),)


def _classified(text: str) -> object:
    return classify(text, recent_turns=[{"user": text, "assistant": text}], active_objective=text, tools=TOOLS)


def _offline(wo_type: WorkOrderType, variables: Callable[[str], Mapping[str, Any]]) -> Callable[[str], object]:
    def answer(text: str) -> object:
        request = PromptRequest(
            contract_id="PRC-X-001", wo_type=wo_type, prompt_pack_version="PRM-X-001@00000000", messages=(),
            variables=variables(text), call=1, session_id="SES-00000001", wo_id="WO-SES-00000001-001", subject_id="ada",
            deadline=0.0, max_tokens=512, temperature=0.0,
        )  # fmt: skip
        try:
            OfflineProvider().complete(request).send(None)
        except StopIteration as done:  # it never waits
            return done.value
        raise AssertionError("the offline model waited")

    return answer


def _as_settings(text: str) -> object:
    return parse_settings(RuntimeConfig, {"plane_root": text, "limits": {text: 1}}, "test")


def _as_provider(text: str) -> None:
    with contextlib.suppress(KitchenerError):
        init(Path(tempfile.gettempdir()) / "no model is named", provider=text)


def _as_file(suffix: str, read: Callable[[Path], object]) -> Callable[[str], object]:
    folder = Path(tempfile.mkdtemp(prefix="linear-scans-"))
    path = folder / f"text{suffix}"

    def written(text: str) -> object:
        path.write_text(text, "utf-8", "replace")
        return read(path)

    return written


def _closest_class(text: str) -> object:
    classes = {name: HO2Config() for name in ("ADMIN", "RESIDENT", "x" * 64)}
    with contextlib.suppress(KitchenerError):
        check_is_configured(RuntimeConfig(agents=classes), text)
    return classes


def _closest_command(text: str) -> None:
    usage_line(UnknownCommandError(unused_tokens=[text], root_input_tokens=[text], app=build_app(is_listing=True)))


def _closest_type(text: str) -> None:
    with contextlib.suppress(KitchenerError):
        check_type(text)


def _moment(text: str) -> None:
    with contextlib.suppress(KitchenerError):
        moment_of(text, 0)


def _wrapped_in_pieces(text: str) -> str:
    lines = WordWrap(80)
    return "".join([lines.add(text[at : at + 7]) for at in range(0, len(text), 7)]) + lines.end()


def _as_router(field: str) -> Callable[[str], object]:
    def check(text: str) -> None:
        provider = {"kind": "openai_compatible", "base_url": "http://127.0.0.1", field: text, "model": "m"}
        check_router(parse_settings(RouterConfig, {"providers": {"p": provider}}, "test"), source="test")

    return check


def _chosen(text: str) -> object:
    class Known:
        class facts:
            objective = text[:2_000]

    record: Any = Known
    return choose_thread(text, ["a", "b"], {"a": record, "b": record})


def _excerpt(text: str) -> object:
    """As for the text itself, and as for words that no passage has, in little room."""
    item = _turn(text)
    return [excerpts.excerpted(item, excerpts.asked_terms(asked), most, len) for asked, most in ((text, 400), ("zz", 20))]


def _as_result(text: str) -> object:
    found = ToolResult(Ref("", "", ""), "", "T-1", "WO-1", 1, "look_up", tool_results.result_text(text))
    return [result_item(found, message, 64, estimator("utf8/3")) for message in (text, "ab")]


def _labelled(message: str, label: str) -> object:
    return classify(message, labels_vocabulary={"domain": ["travel", label]})


def _sources(text: str) -> object:
    """A configuration that names one tool again and again, as many times as the tool's description is long."""
    tool = json.dumps({**dict.fromkeys(ToolDefinition.__required_keys__, 0), "description": text})
    named = [{"name": "t", "hash": digest(tool.encode())}] * max(1, len(text) // 10)
    settings = {"agent_class": "ADMIN"}
    whole = json.dumps({"settings": settings, "prompts": [], "attention_templates": [], "tools": named})
    config_hash = digest(whole.encode())
    data = canonical_bytes({config_hash: whole, named[0]["hash"]: tool}) + b"\n"
    return imported_sources("sources.json", data, [("configuration", config_hash)], "ADMIN")


_MESSAGES: Final = _as_file(".jsonl", wire.messages)
_LINE: Final = b'{"ledger_id":"L","seq":1,"entry_id":"E-2026-01-01-000000000001","batch":[1,1,1],"entry_hash":"sha256:'
SCANS: Final[Mapping[str, tuple[Scan, ...]]] = {
    "content": (
        Scan("media type", lambda text: media_types.media_type_of(text.encode("utf-8", "replace"), text)),
        Scan("pages", lambda text: media_types.estimate_content("application/pdf", text.encode("utf-8", "replace"), len)),
        Scan("size of a picture", _size_of_picture, FRAMES[:1], units=("a",)),
        Scan("hash of content", content_store.is_content_hash),
    ),
    "context": (
        Scan("features of a message", _features),
        Scan("dates in a question", lambda text: lexical_features.may_have_date(text) and lexical_features.date_parts(text)),
        Scan("words", lexical_words.words_of),
        Scan("terms", lambda text: [lexical_words.terms_of(word) for word in lexical_words.words_of(text)]),
        Scan("terms of one word", lexical_words.terms_of),
        Scan("stem", lexical_words.stem),
        Scan("index and ranking", _index, chars=700),
        Scan("a stub", first_line),
        Scan("an excerpt", _excerpt, chars=1_000),
        Scan("a message that asks", asks),
        Scan("a name before a message", relayed_speakers.name_before),
        Scan("naming a thread", _chosen),
        Scan("a tool's result", _as_result),
        Scan("a tool's result with a long key", lambda text: tool_results.result_text({text: {text: [text, 1]}, "a": [text]})),
        Scan("a result that a reply repeats", lambda text: tool_results.is_repeated([text], text)),
    ),
    "answers": (
        Scan("a streamed answer, by the character", _in_pieces(1), ANSWER_FRAMES, 4_000, JSON_UNITS),
        Scan("a streamed answer, in pieces", _in_pieces(7), ANSWER_FRAMES, 4_000, JSON_UNITS),
        Scan("a streamed answer, whole", _in_pieces(1_000_000), ANSWER_FRAMES),
        Scan("an answer", lambda text: read_answer(_response(text), plain_text=True), ANSWER_FRAMES),
        Scan("an object in an answer", lambda text: read_object(_response(text), in_prose=True), ANSWER_FRAMES),
        Scan("an answer that is stored", lambda text: is_stored_by_text(_response(text)), ANSWER_FRAMES),
    ),
    "actors": (
        Scan("words of turns", _words_of_turns, chars=700),
        Scan("what was said", _as_said),
        Scan("words of a search", attention.match_words),
        Scan("fenced data", lambda text: fence("T-1", text)),
        Scan("fenced object", lambda text: fence("T-1", {"a": text, "b": [text]})),
        Scan("a prompt pack", lambda text: compile_pack(f"{text[:200]}\n=== DATA ===\n{text}", file="p"), chars=500),
        Scan("a docstring's parameters", lambda text: tool_schema.parameter_docs(f"Does it.\n\nArgs:\n    {text}")),
        Scan("a docstring's summary", tool_schema.summary),
        Scan("session ids", lambda text: ids.is_session_id(f"SES-{text}")),
        Scan("turn ids", lambda text: ids.session_of_turn(f"T-{text}")),
        Scan("agent classes", lambda text: ids.is_agent_class(f"RESIDENT:{text}")),
        Scan("a recorded subject", ids.check_recorded_subject),
        Scan("an objective", lambda text: argument_checks.check_text("objective", text)),
        Scan("a message", lambda text: _REQUESTS.message(text)),
        Scan("an acceptance criterion", lambda text: criteria.criterion_problem(f"contains:{text}", by_model=True)),
        Scan("a tool's name", lambda text: Tool(len, name=text)),
        Scan("a page of a result", lambda text: page_of(text, "WO-1.1", len(text) // 2, 2_000)),
        Scan("a condition of approval", condition_terms, (*FRAMES, ("not ", ""), ("read_only and ", ""))),
        Scan("a request for approval", lambda text: ids.split_approval_id(f"WO-SES-{text}")),
        Scan("a response of the server", _asked_response),
        Scan("a conversation that a client claims", _claimed, FRAMES[:1], 12_500, CUT_UNITS),
        Scan("a tool of a server", _served),
        Scan("a tool of a client", _of_client),
        Scan("a tool's name and a pattern", lambda text: ToolCallLimits({"*a*b*": ToolLimits()}).limits_of(ToolLimits(), text)),
        Scan("a client's prompt for a title", _asks_for_title, (*FRAMES, ("### Task:\n", "<chat_history>\n"))),
        Scan("a run of a client", _as_run, FRAMES[:1], 12_500, CUT_UNITS),
        Scan("lines of a server, in pieces", _lines_in_pieces, FRAMES[:1], 50_000, CUT_UNITS),
        Scan("a reference within a schema", lambda text: steps(_referring(text), {"a": 1}), REFERENCE_FRAMES),
        Scan("an object for a schema that refers", lambda text: filled(_referring(text), text), REFERENCE_FRAMES),
    ),
    "offline": (
        Scan("classify", _classified, OFFLINE_FRAMES),
        Scan("classify a first message", classify, OFFLINE_FRAMES),
        Scan("classify by labels", lambda text: _labelled(text, "hotel room")),
        Scan("labels to classify by", lambda text: _labelled("a hotel", text)),
        Scan("speech act", lambda text: speech_act(text, lower_words(text))),
        Scan("choose a tool", lambda text: tool_choice.choose_tool(text, lower_words(text), TOOLS)),
        Scan("relation", lambda text: relation.relation(text, [{"user": text, "assistant": text}], text)),
        Scan("reply", _offline("synthesize", lambda text: {
            "user_message": text, "assembled_context": {"context_text": text, "ho3_biases": [text]},
        })),
        Scan("verify", _offline("verify", lambda text: {"response_text": text, "acceptance": [text]})),
        Scan("consolidate", _offline("consolidate", lambda text: {
            "signal_id": f"domain:{text}", "recent_events": [{"co_signals": [f"domain:{text}", text]}],
            "count": 3, "session_count": 3,
        })),
        Scan("tell a result", _offline("synthesize", lambda text: {"prior_results": [{"tool_id": "t", "result": text}]})),
    ),
    "memory": (
        Scan("tidy a line", learned_lines.tidy),
        Scan("problem of a line", lambda text: learned_lines.problem_of(text, 10**9)),
        Scan("a signal's value", signals.normalise_value),
        Scan("a signal", lambda text: signals.normalise(f"domain:{text}", frozenset(("domain",)))),
        Scan("an id", lambda text: signals.plain_id("id", text)),
        Scan("a moment", lambda text: timestamps.us_of(text, "moment")),
    ),
    "files": (
        Scan("settings", _as_settings),
        Scan("a provider's name", _as_provider),
        Scan("diff of sources", lambda text: line_diff(text.splitlines(), text[::-1].splitlines())),
        Scan("a settings file", _as_file(".toml", RouterConfig.from_config_file)),
        Scan("a settings file as JSON", _as_file(".json", RouterConfig.from_config_file)),
        Scan("an endpoint", _as_router("base_url")),
        Scan("a key's reference", _as_router("api_key")),
        Scan("a line of a ledger", lambda text: chain.split_line(text.encode("utf-8", "replace"))),
        Scan("a damaged line", lambda text: chain.read_line(_LINE + text.encode("utf-8", "replace"), "L", None, None)),
        Scan("a stamp", lambda text: verifier.is_moment(text.encode("utf-8", "replace"))),
        Scan("a bundle", _as_file(".json", proof_check.verify_bundle)),
        Scan("a section of a session", lambda text: proof_check.read_section(text.encode("utf-8", "replace"))),
        Scan("a head", lambda text: checkpoint.read_head({"ledger_id": "L", "seq": 1, "chain_hash": text, "timestamp": text})),
        Scan("the sources of a session", _sources, FRAMES[:1]),
        Scan("a public key", signing.is_public_key),
        Scan("a signature", lambda text: signing.is_signed("a" * 64, b"", text)),
        Scan("a ledger's id", chain.is_ledger_id),
        Scan("a name in settings", shown.described_name),
        Scan("output", lambda text: harmless(text)),
        Scan("a table", lambda text: [*table_lines(["a"], [{"a": text}])]),
        Scan("output as JSON", wire.shown_as_json),
        Scan("the beginning of a result", lambda text: fitting_start(text, len(text))),
        Scan("an agent class", _closest_class),
        Scan("a vendor", lambda text: unknown_vendor(text, f"{text}:m", ("it",))),
        Scan("a key that does not exist", lambda text: meant_key(text, RouterConfig, RuntimeConfig)),
        Scan("a type of entries", _closest_type),
        Scan("a command that does not exist", _closest_command),
        Scan("a time in the past", _moment),
        Scan("words to look for", lambda text: searchable(text) in searchable(text + text)),
        Scan("wrapped text", lambda text: WordWrap(80).add(text)),
        Scan("wrapped text, in pieces", _wrapped_in_pieces),
        Scan("requests side by side", lambda text: request_diff(text, f"{text[1:]}\n{text[:-1]}")),
        Scan("messages", lambda text: _MESSAGES(wire.message_line(text))),
        Scan("a file of messages", _MESSAGES),
    ),
    "wire": (
        Scan("a body", wire.body(1_000), ANSWER_FRAMES, units=JSON_UNITS),
        Scan("a body of an error", wire.body(1_000, status=500), ANSWER_FRAMES, units=JSON_UNITS),
        Scan("a compressed body", wire.body(1_000, encoding="gzip"), chars=50_000, units=JSON_UNITS),
        Scan("a stream", wire.body(1_000), wire.EVENT_FRAMES, units=wire.EVENT_UNITS),
        Scan("a stream, in pieces", wire.body(7), wire.EVENT_FRAMES, units=wire.EVENT_UNITS),
        Scan("keys", wire.redacted, chars=250, units=KEY_UNITS),
        Scan("keys, in pieces", wire.redacted_in_pieces(3), units=KEY_UNITS),
        Scan("keys, in long pieces", wire.redacted_in_pieces(1_000), units=KEY_UNITS),
        Scan("an answer by way of a library", wire.vendor_answer, ANSWER_FRAMES, units=JSON_UNITS),
        Scan("an answer in OpenAI's format", wire.chat_answer(7), wire.THOUGHT_FRAMES, 20_000, wire.THOUGHT_UNITS),
        Scan("the error of an endpoint", wire.error_text, units=JSON_UNITS),
        Scan("a ledger", wire.right_ledger, units=JSON_UNITS),
        Scan("what is no ledger", wire.wrong_ledger),
        Scan("a line without end", wire.line_without_end, FRAMES[:1], 100_000, ("a", "\n", "a\n" * 500, "\0")),
        Scan("what a crash may have left", wire.torn_ledger, wire.RECOVERY_FRAMES, 50_000, wire.RECOVERY_UNITS),
    ),
}  # fmt: skip
"""By group; each group is measured in a process of its own."""


SHORT_TEXTS: Final[Mapping[str, int]] = {
    "kitchener.gateway.rules.tool_choice._PATH": tool_choice.MAX_PATH_CHARS,
    "kitchener.gateway.rules.vocabulary.CONFIRMATION_PHRASES": relation.MAX_QUESTION_CHARS,
    "kitchener.memory.learned_lines._COMMANDS": 2_000,
}
"""Expressions that only ever see a text of so many characters: for them nothing else holds."""
STARTING_METHODS: Final = frozenset(("search", "match", "fullmatch"))
METHODS: Final = STARTING_METHODS | {"findall", "finditer", "sub", "split"}
"""How an expression is used. Those that go on behind a match cost the same."""
USE: Final = re.compile(rf"\b(\w+)\s*\.\s*({'|'.join(sorted(METHODS))})\b")
"""A name and what is called on it: in comments too, which costs a measurement and no syntax tree of each module."""


def expressions() -> Iterator[tuple[str, tuple[re.Pattern[Any], ...], frozenset[str]]]:
    """Each expression that a module of the library compiles, by its full name, and the methods by which it is used."""
    used: dict[str, set[str]] = {}
    modules = [importlib.import_module(each.name) for each in pkgutil.walk_packages(kitchener.__path__, "kitchener.")]
    for module in modules:
        for name, method in USE.findall(Path(str(module.__file__)).read_text("utf-8")):
            used.setdefault(f"{module.__name__}.{name}" if name.startswith("_") else name, set()).add(method)
    for module in modules:
        for name, value in vars(module).items():
            patterns = value if isinstance(value, tuple) else (value,)
            if patterns and all(isinstance(each, re.Pattern) for each in patterns):
                full_name = f"{module.__name__}.{name}"
                yield full_name, patterns, frozenset(used.get(full_name) or used.get(name) or ("search",))


def expression_scans() -> Iterator[Scan]:
    """A scan for each expression, as it is used."""
    for name, patterns, methods in expressions():
        yield Scan(name, partial(_apply, patterns, methods, SHORT_TEXTS.get(name)), FRAMES[:3])


def _apply(patterns: Iterable[re.Pattern[Any]], methods: frozenset[str], most: int | None, text: str) -> None:
    text = text if most is None else text[:most]
    for pattern in patterns:
        data = text if isinstance(pattern.pattern, str) else text.encode("utf-8", "replace")
        for method in methods & STARTING_METHODS:
            getattr(pattern, method)(data)
        if methods - STARTING_METHODS:
            pattern.findall(data)


Case: TypeAlias = tuple[tuple[str, str], str]
"""A frame, and the unit that is repeated in it."""


def cases_of(scan: Scan, *, is_sample: bool) -> list[Case]:
    """Frames and units that are measured together: each with each, or of a sample each in turn with the next of the others.

    Of many units a sample takes one in `UNITS_ONE_IN`, which differ from scan to scan.
    """
    frames, units = scan.frames, scan.units
    if not is_sample:
        return [*product(frames, units)]
    if len(units) >= MANY_UNITS:
        units = units[crc32(scan.name.encode()) % UNITS_ONE_IN :: UNITS_ONE_IN]
    return [(frames[at % len(frames)], units[at % len(units)]) for at in range(max(len(frames), len(units)))]


def offenders(scan: Scan, *, is_sample: bool) -> Iterator[tuple[str, float]]:
    """The texts, described, for which a scan takes more than in proportion to their length, and how much more."""
    fixed = {(before, behind): _least_cost(scan.call, f"{before}a{behind}") for before, behind in scan.frames if is_sample}
    for case in cases_of(scan, is_sample=is_sample):
        frame, unit = case
        if is_sample and not _is_suspect(scan, case, fixed[frame]):
            continue
        if (ratio := _ratio(scan, case)) > MAX_RATIO:
            before, behind = frame
            yield f"{before!r} + {unit!r} * {TIMES * _repeats(unit, scan.chars)} + {behind!r}", ratio


def _is_suspect(scan: Scan, case: Case, fixed: float) -> bool:
    """Whether shorter texts leave it open that the scan's texts take more than in proportion.

    Args:
        scan: the scan
        case: the frame and the unit
        fixed: what a call takes whatever the text, which would hide how the rest grows, seconds
    """
    long, short = _texts(case, scan.chars // SHORTER)
    if (most := _cost(scan.call, long)) < UNMEASURABLE_S / SHORTER**2:
        return False
    suspect_from = fixed + SUSPECT_RATIO * (_least_cost(scan.call, short) - fixed)
    return most > suspect_from and _least_cost(scan.call, long) > suspect_from  # one call alone may have been disturbed


def _ratio(scan: Scan, case: Case) -> float:
    """How many times longer the longer text takes; 0 where it takes no time to speak of."""
    long, short = _texts(case, scan.chars)
    if (most := _cost(scan.call, long)) < UNMEASURABLE_S:
        return 0.0
    if (ratio := most / _least_cost(scan.call, short, UNMEASURABLE_S)) <= MAX_RATIO / 2:
        return ratio
    # By turns, so that what else the machine does slows down both.
    rounds = [(_cost(scan.call, long), _least_cost(scan.call, short, UNMEASURABLE_S)) for _ in range(3)]
    return min(most for most, _ in rounds) / min(least for _, least in rounds)


def _texts(case: Case, chars: int) -> tuple[str, str]:
    """The longer and the shorter text of a case, the shorter of about so many characters."""
    (before, behind), unit = case
    repeats = _repeats(unit, chars)
    return before + unit * (TIMES * repeats) + behind, before + unit * repeats + behind


def _repeats(unit: str, chars: int) -> int:
    """How often a text of so many characters repeats a unit."""
    return max(1, chars // len(unit))


def _least_cost(call: Callable[[str], object], text: str, enough_s: float = 0.0) -> float:
    """What the fastest of some calls takes, seconds: whatever comes between makes a call slower, never faster.

    Args:
        call: the function
        text: its argument
        enough_s: the calls take that many seconds together, unless three calls take longer
    """
    costs = [_cost(call, text) for _ in range(3)]
    total = sum(costs)
    while total < enough_s:
        costs.append(_cost(call, text))
        total += costs[-1]
    return min(costs)


def _cost(call: Callable[[str], object], text: str) -> float:
    # The thread's time: with a limit on the process's, Linux counts that in ticks of some milliseconds.
    began = time.thread_time()
    with contextlib.suppress(KitchenerError, chain.BadLine, BundleFault, UnusableAnswer, ValueError, RecursionError):
        call(text)
    return time.thread_time() - began


def reached() -> set[str]:
    """The full names of the functions of the library that any registered scan gives a long text to."""
    found: dict[CodeType, str] = {}

    def note(frame: FrameType, event: str, _: object) -> None:
        if event == "call" and frame.f_code not in found and frame.f_globals.get("__name__", "").startswith("kitchener"):
            given = frame.f_locals.values()
            texts = (each for each in given if isinstance(each, str | bytes | bytearray))
            if any(len(each) >= MIN_REACHED_CHARS for each in texts) or wire.is_reading(given):
                found[frame.f_code] = f"{frame.f_globals['__name__']}.{frame.f_code.co_qualname}"

    for scan in (each for scans in SCANS.values() for each in scans):
        for (before, behind), unit in product(scan.frames, scan.units[::2]):
            sys.setprofile(note)  # each time: it is lost where something nests too deeply
            try:
                _cost(scan.call, before + unit * max(1, 300 // len(unit)) + behind)
            finally:
                sys.setprofile(None)
    return {*found.values()}


def _refuse(thread: threading.Thread) -> None:
    """Takes the place of a thread's start."""
    raise AssertionError(f"a scan started {thread}, whose time would not be measured")


def main() -> None:
    """Measures some groups."""
    gc.freeze()  # or a call now and then would pay for a walk through all that was imported
    threading.Thread.start = _refuse  # type: ignore[assignment]
    is_sample = sys.argv[1] == SAMPLE
    resource.setrlimit(resource.RLIMIT_CPU, (most := MAX_CPU_S if is_sample else 10 * MAX_CPU_S, most))
    if sys.argv[1] == REACHED:
        print(json.dumps(sorted(reached())))  # noqa: T201 - the result
        return
    cases = 0
    groups = sys.argv[2:] if is_sample else sys.argv[1:]
    for scan in chained.from_iterable(expression_scans() if group == EXPRESSIONS else SCANS[group] for group in groups):
        print(json.dumps({"at": scan.name}), flush=True)  # noqa: T201 - the last one, where the process is ended
        cases += len(cases_of(scan, is_sample=is_sample))
        for text, ratio in offenders(scan, is_sample=is_sample):
            print(json.dumps({"scan": scan.name, "text": text, "ratio": ratio}), flush=True)  # noqa: T201 - the result
    print(json.dumps({"cases": cases}))  # noqa: T201 - the result


if __name__ == "__main__":
    main()
