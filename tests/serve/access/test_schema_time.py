"""Checks against the schemas of requests count for the key that sent them (docs/server.md, `schema_ms_per_minute`)."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kitchener import tool
from kitchener.config import ServeClientConfig
from kitchener.records.prompt import PromptRequest
from kitchener.schemas import compiled_schemas
from kitchener.schemas.compiled_schemas import CHECK_TIME, CompiledSchemas, StrangerSchema, stranger_schema
from kitchener.schemas.json_schema import JsonSchema
from kitchener.serve.access.allowances import SchemaTime
from kitchener.serve.problems import RequestRefused
from kitchener.testing import ScriptedProvider, replay_session, use_tool
from tests.acceptance.stack import Hold, echo, open_scripted
from tests.serve.shared.functions import FLAT, NESTED, calling, weather_of
from tests.serve.shared.requests import COMPLETIONS, Asked, Client, chat_body, serving

KEYS = {"ada": "key-of-ada-0123456789", "bob": "key-of-bob-0123456789"}
RESPONSES, AGUI = "/v1/responses", "/v1/agui/ADMIN"
OBJECT = {"type": "object", "properties": {"n": {"type": "integer"}}}
FORM = {"type": "json_schema", "json_schema": {"name": "f", "schema": OBJECT}}
TEXT_FORM = {"format": {"type": "json_schema", "name": "f", "schema": OBJECT}}
ASK = "What is the weather?"
AT_ONCE_S = 0.3
"""What the checks of a key may take at once, by default: a tenth of 3,000 ms."""


class Processor:
    """A clock of processor time on which a check takes what the test says, and all else nothing."""

    def __init__(self) -> None:
        self.now, self.check_s, self.checks = 0.0, 0.0, 0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def processor(monkeypatch: pytest.MonkeyPatch) -> Processor:
    found, really = Processor(), JsonSchema.problem

    def problem(schema: JsonSchema, value: object) -> str | None:
        if isinstance(schema, StrangerSchema):
            found.now += found.check_s
            found.checks += 1
        return really(schema, value)

    monkeypatch.setattr(compiled_schemas, "thread_time", found)
    monkeypatch.setattr(JsonSchema, "problem", problem)
    return found


@pytest.fixture(autouse=True)
def keys(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, key in KEYS.items():
        monkeypatch.setenv(f"{name.upper()}_KEY", key)


def clients(**of_each: Any) -> dict[str, Any]:
    """The settings of a server with two keys."""
    settings = {"requests_per_minute": 1_000_000, **of_each}
    return {"clients": {name: ServeClientConfig(key=f"env:{name.upper()}_KEY", subject=name, **settings) for name in KEYS}}


def of(client: Client, name: str) -> Client:
    return client.with_headers(authorization=f"Bearer {KEYS[name]}")


def giving(*answers: Any) -> ScriptedProvider:
    """A model that gives these in turn, the last one again and again."""
    left = list(answers)

    def answer(request: PromptRequest) -> Any:
        return left.pop(0) if len(left) > 1 else left[0]

    return ScriptedProvider(answer)


async def by_chat(client: Client) -> Asked:
    return await client.chat("hello", response_format=FORM)


async def by_stream(client: Client) -> Asked:
    return await client.chat("hello", response_format=FORM, stream=True)


async def by_response(client: Client) -> Asked:
    return await client.ask("POST", RESPONSES, {"model": "ADMIN", "input": "hello", "text": TEXT_FORM})


async def in_background(client: Client) -> Asked:
    body = {"model": "ADMIN", "input": "hello", "text": TEXT_FORM, "background": True}
    asked = await client.ask("POST", RESPONSES, body)
    if asked.status == 200:
        path = f"{RESPONSES}/{asked.json['id']}"
        while (await client.ask("GET", path)).json["status"] == "in_progress":
            await anyio.lowlevel.checkpoint()
    return asked


async def by_message(client: Client) -> Asked:
    session_id = (await client.ask("POST", "/v1/sessions", {})).json["session_id"]
    return await client.ask("POST", f"/v1/sessions/{session_id}/messages", {"message": "hello", "output_schema": OBJECT})


async def by_message_stream(client: Client) -> Asked:
    session_id = (await client.ask("POST", "/v1/sessions", {})).json["session_id"]
    body = {"message": "hello", "output_schema": OBJECT, "stream": True}
    return await client.ask("POST", f"/v1/sessions/{session_id}/messages", body)


OBJECT_DOORS = (by_chat, by_stream, by_response, in_background, by_message, by_message_stream)


async def calls_by_chat(client: Client) -> tuple[Asked, Callable[[], Any]]:
    """Asks with a function that the model calls; the second one gives its output."""
    messages: list[dict[str, Any]] = [{"role": "user", "content": ASK}]
    body = {"model": "ADMIN", "tools": [NESTED]}
    asked = await client.ask("POST", COMPLETIONS, {**body, "messages": messages})

    async def give() -> Asked:
        said = asked.json["choices"][0]["message"]
        output = {"role": "tool", "tool_call_id": said["tool_calls"][0]["id"], "content": "sun"}
        return await client.ask("POST", COMPLETIONS, {**body, "messages": [*messages, said, output]})

    return asked, give


async def calls_by_response(client: Client) -> tuple[Asked, Callable[[], Any]]:
    asked = await client.ask("POST", RESPONSES, {"input": ASK, "tools": [FLAT]})

    async def give() -> Asked:
        (call,) = (each for each in asked.json["output"] if each["type"] == "function_call")
        output = {"type": "function_call_output", "call_id": call["call_id"], "output": "sun"}
        return await client.ask("POST", RESPONSES, {"input": [output], "previous_response_id": asked.json["id"]})

    return asked, give


async def calls_by_run(client: Client) -> tuple[Asked, Callable[[], Any]]:
    tools = [{"name": "get_weather", "description": "", "parameters": NESTED["function"]["parameters"]}]
    messages: list[dict[str, Any]] = [{"id": "1", "role": "user", "content": ASK}]
    body = {"threadId": "t", "tools": tools}
    asked = await client.ask("POST", AGUI, {**body, "runId": "r1", "messages": messages})

    async def give() -> Asked:
        (call_id,) = (each["toolCallId"] for each in asked.events if each["type"] == "TOOL_CALL_START")
        call = {"id": call_id, "type": "function", "function": {"name": "get_weather", "arguments": '{"at":"Graz"}'}}
        said = {"id": "2", "role": "assistant", "toolCalls": [call]}
        output = {"id": "3", "role": "tool", "toolCallId": call_id, "content": "sun"}
        return await client.ask("POST", AGUI, {**body, "runId": "r2", "messages": [*messages, said, output]})

    return asked, give


def assert_told_to_wait(asked: Asked) -> None:
    assert (asked.status, asked.code, asked.headers["x-should-retry"]) == (429, "rate_limited", "true"), asked.body
    assert int(asked.headers["retry-after"]) >= 1
    assert "schema_ms_per_minute" in asked.json["error"]["message"]


class TestFormats:
    @pytest.mark.parametrize("door", OBJECT_DOORS)
    async def test_costly_checks_hold_back_the_key_that_asked_for_them(
        self, tmp_path: Path, processor: Processor, door: Callable[[Client], Any]
    ) -> None:
        async with serving(tmp_path / "root", giving({"n": 1}), serve=clients()) as client:
            ada, bob = of(client, "ada"), of(client, "bob")
            processor.check_s = 2 * AT_ONCE_S
            assert (await door(ada)).status == 200
            processor.check_s = 0.0
            asked = len(client.provider.requests)
            assert_told_to_wait(await door(ada))  # although the server knows the schema
            assert len(client.provider.requests) == asked
            assert (await door(bob)).status == 200

    async def test_no_door_goes_around_it_and_what_has_no_schema_goes_on(self, tmp_path: Path, processor: Processor) -> None:
        async with serving(tmp_path / "root", giving({"n": 1}), serve=clients()) as client:
            ada = of(client, "ada")
            processor.check_s = 2 * AT_ONCE_S
            assert (await by_chat(ada)).status == 200
            processor.check_s = 0.0
            before = await client.runtime.sessions("ADMIN")
            for each in (by_chat, by_stream, by_response, in_background):
                assert_told_to_wait(await each(ada))
            for begin in (calls_by_chat, calls_by_response, calls_by_run):
                assert_told_to_wait((await begin(ada))[0])
            assert await client.runtime.sessions("ADMIN") == before  # what is refused leaves no session
            assert_told_to_wait(await by_message(ada))
            assert (await ada.chat("hello")).status == 200

    async def test_what_was_refused_is_taken_later(self, tmp_path: Path, processor: Processor) -> None:
        async with serving(tmp_path / "root", giving({"n": 1}), serve=clients()) as client:
            ada = of(client, "ada")
            processor.check_s = AT_ONCE_S + 0.01
            assert (await by_chat(ada)).status == 200
            processor.check_s, refused = 0.0, 0
            with anyio.fail_after(20):
                while (await by_chat(ada)).status == 429:
                    refused += 1
            assert refused

    async def test_a_repair_counts_too(self, tmp_path: Path, processor: Processor) -> None:
        async with serving(tmp_path / "root", giving({"n": 1}, {"n": "x"}, {"n": 1}), serve=clients()) as client:
            ada, bob = of(client, "ada"), of(client, "bob")
            processor.check_s = 0.6 * AT_ONCE_S
            assert [(await by_chat(ada)).status, processor.checks] == [200, 1]
            assert [(await by_chat(bob)).status, processor.checks] == [200, 3]
            processor.check_s = 0.0
            assert (await by_chat(ada)).status == 200
            assert_told_to_wait(await by_chat(bob))

    async def test_a_turn_whose_client_went_away_counts(self, tmp_path: Path, processor: Processor) -> None:
        hold = Hold("wait", wo_type="synthesize")

        def answer(request: PromptRequest) -> Any:
            return {"n": 1}

        settings = clients(max_requests=1)
        async with serving(tmp_path / "root", ScriptedProvider(answer, gate=hold), serve=settings) as client:
            ada, asked = of(client, "ada"), Asked()
            asked.taking.set()
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(ada.run, asked, "POST", COMPLETIONS, chat_body("wait", response_format=FORM))
                await hold.arrived["wait"].wait()
                asked.gone.set()
                await asked.done.wait()
            processor.check_s = 2 * AT_ONCE_S
            hold.released["wait"].set()
            with anyio.fail_after(20):
                while (found := await by_chat(ada)).code == "too_many_requests":  # it keeps its place until it ends
                    await anyio.lowlevel.checkpoint()
            assert_told_to_wait(found)

    async def test_a_turn_that_runs_is_neither_refused_nor_replayed_otherwise(
        self, tmp_path: Path, processor: Processor
    ) -> None:
        root = tmp_path / "root"
        async with serving(root, giving({"n": "x"}, {"n": "y"}, {"n": "z"}, {"n": 1}), serve=clients()) as client:
            processor.check_s = 100.0
            asked = await by_chat(of(client, "ada"))
            assert (asked.status, asked.text, processor.checks) == (200, '{"n":1}', 4)
            (session,) = await client.runtime.sessions("ADMIN")
            config = client.runtime.config
        report = await replay_session(session.session_id, config=config)
        assert report.is_identical, report.text()

    async def test_an_ordinary_client_is_never_told_to_wait(self, tmp_path: Path, processor: Processor) -> None:
        """Even if a check takes thirty times as long as that of an ordinary object, 0.1 ms."""
        async with serving(tmp_path / "root", giving({"n": 1}), serve=clients()) as client:
            processor.check_s = 0.003
            assert {(await by_chat(of(client, "ada"))).status for _ in range(33)} == {200}
            assert processor.checks == 33

    async def test_who_is_alone_on_the_machine_holds_nobody_up(self, tmp_path: Path, processor: Processor) -> None:
        async with serving(tmp_path / "root", giving({"n": 1})) as client:
            processor.check_s = 2 * AT_ONCE_S
            assert {(await by_chat(client)).status for _ in range(5)} == {200}

    async def test_choices_that_refer_to_each_other_really_cost(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """On the processor's own clock: such a check takes far more than a millisecond, which is what may be used at once."""
        monkeypatch.setattr(compiled_schemas, "thread_time", time.thread_time)
        names = [f"N{number}" for number in range(300)]
        defs = {each: {"type": "object", "properties": {each: {"const": 1}}, "required": [each]} for each in names}
        items = {"anyOf": [{"$ref": f"#/$defs/{each}"} for each in names]}
        schema = {"type": "object", "title": tmp_path.name, "properties": {"v": {"items": items}}, "$defs": defs}
        wanted = {"type": "json_schema", "json_schema": {"name": "f", "schema": schema}}
        settings = clients(schema_ms_per_minute=60_000)  # for bob: six seconds at once, which no machine needs for two checks
        settings["clients"]["ada"] = settings["clients"]["ada"].model_copy(update={"schema_ms_per_minute": 10})
        async with serving(tmp_path / "root", giving({"v": [{names[-1]: 1}] * 20}), serve=settings) as client:
            ada, bob = of(client, "ada"), of(client, "bob")
            assert (await bob.chat("hello", response_format=wanted)).status == 200  # and the server knows the schema
            assert (await ada.chat("hello", response_format=wanted)).status == 200
            assert_told_to_wait(await ada.chat("hello", response_format=wanted))
            assert (await bob.chat("hello", response_format=wanted)).status == 200


