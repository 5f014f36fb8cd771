"""Requests that are admitted, and those that are refused before anything is started (docs/server.md)."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anyio
import orjson
import pytest
from starlette.types import Receive, Scope, Send

from kitchener.config import HO2Config, RuntimeConfig, ServeClientConfig, ServeConfig
from kitchener.errors import ConfigError
from kitchener.serve.access.callers import Callers
from kitchener.testing import ScriptedProvider
from tests.acceptance.stack import Hold, echo
from tests.serve.shared.requests import COMPLETIONS, Asked, Client, chat_body, run_request, serving
from tests.shared.logs import captured_logs
from tests.telemetry.watch import Watch

ADAS, BOBS, CYS, DESKS = "key-of-ada-0123456789", "key-of-bob-0123456789", "key-of-cy-01234567890", "key-of-desk-0123456789"


@pytest.fixture
def keys(monkeypatch: pytest.MonkeyPatch) -> dict[str, object]:
    """Settings with two subjects' keys and a front end's."""
    for name, key in (("ADA_KEY", ADAS), ("BOB_KEY", BOBS), ("CY_KEY", CYS), ("DESK_KEY", DESKS)):
        monkeypatch.setenv(name, key)
    return {
        "clients": {
            "ada": ServeClientConfig(key="env:ADA_KEY", subject="ada"),
            "bob": ServeClientConfig(key="env:BOB_KEY", subject="bob", agents=("OTHER",), rights=("read",)),
            "cy": ServeClientConfig(key="env:CY_KEY", subject="cy", agents=("OTHER",)),
            "desk": ServeClientConfig(key="env:DESK_KEY", rights=("chat", "act_for")),
        }
    }


def bearer(key: str) -> dict[str, str]:
    return {"authorization": f"Bearer {key}"}


async def subject_of(client: Client, session_id: str) -> str:
    return (await client.runtime.supervisor().session(session_id)).subject_id


async def test_without_clients_any_key_of_this_machine_is_the_one_local_subject(tmp_path: Path) -> None:
    async with serving(tmp_path / "root") as client:
        for headers in ({}, bearer("whatever")):
            found = await client.ask("POST", COMPLETIONS, chat_body("hello"), **headers)
            assert found.status == 200
            assert await subject_of(client, found.headers["x-kitchener-session"]) == "local"


async def test_a_key_reaches_its_own_subject_agents_and_rights(tmp_path: Path, keys: dict[str, object]) -> None:
    async with serving(tmp_path / "root", serve=keys, agents={"OTHER": {}}) as client:
        none = await client.ask("GET", "/v1/models")
        assert (none.code, "has no key" in none.body.decode()) == ("invalid_api_key", True)
        assert (await client.ask("GET", "/v1/models", authorization=ADAS)).status == 401
        wrong = await client.ask("GET", "/v1/models", **bearer(f"{ADAS}x"))
        assert (wrong.status, wrong.headers["www-authenticate"], ADAS in wrong.body.decode()) == (401, "Bearer", False)
        found = await client.ask("POST", COMPLETIONS, chat_body("hello"), **bearer(ADAS), x_kitchener_subject="bob")
        assert await subject_of(client, found.headers["x-kitchener-session"]) == "ada"
        models = await client.ask("GET", "/v1/models", **bearer(CYS))
        assert [each["id"] for each in models.json["data"]] == ["OTHER", "OTHER-utility"]
        assert (await client.ask("GET", "/v1/models/ADMIN", **bearer(CYS))).status == 404
        refused = await client.ask("POST", COMPLETIONS, chat_body("hello", model="OTHER"), **bearer(BOBS))
        assert (refused.status, refused.code) == (403, "right_missing")


async def test_a_key_that_acts_for_others_names_the_subject_of_each_request(tmp_path: Path, keys: dict[str, object]) -> None:
    async with serving(tmp_path / "root", serve=keys, agents={"OTHER": {}}) as client:
        desk = client.with_headers(**bearer(DESKS))
        assert (await desk.chat("hello")).code == "subject_missing"
        for name in ("x_kitchener_subject", "x_openwebui_user_id"):
            found = await desk.ask("POST", COMPLETIONS, chat_body("hello"), **{name: "cy"})
            assert await subject_of(client, found.headers["x-kitchener-session"]) == "cy"
        wrong = await desk.ask("POST", COMPLETIONS, chat_body("hello"), x_kitchener_subject="kitchener-operator")
        assert (wrong.status, wrong.code) == (400, "subject_invalid")


async def test_a_key_without_a_subject_that_may_not_name_one_reaches_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DESK_KEY", DESKS)
    keys = {"clients": {"prometheus": ServeClientConfig(key="env:DESK_KEY", rights=("operate",))}}
    async with serving(tmp_path / "root", serve=keys) as client:
        for named in ({}, {"x-kitchener-subject": "ada"}):
            found = await client.ask("GET", "/v1/me", **bearer(DESKS), **named)
            assert (found.status, found.code) == (403, "right_missing")


async def test_another_subjects_session_is_as_unknown_as_one_that_is_not_there(tmp_path: Path, keys: dict[str, object]) -> None:
    async with serving(tmp_path / "root", serve=keys, agents={"OTHER": {}}) as client:
        own = await client.ask("POST", COMPLETIONS, chat_body("hello"), **bearer(ADAS))
        session_id = own.headers["x-kitchener-session"]
        told = set()
        for each in (session_id, "SES-00000000"):
            headers = {**bearer(DESKS), "x-kitchener-subject": "cy", "x-kitchener-session": each}
            found = await client.ask("POST", COMPLETIONS, chat_body("hello"), **headers)
            assert (found.status, found.code) == (404, "session_not_found")
            told.add(found.body)
            answer = await client.ask("POST", COMPLETIONS, chat_body(f"approve WO-{each}-001.1"), **bearer(ADAS))
            assert answer.status == 404
        assert len(told) == 1


@pytest.mark.parametrize(
    ("headers", "status", "code"),
    [
        ({"host": "evil.example"}, 421, "wrong_host"),
        ({"host": "evil.example:8321"}, 421, "wrong_host"),
        ({"host": ""}, 421, "wrong_host"),
        ({"origin": "https://evil.example"}, 403, "wrong_origin"),
        ({"origin": "null"}, 403, "wrong_origin"),
        ({"origin": "http://localhost:3000"}, 403, "wrong_origin"),
        ({"content-type": "text/plain"}, 415, "not_json"),
        ({"content-type": "application/jsonx"}, 415, "not_json"),
        ({"content-length": "999999999999999999999"}, 413, "request_too_large"),
        ({"content-length": "-1"}, 413, "request_too_large"),
    ],
)
async def test_a_request_that_a_foreign_page_could_send_is_refused(
    tmp_path: Path, headers: dict[str, str], status: int, code: str
) -> None:
    async with serving(tmp_path / "root") as client:
        found = await client.ask("POST", COMPLETIONS, chat_body("hello"), **headers)
        assert (found.status, found.code) == (status, code)
        assert headers.get("host", headers.get("origin", "")).removesuffix(":8321") in found.json["error"]["message"]
        assert "access-control-allow-origin" not in found.headers
        assert client.provider.requests == []


async def test_the_kind_of_a_body_counts_in_any_case(tmp_path: Path) -> None:
    async with serving(tmp_path / "root") as client:
        found = await client.ask("POST", "/v1/sessions", {}, **{"content-type": "Application/JSON ; charset=utf-8"})
        assert found.status == 201


ONCE = (
    ("authorization", f"Bearer {ADAS}"),
    ("content-type", "text/plain"),
    ("host", "evil.example"),
    ("idempotency-key", "k2"),
    ("last-event-id", "7"),
    ("origin", "http://evil.example"),
    ("x-kitchener-session", "other"),
    ("x-chat-id", "other"),
    ("x-own-chat", "other"),
    ("x-kitchener-subject", "ada"),
    ("x-openwebui-user-id", "ada"),
    ("x-openwebui-user-jwt", "a.b.c"),
)


def in_each_order() -> Iterator[Any]:
    """Each header before, after and equal to the other one; `make test` takes one of the three orders for each, in turn."""
    for number, (name, value) in enumerate(ONCE):
        for place, order in enumerate(("first", "last", "equal")):
            yield pytest.param(name, value, order, marks=[] if place == number % 3 else [pytest.mark.soak])


@pytest.mark.parametrize("anyio_backend", ["asyncio"])  # headers are checked without waiting
@pytest.mark.parametrize(("name", "value", "order"), list(in_each_order()))
async def test_a_header_of_which_one_value_counts_may_be_there_once_only(
    tmp_path: Path, keys: dict[str, object], name: str, value: str, order: str
) -> None:
    """Otherwise a proxy in front may have read the other one."""
    settings = {**keys, "session_headers": ("X-Chat-Id", "X-Own-Chat")}
    async with serving(tmp_path / "root", serve=settings, agents={"OTHER": {}}) as client:
        sent = {**bearer(DESKS), "host": "localhost", "content-type": "application/json", "x-kitchener-subject": "cy"}
        sent = {**sent, name: sent.get(name, "one")}
        if name == "origin":
            sent["origin"] = "http://localhost"
        if name == "x-openwebui-user-id":
            del sent["x-kitchener-subject"]

        async def with_both(scope: Scope, receive: Receive, send: Send) -> None:
            added = (name.encode(), (sent[name] if order == "equal" else value).encode())
            headers = [added, *scope["headers"]] if order == "first" else [*scope["headers"], added]
            await client.server.app({**scope, "headers": headers}, receive, send)

        asked = Asked()
        asked.taking.set()
        await run_request(with_both, asked, "POST", COMPLETIONS, [orjson.dumps(chat_body("hello"))], sent)
        assert (asked.status, asked.code, name in asked.json["error"]["message"]) == (400, "invalid_request", True)
        assert (await client.runtime.sessions(), client.provider.requests) == ([], [])


async def test_other_headers_may_be_there_twice(tmp_path: Path) -> None:
    async with serving(tmp_path / "root") as client:

        async def with_two(scope: Scope, receive: Receive, send: Send) -> None:
            added = [(b"accept", b"application/json"), (b"accept", b"*/*"), (b"x-forwarded-for", b"192.0.2.1")] * 2
            await client.server.app({**scope, "headers": [*scope["headers"], *added]}, receive, send)

        asked = Asked()
        asked.taking.set()
        await run_request(with_two, asked, "GET", "/v1/models", [b""], {})
        assert asked.status == 200


async def test_headers_that_name_different_subjects_are_refused(tmp_path: Path, keys: dict[str, object]) -> None:
    """A front end that drops one of the headers of its users may not know of the other one."""
    async with serving(tmp_path / "root", serve=keys, agents={"OTHER": {}}) as client:
        desk = {**bearer(DESKS), "x_kitchener_subject": "cy"}
        found = await client.ask("GET", "/v1/me", x_openwebui_user_id="ada", **desk)
        assert (found.status, found.code, "ada" in found.body.decode()) == (400, "subject_invalid", False)
        for same in ("cy", " cy ", ""):
            assert (await client.ask("GET", "/v1/me", x_openwebui_user_id=same, **desk)).json["subject_id"] == "cy"
        own = await client.ask("GET", "/v1/me", x_openwebui_user_id="bo", x_kitchener_subject="cy", **bearer(ADAS))
        assert own.json["subject_id"] == "ada"  # the subject of a key is that of its settings, whatever headers say


@pytest.mark.parametrize("named", ["josà", "josÅ", "\N{CYRILLIC CAPITAL LETTER ER}", "cy\N{NO-BREAK SPACE}", "cy\x1f"])
async def test_a_subject_that_ends_in_another_script_is_nobody_else(
    tmp_path: Path, keys: dict[str, object], named: str
) -> None:
    """Regression: the last bytes of these names in UTF-8 were cut off as white space, so that two users were one subject."""
    async with serving(tmp_path / "root", serve=keys, agents={"OTHER": {}}) as client:
        desk = {**bearer(DESKS), "x_kitchener_subject": named.encode().decode("latin-1")}
        found = await client.ask("GET", "/v1/me", **desk)
        assert (found.status, found.code) == (400, "subject_invalid")


@pytest.mark.parametrize("headers", [{"content-length": "5"}, {"transfer-encoding": "chunked"}], ids=str)
async def test_a_request_that_says_its_length_twice_is_refused(tmp_path: Path, headers: dict[str, str]) -> None:
    async with serving(tmp_path / "root") as client:

        async def with_both(scope: Scope, receive: Receive, send: Send) -> None:
            added = [(name.encode(), value.encode()) for name, value in headers.items()]
            await client.server.app({**scope, "headers": [*scope["headers"], *added]}, receive, send)

        asked = Asked()
        asked.taking.set()
        await run_request(with_both, asked, "POST", COMPLETIONS, [b"hello"], headers)
        assert (asked.status, asked.code, asked.headers["connection"]) == (400, "two_lengths", "close")


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1:8321", "[::1]:8321", "chat.example", "Chat.Example:443"])
async def test_a_request_by_one_of_the_servers_names_is_taken(tmp_path: Path, host: str) -> None:
    async with serving(tmp_path / "root", serve={"allowed_hosts": ("chat.example",)}) as client:
        assert (await client.ask("GET", "/v1/models", host=host)).status == 200
        assert (await client.ask("GET", "/v1/models", host=host, origin=f"https://{host}")).status == 200


@pytest.mark.parametrize(
    "body",
    [b"{", b"[]", b"null", b"[" * 100_000, b'{"model": 1, "messages": []}', b'{"model": "ADMIN", "messages": [{"role": "x"}]}'],
)
async def test_a_body_that_is_no_request_is_refused_and_not_repeated(tmp_path: Path, body: bytes) -> None:
    async with serving(tmp_path / "root") as client:
        found = await client.ask("POST", COMPLETIONS, body)
        assert (found.status, found.json["error"]["type"]) == (400, "invalid_request_error")


@pytest.mark.parametrize(
    ("body", "told"),
    [
        ([], "body: expected a JSON object, not a list"),
        ({**chat_body("hello"), "messages": ["hello"]}, "messages.0: expected a JSON object, not a text"),
        ({**chat_body("hello"), "stream_options": 3}, "stream_options: expected a JSON object, not a number"),
        ({**chat_body("hello"), "response_format": "json"}, "response_format: expected a JSON object, not a text"),
        ({"messages": []}, "model: required, but missing"),
        ({**chat_body("hello"), "messages": []}, "messages: expected a list of at least 1 item, not of 0"),
        ({**chat_body("hello"), "model": "m" * 300}, "model: expected a text of at most 256 characters, not of 300"),
        ({**chat_body("hello"), "stream": "off"}, "stream: expected true or false, not a text"),
        ({**chat_body("hello"), "n": 1.5}, "n: expected a whole number, not a fraction"),
        ({**chat_body("hello"), "n": "PRIVATE"}, "n: expected a whole number, not a text"),
        (
            {**chat_body("hello"), "messages": [{"role": "user", "content": 3}]},
            "messages.0.content: expected a text or a list, not a number",
        ),
        (
            {**chat_body("hello"), "messages": [{"role": "user", "content": ["PRIVATE"]}]},
            "messages.0.content.0: expected a JSON object, not a text",
        ),
        (
            {**chat_body("hello"), "messages": [{"role": "PRIVATE"}]},
            "messages.0.role: expected 'system', 'developer', 'user', 'assistant', 'tool' or 'function', not another text",
        ),
    ],
)
async def test_a_wrong_field_is_told_in_plain_words(tmp_path: Path, body: object, told: str) -> None:
    """The field, what it takes, and the kind or the size of what was given. Regression: the text was pydantic's, such as "List
    should have at least 1 item after validation, not 0", and named classes of this library."""
    async with serving(tmp_path / "root") as client:
        found = await client.ask("POST", COMPLETIONS, body)
        assert (found.status, found.json["error"]["message"]) == (400, told)


