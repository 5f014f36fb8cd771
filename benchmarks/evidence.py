"""Measures what is shown: are the turns that a question needs in the context that a budget admits?

The data is the public LoCoMo set (`locomo10.json`, CC BY-NC 4.0; fetch it yourself, it is not part of this project), or a
file with the same turns in a simpler form: `sessions`, each with `date` and `turns`. Each conversation is one subject's whole
history, and each question is asked in a new session. No model, no network; the same data gives the same shares.

    python benchmarks/evidence.py --data locomo10.json
    python benchmarks/evidence.py --data locomo10.json --budgets 1000,4000 --json

The share of a budget counts questions whose marked evidence turns are ALL visible, word for word, in the projection that the
product makes of them at that budget (4 characters a token). Times are CPU time of this
process, since machines are shared. With `--json` the last line of stdout is one JSON object.
"""

import argparse
import json
import re
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kitchener.context import ContextState, Item, Projector, Ruleset, estimator, evidence_item, make_event, resolve_active
from kitchener.context.lexical.index import LexicalIndex, LexicalTurn
from kitchener.records.ref import Ref

BUDGETS = (500, 1000, 2000, 4000)
CATEGORIES = {1: "multi-hop", 2: "temporal", 3: "open-domain", 4: "single-hop", 5: "adversarial"}
EVIDENCE_ID = re.compile(r"D:?(\d+):(\d+)")
CHARACTERS_PER_TOKEN = 4
SESSION, MOMENT = "SES-00000001", "2026-02-18T09:00:00.000000+00:00"


@dataclass(frozen=True, slots=True)
class Question:
    """One question of the data set."""

    text: str
    category: str
    evidence: frozenset[int]
    """Positions of the turns that the data set marks as needed."""


@dataclass(frozen=True, slots=True)
class Conversation:
    """The history of one subject, and what is asked about it."""

    name: str
    turns: list[LexicalTurn]
    questions: list[Question]


def sessions_of(raw: dict[str, Any]) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """Date text and turns of each session, in order, of either form of the data."""
    if "sessions" in raw:
        yield from ((session["date"] or "", session["turns"]) for session in raw["sessions"])
        return
    talk = raw["conversation"]
    for number in sorted(int(key[8:]) for key in talk if re.fullmatch(r"session_\d+", key)):
        yield talk.get(f"session_{number}_date_time", ""), talk[f"session_{number}"]


def read_conversations(path: Path) -> Iterator[Conversation]:
    """The conversations of a file; questions without marked evidence are left out."""
    for raw in json.loads(path.read_text(encoding="utf-8")):
        turns: list[LexicalTurn] = []
        places: dict[str, int] = {}
        for number, (date, said) in enumerate(sessions_of(raw), 1):
            for each in said:
                places[each["dia_id"]] = len(turns)
                caption = each.get("caption") or each.get("blip_caption")
                text = each["text"] + (f" [image: {caption}]" if caption else "")
                turns.append(LexicalTurn(text, f"session {number}", each["speaker"], date))
        questions = []
        for asked in raw["qa"]:
            ids = [f"D{int(a)}:{int(b)}" for item in asked["evidence"] for a, b in EVIDENCE_ID.findall(item)]
            if evidence := frozenset(places[each] for each in ids if each in places):
                questions.append(Question(asked["question"], CATEGORIES[asked["category"]], evidence))
        yield Conversation(raw["sample_id"], turns, questions)


class Shown:
    """What the product shows of a conversation at a budget: its own projection, with headers, separators and stubs.

    The one seam of this benchmark: whatever decides visibility from turns, their order and a budget can stand here. The whole
    conversation competes as recalled turns do, in a session that has only begun.
    """

    def __init__(self, turns: Sequence[LexicalTurn], budgets: Sequence[int]) -> None:
        rulesets = {budget: Ruleset(context_budget=budget, token_estimator="chars/4") for budget in budgets}
        self._order: Sequence[int] = ()
        self._projectors = {budget: Projector(each, rank=self._rank) for budget, each in rulesets.items()}
        estimate = estimator("chars/4")
        self._state = ContextState(estimate, SESSION)
        declared = make_event("INTENT_DECLARED", "INT-1", MOMENT, {"objective": "This conversation"}, Ref("HO2M", "E-0", ""))
        assert declared is not None
        self._state.apply(declared)
        self._items = [
            evidence_item(
                str(n), Ref("HO2M", f"E-{n:06d}", ""), MOMENT, f"{turn.speaker}: {turn.text}", estimate, session_id=turn.session
            )
            for n, turn in enumerate(turns)
        ]

    def visible(self, question: str, order: Sequence[int], budget: int) -> set[int]:
        """The positions that are visible when turns are admitted in this order."""
        self._order = order
        projector = self._projectors[budget]
        resolution = resolve_active(self._state, projector.ruleset)
        projection = projector.project(self._state, resolution, message=question, recalled=self._items)
        return {int(each.item.entity_id) for each in projection.placed if each.form == "FULL"}

    def _rank(self, message: str, items: Sequence[Item]) -> Sequence[int]:
        return self._order