class TestFunctions:
    @pytest.mark.parametrize("begin", [calls_by_chat, calls_by_response, calls_by_run])
    async def test_costly_arguments_hold_back_outputs_and_new_requests_of_the_key(
        self, tmp_path: Path, processor: Processor, begin: Callable[[Client], Any]
    ) -> None:
        async with serving(tmp_path / "root", calling(weather_of("Graz")), serve=clients()) as client:
            ada, bob = of(client, "ada"), of(client, "bob")
            processor.check_s = AT_ONCE_S + 0.06
            asked, give = await begin(ada)
            assert (asked.status, processor.checks) == (200, 1)
            processor.check_s = 0.0
            before = await client.runtime.sessions("ADMIN")
            assert_told_to_wait(await give())
            assert_told_to_wait((await begin(ada))[0])
            assert await client.runtime.sessions("ADMIN") == before  # the call still waits
            assert (await begin(bob))[0].status == 200
            given = await give()
            with anyio.fail_after(20):
                while given.status == 429:
                    await anyio.sleep(0.1)  # not without pause, which would keep a processor busy for a second
                    given = await give()
            assert (given.status, b"sun" in given.body) == (200, True)


@tool(requires_approval=True)
def send_letter(to: str) -> str:
    """Sends a letter."""
    return f"sent to {to}"


