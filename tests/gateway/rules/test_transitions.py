"""The benchmark of the rules on whole dialogues, and dialogues about things that no table of the rules names."""

import json
import sys
from pathlib import Path

import pytest

from benchmarks import transitions
from kitchener.gateway.rules.vocabulary import TOPIC_OF_STEM, lower_words, singular

PLUMBER = [
    ("user", "I need a plumber for a leaking tap.", ""),
    ("system", "In which part of town?", ""),
    ("user", "In the old harbour.", "continue"),
    ("system", "Miller and Sons are near the harbour.", ""),
    ("user", "Do they come at weekends?", "continue"),
    ("system", "They do, for a surcharge.", ""),
    ("user", "Sounds fine. Could you also find me a locksmith?", "switch"),
    ("system", "There is Key Corner. Would you like to hear of another one?", ""),
    ("user", "No, what are their opening hours?", "continue"),
    ("system", "From eight to five. Would you be needing anything else?", ""),
    ("user", "No, thank you.", "close"),
]
SEEDS = [
    ("user", "Explain how tomatoes are pruned.", ""),
    ("system", "Break out the side shoots while they are small.", ""),
    ("user", "And when should they be watered?", "continue"),
    ("system", "In the morning. Shall I order a watering can?", ""),
    ("user", "Yes, please.", "switch"),
    ("system", "It is on its way.", ""),
    ("user", "Thanks for all of that. Bye for now!", "close"),
]


def written(path: Path, *dialogues: list[tuple[str, str, str]]) -> Path:
    lines = []
    for number, dialogue in enumerate(dialogues):
        turns = [{"speaker": who, "text": text, **({"relation": gold} if gold else {})} for who, text, gold in dialogue]
        lines.append(json.dumps({"services": [f"service-{number}"], "turns": turns}))
    path.write_text("\n".join(lines), encoding="utf-8")
    return path


def test_a_dialogue_about_things_that_no_table_names_is_followed() -> None:
    for dialogue in (PLUMBER, SEEDS):
        named = {word for _, text, _ in dialogue for word in lower_words(text) if singular(word) in TOPIC_OF_STEM}
        assert not named
        turns = [{"speaker": who, "text": text, **({"relation": gold} if gold else {})} for who, text, gold in dialogue]
        assert [case.decided for case in transitions.play(turns)] == [gold for *_, gold in dialogue if gold]


def test_the_benchmark_counts_what_is_right_and_what_is_not(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    wrong = [("user", "I need a plumber.", ""), ("system", "Here is one.", ""), ("user", "Thanks, bye.", "switch")]
    data = written(tmp_path / "dialogues.jsonl", PLUMBER, SEEDS, wrong)
    monkeypatch.setattr(sys, "argv", ["transitions.py", "--data", str(data), "--rules", "--json"])
    transitions.main()
    report = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert report["decisions"] == 9
    assert report["accuracy"] == pytest.approx(100 * 8 / 9, abs=0.1)
    assert (report["continue"], report["switch"], report["close"]) == (100.0, 80.0, 80.0)
    assert report["macro-F1"] == pytest.approx(260 / 3, abs=0.1)
    assert report["services"] == {"service-0": 100.0, "service-1": 100.0, "service-2": 0.0}
    assert report["rules"]["close: says that nothing more is wanted"] == {"decisions": 2, "right": 50}


def test_the_benchmark_leaves_out_dialogues_that_have_only_services_in_view(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    data = written(tmp_path / "dialogues.jsonl", PLUMBER, SEEDS)
    monkeypatch.setattr(sys, "argv", ["transitions.py", "--data", str(data), "--unless", "service-0", "--json"])
    transitions.main()
    assert json.loads(capsys.readouterr().out.splitlines()[-1])["decisions"] == 3
