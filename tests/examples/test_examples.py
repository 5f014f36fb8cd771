"""Every example runs as its docstring says, in a process of its own, and asserts its own outcome."""

import json
from pathlib import Path
from typing import Literal

import pytest
from starlette.testclient import TestClient

from tests.cli.shared.commands import finish, start_program

SCRIPTS = (
    "examples.hello_bot.main",
    "examples.admin_bot.main",
    "examples.companion_bot.main",
    "examples.custom_provider.main",
    "examples.file_assistant.main",
    "examples.git_historian.main",
    "examples.support_desk.main",
)

RUN = """
import runpy, sys, warnings

warnings.simplefilter("error")
sys.stdout.reconfigure(encoding=sys.argv.pop(1))
runpy.run_module(sys.argv.pop(1), run_name="__main__", alter_sys=True)
"""
"""An example as `python -W error -m` runs it, where standard output has the encoding of its first argument."""


def run(module: str, cwd: Path, encoding: str = "utf-8") -> str:
    """What an example prints; one that no longer holds exits non-zero."""
    done = finish(start_program(RUN, encoding, module, cwd=cwd))
    assert (done.code, done.err) == (0, "")
    return done.out


@pytest.mark.parametrize("module", SCRIPTS)
def test_example_runs_and_asserts_its_outcome(module: str, tmp_path: Path) -> None:
    assert run(module, tmp_path).strip()


@pytest.mark.parametrize(("encoding", "full"), [("utf-8", "█" * 20), ("ascii", "#" * 20)])
def test_demo_holds_and_is_readable_when_piped(tmp_path: Path, encoding: str, full: str) -> None:
    """Without a terminal no escape codes; without an encoding for blocks the bars are drawn with what there is."""
    shown = run("examples.demo", tmp_path, encoding)
    assert "\x1b" not in shown
    assert f"tool:garden_calendar  {full}  3/3 events" in shown
    assert "refused" in shown
    assert max(map(len, shown.splitlines())) <= 120


def test_web_app_answers_502_where_the_model_does_not_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from examples.web_app.app import app

    provider = '[router.providers.it]\nbase_url = "http://127.0.0.1:9/v1"\nmodel = "m"\nmax_retries = 0'
    (tmp_path / "kitchener.toml").write_text(f'[router]\ndefault_provider = "it"\n{provider}', encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("BOT_ROOT", str(tmp_path / "root"))
    with TestClient(app) as client:
        session_id = client.post("/sessions", json={}).json()["session_id"]
        answer = client.post(f"/sessions/{session_id}/messages", json={"message": "hello"})
    assert answer.status_code == 502
    assert answer.json()["error"]["kind"] == "PROVIDER"
    assert answer.json()["response"]


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
def test_web_app_serves_a_conversation(
    backend: Literal["asyncio", "trio"], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The app starts sessions, answers, repeats an answer for a repeated key, and says clearly what it refuses."""
    from examples.web_app.app import app

    monkeypatch.setenv("BOT_ROOT", str(tmp_path))
    with TestClient(app, backend=backend) as client:
        session_id = client.post("/sessions", json={"subject_id": "ada"}).json()["session_id"]
        messages = f"/sessions/{session_id}/messages"
        first = client.post(messages, json={"message": "hello"}, headers={"Idempotency-Key": "1"})
        again = client.post(messages, json={"message": "hello"}, headers={"Idempotency-Key": "1"})
        assert first.status_code == 200
        assert again.json() == first.json()
        other = client.post(messages, json={"message": "bye"}, headers={"Idempotency-Key": "1"})
        assert other.status_code == 400
        assert "belongs to turn" in other.json()["error"]
        assert client.post(messages, json={}).status_code == 400
        assert client.post(messages, content="not json").status_code == 400
        streamed = client.post(f"/sessions/{session_id}/stream", json={"message": "what can you do?"})
        lines = [line.removeprefix("data: ") for line in streamed.text.splitlines() if line.startswith("data: ")]
        *told, last = map(json.loads, lines)
        assert "".join(each["text"] for each in told) == last["answer"]["response"] != ""
        for path in ("messages", "stream"):
            missing = client.post(f"/sessions/SES-00000000/{path}", json={"message": "hello"})
            assert missing.status_code == 404
            assert "SES-00000000" in missing.json()["error"]
