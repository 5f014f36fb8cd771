"""Mutated answers, streams, settings and imports are read, or refused by an error of ours; `make soak` tries many more."""

import json
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

import orjson
import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from kitchener.actors.executor.answers import UnreadableAnswer, is_stored_by_text, read_answer, read_object
from kitchener.actors.executor.reply_stream import ReplyText
from kitchener.errors import KitchenerError
from kitchener.ledger.bundles.bundle_check import verify_bundle
from kitchener.memory.overlays import parse_older
from kitchener.model_usage import Usage
from kitchener.records.prompt import PromptResponse
from kitchener.runtime.loading import load_config
from tests.memory.test_import import older
from tests.shared.property_examples import examples

ANSWERS: Final = (
    '{"response_text": "hello \\"Ada\\" \\ud83d\\ude00 caf\\u00e9\\n"}',
    '```json\n{"a": {"response_text": "no"}, "response_text": "yes"}\n```',
    "Hello!\n\n```\ncode\n```\n",
    '{"response_text": null, "tools": [1, 2.5e3, true, {"a": []}], "n": -0}',
    '  [1, "response_text", {"response_text": "x"}]',
)
SETTINGS: Final = (
    'plane_root = "x"\n[agents."RESIDENT:bo"]\ninstructions = "Be brief."\nturn_budget = 500\ntools = []\n',
    '[router]\ndefault_provider = "p"\n[router.providers.p]\nbase_url = "http://127.0.0.1/v1"\napi_key = "env:KEY"\n',
    "[ledger]\nlinger_ms = 1.5\nmax_entry_bytes = 65536\n[memory]\ngate_overrides = {tool = {count = 2, sessions = 1}}\n",
)
IMPORTS: Final = tuple(json.dumps(older(name)) for name in ("a", "b"))
BUNDLES: Final = (
    '{"entries":1,"format":"kitchener/proof/1","ledgers":[{"before":null,"head":{"chain_hash":"sha256:0","ledger_id":"L",'
    '"seq":1},"ledger_id":"L","rows":[["E-2026-01-01-000000000001",[1,1,1],"sha256:0","sha256:0",{}]]}],'
    '"session_id":"SES-00000001","turn_id":"T-00000001-000001"}\n',
)
PIECES: Final = (
    *("{", "}", "[", "]", '"', "\\", ":", ",", "`", "```", "```json\n", "\n", " ", "\t", "\u00a0", "\x00", "\\u", "\\ud83d"),
    *("\\x", "null", "1e999", "-", "9" * 30, '"response_text"', '"response_text": "', "é", "\U0001f600", "\u202e", "NaN", "="),
    *('"""', "[[", "#", "'", "true", "2026-01-01", "0x", "[agents.RESIDENT:x]", "\ud800"),
)


def mutations(corpus: Sequence[str]) -> st.SearchStrategy[str]:
    """Texts of a corpus in which some places are cut out, doubled, or have something hostile put into them."""
    change = st.tuples(
        st.floats(0, 1), st.integers(0, 12), st.sampled_from(PIECES) | st.text(max_size=4), st.sampled_from((0, 1, 1, 2, 20))
    )
    return st.tuples(st.sampled_from(corpus), st.lists(change, max_size=5)).map(lambda given: _mutated(*given))


def _mutated(text: str, changes: Sequence[tuple[float, int, str, int]]) -> str:
    for place, cut, piece, times in changes:
        at = int(place * len(text))
        text = text[:at] + piece * times + text[at + cut :]
    return text


def response(text: str) -> PromptResponse:
    return PromptResponse(provider_id="scripted", model_id="scripted-1", text=text, usage=Usage(1, 1), finish_reason="stop")


def check_answer(text: str, cuts: Sequence[int], folder: Path) -> None:
    """Read whole, it is an object or unreadable; read in pieces, it says the same, however it was cut."""
    answer = response(text)
    outputs = [read_answer(answer, plain_text=plain_text) for plain_text in (True, False)]
    found = [read_answer(answer, plain_text=False, in_prose=True), read_object(answer, in_prose=True)]
    assert all(isinstance(each, dict | UnreadableAnswer) for each in (*outputs, *found))
    assert is_stored_by_text(answer) is True
    whole, parts, plain = ReplyText(is_object=True), ReplyText(is_object=True), ReplyText()
    assert plain.feed(text) == plain.given == text, "where text was asked for, every answer is the reply"
    whole.feed(text)
    starts = [0, *sorted(cut % (len(text) + 1) for cut in cuts), len(text)]
    told = [parts.feed(text[start:end]) for start, end in pairwise(starts)]
    assert "".join(told) == parts.given == whole.given
    if isinstance(outputs[1], dict) and not _names_twice(text):
        reply = outputs[1].get("response_text")
        assert (reply if isinstance(reply, str) else "").startswith(whole.given)
    elif isinstance(outputs[0], dict) and "{" not in text:
        assert text.startswith(whole.given)


def _names_twice(text: str) -> bool:
    """Whether any object names a key twice: the first is streamed, the last counts."""
    found: list[bool] = []

    def note(pairs: list[tuple[str, Any]]) -> None:
        found.append(len({key for key, _ in pairs}) < len(pairs))

    json.loads(text[text.index("{") : text.rindex("}") + 1], object_pairs_hook=note, strict=False)
    return any(found) or "\\u" in text.partition('"response_text"')[0]


def check_settings(text: str, cuts: Sequence[int], folder: Path) -> None:
    path = folder / "kitchener.toml"
    path.write_text(text, "utf-8", "replace")
    with _only_ours():
        load_config(path, environ={})


def check_import(text: str, cuts: Sequence[int], folder: Path) -> None:
    try:
        record = orjson.loads(text)
    except orjson.JSONDecodeError:
        return
    if isinstance(record, dict):
        with _only_ours():
            parse_older(record, 240)


def check_bundle(text: str, cuts: Sequence[int], folder: Path) -> None:
    path = folder / "bundle.json"
    path.write_bytes(text.encode("utf-8", "replace"))
    assert verify_bundle(path).fault is not None


class _only_ours:
    """Lets typed errors pass in silence; any other fails the test."""

    def __enter__(self) -> None: ...

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> bool:
        return kind is not None and issubclass(kind, KitchenerError)


Check = Callable[[str, Sequence[int], Path], None]
TARGETS: Final[dict[str, tuple[Check, Sequence[str]]]] = {
    "answers and streams": (check_answer, ANSWERS),
    "settings": (check_settings, SETTINGS),
    "imports": (check_import, IMPORTS),
    "bundles": (check_bundle, BUNDLES),
}


@pytest.mark.hypothesis
@pytest.mark.parametrize("target", TARGETS)
def test_mutated_content_is_read_or_refused(target: str, tmp_path: Path) -> None:
    check, corpus = TARGETS[target]

    @settings(max_examples=examples(few=50, many=4_000), deadline=None, suppress_health_check=[*HealthCheck])
    @example(text=corpus[0], cuts=[])
    @given(text=mutations(corpus), cuts=st.lists(st.integers(0, 400), max_size=8))
    def run(text: str, cuts: list[int]) -> None:
        check(text, cuts, tmp_path)

    run()
