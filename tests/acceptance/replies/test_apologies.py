"""What a user reads when a model call failed: whether another attempt may help, and what else would (docs/gateway.md)."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from kitchener.errors import RETRYABLE_REASONS, ProviderError, ProviderReason
from kitchener.records.prompt import PromptRequest
from kitchener.replaying import replay_session
from kitchener.testing import ScriptedProvider
from tests.acceptance.stack import QUESTION, open_scripted, scripted_config

LANE = {"max_retries": 0}


@pytest.mark.parametrize(
    ("reason", "words"),
    [
        ("connection", "try again in a moment"),
        ("server_error", "try again in a moment"),
        ("empty", "no answer that can be used"),
        ("malformed", "no answer that can be used"),
        ("rate_limited", "more to answer than it can just now"),
        ("timeout", "took too long"),
        ("authentication", "until its operator has looked at it"),
        ("bad_request", "until its operator has looked at it"),
        ("out_of_credit", "until its operator has looked at it"),
        ("context_length", "a shorter one, or a new conversation"),
        ("refused", "in other words"),
    ],
)
async def test_a_user_is_told_to_try_again_only_where_that_may_help(tmp_path: Path, reason: ProviderReason, words: str) -> None:
    def fail(request: PromptRequest) -> Mapping[str, Any]:
        if request.wo_type == "classify":
            return QUESTION
        raise ProviderError("scripted", reason, "no reply")

    async with open_scripted(tmp_path, ScriptedProvider(fail), lane=LANE) as runtime:
        result = await runtime.supervisor().handle_turn("hello")
    assert result.error is not None
    assert (result.error.kind, "no reply" in result.error.message) == ("PROVIDER", True)
    assert words in result.response
    assert "Your message is recorded" in result.response
    may_pass = reason in RETRYABLE_REASONS and reason != "out_of_credit"
    assert ("please try again" in result.response) == may_pass
    assert ("could not reach" in result.response) == (reason in ("connection", "server_error"))
    report = await replay_session(result.session_id, config=scripted_config(tmp_path, lane=LANE, tools=("*",)))
    assert report.is_identical
