"""Every text of a model can be sent, in every form of an answer."""

import math
from pathlib import Path
from typing import Any

import pytest

from kitchener.records.prompt import PromptRequest
from kitchener.serve.sendable import as_json, can_be_sent
from kitchener.testing import ScriptedProvider
from tests.acceptance.stack import echo
from tests.serve.shared.requests import Client, serving

MESSAGE = {"id": "u", "role": "user", "content": "hello"}


async def native(client: Client, stream: bool) -> bytes:
    begun = await client.ask("POST", "/v1/sessions", {})
    path = f"/v1/sessions/{begun.json['session_id']}/messages"
    return (await client.ask("POST", path, {"message": "hello", "stream": stream})).body


async def half_a_character(request: PromptRequest) -> Any:
    return {"response_text": "half a \ud83d of it"} if request.wo_type == "synthesize" else echo(request)


@pytest.mark.parametrize("anyio_backend", ["asyncio"])  # what is written does not depend on the loop
async def test_half_a_character_ends_no_answer(tmp_path: Path) -> None:
    run = {"threadId": "t", "runId": "r", "messages": [MESSAGE]}
    async with serving(tmp_path / "root", ScriptedProvider(half_a_character)) as client:
        assert b"[DONE]" in (await client.chat("hello", stream=True)).body
        assert (await client.chat("hello")).status == 200
        assert b"turn_completed" in await native(client, True)
        assert b"turn_id" in await native(client, False)
        assert b"response.completed" in (await client.ask("POST", "/v1/responses", {"input": "hello", "stream": True})).body
        assert b"RUN_FINISHED" in (await client.ask("POST", "/v1/agui/ADMIN", run)).body


def test_what_the_fast_way_refuses_is_written_and_only_depth_has_an_end() -> None:
    assert as_json({"a\ud800": ["\ud83d", "é", 2**70]}).decode() == '{"a\ufffd": ["\ufffd", "é", 1180591620717411303424]}'
    assert as_json({"a": math.nan}) == b'{"a":null}'
    assert as_json(["\ud83d", math.nan, -math.inf]) == '["\ufffd", null, null]'.encode()
    deep: list[Any] = []
    for _ in range(300):
        deep = [deep]
    assert as_json(deep) == b"[" * 301 + b"]" * 301
    for _ in range(5_000):
        deep = [deep]
    assert not can_be_sent(deep)
