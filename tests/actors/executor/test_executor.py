"""HO1 runs one work order: what reaches the gateway, what comes back, what its ledger holds. See docs/work-orders.md."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import pytest

from kitchener.actors.work.plan import cost_mapping
from kitchener.canonical import canonical_digest
from kitchener.config import HO2Config
from kitchener.errors import InvalidTransition, PromptError, ProviderError
from kitchener.model_usage import Usage
from kitchener.records import events
from kitchener.records.entries import WorkOrderType
from kitchener.records.prompt import OnAttempt, PromptRequest, PromptResponse
from kitchener.records.work_order import Cost, WorkOrderError
from tests.actors.executor.executor_kit import (
    CLASSIFY,
    CONSOLIDATE,
    NOTE,
    PLANNED,
    SESSION,
    SYNTHESIZE,
    TURN,
    VERIFY,
    open_bench,
    response,
    work_order,
)

CLASSIFIED: Mapping[str, Any] = {"speech_act": "greeting", "ambiguity": "none", "confidence": 0.9, "mood": "fine"}


async def test_classify_gives_the_answer_as_output_with_what_it_cost(tmp_path: Path) -> None:
    async with open_bench(tmp_path, json.dumps(CLASSIFIED)) as bench:
        bench.clock.now_us += 2_500_000
        done = await bench.executor.execute(work_order("classify"))
    assert done.state == "completed"
    assert done.output_result == CLASSIFIED
    assert (done.cost.input_tokens, done.cost.output_tokens, done.cost.llm_calls) == (10, 5, 1)
    assert done.completed_at == "2026-01-01T00:00:02.500000+00:00"
    assert done.error is None


async def test_elapsed_time_is_read_from_the_clock(tmp_path: Path) -> None:
    async with open_bench(tmp_path) as bench:

        async def slow(request: PromptRequest, *, on_attempt: OnAttempt) -> PromptResponse:
            bench.clock.now_us += 1_234_567
            return response("hello")

        bench.gateway.complete = slow  # type: ignore[method-assign]
        done = await bench.executor.execute(work_order("synthesize"))
    assert done.cost.elapsed_ms == 1_234


async def test_the_steps_of_a_model_call_stand_in_order_with_every_field(tmp_path: Path) -> None:
    answer = json.dumps({"response_text": "Hi."})
    async with open_bench(tmp_path, answer) as bench:
        done = await bench.executor.execute(work_order("synthesize", prior_results=[CLASSIFIED]))
        entries = await bench.entries()
        digest = bench.ledgers.ho1m.content_digest
        request = bench.gateway.requests[0]
    common = {"v": 1, "session_id": SESSION, "subject_id": "ada", "turn_id": TURN}
    assert [(entry.entry_type, entry.entity_id) for entry in entries] == [("LLM_CALL", done.wo_id)]
    (call,) = (entry.payload for entry in entries)
    hashed = [
        "PRC-SYNTHESIZE-001",
        request.prompt_pack_version,
        [message.as_mapping() for message in request.messages],
        canonical_digest([]),
        canonical_digest(dict(request.output_schema or {})),
        None,
        0.3,
        2_048,
    ]
    assert call == common | {
        "call": 1,
        "request_hash": canonical_digest(hashed),
        "prompt_pack_version": request.prompt_pack_version,
        "part_refs": [PLANNED.as_mapping()],
        "response": {"text": answer, "tool_uses": []},
        "provider_id": "scripted",
        "model_id": "m-1",
        "route_reason": "default",
        "usage": {"input_tokens": 10, "output_tokens": 5},
        "latency_ms": 3,
        "finish_reason": "stop",
        "attempt": 1,
    }
    assert done.output_hash == digest("ada", b'{"response_text":"Hi."}')
    assert done.cost == Cost(input_tokens=10, output_tokens=5, llm_calls=1)


@pytest.mark.parametrize(("turn_id", "version"), [(None, events.POLICY_VERSION), (TURN, 6)])
async def test_a_work_order_whose_life_is_not_in_ho2m_has_it_in_ho1m(tmp_path: Path, turn_id: str | None, version: int) -> None:
    """A consolidation, which is recovered from HO1m alone, and every work order before version 7 of the policy."""
    async with open_bench(tmp_path, json.dumps(CLASSIFIED), policy_version=version) as bench:
        done = await bench.executor.execute(work_order("classify").replaced(turn_id=turn_id or ""))
        entries = await bench.entries()
    assert [entry.entry_type for entry in entries] == ["WO_EXECUTING", "LLM_CALL", "WO_COMPLETED"]
    executing, _, completed = (entry.payload for entry in entries)
    common = {"v": 1, "session_id": SESSION, "subject_id": "ada"} | ({"turn_id": turn_id} if turn_id else {})
    assert executing == common | {"wo_type": "classify"}
    assert completed == common | {
        "output_ref": entries[1].ref.as_mapping(),
        "output_hash": done.output_hash,
        "cost": cost_mapping(done.cost),
    }


@pytest.mark.parametrize(("version", "calls"), [(13, 2), (14, 1)])
async def test_an_object_among_sentences_is_read_since_version_14_of_the_policy(
    tmp_path: Path, version: int, calls: int
) -> None:
    answers = (f"Sure! ```json\n{json.dumps(CLASSIFIED)}\n``` Anything else?", json.dumps(CLASSIFIED))
    async with open_bench(tmp_path, *answers, policy_version=version) as bench:
        done = await bench.executor.execute(work_order("classify"))
    assert (done.output_result, done.cost.llm_calls) == (CLASSIFIED, calls)


async def test_a_verdict_that_stands_among_sentences_is_asked_for_again(tmp_path: Path) -> None:
    """It may be a quotation of what the model judges."""
    accepted, rejected = {"decision": "accept", "reason": "ok"}, {"decision": "reject", "reason": "it repeats the user"}
    answers = (f"I reject it. The user wrote:\n{json.dumps(accepted)}\n", json.dumps(rejected))
    async with open_bench(tmp_path, *answers) as bench:
        done = await bench.executor.execute(work_order("verify"))
    assert (done.output_result, done.cost.llm_calls) == (rejected, 2)


async def test_a_structured_answer_is_stored_beside_its_text_only_where_the_text_does_not_hold_it(tmp_path: Path) -> None:
    """Content is stored once per ledger, docs/ledger.md."""
    output = {"speech_act": "greeting"}

    def answer(text: str) -> PromptResponse:
        return PromptResponse(provider_id="p", model_id="m", text=text, structured=output, usage=Usage(1, 1))

    async with open_bench(tmp_path, answer(json.dumps(output)), answer(""), answer("said otherwise")) as bench:
        results = [await bench.executor.execute(work_order("classify")) for _ in range(3)]
        stored = [payload["response"] for payload in await bench.payloads("LLM_CALL")]
    assert [done.output_result for done in results] == [output] * 3
    assert [each.get("structured") for each in stored] == [None, output, output]


async def test_the_request_carries_limits_contract_and_variables(tmp_path: Path) -> None:
    wo = work_order("classify", token_budget=100, provider_id="local", model_id="tiny", temperature=1.5)
    async with open_bench(tmp_path, json.dumps(CLASSIFIED)) as bench:
        await bench.executor.execute(wo)
        request = bench.gateway.requests[0]
    assert (request.provider_id, request.model_id, request.temperature, request.max_tokens) == ("local", "tiny", 1.5, 100)
    assert (request.contract_id, request.wo_type, request.call) == ("PRC-CLASSIFY-001", "classify", 1)
    assert (request.session_id, request.wo_id, request.subject_id) == (SESSION, wo.wo_id, "ada")
    assert request.variables == CLASSIFY
    assert request.output_schema is not None
    assert request.output_schema["required"] == ["speech_act"]
    assert not request.restart_streams


async def test_the_contract_decides_where_the_work_order_does_not(tmp_path: Path) -> None:
    async with open_bench(tmp_path, json.dumps(dict(NOTE))) as bench:
        await bench.executor.execute(work_order("consolidate", token_budget=4_000))
        request = bench.gateway.requests[0]
    assert (request.max_tokens, request.temperature) == (512, 0.0)


async def test_ho1_passes_domain_tags(tmp_path: Path) -> None:
    """A work order's domain tags reach the gateway, which routes by them: docs/gateway.md."""
    async with open_bench(tmp_path, json.dumps(dict(NOTE))) as bench:
        await bench.executor.execute(work_order("consolidate", domain_tags=("consolidation", "night")))
        assert bench.gateway.requests[0].domain_tags == ("consolidation", "night")


