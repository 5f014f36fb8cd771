"""The official OpenAI client and the AI SDK for JavaScript against a server on this machine. `make doors` runs this.

CLIENT_DOORS=.doors/clients   the folder where `npm` has installed them
"""

import os
from pathlib import Path
from typing import Any, Final

import anyio
import orjson
import pytest

from kitchener.records.prompt import PromptRequest
from kitchener.testing import ScriptedProvider, use_tool
from tests.acceptance.stack import Hold, echo
from tests.clients.test_openai_client import Real, listening
from tests.serve.responses.test_responses import send_card
from tests.serve.shared.functions import heard, weather_of

DOORS: Final = os.environ.get("CLIENT_DOORS", "")
SCRIPTS: Final = Path(__file__).with_name("doors")

ROUNDS: Final = (("Graz",), ("Linz", "Wels"), ("Enns",))
FINE: Final = "Graz is fine, Linz is fine, Wels is fine, Enns is fine"
"""What the model has heard after these rounds."""

pytestmark = pytest.mark.skipif(not DOORS, reason="CLIENT_DOORS names no folder with clients of npm; `make doors` makes one")


@pytest.fixture(scope="module")
def anyio_backend() -> str:
    """uvicorn runs on asyncio."""
    return "asyncio"


def answer(request: PromptRequest) -> Any:
    """Gives an object at `city`; asks for a tool at `a card`, and for functions of the client, in three rounds."""
    message = str(request.variables["user_message"])
    if request.wo_type != "synthesize" or message == "wait":
        return echo(request)
    rounds = sum(1 for each in request.messages if each.tool_uses)
    if "get_weather" in [each.tool_id for each in request.tools] and rounds < len(ROUNDS):
        return weather_of(*ROUNDS[rounds])
    if "get_weather" in str(request.messages[-1].tool_id):
        return {"response_text": ", ".join(heard(request))}
    if message == "city":
        return {"name": "Graz"}
    outcomes = [each.content for each in request.messages if each.role == "tool"]
    if outcomes:
        return {"response_text": f"heard {outcomes}"}
    return use_tool("send_card", to="ada") if message == "a card" else echo(request)


async def run(real: Real, script: str) -> Any:
    """What a script prints."""
    command = ["node", str(SCRIPTS / script), str(Path(DOORS).resolve()), str(real.openai.base_url).rstrip("/")]
    with anyio.fail_after(60):
        ran = await anyio.run_process(command, check=False)
    assert ran.returncode == 0, ran.stderr.decode()
    return orjson.loads(ran.stdout)


async def test_the_official_client_completes_responds_resumes_approves_runs_functions_and_knows_errors(tmp_path: Path) -> None:
    hold = Hold("wait", wo_type="synthesize")
    async with listening(tmp_path / "root", ScriptedProvider(answer, gate=hold), [send_card]) as real:
        found = await run(real, "openai_client.cjs")
    assert found["completions"] == {
        "models": ["ADMIN", "ADMIN-utility"],
        "whole": "echo: hello",
        "text": "echo: hello",
        "tokens": True,
        "streamed": "echo: hello",
        "object": {"name": "Graz"},
    }
    assert found["responses"] == {
        "text": "echo: two",
        "sameConversation": True,
        "same": True,
        "last": "response.completed",
        "resumed": 4,
        "items": ["one", "echo: one", "two"],
        "cancelled": "cancelled",
        "deleted": ["APIError", 405, "cannot_delete"],
    }
    approvals = found["approvals"]
    assert (approvals["name"], approvals["arguments"]) == ("send_card", '{"to":"ada"}')
    assert "sent to ada" in approvals["done"]
    assert found["functions"] == {"whole": FINE, "streamed": FINE, "responses": FINE, "rounds": 3}
    assert found["errors"] == [
        ["NotFoundError", 404, "model_not_found"],
        ["BadRequestError", 400, "unsupported"],
        ["ConflictError", 409, "idempotency_conflict"],
    ]


async def test_the_ai_sdk_generates_streams_runs_tools_and_parses_objects(tmp_path: Path) -> None:
    async with listening(tmp_path / "root", ScriptedProvider(answer)) as real:
        found = await run(real, "ai_sdk.cjs")
        sessions = await real.inside.runtime.sessions()
    error = found.pop("error")
    assert found.pop("functions") == {"whole": FINE, "steps": 4, "text": FINE, "streamed": 4}
    assert found == {
        "whole": "echo: hello",
        "text": "echo: two",
        "tokens": True,
        "finish": "stop",
        "object": {"name": "Graz"},
    }
    assert error[0] == 404
    assert "NOBODY" in error[1]
    assert sorted(each.turns for each in sessions) == [1, 1, 2, 4, 4]
