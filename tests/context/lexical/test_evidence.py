"""The benchmark of evidence plays conversations through a real runtime and reads what was shown from the record."""

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks import assistant_chats, evidence
from tests.context.lexical.test_lexical import FILLER


def measured(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, Any]:
    """The report that the benchmark prints last."""
    monkeypatch.setattr(sys, "argv", ["evidence.py", *arguments, "--json"])
    evidence.main()
    report: dict[str, Any] = json.loads(capsys.readouterr().out.splitlines()[-1])
    return report


def test_two_friends_are_played_through_the_runtime(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = ("My flute broke.", "Oh no!", *FILLER * 8)
    told = [
        {"dia_id": f"D1:{number}", "speaker": ("Ada", "Ben")[number % 2], "text": text} for number, text in enumerate(lines)
    ]
    asked = [{"question": "What broke?", "category": 4, "evidence": ["D1:0"]}, {"question": "?", "category": 1, "evidence": []}]
    data = tmp_path / "talk.json"
    talk = {"session_1": told, "session_1_date_time": "1:56 pm on 8 May, 2024"}
    data.write_text(json.dumps([{"sample_id": "one", "conversation": talk, "qa": asked}]))
    report = measured(monkeypatch, capsys, "--data", str(data), "--budgets", "10,80", "--policies", "newest_first,lexical")
    assert report["running"]["shares"] == {"overall": {"10": 0.0, "80": 100.0}, "single-hop": {"10": 0.0, "80": 100.0}}
    assert report["lexical"]["shares"]["overall"]["80"] == 100.0
    assert report["newest_first"]["shares"]["overall"]["80"] == 0.0


def test_a_talk_of_years_ago_keeps_its_dates(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Only its date leads to what the second question asks for, and the third one asks for the date that is shown."""
    told = [{"role": "user", "content": "My flute broke."}, {"role": "assistant", "content": "A pity."}]
    filler = [[{"role": "user", "content": text, "time": f"2019-04-{n:02}T10:00:00Z"}] for n, text in enumerate(FILLER, 1)]
    asked = {
        "flute": ("What broke?", "[Mon 2019-04-08] user: My flute broke."),
        "day": ("What happened on 8 April 2019?", "user: My flute broke."),
        "other day": ("What happened on 9 April 2019?", "user: The weather was grey."),
    }
    sessions = [*filler, [{**each, "time": "2019-04-08T09:30:00+00:00"} for each in told]]
    questions = [
        {"question": question, "category": name, "evidence": [{"position": 0 if name == "other day" else 5, "passage": shown}]}
        for name, (question, shown) in asked.items()
    ]
    data = tmp_path / "chats.json"
    data.write_text(json.dumps([{"id": "one", "sessions": sessions, "questions": questions}]))
    shares = measured(monkeypatch, capsys, "--data", str(data), "--budgets", "60")["running"]["shares"]
    assert {name: share["60"] for name, share in shares.items() if name in asked} == {
        "flute": 100.0,
        "day": 100.0,
        "other day": 0.0,
    }


def test_a_passage_must_be_in_the_prompt_word_for_word(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    session = [{"role": "user", "content": "My flute broke."}, {"role": "assistant", "content": "A pity."}]
    questions = [
        {"question": "What broke?", "category": category, "evidence": evidence}
        for category, evidence in (
            ("whole", [0, 1]),
            ("passage", [{"position": 0, "passage": "flute broke"}]),
            ("other", [{"position": 0, "passage": "drum broke"}]),
        )
    ]
    data = tmp_path / "chats.json"
    data.write_text(json.dumps([{"id": "one", "sessions": [session], "questions": questions}]))
    shares = measured(monkeypatch, capsys, "--data", str(data), "--budgets", "1000")["running"]["shares"]
    assert {name: share["1000"] for name, share in shares.items() if name != "overall"} == {
        "whole": 100.0,
        "passage": 100.0,
        "other": 0.0,
    }


def test_chats_with_long_replies_are_written_alike_from_the_same_seed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    dialogues = [
        {
            "turns": [
                {"speaker": "user", "text": f"Please book flight number {n}42 from Berlin airport to Lisbon harbour."},
                {"speaker": "system", "text": f"Flight {n}42 leaves Berlin airport at {n}:15 and costs {n}99 dollars."},
            ]
            * 5
        }
        for n in range(30)
    ]
    source, made = tmp_path / "dialogues.jsonl", []
    source.write_text("\n".join(json.dumps(each) for each in dialogues))
    for name in ("one.json", "two.json"):
        monkeypatch.setattr(sys, "argv", ["assistant_chats.py", "--data", str(source), "-o", str(tmp_path / name)])
        assistant_chats.main()
        made.append((tmp_path / name).read_text())
    assert made[0] == made[1]
    (chat,) = json.loads(made[0])
    replies = [each["content"] for session in chat["sessions"] for each in session if each["role"] == "assistant"]
    assert all(200 <= len(each.split()) <= 640 for each in replies)
    messages = [each["content"] for session in chat["sessions"] for each in session]
    for question in chat["questions"]:
        for wanted in question["evidence"]:
            assert wanted["passage"] in messages[wanted["position"]]


def test_the_benchmark_names_data_that_it_cannot_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, content in (("missing", None), ("broken", "{"), ("foreign", '[{"a": 1}]'), ("empty", "[]")):
        if content is not None:
            (tmp_path / name).write_text(content)
        monkeypatch.setattr(sys, "argv", ["evidence.py", "--data", str(tmp_path / name)])
        with pytest.raises(SystemExit, match=name):
            evidence.main()
