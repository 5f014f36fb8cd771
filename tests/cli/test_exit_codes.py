"""A command that was given an id says with its exit code: 1 nothing of this name is on record, 2 nothing can have this name.

As `docs/commands.md` has it, the same for every kind of id and every command. An intent that was never declared and is to be
closed is an entry that cannot follow, which is 4.
"""

import json
import re
from pathlib import Path

import pytest

from tests.cli.conftest import Cli
from tests.cli.context.contexts import HO2M
from tests.cli.memory.memories import OVERLAYS, SETTINGS, is_one_line
from tests.cli.shared.permissions import deny

NOT_KNOWN = "SES-00000000"
NO_TURN = "T-00000000-000001"
REASON = ("--reason", "x")

TABLE = [
    # Sessions: those that no agent class knows, and what is no session id.
    *((command, 1, NOT_KNOWN) for command in (
        "session show {}", "session end {}", "session repair {}", "context project --session {}", "context shadow --session {}",
        "intent list --session {}", "intent declare x --session {}", "intent close INT-0 --session {}", "replay --session {}",
        "gateway what-if --with-config kitchener.toml --session {}", "chat --session {}", "memory bisect --session {}",
    )),
    *((command, 2, "SES-x") for command in (
        "session show {}", "session end {}", "session repair {}", "context project --session {}", "context shadow --session {}",
        "intent list --session {}", "intent declare x --session {}", "intent close INT-0 --session {}", "replay --session {}",
        "gateway what-if --with-config kitchener.toml --session {}", "chat --session {}", "memory bisect --session {}",
    )),
    # Turns: of a session that is not known, beyond the last one of a session that is, and what is no turn id.
    *((command, 1, NO_TURN) for command in (
        "context explain --turn {}", "context diff {} {}", "ledger proof {}", "memory bisect --bad {}",
        "context explain {} --html",
    )),
    *((command, 1, "{turn}") for command in (
        "context explain --turn {}", "context diff {} {}", "ledger proof {}", "memory bisect --bad {}",
    )),
    *((command, 2, "T-1") for command in (
        "context explain --turn {}", "context diff {} {}", "ledger proof {}", "memory bisect --bad {}",
    )),
    # Entries and intents.
    ("session repair {session} --reason x --void {}", 1, "E-none"),
    ("context project --session {session} --intent {}", 1, "INT-0"),
    *((f"intent {command} {where}", 4, "INT-0") for where in ("", "--session {session}") for command in (
        "close {}", "abandon {} --reason x", "reopen {} --reason x", "fork {} x",
    )),
    ("intent declare x --session {session} --parent {}", 4, "INT-0"),
    # What was learned, of whom, and from what.
    *((command, 1, "ART-000000000000") for command in (
        "memory explain {}", "memory deactivate {} --reason x", "memory explain {} --subject ada",
        "memory explain {artifact} --subject {}", "memory explain {artifact} --agent RESIDENT:{}",
    )),
    *((f"memory quarantine {{}} --reason x {more}", 1, "intent:nothing") for more in ("", "--subject ada")),
    ("memory quarantine intent:question --reason x --subject {}", 1, "eve"),
    ("memory quarantine {} --reason x", 1, "EVT-0000000000000000"),
    ("memory quarantine {} --reason x", 2, "mood:sad"),
    ("memory explain {}", 2, "{artifact}"),  # of two subjects, of whom one has to be chosen
    ("memory tune --subject {}", 1, "eve"),
    ("ledger tail ho2m --agent {}", 2, "BOSS"),
]  # fmt: skip


@pytest.fixture(scope="module")
def known(memory_root: Path) -> dict[str, str]:
    """A session and an artifact of two subjects, which are on record in that root, and a turn that is not."""
    session = re.findall(r"SES-[0-9a-f]{8}", (memory_root / HO2M).read_text(encoding="utf-8"))[0]
    overlay = json.loads((memory_root / OVERLAYS).read_text(encoding="utf-8").splitlines()[0])
    artifact = overlay["entry"]["payload"]["artifact_id"]
    return {"session": session, "turn": f"T-{session[4:]}-000099", "artifact": artifact}


@pytest.mark.parametrize(("command", "code", "name"), TABLE, ids=[f"{code} {line} {name}" for line, code, name in TABLE])
def test_the_exit_code_says_whether_a_name_is_unknown_or_wrong(
    taught: Cli, known: dict[str, str], tmp_path: Path, command: str, code: int, name: str
) -> None:
    Path("kitchener.toml").write_text(SETTINGS.replace("[agents.ADMIN]", '[agents.ADMIN]\ncontext_mode = "enforce"'))
    before = (tmp_path / HO2M).stat().st_size
    words = [word.replace("{}", name).format(**known) for word in command.split()]
    outcome = taught(*words)
    assert is_one_line(outcome, code), (words, outcome)
    added = (tmp_path / HO2M).read_bytes()[before:].splitlines()
    written = {json.loads(line)["entry"]["entry_type"] for line in added}
    # A session that is older than the Authority gets its intent by the first call that asks for one.
    assert written - {"SOURCE_RECORDED"} <= ({"INTENT_DECLARED"} if code == 4 else set())


@pytest.mark.parametrize(
    "place", [".kitchener/HO2/ADMIN/ho2m.jsonl", ".kitchener/index", ".kitchener.keys/erasing", ".kitchener.keys/batches"]
)
@pytest.mark.parametrize("command", ["session show last", "chat --subject ada"])
def test_a_missing_permission_is_wrong_usage_for_every_kind_of_file(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str, command: str
) -> None:
    assert cli("chat", "--subject", "ada", stdin=b"hello\n").code == 0
    deny(monkeypatch, tmp_path / place, "open", "stat")
    outcome = cli(*command.split(), stdin=b"hello\n")
    assert is_one_line(outcome, 2)
    assert "permission denied" in outcome.err.casefold()
    assert place in outcome.err or "keys" in place