async def test_the_deadline_is_the_work_orders_or_the_turns_or_that_of_a_surrounding_scope(tmp_path: Path) -> None:
    answers = [json.dumps(CLASSIFIED)] * 3
    async with open_bench(tmp_path, *answers, config=HO2Config(turn_deadline_s=500.0)) as bench:
        before = anyio.current_time()
        await bench.executor.execute(work_order("classify"))
        await bench.executor.execute(work_order("classify", timeout_ms=200_000))
        with anyio.fail_after(100) as scope:
            await bench.executor.execute(work_order("classify"))
        after = anyio.current_time()
        first, second, third = (request.deadline for request in bench.gateway.requests)
    assert before + 500 <= first <= after + 500
    assert before + 200 <= second <= after + 200
    assert third == scope.deadline


@pytest.mark.parametrize(
    ("wo_type", "input_context", "output"),
    [
        ("verify", VERIFY, {"decision": "reject", "reason": "no greeting"}),
        ("consolidate", CONSOLIDATE, NOTE),
        ("classify", CLASSIFY, {"speech_act": "question"}),
    ],
)
async def test_other_types_of_work_order_take_one_call(
    tmp_path: Path, wo_type: WorkOrderType, input_context: Mapping[str, Any], output: Mapping[str, Any]
) -> None:
    async with open_bench(tmp_path, json.dumps(dict(output))) as bench:
        done = await bench.executor.execute(work_order(wo_type, input_context))
        assert len(bench.gateway.requests) == 1
    assert done.state == "completed"
    assert done.output_result == output


