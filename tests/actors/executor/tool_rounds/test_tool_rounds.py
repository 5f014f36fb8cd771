"""HO1 runs tools: alone in a tool_call, and in synthesize's loop while the model asks for them. See docs/work-orders.md."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import anyio
import pytest

from kitchener.actors.tools.registry import ToolRegistry
from kitchener.actors.tools.tool import tool
from kitchener.canonical import canonical_bytes
from kitchener.errors import EntryTooLarge
from kitchener.ids import tool_idempotency_key
from kitchener.model_usage import Usage
from kitchener.records.prompt import PromptResponse, ToolUse
from kitchener.records.tools.tool_context import ToolContext
from kitchener.records.work_order import WorkOrder
from tests.actors.executor.executor_kit import PLANNED, SESSION, TURN, Bench, open_bench, response, work_order
from tests.shared.payloads import payload_of

REPLY = json.dumps({"response_text": "Done."})


def use(tool_id: str, /, **arguments: Any) -> ToolUse:
    return ToolUse(f"use-{tool_id}", tool_id, arguments)


def tool_call(tool_id: str, arguments: Mapping[str, Any] | None = None, **limits: Any) -> WorkOrder:
    limits.setdefault("allowed_tools", (tool_id,))
    return work_order("tool_call", {"tool_id": tool_id, "arguments": dict(arguments or {})}, **limits)


def looping(*allowed: str, turn_limit: int = 4, **limits: Any) -> WorkOrder:
    return work_order("synthesize", allowed_tools=allowed, turn_limit=turn_limit, **limits)


@tool(read_only=True)
async def double(n: int) -> int:
    """Doubles a number."""
    return 2 * n


@tool(read_only=True)
def fail() -> None:
    """Fails."""
    raise ValueError("no such luck")


REGISTRY = ToolRegistry([double, fail])


async def test_a_tool_call_runs_without_a_model_and_stands_in_the_ledger(tmp_path: Path) -> None:
    async with open_bench(tmp_path, tools=REGISTRY) as bench:
        done = await bench.executor.execute(tool_call("double", {"n": 21}))
        entries = await bench.entries()
        digest = bench.ledgers.ho1m.content_digest
        assert bench.gateway.requests == []
    assert done.output_result == {"tool_id": "double", "result": 42}
    assert (done.cost.llm_calls, done.cost.tool_calls, done.cost.tool_ids_used) == (0, 1, ("double",))
    assert [entry.entry_type for entry in entries] == ["TOOL_STARTED", "TOOL_CALL"]
    common = {"v": 1, "session_id": SESSION, "subject_id": "ada", "turn_id": TURN}
    started, called = (entry.payload for entry in entries)
    assert started == common | {
        "call": 1,
        "tool_id": "double",
        "arguments": {"n": 21},
        "idempotency_key": tool_idempotency_key(TURN, done.wo_id, 1, "double", b'{"n":21}'),
        "read_only": True,
    }
    assert called == common | {"call": 1, "tool_id": "double", "result": 42}
    assert done.output_hash == digest("ada", b'{"result":42,"tool_id":"double"}')


@pytest.mark.parametrize(
    ("wo", "detail", "types"),
    [
        (tool_call("double", {"n": "many"}), "n: Input should be a valid integer", ["TOOL_CALL"]),
        (tool_call("double", {}), "n: is required, but missing", ["TOOL_CALL"]),
        (tool_call("double", {"n": 1}, allowed_tools=("fail",)), "'double' is not allowed here", ["TOOL_CALL"]),
        (tool_call("absent"), "there is no tool 'absent'", ["TOOL_CALL"]),
        (tool_call("fail"), "ValueError: no such luck", ["TOOL_STARTED", "TOOL_CALL"]),
    ],
)
async def test_a_tool_call_that_cannot_work_fails_with_reason_tool(
    tmp_path: Path, wo: WorkOrder, detail: str, types: list[str]
) -> None:
    async with open_bench(tmp_path, tools=REGISTRY) as bench:
        done = await bench.executor.execute(wo)
        assert await bench.types() == [*types, "WO_FAILED"]
        called = (await bench.payloads("TOOL_CALL"))[0]
    assert done.error is not None
    assert done.error.reason == "TOOL"
    assert detail in done.error.detail
    assert called["error"] == done.error.detail
    assert "result" not in called


async def test_a_tool_call_without_a_tool_id_fails_as_the_executors_input(tmp_path: Path) -> None:
    async with open_bench(tmp_path, tools=REGISTRY) as bench:
        done = await bench.executor.execute(work_order("tool_call", {"arguments": {}}))
    assert done.error is not None
    assert done.error.reason == "EXECUTOR"
    assert "tool_id (text)" in done.error.detail


async def test_the_model_gets_the_results_of_the_tools_it_asks_for(tmp_path: Path) -> None:
    async with open_bench(tmp_path, (use("double", n=4), use("fail")), REPLY, tools=REGISTRY) as bench:
        done = await bench.executor.execute(looping("double", "fail"))
        first, second = bench.gateway.requests
        entries = await bench.entries()
    assert done.output_result == {"response_text": "Done."}
    assert [spec.tool_id for spec in first.tools] == ["double", "fail"]
    said = [message.as_mapping() for message in second.messages[2:]]
    assert said == [
        {
            "role": "assistant",
            "content": "",
            "tool_uses": [
                {"use_id": "use-double", "tool_id": "double", "arguments": {"n": 4}},
                {"use_id": "use-fail", "tool_id": "fail", "arguments": {}},
            ],
        },
        {"role": "tool", "content": "8", "tool_use_id": "use-double", "tool_id": "double"},
        {
            "role": "tool",
            "content": '{"error":"ValueError: no such luck"}',
            "tool_use_id": "use-fail",
            "tool_id": "fail",
        },
    ]
    assert [entry.entry_type for entry in entries] == [
        "LLM_CALL",
        "TOOL_STARTED",
        "TOOL_CALL",
        "TOOL_STARTED",
        "TOOL_CALL",
        "LLM_CALL",
    ]
    last_call = entries[5].payload
    assert last_call["part_refs"] == [PLANNED.as_mapping(), *(entries[n].ref.as_mapping() for n in (0, 2, 4))]
    assert payload_of(entries[0])["response"]["tool_uses"][0]["arguments"] == {"n": 4}


async def test_ho1_exposes_tool_ids_used(tmp_path: Path) -> None:
    """`cost.tool_ids_used` lists the tools that ran, in order; those that were refused did not run."""
    answers = (use("double", n=1), (use("fail"), use("nope"), use("double", n="x")), use("double", n=2), REPLY)
    async with open_bench(tmp_path, *answers, tools=REGISTRY) as bench:
        done = await bench.executor.execute(looping("double", "fail"))
    assert done.cost.tool_ids_used == ("double", "fail", "double")
    assert done.cost.tool_calls == 3


@pytest.mark.parametrize(
    ("asked", "told"),
    [
        (use("nope"), "tool 'nope' is not allowed here; allowed are ['double']"),
        (use("fail"), "tool 'fail' is not allowed here; allowed are ['double']"),
        (use("double", n=[1]), "n: Input should be a valid integer, found [1]"),
        (use("double", n=1, m=2), "m: there is no such argument"),
    ],
)
async def test_a_model_that_asks_wrongly_is_told_and_may_go_on(tmp_path: Path, asked: ToolUse, told: str) -> None:
    async with open_bench(tmp_path, asked, REPLY, tools=REGISTRY) as bench:
        done = await bench.executor.execute(looping("double"))
        assert told in bench.gateway.requests[1].messages[-1].content
        assert "TOOL_STARTED" not in await bench.types()
    assert done.state == "completed"
    assert done.cost.tool_calls == 0


async def test_at_the_turn_limit_the_last_call_shows_the_tools_and_allows_none(tmp_path: Path) -> None:
    """What a cache serves of the rounds before, it serves of the last call too."""
    asked = use("double", n=1)
    async with open_bench(tmp_path, asked, asked, REPLY, tools=REGISTRY) as bench:
        done = await bench.executor.execute(looping("double", turn_limit=2))
        offered = [(len(request.tools), request.tool_choice) for request in bench.gateway.requests]
        hashes = [payload["request_hash"] for payload in await bench.payloads("LLM_CALL")]
    assert done.state == "completed"
    assert offered == [(1, None), (1, None), (1, "none")]
    assert len(set(hashes)) == 3


async def test_a_model_that_calls_tools_although_it_must_not_is_asked_without_them(tmp_path: Path) -> None:
    """Some servers do not know the choice `none`. The call does not run."""
    asked = use("double", n=1)
    async with open_bench(tmp_path, asked, asked, REPLY, tools=REGISTRY) as bench:
        done = await bench.executor.execute(looping("double", turn_limit=1))
        offered = [(len(request.tools), request.tool_choice) for request in bench.gateway.requests]
        ran = len([each for each in await bench.types() if each == "TOOL_CALL"])
    assert (done.state, done.output_result, ran) == ("completed", {"response_text": "Done."}, 1)
    assert offered == [(1, None), (1, "none"), (0, None)]


async def test_a_repair_shows_the_tools_and_allows_none(tmp_path: Path) -> None:
    async with open_bench(tmp_path, use("double", n=1), "no object", '{"n": 2}', tools=REGISTRY) as bench:
        asked = looping("double").replaced(output_schema={"type": "object", "required": ["n"]})
        done = await bench.executor.execute(asked)
        offered = [(len(request.tools), request.tool_choice) for request in bench.gateway.requests]
    assert done.output_result == {"response_text": '{"n": 2}', "output": {"n": 2}}
    assert offered == [(1, None), (1, None), (1, "none")]


async def test_a_model_that_asks_for_tools_where_none_are_offered_is_taken_by_its_text(tmp_path: Path) -> None:
    answer = PromptResponse(provider_id="p", model_id="m", text="Hi.", tool_uses=(use("double", n=1),), usage=Usage(1, 1))
    async with open_bench(tmp_path, answer, tools=REGISTRY) as bench:
        done = await bench.executor.execute(work_order("synthesize", turn_limit=3))
        assert "TOOL_CALL" not in await bench.types()
    assert done.output_result == {"response_text": "Hi."}


async def test_the_same_call_asked_twice_gets_two_idempotency_keys(tmp_path: Path) -> None:
    seen: list[str] = []

    @tool
    async def pay(amount: int, call: ToolContext) -> str:
        """Pays."""
        seen.append(call.idempotency_key)
        return "paid"

    asked = (use("pay", amount=5), use("pay", amount=5))
    async with open_bench(tmp_path, asked, REPLY, tools=ToolRegistry([pay])) as bench:
        done = await bench.executor.execute(looping("pay"))
        started = await bench.payloads("TOOL_STARTED")
    expected = [tool_idempotency_key(TURN, done.wo_id, call, "pay", b'{"amount":5}') for call in (1, 2)]
    assert seen == expected
    assert [payload["idempotency_key"] for payload in started] == expected
    assert [payload["call"] for payload in started] == [1, 2]


def stored_types(bench: Bench) -> list[str]:
    """The types of HO1's entries that have reached the file."""
    lines = (bench.path / "ho1m.jsonl").read_bytes().splitlines()
    return [json.loads(line)["entry"]["entry_type"] for line in lines]


