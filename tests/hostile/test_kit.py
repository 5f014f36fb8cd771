"""The measure that the hostile stories use is itself held: it passes where all is well and fails where it should."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import anyio
import pytest

from kitchener.records.prompt import PromptRequest
from kitchener.testing import ScriptedProvider
from tests.acceptance.stack import echo, open_scripted
from tests.hostile.kit import BYSTANDER, bystander, unless_bystander


async def test_a_bystander_is_answered_beside_a_subject_who_behaves(tmp_path: Path) -> None:
    provider = ScriptedProvider(unless_bystander(echo))
    async with open_scripted(tmp_path, provider) as runtime, bystander(runtime) as second:
        for number in range(5):
            result = await runtime.supervisor().handle_turn(f"hello {number}", subject_id="mallory")
            assert result.response == f"echo: hello {number}"
    assert len(second.results) >= 2
    assert second.results[0].response == "echo: bystander 0"


async def test_a_bystander_who_gets_an_apology_fails_the_story(tmp_path: Path) -> None:
    def broken(request: PromptRequest) -> Mapping[str, Any] | Exception:
        if request.subject_id == BYSTANDER and request.variables["user_message"] != "bystander 0":
            return RuntimeError("no answer")
        return echo(request)

    async with open_scripted(tmp_path, ScriptedProvider(broken)) as runtime:
        with pytest.raises(ExceptionGroup) as caught, anyio.fail_after(20):
            async with bystander(runtime):
                await anyio.sleep_forever()
    assert caught.group_contains(AssertionError)