class TestApprovals:
    @pytest.mark.parametrize("door", ["native", "chat", "response", "run"])
    async def test_turns_that_wait_for_approval_cannot_be_saved_up(
        self, tmp_path: Path, processor: Processor, door: str
    ) -> None:
        """A turn that goes on checks its reply, too. Many that wait would otherwise be checked after the time is used up."""

        def answer(request: PromptRequest) -> Any:
            if request.wo_type != "synthesize":
                return echo(request)
            return {"n": 1} if any(each.role == "tool" for each in request.messages) else use_tool("send_letter", to="ada")

        async with serving(tmp_path / "root", ScriptedProvider(answer), serve=clients(), tools=[send_letter]) as client:
            ada, waiting = of(client, "ada"), list[tuple[str, str]]()
            for number in range(2):
                session_id = (await ada.ask("POST", "/v1/sessions", {})).json["session_id"]
                body = {"message": f"go {number}", "output_schema": OBJECT}
                asked = await ada.ask("POST", f"/v1/sessions/{session_id}/messages", body)
                waiting.append((session_id, asked.json["pending_approval"][0]))
            processor.check_s = 2 * AT_ONCE_S
            first = await ada.ask("POST", f"/v1/sessions/{waiting[0][0]}/approvals/{waiting[0][1]}/approve", {})
            assert (first.status, processor.checks) == (200, 1)
            session_id, approval_id = waiting[1]
            bodies = {
                "native": (f"/v1/sessions/{session_id}/approvals/{approval_id}/approve", {}),
                "chat": (COMPLETIONS, chat_body(f"approve {approval_id}")),
                "response": (
                    RESPONSES,
                    {"input": [{"type": "mcp_approval_response", "approval_request_id": approval_id, "approve": True}]},
                ),
                "run": (
                    AGUI,
                    {
                        "threadId": session_id,
                        "runId": "r",
                        "messages": [],
                        "resume": [{"interruptId": approval_id, "status": "resolved", "payload": {"approved": True}}],
                    },
                ),
            }
            assert_told_to_wait(await ada.ask("POST", *bodies[door]))
            assert len((await ada.ask("GET", f"/v1/sessions/{session_id}/approvals")).json["approvals"]) == 1


