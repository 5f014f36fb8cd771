"""Another policy over recorded sessions: what would have been shown, with no model call."""

from pathlib import Path
from typing import Any

import pytest

from kitchener.config import RuntimeConfig
from kitchener.replaying import WhatIfReport, open_what_if, replay_session, summary_of, summary_text
from kitchener.runtime import open_runtime
from tests.acceptance.stack import QUICK
from tests.replay.shared.recorded_sessions import MESSAGES, TOOLS, record
from tests.replay.test_replay_diverges import ENFORCE, LEARNING, changed
from tests.replay.test_replay_identical import MODES, files


async def compared(config: RuntimeConfig, session_id: str, **admin: Any) -> WhatIfReport:
    async with open_what_if(config, changed(config, **admin), "ADMIN", tools=TOOLS) as what_if:
        return await what_if.compare(session_id)


@pytest.mark.parametrize("mode", MODES, ids=["off", "shadow", "bridge", "classified"])
@pytest.mark.parametrize("count", [3, pytest.param(len(MESSAGES), id="all", marks=pytest.mark.soak)])
async def test_same_policy_shows_the_same(tmp_path: Path, mode: dict[str, Any], count: int) -> None:
    """And that is what was recorded: the same items in each turn."""
    config, sessions = await record(tmp_path, MESSAGES[:count], sessions=2, standing_rules=("Be brief.",), **mode, **LEARNING)
    before = files(tmp_path)
    for session_id in sessions:
        report = await compared(config, session_id)
        assert report.changed == ()
        replayed = await replay_session(session_id, config=config, tools=TOOLS)
        assert {each.turn_id: set(each.recorded.items) for each in report.turns} == {
            turn: set(items) for turn, items in replayed.visible.items()
        }
    assert files(tmp_path) == before


async def test_fewer_turns(tmp_path: Path) -> None:
    """A smaller budget takes turns out of sight, and says which and why."""
    config, (session_id,) = await record(tmp_path, [f"message {n} " + "x" * 90 for n in range(8)], **ENFORCE)
    report = await compared(config, session_id, context_budget=220)
    last = report.turns[-1]
    assert last.went_out
    assert last.came_in == ()
    assert last.other.tokens < last.recorded.tokens
    assert all(any(each.startswith(f"{gone} ") for each in last.other.suppressed) for gone in last.went_out)
    assert f"    - {last.went_out[0]}" in report.text()
    assert summary_of([report])["changed"] == len(report.changed) > 0


async def test_authority_over_a_session_that_had_none(tmp_path: Path) -> None:
    """The intents that the policy would have made accumulate: the new thread hides the turns before it."""
    config, (session_id,) = await record(tmp_path)
    report = await compared(config, session_id, **ENFORCE, recent_turns=0)  # else the newest are shown whatever their intent
    third, fourth = report.turns[2:4]
    first_two = tuple(f"T-{session_id[4:]}-{n:06d}" for n in (1, 2))
    assert set(first_two) <= set(third.recorded.items)
    assert not set(first_two) & set(third.other.items)
    assert f"T-{session_id[4:]}-000003" in fourth.other.items
    assert any(each.startswith("INT-") for each in fourth.came_in)


async def test_authority_taken_away(tmp_path: Path) -> None:
    """Without it, the newest turns are shown whatever their thread."""
    config, (session_id,) = await record(tmp_path, **ENFORCE, recent_turns=0)
    report = await compared(config, session_id, context_mode="off", recent_turns=6)
    assert f"T-{session_id[4:]}-000001" in report.turns[2].came_in


async def test_summary_over_sessions(tmp_path: Path) -> None:
    """Tokens, and the part of them that a provider's cache could keep from turn to turn."""
    config, sessions = await record(tmp_path, sessions=3)
    async with open_what_if(config, changed(config, recent_turns=1, attention_matches=0), "ADMIN", tools=TOOLS) as what_if:
        assert await what_if.sessions() == sessions
        reports = [await what_if.compare(each) for each in sessions]
    found = summary_of(reports)
    assert (found["sessions"], found["turns"], found["changed"]) == (3, 3 * len(MESSAGES), 9)
    assert 0 < found["other"]["tokens"] < found["recorded"]["tokens"]
    assert found["other"]["prefix_tokens"] < found["recorded"]["prefix_tokens"]


async def test_erased_turns_are_said_to_be_erased(tmp_path: Path) -> None:
    """Nothing of them can be read, so they are neither the same nor changed; other sessions are compared as before."""
    ledger = QUICK.model_copy(update={"keyring": str(tmp_path / "keys")})
    config, (gone, kept) = await record(tmp_path / "root", sessions=2, ledger=ledger, **ENFORCE)
    whole = await compared(config, kept, context_budget=300)
    assert (whole.erased, whole.skipped) == (0, {})
    assert "erased" not in whole.text()
    async with open_runtime(config) as runtime:
        await runtime.erase_subject("ada")
    report = await compared(config, gone, context_budget=300)
    count = len(MESSAGES)
    assert (report.turns, report.erased, set(report.skipped.values())) == ((), count, {"erased"})
    assert report.text() == f"{gone}  {count} turns erased with their subject, so not comparable"
    assert (report.as_json()["erased"], summary_of([report])["erased"]) == (count, count)
    both = summary_of([report, whole])
    assert (both["turns"], both["erased"]) == (len(whole.turns), count)
    assert (both["sessions_changed"], both["sessions_unchanged"], both["sessions_not_comparable"]) == (0, 1, 1)
    assert summary_text([report, whole]).startswith("2 sessions: 0 changed, 1 unchanged, 1 not comparable; ")
    assert summary_text([report, whole]).endswith(f"; {count} turns erased with their subject, so not comparable")
    assert "erased" not in summary_text([whole])
