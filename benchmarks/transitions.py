"""Measures the classifier by rules: how well does it tell that a message continues, switches or closes the user's goal?

The data is a file of dialogues, one JSON object a line (it is not part of this project): `services`, and `turns` with `speaker`
("user" or "system"), `text` and, on each later turn of the user, `relation`: `continue`, `switch` or `close`. The dialogues of
the public Schema-Guided Dialogue set (CC BY-SA 4.0) give such a file: the relation follows from the intents that the set marks.

    python benchmarks/transitions.py --data transitions.jsonl
    python benchmarks/transitions.py --data transitions.jsonl --rules --json

Each dialogue is played as a session would be: the goal is what the rules themselves made of the messages before, and `unclear`
continues it. No model, no network; the same data gives the same figures. `--rules` also lists each rule with its share of right
decisions. `--unless A,B` leaves out dialogues that have no service but these. `--without-topics` empties the table of topics,
which shows how the rules do where no table lists what is spoken of. With `--json` the last line of stdout is one JSON object.
"""

import argparse
import json
import time
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from kitchener.gateway.rules.classification import classify
from kitchener.gateway.rules.relation import RecentTurn, relation
from kitchener.gateway.rules.vocabulary import TOPIC_OF_STEM

LABELS = ("continue", "switch", "close")


class Case(NamedTuple):
    """One decision."""

    gold: str
    """The relation that the data marks."""
    decided: str
    """The relation of the rules; `continue` where they are unclear."""
    rule: str
    """The rule that decided."""


def play(turns: Sequence[dict[str, Any]]) -> Iterator[Case]:
    """The decisions of one dialogue. The goal follows from the decisions, as it does in a session."""
    recent: list[RecentTurn] = []
    objective: str | None = None
    for at, turn in enumerate(turns):
        if turn["speaker"] != "user":
            continue
        message = turn["text"]
        found = classify(message, active_objective=objective, recent_turns=recent)
        if "relation" in turn:
            decided = found["intent_relation"] if objective or found["intent_relation"] != "unclear" else "switch"
            yield Case(
                turn["relation"],
                "continue" if decided == "unclear" else decided,
                relation(message, recent, objective).reason,
            )
        match found["intent_relation"]:
            case "close":
                objective = None
            case "switch":
                objective = found.get("candidate_objective", message)
            case _:
                objective = objective or found.get("candidate_objective", message)
        answer = turns[at + 1]["text"] if at + 1 < len(turns) else ""
        recent.append({"user": message, "assistant": answer})


def scores(cases: Sequence[Case]) -> dict[str, float]:
    """Accuracy, the F1 of each relation, and their mean, in percent."""
    counts = Counter((case.gold, case.decided) for case in cases)
    found = {"accuracy": sum(counts[label, label] for label in LABELS) / max(1, len(cases))}
    for label in LABELS:
        named = sum(counts[gold, label] for gold in LABELS)
        marked = sum(counts[label, decided] for decided in LABELS)
        found[label] = 2 * counts[label, label] / max(1, named + marked)
    found["macro-F1"] = sum(found[label] for label in LABELS) / len(LABELS)
    return {name: round(100 * value, 1) for name, value in found.items()}


def by_rule(cases: Sequence[Case]) -> dict[str, dict[str, Any]]:
    """Each rule with the number of its decisions and the percentage of them that are right; the most frequent first."""
    made = Counter((case.decided, case.rule) for case in cases)
    right = Counter((case.decided, case.rule) for case in cases if case.gold == case.decided)
    return {
        f"{decided}: {rule}": {"decisions": count, "right": round(100 * right[decided, rule] / count)}
        for (decided, rule), count in made.most_common()
    }


def main() -> None:
    """Prints the scores of a file, and of each service in it."""
    args = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    args.add_argument("--data", type=Path, required=True, help="the dialogues, JSON lines")
    args.add_argument("--unless", default="", metavar="SERVICES", help="leave out dialogues with these services only")
    args.add_argument("--rules", action="store_true", help="also list the rules")
    args.add_argument("--without-topics", action="store_true", help="empty the table of topics")
    args.add_argument("--json", action="store_true", help="print one JSON object at the end")
    given = args.parse_args()
    if given.without_topics:
        TOPIC_OF_STEM.clear()
    known = {each for each in given.unless.split(",") if each}
    rows = [json.loads(line) for line in given.data.read_text(encoding="utf-8").splitlines()]
    rows = [row for row in rows if not known or not known.issuperset(row["services"])]
    services: dict[str, list[Case]] = defaultdict(list)
    cases: list[Case] = []
    start = time.process_time()
    for row in rows:
        made = list(play(row["turns"]))
        cases += made
        for service in row["services"]:
            services[service] += made
    micros = (time.process_time() - start) / max(1, len(cases)) * 1e6
    report: dict[str, Any] = {"decisions": len(cases), "microseconds": round(micros), **scores(cases)}
    print(" ", *(f"{name} {value}" for name, value in report.items()), sep="  ")
    report["services"] = {name: scores(made)["macro-F1"] for name, made in sorted(services.items())}
    for name, value in report["services"].items():
        print(f"  {value:5}  {name}")
    if given.rules:
        report["rules"] = by_rule(cases)
        for name, rule in report["rules"].items():
            print(f"  {rule['decisions']:5}  {rule['right']:3} % right  {name}")
    if given.json:
        print(json.dumps(report))


if __name__ == "__main__":
    main()