@pytest.mark.parametrize(
    ("body", "told"),
    [
        ({"input": ""}, "input: expected a text of at least 1 character, not of 0"),
        ({"input": [{}] * 20_000}, "input: expected a list of at most 19,999 items, not of 20,000"),
        ({"input": 3}, "input: expected a text or a list, not a number"),
        ({"input": "hello", "tool_choice": []}, "tool_choice: expected a text or a JSON object, not a list"),
        ({"input": "hello", "conversation": True}, "conversation: expected a text or a JSON object, not true or false"),
    ],
)
async def test_a_field_of_several_kinds_is_told_once(tmp_path: Path, body: object, told: str) -> None:
    """Regression: the place was `input.str`, and the text was about one of the kinds alone."""
    async with serving(tmp_path / "root") as client:
        found = await client.ask("POST", "/v1/responses", body)
        assert (found.status, found.json["error"]["message"]) == (400, told)


async def test_a_body_that_grows_beyond_the_limit_is_refused_while_it_comes(tmp_path: Path) -> None:
    async with serving(tmp_path / "root", serve={"max_request_bytes": 1_024}) as client:
        asked = Asked()
        asked.taking.set()
        await run_request(client.server.app, asked, "POST", COMPLETIONS, [b"x" * 512] * 3, {})
        assert (asked.status, asked.code) == (413, "request_too_large")