@pytest.mark.parametrize("is_async", [True, False])
async def test_an_effectful_tool_runs_only_after_its_start_is_durable(tmp_path: Path, *, is_async: bool) -> None:
    """After a crash, `TOOL_STARTED` alone tells that the effect may have happened: docs/tools.md."""
    found: list[list[str]] = []
    async with open_bench(tmp_path, tools=ToolRegistry()) as bench:

        @tool(name="send")
        async def send_async() -> str:
            """Sends."""
            found.append(stored_types(bench))
            return "sent"

        @tool(name="send")
        def send_sync() -> str:
            """Sends."""
            found.append(stored_types(bench))
            return "sent"

        registry = ToolRegistry([send_async if is_async else send_sync])
        async with open_bench(tmp_path / "other", tools=registry) as acting:
            bench.path = acting.path
            done = await acting.executor.execute(tool_call("send"))
    assert done.output_result == {"tool_id": "send", "result": "sent"}
    assert found == [["TOOL_STARTED"]]


async def test_a_read_only_tool_waits_for_no_commit(tmp_path: Path) -> None:
    found: list[int] = []

    @tool(read_only=True)
    async def look() -> str:
        """Looks."""
        found.append(bench.ledgers.ho1m.durable_position)
        return "seen"

    async with open_bench(tmp_path, tools=ToolRegistry([look])) as bench:
        await bench.executor.execute(tool_call("look"))
    assert found == [0]


