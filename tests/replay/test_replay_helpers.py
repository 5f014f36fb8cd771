"""What users' tests get: a recorded session as a regression test, and recorded answers as a provider."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kitchener.gateway.providers.recorded import NotRecorded, RecordedProvider, Recording, RequestChanged
from kitchener.model_usage import Usage
from kitchener.records.prompt import PromptResponse, TextPiece, ToolUse
from kitchener.signing import make_key
from kitchener.testing import assert_replays, prompt_request, replayed  # noqa: F401  a fixture
from tests.replay.shared.recorded_sessions import KEY, TOOLS, record
from tests.replay.test_replay_diverges import CONTEXT, ENFORCE, changed, forge
from tests.replay.test_replay_signed import signed_by


@pytest.fixture(params=["asyncio", "trio"], scope="module")
def anyio_backend(request: pytest.FixtureRequest) -> str:
    """Both, unlike in the other tests of this folder."""
    backend: str = request.param
    return backend


SAID = PromptResponse(provider_id="x", model_id="y", text="hello", usage=Usage(3, 1, 2, 1), route_reason="domain_tag:z")
WO = "WO-SES-00000001-001"


async def test_recorded_session_is_a_test(tmp_path: Path, replayed: Callable[..., Any]) -> None:  # noqa: F811
    """It passes as it is, and fails on another decision or other items with what differs."""
    config, (session_id,) = await record(tmp_path, **ENFORCE)
    first = f"T-{session_id[4:]}-000001"
    report = await replayed(session_id, config=config, tools=TOOLS)
    await replayed(session_id, config=config, tools=TOOLS, items={first: report.visible[first]})
    with pytest.raises(AssertionError, match=re.escape(f"{first} shows {report.visible[first]}, expected ('T-1',)")):
        await assert_replays(session_id, config=config, tools=TOOLS, items={first: ["T-1"]})
    with pytest.raises(AssertionError, match=r"\+ INV-1"):
        await assert_replays(session_id, config=changed(config, standing_rules=("Be kind.",)), tools=TOOLS)


async def test_signed_session_is_a_test_without_the_private_key(tmp_path: Path) -> None:
    """It fails where a projection shows other items, and where its signature is not by the recorded key."""
    config, (session_id,) = await record(tmp_path, **ENFORCE)
    (tmp_path / KEY).unlink()
    report = await assert_replays(session_id, config=config, tools=TOOLS)
    first = f"T-{session_id[4:]}-000001"
    shown = report.visible[first]
    assert len(shown) >= 1
    await assert_replays(session_id, config=config, tools=TOOLS, items={first: shown})
    with pytest.raises(AssertionError, match=re.escape(f"{first} shows {shown}, expected ()")):
        await assert_replays(session_id, config=config, tools=TOOLS, items={first: []})
    stranger = make_key(tmp_path / "stranger.pem")

    def resign(entry: dict[str, Any]) -> None:
        if entry["entry_type"] == "PROJECTION_COMPUTED":
            signed_by(entry["payload"], stranger)

    forge(tmp_path, CONTEXT, resign)
    with pytest.raises(AssertionError, match=r"authority\.signer"):
        await assert_replays(session_id, config=config, tools=TOOLS, items={first: shown})


async def test_recorded_answer() -> None:
    """By work order and call, whole and as a stream."""
    provider = RecordedProvider({(WO, 1): Recording("sha256:1", "PRM-X-001@0", SAID)})
    assert await provider.complete(prompt_request("hi")) is SAID
    assert [item async for item in provider.stream(prompt_request("hi"))] == [TextPiece(1, "hello"), SAID]


async def test_unrecorded_and_changed_requests() -> None:
    """Each says which request it was; neither is worth a retry."""
    provider = RecordedProvider({(WO, 1): Recording("sha256:1", "PRM-X-001@0", SAID)}, request_hash=lambda _: "sha256:2")
    with pytest.raises(NotRecorded, match=f"call 2 of work order {WO} .synthesize. was never recorded") as missing:
        await provider.complete(prompt_request("hi", call=2))
    with pytest.raises(RequestChanged, match=f"call 1 of work order {WO}.*request_hash sha256:1, now sha256:2") as other:
        await provider.complete(prompt_request("hi"))
    assert not missing.value.is_retryable
    assert (other.value.reason, other.value.is_retryable) == ("not_recorded", False)


def test_recording_of_a_payload() -> None:
    """All of a response that a ledger keeps."""
    payload = {
        "request_hash": "sha256:1",
        "prompt_pack_version": "PRM-X-001@0",
        "response": {"text": "", "tool_uses": [{"use_id": "1", "tool_id": "t", "arguments": {"a": 1}}], "structured": {"b": 2}},
        "provider_id": "x",
        "model_id": "y",
        "route_reason": "default",
        "usage": {"input_tokens": 3, "output_tokens": 1},
        "latency_ms": 7,
        "finish_reason": "tool_use",
    }
    found = Recording.from_payload(payload).response
    assert (found.tool_uses, found.structured, found.usage) == ((ToolUse("1", "t", {"a": 1}),), {"b": 2}, Usage(3, 1, None))
    assert (found.latency_ms, found.finish_reason) == (7, "tool_use")
