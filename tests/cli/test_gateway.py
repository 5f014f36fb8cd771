"""`kitchener gateway what-if`: recorded model calls under another router (docs/commands.md)."""

from pathlib import Path

import pytest

from tests.cli.conftest import Cli
from tests.cli.memory.gates import ASK, Gate
from tests.cli.memory.memories import is_one_line
from tests.cli.shared.commands import finish, start
from tests.replay.test_replay_identical import files

OTHER = """
[router]
default_provider = "local"
[router.providers.local]
base_url = "http://127.0.0.1:8080/v1"
model = "qwen3-8b"
[router.domain_tag_routes]
consolidation = { provider_id = "offline" }
[router.prices.qwen3-8b]
input_per_million = 0.1
output_per_million = 0.4
"""


@pytest.fixture
def other(taught: Cli, tmp_path: Path) -> Cli:
    """The command line, beside recorded sessions and the settings of another router."""
    (tmp_path / "other.toml").write_text(OTHER, encoding="utf-8")
    return taught


def test_each_way_is_a_row_and_the_sums_follow(other: Cli, tmp_path: Path) -> None:
    """Ada and Bo took fourteen turns of two calls each, and four lines were learned."""
    before = files(tmp_path)
    outcome = other("gateway", "what-if", "--with-config", "other.toml")
    assert (outcome.code, outcome.err) == (0, "")
    assert files(tmp_path) == before
    lines = outcome.out.splitlines()
    assert lines[0] == "ADMIN: 28 of 32 recorded model calls would have gone elsewhere"
    assert lines[1].split() == [
        *("·", "recorded", "other", "calls", "input", "tokens", "output", "tokens", "cost", "would", "cost")
    ]
    assert lines[2].startswith(">  offline/offline-rules-1 (default)  local/qwen3-8b (default)  ")
    assert lines[3].startswith("   offline/offline-rules-1 (default)  offline/offline-rules-1 (domain_tag:consolidation)")
    assert lines[4] == "fallbacks 0 → 0 (0 more, 0 fewer); failed calls 0 → 0"
    assert lines[5] == "28 calls go to a provider without a recorded attempt, which is assumed to answer"
    assert lines[6].startswith("cost 0.00 → 0.0")
    assert lines[-1].startswith("given the same requests, and the failures on record")


def test_one_session_and_each_call_that_changes(other: Cli) -> None:
    session = str(other("session", "list", "--agent", "RESIDENT:solo", "--json").json[0]["session_id"])
    outcome = other("gateway", "what-if", "--with-config", "other.toml", "--session", session, "--changed")
    assert outcome.code == 0
    assert outcome.out.startswith("RESIDENT:solo: 4 of 4 recorded model calls")
    told = [line for line in outcome.out.splitlines() if line.startswith("  T-")]
    assert len(told) == 4
    assert (
        f"  T-{session[4:]}-000001  WO-{session}-001 classify 1: offline/offline-rules-1 (default) → local/qwen3-8b" in told[0]
    )


def test_json_has_every_call_or_only_those_that_change(other: Cli) -> None:
    found = other("gateway", "what-if", "--with-config", "other.toml", "--json").json
    assert (found["agent_class"], found["session_id"], found["given"]) == ("ADMIN", None, "the same requests")
    assert (found["summary"]["calls"], found["summary"]["changed"], len(found["calls"])) == (32, 28, 32)
    assert found["summary"]["fallbacks"] == {"recorded": 0, "other": 0, "gained": 0, "lost": 0}
    cost = found["summary"]["cost"]
    tokens = found["routes"][0]
    expected = (tokens["input_tokens"] * 0.1 + tokens["output_tokens"] * 0.4) / 1e6
    assert (cost["recorded"], cost["other"]) == (0.0, pytest.approx(expected))
    assert cost["unpriced_calls"] == 0
    learned = [each for each in found["calls"] if each["wo_type"] == "consolidate"]
    assert {each["other"]["route_reason"] for each in learned} == {"domain_tag:consolidation"}
    assert not any(each["changed"] for each in learned)
    only = other("gateway", "what-if", "--with-config", "other.toml", "--changed", "--json").json
    assert len(only["calls"]) == 28


def test_the_same_router_changes_nothing_and_shows_no_costs(other: Cli) -> None:
    outcome = other("gateway", "what-if", "--with-config", "kitchener.toml")
    assert outcome.out.splitlines()[0] == "ADMIN: 0 of 32 recorded model calls would have gone elsewhere"
    assert "cost" not in outcome.out