async def test_a_key_can_have_a_smaller_limit_than_the_server_and_no_larger_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ADA_KEY", ADAS)
    monkeypatch.setenv("BOB_KEY", BOBS)
    clients = {
        "ada": ServeClientConfig(key="env:ADA_KEY", subject="ada", max_request_bytes=1_024),
        "bob": ServeClientConfig(key="env:BOB_KEY", subject="bob", max_request_bytes=1_000_000),
    }
    async with serving(tmp_path / "root", serve={"clients": clients, "max_request_bytes": 4_096}) as client:
        for key, size, status in ((ADAS, 900, 200), (ADAS, 2_000, 413), (BOBS, 2_000, 200), (BOBS, 5_000, 413)):
            assert (await client.with_headers(**bearer(key)).chat("x" * size)).status == status


async def test_a_client_that_goes_away_before_its_body_is_there_gets_nothing(tmp_path: Path) -> None:
    async with serving(tmp_path / "root") as client:
        asked = Asked()
        asked.gone.set()
        await run_request(client.server.app, asked, "POST", COMPLETIONS, [], {})
        assert asked.status == 0


async def test_requests_beyond_the_keys_limits_are_told_when_to_come_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ADA_KEY", ADAS)
    monkeypatch.setenv("BOB_KEY", BOBS)
    hold = Hold("wait", wo_type="synthesize")
    clients = {
        "ada": ServeClientConfig(key="env:ADA_KEY", subject="ada", requests_per_minute=20, max_requests=1),
        "bob": ServeClientConfig(key="env:BOB_KEY", subject="bob"),
    }
    async with serving(tmp_path / "root", ScriptedProvider(echo, gate=hold), serve={"clients": clients}) as client:
        ada = client.with_headers(**bearer(ADAS))
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(ada.chat, "wait")
            await hold.arrived["wait"].wait()
            busy = await ada.chat("hello")
            assert (busy.status, busy.code, busy.headers["retry-after"]) == (429, "too_many_requests", "1")
            assert (await client.with_headers(**bearer(BOBS)).chat("hello")).status == 200
            hold.released["wait"].set()
        found = [await ada.ask("GET", "/v1/models") for _ in range(2)]
        assert [each.status for each in found] == [200, 429]
        assert (found[1].code, 1 <= int(found[1].headers["retry-after"]) <= 60) == ("rate_limited", True)