async def test_a_result_too_large_for_the_ledger_becomes_an_error(tmp_path: Path) -> None:
    @tool(read_only=True)
    async def flood() -> str:
        """Says much."""
        return "x" * 2_000_000

    async with open_bench(tmp_path, tools=ToolRegistry([flood], max_result_bytes=4_000_000)) as bench:
        done = await bench.executor.execute(tool_call("flood"))
        called = (await bench.payloads("TOOL_CALL"))[0]
    assert done.error is not None
    assert done.error.reason == "TOOL"
    assert called["error"].startswith("the tool has run, but its result is too large to be stored")
    assert EntryTooLarge.__name__ not in called["error"]


async def test_arguments_that_no_ledger_takes_are_refused(tmp_path: Path) -> None:
    @tool(read_only=True)
    async def any_number(n: float) -> float:
        """Takes a number."""
        return n

    async with open_bench(tmp_path, tools=ToolRegistry([any_number])) as bench:
        done = await bench.executor.execute(tool_call("any_number", {"n": float("inf")}))
    assert done.error is not None
    assert "arguments.n: inf has no JSON form" in done.error.detail


async def test_cancellation_during_a_tool_leaves_its_start_without_an_end(tmp_path: Path) -> None:
    begun = anyio.Event()

    @tool
    async def hang() -> None:
        """Hangs."""
        begun.set()
        await anyio.sleep_forever()

    async with open_bench(tmp_path, tools=ToolRegistry([hang])) as bench:
        with anyio.fail_after(5):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(bench.executor.execute, tool_call("hang"))
                await begun.wait()
                tasks.cancel_scope.cancel()
        assert await bench.types() == ["TOOL_STARTED"]


async def test_the_outputs_of_tools_survive_as_canonical_json(tmp_path: Path) -> None:
    value = {"b": [1.5, None, True], "a": "ä"}

    @tool(read_only=True)
    def give() -> dict[str, Any]:
        """Gives."""
        return value

    async with open_bench(tmp_path, tools=ToolRegistry([give])) as bench:
        done = await bench.executor.execute(tool_call("give"))
        called = (await bench.payloads("TOOL_CALL"))[0]
    assert called["result"] == value
    assert done.output_result is not None
    assert canonical_bytes(done.output_result["result"]) == canonical_bytes(value)


async def test_a_tool_loop_stops_when_its_token_budget_is_used_up(tmp_path: Path) -> None:
    asked = use("double", n=1)
    async with open_bench(tmp_path, asked, asked, response(REPLY), tools=REGISTRY) as bench:
        done = await bench.executor.execute(looping("double", token_budget=30))
        assert [request.max_tokens for request in bench.gateway.requests] == [30, 15]
    assert done.error is not None
    assert done.error.reason == "BUDGET"
    assert done.cost.tool_ids_used == ("double", "double")