Rank = Callable[[str, int], Sequence[int]]
"""A question, and how many turns are likely to be shown, to the order in which turns are admitted."""
Policy = Callable[[Sequence[LexicalTurn]], Rank]


def newest_first(turns: Sequence[LexicalTurn]) -> Rank:
    """The policy that asks nothing."""
    order = range(len(turns) - 1, -1, -1)
    return lambda question, wanted: order


def lexical(turns: Sequence[LexicalTurn]) -> Rank:
    """The policy that ranks by words; where there is room left, the newest come."""
    index = LexicalIndex(turns, postings=Ruleset().ranking_postings)

    def rank(question: str, wanted: int) -> Sequence[int]:
        found = index.rank(question, wanted=wanted).order
        return [*found, *sorted(set(range(len(turns))).difference(found), reverse=True)]

    return rank


POLICIES: dict[str, Policy] = {"newest_first": newest_first, "lexical": lexical}


def quantile(values: Sequence[float], share: float) -> float:
    """The value below which this share of the values lies."""
    return sorted(values)[min(len(values) - 1, int(share * len(values)))]


def share(rows: Sequence[tuple[str, str, dict[int, bool]]], budget: int) -> float:
    """Percent of questions of which all evidence is visible."""
    return round(100 * sum(found[budget] for _, _, found in rows) / len(rows), 1)


def measure(policy: Policy, conversations: Sequence[Conversation], budgets: Sequence[int]) -> dict[str, Any]:
    """Shares per group of questions and budget, and times."""
    rows: list[tuple[str, str, dict[int, bool]]] = []
    rank_ms: list[float] = []
    append_us: list[float] = []
    for conversation in conversations:
        began = time.thread_time()
        rank = policy(conversation.turns)
        append_us.append((time.thread_time() - began) * 1e6 / len(conversation.turns))
        shown = Shown(conversation.turns, budgets)
        tokens = sum(len(turn.text) for turn in conversation.turns) / CHARACTERS_PER_TOKEN / len(conversation.turns)
        for question in conversation.questions:
            found = {}
            for budget in budgets:
                began = time.thread_time()
                order = rank(question.text, int(budget / tokens))
                rank_ms.append((time.thread_time() - began) * 1e3)
                found[budget] = question.evidence <= shown.visible(question.text, order, budget)
            rows.append((conversation.name, question.category, found))
    groups = {"overall": rows}
    groups |= {name: part for name in CATEGORIES.values() if (part := [row for row in rows if row[1] == name])}
    return {
        "shares": {name: {str(budget): share(part, budget) for budget in budgets} for name, part in groups.items()},
        "questions": {name: len(part) for name, part in groups.items()},
        "by_conversation": {
            each.name: {str(budget): share(part, budget) for budget in budgets}
            for each in conversations
            if (part := [row for row in rows if row[0] == each.name])
        },
        "rank_ms": {"median": round(statistics.median(rank_ms), 3), "p95": round(quantile(rank_ms, 0.95), 3)},
        "append_us": round(statistics.mean(append_us), 1),
    }


def print_table(name: str, figures: dict[str, Any]) -> None:
    """One policy's figures for people."""
    times = figures["rank_ms"]
    print(
        f"{name}: {times['median']:.2f} ms median, {times['p95']:.2f} ms p95 a ranking, {figures['append_us']:.0f} µs an append"
    )
    for group, shares in figures["shares"].items():
        cells = "  ".join(f"@{budget}: {value:5.1f} %" for budget, value in shares.items())
        print(f"  {group:<12} {figures['questions'][group]:>5} questions  {cells}")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--data", type=Path, required=True, help="the data set, a JSON file")
    parser.add_argument("--budgets", default=",".join(map(str, BUDGETS)), help="tokens, separated by commas")
    parser.add_argument("--json", action="store_true", help="print one JSON object as the last line")
    arguments = parser.parse_args()
    try:
        budgets = [int(each) for each in arguments.budgets.split(",")]
    except ValueError:
        parser.error(f"--budgets must be whole numbers separated by commas, not {arguments.budgets!r}")
    try:
        conversations = list(read_conversations(arguments.data))
    except OSError as error:
        sys.exit(f"cannot read {str(arguments.data)!r}: {error.strerror}; give the path of the data set with --data")
    except (KeyError, TypeError, ValueError) as error:
        sys.exit(f"{str(arguments.data)!r} is not in a form of the LoCoMo data: {error!r}; see the head of this program")
    if not any(conversation.questions for conversation in conversations):
        sys.exit(f"{str(arguments.data)!r} holds no question with marked evidence; give the LoCoMo data with --data")
    report = {name: measure(policy, conversations, budgets) for name, policy in POLICIES.items()}
    for name, figures in report.items():
        print_table(name, figures)
    if arguments.json:
        print(json.dumps({"budgets": budgets, "policies": report}))


if __name__ == "__main__":
    main()