async def test_prior_results_are_part_of_what_synthesize_is_given(tmp_path: Path) -> None:
    async with open_bench(tmp_path, "Hi.") as bench:
        await bench.executor.execute(work_order("synthesize", prior_results=[CLASSIFIED]))
        request = bench.gateway.requests[0]
    assert request.variables["prior_results"] == [CLASSIFIED]
    assert '"mood":"fine"' in request.messages[1].content


@pytest.mark.parametrize(
    ("text", "reply"),
    [
        ('{"response_text": "Hi."}', "Hi."),
        ('```json\n{"response_text": "Hi."}\n```', "Hi."),
        ("Hi.\nHow are you?", "Hi.\nHow are you?"),
        ("42", "42"),
        ("{curly} words", "{curly} words"),
        ('{"response_text": "two\nlines"}', "two\nlines"),
        ("```python\nprint()\n```", "```python\nprint()\n```"),
    ],
)
async def test_synthesize_takes_json_and_plain_text(tmp_path: Path, text: str, reply: str) -> None:
    async with open_bench(tmp_path, text) as bench:
        done = await bench.executor.execute(work_order("synthesize"))
    assert done.output_result == {"response_text": reply}


async def test_an_output_that_breaks_its_schema_is_repaired_once(tmp_path: Path) -> None:
    bad = json.dumps({"speech_act": "question", "confidence": 7})
    async with open_bench(tmp_path, bad, json.dumps(CLASSIFIED)) as bench:
        done = await bench.executor.execute(work_order("classify"))
        first, second = bench.gateway.requests
        calls = [entry for entry in await bench.entries() if entry.entry_type == "LLM_CALL"]
    assert done.state == "completed"
    assert done.output_result == CLASSIFIED
    assert (done.cost.llm_calls, done.cost.input_tokens) == (2, 20)
    assert (first.call, second.call) == (1, 2)
    assert second.messages[:2] == first.messages
    assert second.messages[2].as_mapping() == {"role": "assistant", "content": bad}
    assert "confidence: 7 is greater than the maximum of 1" in second.messages[3].content
    assert '"speech_act"' in second.messages[3].content
    assert calls[1].payload["part_refs"] == [PLANNED.as_mapping(), calls[0].ref.as_mapping()]


