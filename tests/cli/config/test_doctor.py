"""`kitchener doctor` (docs/commands.md)."""

import errno
import json
import os
import re
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import anyio
import pytest
from anyio.from_thread import start_blocking_portal

from kitchener.cli.config import doctor
from kitchener.cli.terminal.output import file_problem
from kitchener.clock import SystemClock
from kitchener.gateway.providers.endpoint_errors import CHECK_KEY
from kitchener.gateway.providers.offline import OfflineProvider
from kitchener.records.prompt import PromptRequest, PromptResponse, Provider
from tests.actors.similarity.kit import CHATTER, DOG, Meanings, config, opened, say
from tests.cli.conftest import Cli
from tests.gateway.shared.fake_server import Answer, Hit, completion, error, fake_server


def test_the_settings_file_is_named_with_its_folder(cli: Cli, tmp_path: Path) -> None:
    assert f"no kitchener.toml in {tmp_path}" in cli("doctor").out
    assert cli("init").code == 0
    assert f"kitchener.toml (in {tmp_path})" in cli("doctor").out
    assert cli("init", "other").code == 0
    assert f"other/kitchener.toml (in {tmp_path / 'other'})" in cli("doctor", "--config", "other/kitchener.toml").out


def test_a_file_that_cannot_be_read_is_a_finding_and_the_rest_is_looked_at(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An operator who runs it as the wrong user sees what else is in order."""
    assert cli("init").code == 0
    assert cli("chat", stdin=b"hello\n").code == 0
    ledger, stat = tmp_path / ".kitchener" / "HO2" / "ADMIN" / "ho2m.jsonl", os.stat

    def denied(path: Any, **kwargs: Any) -> os.stat_result:
        if path == ledger:
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return stat(path, **kwargs)

    monkeypatch.setattr(os, "stat", denied)
    outcome = cli("doctor")
    assert (outcome.code, outcome.err) == (1, "")
    assert re.search(rf"\nfail  ledgers +{ledger}: permission denied; run this command as", outcome.out)
    assert "\nok    provider offline " in outcome.out


@pytest.mark.parametrize("place", [".kitchener.keys", ".kitchener.keys/batches"])
def test_a_keyring_in_which_no_key_can_be_made_is_found(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    """Regression: it was `ok`, and the first turn of a new subject failed."""
    assert cli("chat", stdin=b"hello\n").code == 0
    monkeypatch.setattr(os, "access", lambda path, _: str(path) != str(tmp_path / place))
    outcome = cli("doctor")
    assert outcome.code == 1
    told = "cannot be written, so no new subject gets a key; give this user the right to write it"
    assert re.search(rf"\nfail  keys +{tmp_path / place} {told}\n", outcome.out)


def test_a_missing_permission_names_the_file_and_what_to_do() -> None:
    denied = PermissionError(errno.EACCES, "Permission denied", "a/ho2m.jsonl")
    assert file_problem(denied) == "a/ho2m.jsonl: permission denied; run this command as a user who has access"
    assert file_problem(OSError(errno.EIO, "Input/output error", b"b")) == "b: Input/output error"


def _settings(address: str, model: str = "m") -> str:
    provider = f'[router.providers.it]\nbase_url = "{address}"\nmodel = "{model}"'
    return f'[router]\ndefault_provider = "it"\n{provider}\n'


def test_a_probe_tells_a_dead_port_from_a_provider_that_answers(cli: Cli, tmp_path: Path) -> None:
    settings = tmp_path / "kitchener.toml"
    settings.write_text(_settings("http://127.0.0.1:9/v1"), encoding="utf-8")
    assert cli("doctor").code == 0, "without --probe no provider is called"
    outcome = cli("doctor", "--probe", "--json")
    assert outcome.code == 1
    (found,) = [each for each in outcome.json["findings"] if each["what"] == "probe it"]
    assert found["state"] == "fail"
    assert found["detail"] == "connection: cannot connect to 127.0.0.1:9: connection refused"
    with start_blocking_portal() as portal, portal.wrap_async_context_manager(fake_server()) as server:
        settings.write_text(_settings(server.url), encoding="utf-8")
        outcome = cli("doctor", "--probe")
    assert outcome.code == 0
    assert [line for line in outcome.out.splitlines() if line.startswith("ok    probe it")]


@pytest.mark.parametrize(
    ("status", "page", "detail"),
    [
        (
            404,
            "<!DOCTYPE html>\n<html><head><title>404\n Not Found</title></head><body><h1>nginx</h1></body></html>",
            'HTTP 404: a web page "404 Not Found" instead of JSON; check `base_url`',
        ),
        (403, "<html><title>No entry</title></html>", f'HTTP 403: a web page "No entry" instead of JSON; {CHECK_KEY}'),
        (502, "<html><body><center>down</center></body></html>", "HTTP 502: a web page instead of JSON"),
        (400, "<think> is no element of a page", "HTTP 400: <think> is no element of a page"),
        (
            200,
            "<html><title>Open WebUI</title></html>",
            'the answer is a web page "Open WebUI", not JSON; check `base_url`',
        ),
    ],
)
def test_a_web_page_in_place_of_an_answer_is_told_by_its_title(
    cli: Cli, tmp_path: Path, status: int, page: str, detail: str
) -> None:
    answer = Answer(page.encode(), status, content_type="text/html")
    with start_blocking_portal() as portal, portal.wrap_async_context_manager(fake_server(answer)) as server:
        (tmp_path / "kitchener.toml").write_text(_settings(server.url), encoding="utf-8")
        outcome = cli("doctor", "--probe", "--json")
    (found,) = [each for each in outcome.json["findings"] if each["what"] == "probe it"]
    assert (outcome.code, found["detail"].partition(": ")[2]) == (1, detail)


def _answers(**found: object) -> Callable[[Hit], Answer]:
    """Answers a call of a model, and requests of these paths with JSON."""

    def answer(hit: Hit) -> Answer:
        name = hit.path.strip("/").replace("/", "_")
        return completion() if hit.body else Answer(json.dumps(found[name]).encode()) if name in found else error(404)

    return answer


@pytest.mark.parametrize(
    ("found", "state", "detail"),
    [
        ({"v1_models": {"data": [{"id": "x"}, {"id": "m", "max_model_len": 32_768}]}}, "ok", "takes 32,768 tokens a call"),
        (
            {"v1_models": {"data": [{"id": "m", "context_length": True, "context_window": 131_072}]}},
            "ok",
            "takes 131,072 tokens",
        ),
        (
            {"v1_models": {"data": [{"id": "m"}]}, "api_ps": {"models": [{"name": "m:latest", "context_length": 4_096}]}},
            "warn",
            "'m' takes 4,096 tokens a call; a reply of ADMIN may need about 5,300, most of them by `context_budget`. Ollama"
            " cuts longer prompts without an error: set OLLAMA_CONTEXT_LENGTH where it runs, or set `context_budget` to at"
            " most 2,796",
        ),
        ({"props": {"default_generation_settings": {"n_ctx": 8_192}}}, "ok", "takes 8,192 tokens a call"),
        ({"v1_models": [{"id": "m", "context_length": 8_192}]}, "ok", "takes 8,192 tokens a call"),
        (
            {
                "v1_models": {
                    "data": [{"id": f"m{n}", "tags": [1] * 40} for n in range(900)] + [{"id": "m", "context_length": 9}]
                }
            },
            "warn",
            "Longer requests fail: let its server take more, or use a model that takes more",
        ),
    ],
)
def test_a_probe_tells_the_context_window(cli: Cli, tmp_path: Path, found: dict[str, object], state: str, detail: str) -> None:
    with start_blocking_portal() as portal, portal.wrap_async_context_manager(fake_server()) as server:
        server.respond = _answers(**found)
        settings = f'{_settings(server.url)}[agents.ADMIN]\ncontext_mode = "enforce"\n'
        (tmp_path / "kitchener.toml").write_text(settings, encoding="utf-8")
        outcome = cli("doctor", "--probe", "--json")
    (told,) = [each for each in outcome.json["findings"] if each["what"] == "window it"]
    assert (outcome.code, told["state"]) == (0, state)
    assert detail in told["detail"]


def test_the_context_window_names_the_model_as_the_provider_spells_it(cli: Cli, tmp_path: Path) -> None:
    """Regression: most names were "a text of 13 characters", as if they could be keys."""
    with start_blocking_portal() as portal, portal.wrap_async_context_manager(fake_server()) as server:
        server.respond = _answers(v1_models={"data": [{"id": "Qwen/Qwen3-8B", "max_model_len": 32_768}]})
        (tmp_path / "kitchener.toml").write_text(_settings(server.url, "Qwen/Qwen3-8B"), encoding="utf-8")
        outcome = cli("doctor", "--probe", "--json")
    (told,) = [each for each in outcome.json["findings"] if each["what"] == "window it"]
    assert told["detail"] == "'Qwen/Qwen3-8B' takes 32,768 tokens a call"


def test_a_model_that_thinks_for_all_of_a_probe_answers(cli: Cli, tmp_path: Path) -> None:
    """In turns it gets more tokens for that."""
    thoughts = completion("", finish_reason="length", usage={"prompt_tokens": 9, "completion_tokens": 2_048})
    with start_blocking_portal() as portal, portal.wrap_async_context_manager(fake_server(thoughts)) as server:
        (tmp_path / "kitchener.toml").write_text(_settings(server.url), encoding="utf-8")
        outcome = cli("doctor", "--probe")
    assert outcome.code == 0
    assert "thoughts for all of 2,048 tokens; in turns it gets `thinking_tokens` for them" in outcome.out


@pytest.mark.parametrize(
    "found",
    [
        {},
        {"v1_models": {"data": [{"id": "m", "max_model_len": 10**4_000}]}},
        {"v1_models": ["m"], "api_ps": {"models": "m"}, "props": {"default_generation_settings": {"n_ctx": "many"}}},
        {"v1_models": {"data": [{"id": "m", "max_model_len": -1}]}, "api_ps": {"models": [{"name": "m", "context_length": 0}]}},
    ],
)
def test_an_endpoint_that_does_not_tell_its_context_window_is_fine(cli: Cli, tmp_path: Path, found: dict[str, object]) -> None:
    with start_blocking_portal() as portal, portal.wrap_async_context_manager(fake_server()) as server:
        server.respond = _answers(**found)
        (tmp_path / "kitchener.toml").write_text(_settings(server.url), encoding="utf-8")
        outcome = cli("doctor", "--probe")
    assert outcome.code == 0
    assert "window" not in outcome.out
    assert "ok    probe it" in outcome.out


def test_the_answer_and_the_context_window_have_one_deadline(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A provider that answered late and never told its window made the doctor wait for twice the time."""
    deadlines = list[float]()

    class Asked(OfflineProvider):
        async def complete(self, request: PromptRequest) -> PromptResponse:
            deadlines.append(request.deadline)
            return await super().complete(request)

    @asynccontextmanager
    async def providers(*_: object, **__: object) -> AsyncIterator[dict[str, Provider]]:
        yield {"it": Asked("it")}

    async def window(*_: object) -> None:
        deadlines.append(anyio.current_effective_deadline())

    monkeypatch.setattr(doctor, "build_providers", providers)
    monkeypatch.setattr(doctor, "context_window", window)
    (tmp_path / "kitchener.toml").write_text(_settings("http://127.0.0.1:9/v1"), encoding="utf-8")
    assert cli("doctor", "--probe").code == 0
    of_answer, of_window = deadlines
    assert of_window == of_answer


def test_a_probe_of_the_offline_provider_asks_nobody(cli: Cli) -> None:
    outcome = cli("doctor", "--probe")
    assert outcome.code == 0
    assert "ok    probe" not in outcome.out


def test_a_provider_that_a_runtime_cannot_open_fails(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    """Regression: it was told as ok, and the first chat failed."""
    monkeypatch.delenv("ANTHROPIC_API_KEY", raising=False)
    Path("kitchener.toml").write_text(
        '[router]\ndefault_provider = "it"\n[router.providers.it]\nkind = "model"\nmodel = "anthropic:big"\n', encoding="utf-8"
    )
    outcome = cli("doctor", "--json")
    (found,) = [each for each in outcome.json["findings"] if each["what"] == "provider it"]
    assert (outcome.code, found["state"]) == (1, "fail")
    assert "ANTHROPIC_API_KEY" in found["detail"]


def test_a_proxy_that_cannot_be_used_is_named_by_its_variable(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    """Regression: `doctor` said what was wrong and not of what."""
    monkeypatch.setenv("ALL_PROXY", "socks5://me:secret-word@127.0.0.1:1080")
    monkeypatch.delenv("HTTP_PROXY")
    Path("kitchener.toml").write_text(_settings("http://model.example"), encoding="utf-8")
    for command, code in (("doctor", 1), ("chat", 2)):
        outcome = cli(command, stdin=b"hello")
        told = outcome.out + outcome.err
        assert outcome.code == code
        assert "environment: ALL_PROXY: is a SOCKS proxy, which cannot be used: set it to an HTTP proxy" in told
        assert "list model.example in NO_PROXY" in told
        assert "secret-word" not in told


def test_tools_that_cannot_be_imported_fail(cli: Cli, tmp_path: Path) -> None:
    """Regression: only `config check` and the first chat said so."""
    settings = tmp_path / "kitchener.toml"
    settings.write_text('[agents.ADMIN]\ntools = ["beside_the_settings:double"]\n', encoding="utf-8")
    outcome = cli("doctor")
    assert outcome.code == 1
    assert "fail  references" in outcome.out
    assert "beside_the_settings" in outcome.out
    (tmp_path / "beside_the_settings.py").write_text(
        'from kitchener import tool\n@tool(read_only=True)\ndef double(n: int) -> int:\n    """Twice."""\n    return 2 * n\n',
        encoding="utf-8",
    )
    assert "ok    references" in cli("doctor").out


def test_a_ledger_that_is_ahead_of_the_clock_fails(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    """Regression: it was told as ok, and no runtime opened."""
    assert cli("chat", "--subject", "ada", stdin=b"hello").code == 0
    assert cli("doctor").code == 0
    right = SystemClock.time_us
    monkeypatch.setattr(SystemClock, "time_us", lambda clock: right(clock) - 7_200_000_000)
    for command in ("doctor", "chat"):
        outcome = cli(command, stdin=b"hello")
        assert outcome.code == 1
        assert "ahead of the clock; set the clock right" in outcome.out + outcome.err


def _embeddings(settings: str) -> None:
    Path("kitchener.toml").write_text(f'[agents.ADMIN]\ncontext_mode = "enforce"\n[embeddings]\n{settings}')


def test_embeddings_are_looked_at_where_they_are_configured(cli: Cli) -> None:
    """Whether they can be had, and with `--probe` whether they come."""
    assert "embeddings" not in [each[1] for each in _lines(cli("doctor").out)]
    _embeddings('kind = "hashing"\n')
    assert any(each == ["ok", "embeddings", "hashing,", "model", "hashing/256"] for each in _lines(cli("doctor").out))
    assert "a vector of 256 numbers" in cli("doctor", "--probe").out
    _embeddings('kind = "openai_compatible"\nbase_url = "http://127.0.0.1:9/v1"\nmodel = "m"\n')
    assert cli("doctor").code == 0, "without --probe nobody is asked"
    outcome = cli("doctor", "--probe")
    assert outcome.code == 1
    assert any(each[:2] == ["fail", "embeddings"] for each in _lines(outcome.out))
    _embeddings(
        'kind = "openai_compatible"\nbase_url = "http://127.0.0.1:9/v1"\nmodel = "m"\napi_key = "env:NO_SUCH_KEY_HERE"\n'
    )
    assert any(each[:2] == ["fail", "embeddings"] for each in _lines(cli("doctor").out))


def test_turns_that_had_no_vectors_are_told(cli: Cli, tmp_path: Path) -> None:
    """Counted from the record, with the cause; nothing is told where embeddings were never used."""

    async def talk(embeddings: Meanings) -> None:
        async with opened(config(tmp_path / ".kitchener"), embeddings) as runtime:
            await say(runtime, DOG, *CHATTER[:2])

    failing = Meanings()
    failing.answer = lambda texts: []
    anyio.run(talk, Meanings())
    assert "0 of the newest 2 projections with embeddings had a problem" in cli("doctor").out
    anyio.run(talk, failing)
    outcome = cli("doctor")
    assert "warn  vectors" in outcome.out
    assert "3 of the newest 5 projections with embeddings had a problem: 1 FAILED, 2 PAUSED" in outcome.out


def _lines(text: str) -> list[list[str]]:
    return [line.split() for line in text.splitlines() if line]
