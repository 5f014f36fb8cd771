"""Every door tells its clients the same tokens of a turn, with those that the provider had in its cache."""

from pathlib import Path

import pytest

from kitchener.model_usage import Usage
from kitchener.records.prompt import PromptRequest, PromptResponse
from kitchener.runtime import open_runtime
from kitchener.serve.token_usage import TokenUsage
from kitchener.testing import ScriptedProvider
from tests.acceptance.stack import scripted_config
from tests.serve.agui.front_end import FrontEnd, of_kind
from tests.serve.shared.requests import serving


def answer(_: PromptRequest) -> PromptResponse:
    """A reply to a prompt of which most came from a cache."""
    return PromptResponse(
        provider_id="scripted",
        model_id="scripted-1",
        text="Hello!",
        usage=Usage(100, 7, cached_tokens=80, cache_write_tokens=5),
    )


@pytest.mark.parametrize("stream", [False, True])
async def test_all_doors_tell_what_was_read_written_and_cached(tmp_path: Path, *, stream: bool) -> None:
    async with serving(tmp_path / "root", ScriptedProvider(answer)) as client:
        chat = await client.chat("hello", stream=stream, stream_options={"include_usage": True})
        usage = chat.events[-2]["usage"] if stream else chat.json["usage"]
        assert (usage["prompt_tokens"], usage["completion_tokens"], usage["total_tokens"]) == (100, 7, 107)
        assert usage["prompt_tokens_details"] == {"cached_tokens": 80}

        made = await client.ask("POST", "/v1/responses", {"input": "hello", "stream": stream})
        usage = ([each for each in made.events if each != "[DONE]"][-1]["response"] if stream else made.json)["usage"]
        assert (usage["input_tokens"], usage["output_tokens"], usage["total_tokens"]) == (100, 7, 107)
        assert usage["input_tokens_details"]["cached_tokens"] == 80

        utility = await client.chat("a title", model="ADMIN-utility")
        assert utility.json["usage"]["prompt_tokens_details"] == {"cached_tokens": 80}

        (finished,) = of_kind(await FrontEnd(client).say("hello"), "RUN_FINISHED")
        (usage,) = finished["usage"]
        counts = (usage["inputTokens"], usage["outputTokens"], usage["totalTokens"], usage["cachedInputTokens"])
        assert counts == (100, 7, 107, 80)


async def test_a_turn_of_an_earlier_version_tells_its_cached_tokens(tmp_path: Path) -> None:
    """Its cost had none, only those of its work orders, and a request with its key is answered from the record."""
    config = scripted_config(tmp_path)
    async with open_runtime(config, providers={"scripted": ScriptedProvider(answer)}) as runtime:
        result = await runtime.supervisor().handle_turn("hello")
    now = TokenUsage.of_turn(result)
    assert result.cost_summary.pop("cached_tokens") == now.cached > 0
    assert TokenUsage.of_turn(result) == now