@pytest.mark.parametrize(
    ("answers", "problem"),
    [
        (["no json", "still none"], "the answer is not JSON"),
        (['["a"]', '["b"]'], "the answer is a JSON list, not a JSON object"),
        (['{"speech_act": ""}', '{"speech_act": 1}'], "speech_act: 1 is not of type"),
        (['{"speech_act": "x", "n": 9007199254740993}'] * 2, "outside"),
    ],
)
async def test_an_output_that_breaks_its_schema_twice_fails_the_work_order(
    tmp_path: Path, answers: list[Any], problem: str
) -> None:
    async with open_bench(tmp_path, *answers) as bench:
        done = await bench.executor.execute(work_order("classify"))
        types = await bench.types()
        failed = (await bench.payloads("WO_FAILED"))[0]
    assert done.state == "failed"
    assert done.error is not None
    assert done.error.reason == "OUTPUT_SCHEMA"
    assert problem in done.error.detail
    assert types.count("LLM_CALL") == 2
    assert types[-1] == "WO_FAILED"
    assert failed["error"]["detail"] == done.error.detail


async def test_a_reply_cut_off_in_the_middle_is_not_shown_as_text(tmp_path: Path) -> None:
    async with open_bench(tmp_path, '{"response_text": "Hel', '{"response_text": "Hello"}') as bench:
        done = await bench.executor.execute(work_order("synthesize"))
    assert done.output_result == {"response_text": "Hello"}


async def test_a_failing_provider_fails_the_work_order_with_its_reason(tmp_path: Path) -> None:
    error = ProviderError("scripted", "rate_limited", "slow down \ud800", status=429)
    async with open_bench(tmp_path, error) as bench:
        done = await bench.executor.execute(work_order("classify"))
        types = await bench.types()
        attempt = (await bench.payloads("ATTEMPT_FAILED"))[0]
        failed = (await bench.payloads("WO_FAILED"))[0]
    assert done.state == "failed"
    assert done.error is not None
    assert (done.error.reason, done.error.provider_reason) == ("PROVIDER", "rate_limited")
    assert done.cost.llm_calls == 0
    assert types == ["ATTEMPT_FAILED", "WO_FAILED"]
    assert (attempt["reason"], attempt["detail"], attempt["output_begun"]) == ("rate_limited", "slow down \\ud800", False)
    assert failed["error"] == {
        "reason": "PROVIDER",
        "detail": "provider 'scripted': rate_limited: slow down \\ud800",
        "provider_reason": "rate_limited",
    }


async def test_a_timeout_is_the_work_orders_own_only_past_its_deadline(tmp_path: Path) -> None:
    late = ProviderError("scripted", "timeout", "too slow")
    async with open_bench(tmp_path, late, late) as bench:
        early = await bench.executor.execute(work_order("classify"))
        answer = bench.gateway.complete

        async def until_deadline(request: PromptRequest, *, on_attempt: OnAttempt) -> PromptResponse:
            await anyio.sleep_until(request.deadline)
            return await answer(request, on_attempt=on_attempt)

        bench.gateway.complete = until_deadline  # type: ignore[method-assign]
        past = await bench.executor.execute(work_order("classify", timeout_ms=1))
    assert (early.error, past.error) == (
        WorkOrderError(reason="PROVIDER", detail="provider 'scripted': timeout: too slow", provider_reason="timeout"),
        WorkOrderError(reason="TIMEOUT", detail="provider 'scripted': timeout: too slow", provider_reason="timeout"),
    )