async def test_large_bodies_of_a_key_count_as_several_requests_and_hold_up_nobody_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A body of 3 MiB counts as seven. Twelve may come at once; what was begun while there was room passes."""
    monkeypatch.setenv("ADA_KEY", ADAS)
    monkeypatch.setenv("BOB_KEY", BOBS)
    clients = {
        name: ServeClientConfig(key=f"env:{name.upper()}_KEY", subject=name, requests_per_minute=120) for name in ("ada", "bob")
    }
    large = [{"role": "user", "content": "x" * 3_145_728}, {"role": "user", "content": "hello"}]
    async with serving(tmp_path / "root", serve={"clients": clients}) as client:
        ada, bob = client.with_headers(**bearer(ADAS)), client.with_headers(**bearer(BOBS))
        body = {"model": "ADMIN", "messages": large, "n": 2}  # refused once it was read
        found = [await ada.ask("POST", COMPLETIONS, body) for _ in range(3)]
        assert [each.status for each in found] == [400, 400, 429]
        assert (found[2].code, 1 <= int(found[2].headers["retry-after"]) <= 60) == ("rate_limited", True)
        assert (await ada.chat("hello")).status == 429
        assert (await bob.chat("hello")).status == 200


async def test_a_large_body_is_taken_whatever_the_rate_of_its_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ADA_KEY", ADAS)
    clients = {"ada": ServeClientConfig(key="env:ADA_KEY", subject="ada", requests_per_minute=1)}
    async with serving(tmp_path / "root", serve={"clients": clients}) as client:
        body = {"model": "ADMIN", "messages": [{"role": "user", "content": "x" * 3_145_728}], "n": 2}
        assert (await client.ask("POST", COMPLETIONS, body, **bearer(ADAS))).status == 400


async def test_more_requests_than_the_server_takes_are_refused(tmp_path: Path) -> None:
    hold = Hold("wait", wo_type="synthesize")
    async with serving(tmp_path / "root", ScriptedProvider(echo, gate=hold), serve={"max_requests": 1}) as client:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(client.chat, "wait")
            await hold.arrived["wait"].wait()
            assert (await client.chat("hello")).code == "overloaded"
            assert (await client.ask("GET", "/healthz")).status == 200
            hold.released["wait"].set()
        assert (await client.chat("hello")).status == 200


async def test_an_unknown_path_and_method_have_the_form_of_all_errors(tmp_path: Path) -> None:
    async with serving(tmp_path / "root") as client:
        for method, path in (
            ("GET", "/nothing"),
            ("GET", "/page/../page_files.py"),
            ("GET", "/v1/../etc/passwd"),
            ("DELETE", "/v1/models"),
            ("OPTIONS", COMPLETIONS),
        ):
            found = await client.ask(method, path)
            assert (found.status in (404, 405), found.code) == (True, "no_such_route")
            assert f"{method} {path}" in found.json["error"]["message"]


async def test_no_log_answer_or_span_has_a_key_or_what_was_said(tmp_path: Path, keys: dict[str, object]) -> None:
    def fail(request: object) -> BaseException:
        return RuntimeError("the model is broken")

    watch, answers = Watch(), list[bytes]()
    with captured_logs() as events:
        agents: dict[str, dict[str, Any]] = {"OTHER": {}}
        provider = ScriptedProvider(fail)
        async with serving(tmp_path / "root", provider, serve=keys, agents=agents, telemetry=watch.telemetry) as client:
            for key in (ADAS, "wrong-key-0123456789"):
                answers.append((await client.ask("POST", COMPLETIONS, chat_body("my secret plan"), **bearer(key))).body)
    assert watch.named("invoke_agent")
    assert not [each for each in (ADAS, "wrong-key", "secret plan") if each in repr((events, answers, watch.words()))]


def config_with(**serve: object) -> RuntimeConfig:
    return RuntimeConfig(serve=ServeConfig(**serve))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("serve", "problem"),
    [
        ({"host": "0.0.0.0"}, "serve.host"),
        ({"host": "example.org"}, "serve.host"),
        ({"clients": {"a": ServeClientConfig(key="env:NO_SUCH_KEY", subject="a")}}, "serve.clients.a.key"),
        ({"clients": {"a": ServeClientConfig(key="env:SHORT_KEY", subject="a")}}, "at least 16|fewer than 16"),
        (
            {"clients": {n: ServeClientConfig(key="env:LONG_KEY", subject=n) for n in ("a", "b")}},
            "serve.clients.b.key: leads to the key of another name",
        ),
        ({"clients": {"a": ServeClientConfig(key="env:LONG_KEY", subject="anon-SES-1")}}, "serve.clients.a.subject"),
    ],
)
def test_keys_that_cannot_guard_the_server_are_refused_when_it_starts(
    monkeypatch: pytest.MonkeyPatch, serve: dict[str, object], problem: str
) -> None:
    monkeypatch.setenv("SHORT_KEY", "tooshort")
    monkeypatch.setenv("LONG_KEY", ADAS)
    with pytest.raises(ConfigError, match=problem) as caught:
        Callers.load(config_with(**serve))
    assert "tooshort" not in str(caught.value)
    assert ADAS not in str(caught.value)


def test_an_agent_class_that_is_not_configured_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LONG_KEY", ADAS)
    serve = ServeConfig(clients={"a": ServeClientConfig(key="env:LONG_KEY", subject="a", agents=("NOBODY",))})
    for agents in ({"ADMIN": HO2Config()}, {}):
        with pytest.raises(ConfigError, match=r"serve.clients.a.agents = 'NOBODY'.*there are: ADMIN"):
            Callers.load(RuntimeConfig(agents=agents, serve=serve))


@pytest.mark.parametrize(
    "name", ["https://chat.example", "chat.example/", "chat.example:443", "*.example", "2001:db8::1", "a b"]
)
def test_a_name_that_no_request_can_have_is_refused(name: str) -> None:
    with pytest.raises(ConfigError, match=r"such as chat\.example, without scheme, port, path"):
        ServeConfig(allowed_hosts=(name,))


@pytest.mark.parametrize(
    "name", ["chat.example", "host.docker.internal", "192.0.2.7", "[2001:db8::1]", "my_host", "münchen.example"]
)
def test_names_and_addresses_are_taken_as_hosts(name: str) -> None:
    assert ServeConfig(allowed_hosts=(name,)).allowed_hosts == (name,)


def test_a_client_without_a_subject_must_say_that_it_acts_for_others() -> None:
    with pytest.raises(ConfigError, match="needs either `subject`"):
        ServeClientConfig(key="env:LONG_KEY")
    with pytest.raises(ConfigError, match="must be a reference"):
        ServeClientConfig(key=ADAS, subject="ada")