def test_models_and_tags_of_an_agent_class_are_asked_for(other: Cli, tmp_path: Path) -> None:
    """The table of the class replaces what its work orders asked for."""
    route = '[router.domain_tag_routes]\nconsolidation = { provider_id = "offline" }\n'
    assert route.splitlines()[1] in OTHER
    models = '[agents.ADMIN]\ndomain_tags = ["office"]\n[agents.ADMIN.models]\nclassification = { provider = "offline" }\n'
    (tmp_path / "models.toml").write_text(OTHER.replace("consolidation =", "office =") + models, encoding="utf-8")
    calls = other("gateway", "what-if", "--with-config", "models.toml", "--json").json["calls"]
    asked = {(each["wo_type"], each["other"]["provider_id"], each["other"]["route_reason"]) for each in calls}
    assert asked == {
        ("classify", "offline", "explicit"),
        ("synthesize", "offline", "domain_tag:office"),
        ("consolidate", "offline", "domain_tag:office"),
    }
    (tmp_path / "none.toml").write_text(OTHER + "[agents.ADMIN.models]\n", encoding="utf-8")
    calls = other("gateway", "what-if", "--with-config", "none.toml", "--json").json["calls"]
    assert {each["other"]["route_reason"] for each in calls} == {"default", "domain_tag:consolidation"}


def test_a_model_without_a_price_is_told(other: Cli, tmp_path: Path) -> None:
    text = OTHER.replace("[router.prices.qwen3-8b]", "[router.prices.another]")
    (tmp_path / "unpriced.toml").write_text(text, encoding="utf-8")
    outcome = other("gateway", "what-if", "--with-config", "unpriced.toml")
    assert '28 calls without a known price are in neither sum; see [router.prices."<model>"]' in outcome.out


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            "[router]\ndefault_providr = 'x'\n",
            "router.default_providr: unknown key; the closest known one is 'default_provider'",
        ),
        ("[router]\ndefault_provider = 'x'\n", "router.default_provider = 'x': no such provider; there are: offline"),
        ("[router.prices.m]\ninput_per_million = -1\noutput_per_million = 1\n", "router.prices.m.input_per_million = -1"),
        ("[router\n", "not valid TOML"),
    ],
)
def test_settings_that_are_wrong_are_named(other: Cli, tmp_path: Path, text: str, expected: str) -> None:
    (tmp_path / "wrong.toml").write_text(text, encoding="utf-8")
    outcome = other("gateway", "what-if", "--with-config", "wrong.toml")
    assert is_one_line(outcome, 2)
    assert expected in outcome.err


def test_wrong_usage_and_what_is_not_on_record(other: Cli) -> None:
    assert other("gateway", "what-if").code == 2
    assert is_one_line(other("gateway", "what-if", "--with-config", "none.toml"), 2)
    for session in ("SES-00000000", "CONS-0000000000000000"):
        outcome = other("gateway", "what-if", "--with-config", "other.toml", "--session", session)
        assert is_one_line(outcome, 1)
        assert f"session {session!r}" in outcome.err
    assert is_one_line(other("gateway", "what-if", "--with-config", "other.toml", "--session", "one"), 2)
    nobody = other("gateway", "what-if", "--with-config", "other.toml", "--agent", "RESIDENT:nobody")
    assert is_one_line(nobody, 1)
    assert "--agent 'RESIDENT:nobody' is neither configured nor on record" in nobody.err


def test_a_damaged_ledger_exits_with_6(other: Cli, tmp_path: Path) -> None:
    file = tmp_path / ".kitchener" / "HO1" / "ADMIN" / "ho1m.jsonl"
    file.write_bytes(file.read_bytes().replace(b'"call":1', b'"call":2', 1))
    outcome = other("gateway", "what-if", "--with-config", "other.toml")
    assert (outcome.code, outcome.out) == (6, "")
    assert "ho1m.jsonl" in outcome.err


def test_all_three_read_beside_a_process_that_writes(cli: Cli, tmp_path: Path) -> None:
    gate = Gate(tmp_path)
    path = tmp_path / "kitchener.toml"
    path.write_text(path.read_text(encoding="utf-8").replace("[agents.ADMIN]\n", "[agents.ADMIN]\nho3_enabled = true\n"))
    gate.remove()
    assert cli("chat", "--subject", "ada", stdin=b"hello").code == 0
    session = str(cli("session", "list", "--json").json[0]["session_id"])
    gate = Gate(tmp_path)
    path.write_text(path.read_text(encoding="utf-8").replace("[agents.ADMIN]\n", "[agents.ADMIN]\nho3_enabled = true\n"))
    running = start("chat", "--subject", "ada", cwd=tmp_path)
    assert running.stdin is not None
    running.stdin.write(f"{ASK}\n")
    running.stdin.flush()
    gate.wait_until_reached(running)
    assert cli("memory", "tune").code == 0
    assert cli("memory", "bisect", "--session", session).code == 1
    assert cli("gateway", "what-if", "--with-config", "kitchener.toml").code == 0
    gate.let_pass()
    assert finish(running).code == 0