async def test_input_that_breaks_the_input_schema_fails_without_a_call(tmp_path: Path) -> None:
    async with open_bench(tmp_path) as bench:
        done = await bench.executor.execute(work_order("synthesize", {**SYNTHESIZE, "instructions": 7}))
        types = await bench.types()
    assert done.error is not None
    assert done.error.reason == "EXECUTOR"
    assert "instructions: 7 is not of type" in done.error.detail
    assert "PRC-SYNTHESIZE-001" in done.error.detail
    assert types == ["WO_FAILED"]


async def test_a_used_up_token_budget_fails_instead_of_calling_again(tmp_path: Path) -> None:
    async with open_bench(tmp_path, "no json") as bench:
        done = await bench.executor.execute(work_order("classify", token_budget=15))
        assert [request.max_tokens for request in bench.gateway.requests] == [15]
    assert done.error is not None
    assert done.error.reason == "BUDGET"
    assert done.cost.llm_calls == 1


@pytest.mark.parametrize("answer", ["lone \udc80 surrogate", {"response_text": "x", "n": float("nan")}])
async def test_an_answer_that_no_ledger_takes_fails_as_malformed(tmp_path: Path, answer: Any) -> None:
    async with open_bench(tmp_path, answer) as bench:
        done = await bench.executor.execute(work_order("synthesize"))
        types = await bench.types()
    assert done.error is not None
    assert (done.error.reason, done.error.provider_reason) == ("PROVIDER", "malformed")
    assert types == ["ATTEMPT_STARTED", "WO_FAILED"]


async def test_an_unknown_contract_raises(tmp_path: Path) -> None:
    async with open_bench(tmp_path) as bench:
        with pytest.raises(PromptError, match="'PRC-NONE-001' is not known; expected one of"):
            await bench.executor.execute(work_order("classify", prompt_contract_id="PRC-NONE-001"))
        with pytest.raises(PromptError, match="names no prompt_contract_id"):
            await bench.executor.execute(work_order("classify", prompt_contract_id=None))


async def test_a_work_order_that_was_not_dispatched_raises(tmp_path: Path) -> None:
    async with open_bench(tmp_path) as bench:
        with pytest.raises(InvalidTransition, match="cannot go from 'executing' to 'executing'"):
            await bench.executor.execute(work_order("classify").executing())
        assert await bench.types() == []


async def test_a_bug_in_a_gateway_raises_instead_of_becoming_a_result(tmp_path: Path) -> None:
    async with open_bench(tmp_path, RuntimeError("a bug")) as bench:
        with pytest.raises(RuntimeError, match="a bug"):
            await bench.executor.execute(work_order("classify"))
        assert await bench.types() == ["ATTEMPT_STARTED"]


async def test_cancellation_passes_through_and_leaves_what_was_recorded(tmp_path: Path) -> None:
    async with open_bench(tmp_path) as bench:
        begun = anyio.Event()

        async def hang(request: PromptRequest, *, on_attempt: OnAttempt) -> PromptResponse:
            begun.set()
            await anyio.sleep_forever()
            raise AssertionError

        bench.gateway.complete = hang  # type: ignore[method-assign]
        with anyio.fail_after(5):
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(bench.executor.execute, work_order("classify"))
                await begun.wait()
                tasks.cancel_scope.cancel()
        assert await bench.types() == []


async def test_many_work_orders_run_at_the_same_time_without_mixing(tmp_path: Path) -> None:
    async with open_bench(tmp_path) as bench:

        async def echo(request: PromptRequest, *, on_attempt: OnAttempt) -> PromptResponse:
            await anyio.lowlevel.checkpoint()
            return response(json.dumps({"speech_act": request.variables["user_message"]}))

        bench.gateway.complete = echo  # type: ignore[method-assign]
        results: dict[str, Any] = {}

        async def run(message: str) -> None:
            done = await bench.executor.execute(work_order("classify", {**CLASSIFY, "user_message": message}))
            results[message] = done.output_result

        with anyio.fail_after(5):
            async with anyio.create_task_group() as tasks:
                for n in range(20):
                    tasks.start_soon(run, f"m{n}")
    assert results == {f"m{n}": {"speech_act": f"m{n}"} for n in range(20)}
