"""A turn brings tools that its caller runs: offered, called, answered, gone on with, replayed. Claimed in docs/tools.md."""

from pathlib import Path
from typing import Any

import pytest

from kitchener.errors import ApprovalAnswered
from tests.acceptance.approval.kit import Desk, open_desk, replayed
from tests.acceptance.client_tools.kit import PARIS, WEATHER, model

TRUSTED: dict[str, Any] = {"client_tools_trusted": True}


async def test_the_caller_runs_its_tool_and_the_turn_goes_on_with_the_output(tmp_path: Path) -> None:
    root, desk, provider = tmp_path / "root", Desk(), model([PARIS], says="Let me look.")
    async with open_desk(root, desk, provider, **TRUSTED) as runtime:
        supervisor = runtime.supervisor()
        waiting = await supervisor.handle_turn("what is the weather?", subject_id="ada", client_tools=[WEATHER])
        assert [each.tool_id for each in provider.requests[-1].tools][-1] == "get_weather"
        (call,) = waiting.client_calls
        assert (call.name, call.arguments) == ("get_weather", {"place": "Paris"})
        assert (waiting.response, waiting.pending_approval) == ("Let me look.", ())
        assert (waiting.error, waiting.degraded, waiting.quality_gate_passed) == (None, False, True)
        assert waiting.wo_chain_summary[-1]["state"] == "deferred"
        done = await supervisor.answer_client_calls({call.call_id: {"sky": "clear", "degrees": 21}})
        assert done is not None
        assert (done.response, done.client_calls) == ('done: {"degrees":21,"sky":"clear"}', ())
        again = await supervisor.answer_client_calls({call.call_id: {"degrees": 21.0, "sky": "clear"}})
        assert again == done
        with pytest.raises(ApprovalAnswered, match="takes no other output: it is returned"):
            await supervisor.answer_client_calls({call.call_id: "rain"})
    assert await replayed(root, desk, waiting.session_id, **TRUSTED) == 2
