"""A reply is the model's text, whatever it looks like, and is passed on piece by piece. See docs/prompts.md."""

from pathlib import Path

import pytest

from kitchener.records.prompt import Message
from kitchener.records.turn import TextDelta, TurnUpdate
from tests.actors.executor.executor_kit import LIBRARY, Streamed, open_bench, work_order

TEXT = "PRC-SYNTHESIZE-002"
WO_ID = "WO-SES-0000000a-001"


@pytest.mark.parametrize(
    "text",
    ["Hello.", '{"response_text": "Hello"}', '{"cut off', "```json\n{}\n```", "null", "  two spaces, and a line\n", '"{'],
)
async def test_the_answer_is_the_reply_letter_by_letter(tmp_path: Path, text: str) -> None:
    """Nothing that looks like JSON is read as such, and nothing is repaired."""
    async with open_bench(tmp_path, text) as bench:
        done = await bench.executor.execute(work_order("synthesize", prompt_contract_id=TEXT))
        (call,) = await bench.payloads("LLM_CALL")
    assert done.output_result == {"response_text": text}
    assert call["response"]["text"] == text


@pytest.mark.parametrize("pieces", [['{"respo', "nse_te"], ["``", "`js", "on"], [" ", "\n", "a"], ["{", '"', "x"]])
async def test_each_piece_is_passed_on_as_it_comes(tmp_path: Path, pieces: list[str]) -> None:
    """No reader waits to find out what the text is going to be."""
    updates: list[TurnUpdate] = []

    async def listen(update: TurnUpdate) -> None:
        updates.append(update)

    async with open_bench(tmp_path, Streamed(pieces)) as bench:
        bench.listeners[WO_ID] = listen
        done = await bench.executor.execute(work_order("synthesize", prompt_contract_id=TEXT))
    assert updates == [TextDelta(WO_ID, 1, piece) for piece in pieces]
    assert done.output_result == {"response_text": "".join(pieces)}


async def test_a_request_for_text_has_no_schema_and_asks_for_no_wrapper(tmp_path: Path) -> None:
    async with open_bench(tmp_path, "Hi.") as bench:
        await bench.executor.execute(work_order("synthesize", prompt_contract_id=TEXT))
        (request,) = bench.gateway.requests
    assert request.output_schema is None
    assert all("response_text" not in message.content for message in request.messages)


@pytest.mark.parametrize("contract_id", [TEXT, "PRC-DIRECT-002"])
def test_the_hash_of_a_request_for_text_says_so(contract_id: str) -> None:
    """The place of the schema's digest holds null."""
    contract = LIBRARY.contract(contract_id)
    found = contract.request_bytes([Message("user", "x")], tools_digest="t", model_id=None, temperature=0.0, max_tokens=9)
    assert found.endswith(b'"t",null,null,0,9]')
    assert contract.output_problem({"response_text": 7}) is None
