"""The protocol's own clients against a server on this machine: its validator, and the official client for JavaScript.

`make doors` installs the second one.

CLIENT_DOORS=.doors/clients   the folder where `npm` has installed it
"""

import os
from pathlib import Path
from typing import Any, Final

import anyio
import orjson
import pytest
from ag_ui_validate.transport import TransportOptions, validate_endpoint

from kitchener.records.prompt import PromptRequest
from kitchener.testing import ScriptedProvider, use_tool
from tests.acceptance.stack import echo
from tests.clients.test_openai_client import listening
from tests.serve.agui.test_agui import send_letter
from tests.serve.shared.functions import heard, weather_of

DOORS: Final = os.environ.get("CLIENT_DOORS", "")
SCRIPT: Final = Path(__file__).parents[2] / "clients" / "doors" / "front_end.cjs"


@pytest.fixture(scope="module")
def anyio_backend() -> str:
    """uvicorn runs on asyncio."""
    return "asyncio"


def answer(request: PromptRequest) -> Any:
    """Asks for a tool at `go`, and for one of the front end at `weather`; is rejected once at `reject`."""
    message = str(request.variables["user_message"])
    if request.messages[-1].tool_id == "get_weather":
        return {"response_text": f"heard {', '.join(heard(request))}"}
    if request.wo_type == "synthesize" and message == "weather":
        return weather_of("Graz")
    if request.wo_type != "synthesize" or ("go" not in message and message != "reject"):
        return echo(request)
    if message == "reject":
        return {"response_text": "no" if request.temperature else "a reply that is accepted"}
    outcomes = [each.content for each in request.messages if each.role == "tool"]
    return {"response_text": f"heard {outcomes[-1]}, done"} if outcomes else use_tool("send_letter", to="ada")


async def test_the_validator_finds_nothing_wrong_with_the_connection(tmp_path: Path) -> None:
    async with listening(tmp_path / "root") as real:
        options = TransportOptions(headers={"authorization": "Bearer any"}, timeout_ms=20_000)
        found = await validate_endpoint(f"{str(real.openai.base_url).rstrip('/')}/agui/ADMIN", options)
    assert (found.status, found.transport_error) == (200, None)
    assert [each for each in found.report.diagnostics if each.severity != "info"] == []
    assert found.report.features["agentic-chat"] == "exercised"


@pytest.mark.skipif(not DOORS, reason="CLIENT_DOORS names no folder with clients of npm; `make doors` makes one")
async def test_the_official_client_shows_replies_withdrawals_tools_and_interrupts(tmp_path: Path) -> None:
    async with listening(tmp_path / "root", ScriptedProvider(answer), [send_letter], acceptance=["min_chars:8"]) as real:
        url = f"{str(real.openai.base_url).rstrip('/')}/agui/ADMIN"
        command = ["node", str(SCRIPT), str(Path(DOORS).resolve()), url]
        with anyio.fail_after(60):
            ran = await anyio.run_process(command, check=False)
        assert ran.returncode == 0, ran.stderr.decode()
        assert len(await real.inside.runtime.sessions()) == 1
    found = orjson.loads(ran.stdout)
    hello, rejected, go, refused, resumed, thanks, weather, fine, again = found["shown"]
    assert hello["texts"] == ["user: hello", "assistant: echo: hello"]
    assert "MESSAGES_SNAPSHOT" in rejected["kinds"]
    assert rejected["texts"] == [*hello["texts"], "user: reject", "assistant: a reply that is accepted"]
    assert [each["reason"] for each in go["interrupts"]] == ["tool_call"]
    assert "pending interrupt" in refused["refused"]
    assert resumed["interrupts"] == []
    assert resumed["texts"][-1].startswith("assistant: heard")
    assert "tool: sent to bob" in resumed["texts"]
    assert thanks["texts"] == [*resumed["texts"], "user: thanks", "assistant: echo: thanks"]
    assert weather["texts"] == [*thanks["texts"], "user: weather"]
    assert "TOOL_CALL_RESULT" not in weather["kinds"]
    assert fine["texts"] == [*weather["texts"], "tool: Graz is fine", "assistant: heard Graz is fine"]
    assert again["texts"] == [*fine["texts"], "user: thanks again", "assistant: echo: thanks again"]
    assert found["calls"] == ['{"to":"ada"}', '{"at":"Graz"}']
    assert "HTTP 404" in found["error"]
    assert found["warnings"] == []