@given(
    st.lists(
        st.tuples(st.floats(0, 5), st.sampled_from(["compile", "check"]), st.integers(0, 2_000_000)), min_size=1, max_size=30
    ),
    st.integers(10, 60_000),
)
def test_no_more_is_taken_in_a_minute_than_one_use_beyond_the_limit(uses: list[tuple[float, str, int]], most: int) -> None:
    """Requests that come only when they may: in any minute, what they took before the last one stays within the limit."""

    async def play() -> None:
        time, now = SchemaTime(most), anyio.current_time()
        taken = list[tuple[float, int]]()
        for pause, use, cost_us in uses:
            now += pause
            try:
                time.check(now, is_new=use == "compile")
            except RequestRefused as error:
                time.check(now + (error.retry_after_s or 0) + 0.001, is_new=use == "compile")
                continue
            if use == "compile":
                time.book_compiling(cost_us / 1_000_000, now)
                continue
            recent = sum(each for at, each in taken if at > now - 60)
            assert recent <= 1_000 * most + len(taken)
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(anyio, "current_time", lambda at=now: at)
                time.book_check(cost_us / 1_000_000)
            taken.append((now, cost_us))

    anyio.run(play)


def test_a_check_is_booked_where_somebody_counts_and_decides_alike() -> None:
    booked, value = list[float](), {"n": "x"}
    problem = StrangerSchema(OBJECT).problem(value)
    token = CHECK_TIME.set(booked.append)
    try:
        assert (StrangerSchema(OBJECT).problem(value), len(booked)) == (problem, 1)
    finally:
        CHECK_TIME.reset(token)


def test_a_schema_that_is_compiled_again_for_a_turn_is_booked() -> None:
    """What is kept is bounded, so a turn may find its schema gone; nobody may refuse it then."""
    kept, booked = CompiledSchemas(1), list[float]()
    token = CHECK_TIME.set(booked.append)
    try:
        for key in ("a", "b", "a"):
            kept.of(key, [OBJECT], lambda: [StrangerSchema(OBJECT)])
        assert len(booked) == 3
        kept.of("a", [OBJECT], lambda: [StrangerSchema(OBJECT)])
        assert len(booked) == 3
    finally:
        CHECK_TIME.reset(token)


async def test_a_library_caller_and_a_replay_count_nothing(tmp_path: Path, processor: Processor) -> None:
    processor.check_s = 1_000.0
    async with open_scripted(tmp_path, giving({"n": 1})) as runtime:
        for _ in range(3):
            result = await runtime.supervisor().handle_turn("hello", output=OBJECT)
            assert result.output == {"n": 1}
    assert CHECK_TIME.get() is None
    assert stranger_schema(OBJECT, "sha256:other").problem({}) is None
