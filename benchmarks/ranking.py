"""Measures one ranking of a long history with everything on: names before what is said, speakers, other sessions, vectors.

What is said comes from conversations (`conversations.py` says which), again and again until there are enough turns, each with
the name of its speaker before it, as a program relays it. The vectors are made up, from a fixed seed, as long as those of a
small model; what a model needs for a message is not measured. Times are CPU time of the thread, since machines are shared.

    python -m benchmarks.ranking --data locomo10.json
    python -m benchmarks.ranking --data chats.json --turns 2000 --questions 50

A turn is a message and a reply. With `--json` the last line of stdout is one JSON object.
"""

import argparse
import itertools
import json
import random
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import median

from benchmarks.shared.conversations import Conversation, read_conversations
from kitchener import HO2Config
from kitchener.actors.authority.agent_ruleset import ruleset_of
from kitchener.actors.authority.ranking import TurnWords, words_under
from kitchener.actors.similarity.embedding_comparer import SCORED
from kitchener.actors.similarity.matrix import VectorMatrix
from kitchener.actors.similarity.vectors import Vector, unit_vector
from kitchener.config import EmbeddingsConfig
from kitchener.context import Item, Ruleset, estimator, evidence_item
from kitchener.records.embedding import Similarity
from kitchener.records.ref import Ref

DIMENSIONS = 256


def said(conversations: list[Conversation]) -> Iterator[Item]:
    """What is said, as evidence, without an end."""
    estimate, number = estimator("chars/4"), 0
    for again in itertools.count():
        for n, session in enumerate(each for conversation in conversations for each in conversation.sessions):
            for each in session:
                number += 1
                text, at = f"{(each.speaker or each.role).title()}: {each.text}", each.at.isoformat()
                yield evidence_item(str(number), Ref("HO2M", f"E-{number}", ""), at, text, estimate, session_id=f"{again}.{n}")


def made_up(source: random.Random) -> Vector:
    """A vector without a meaning."""
    return unit_vector([source.gauss(0, 1) for _ in range(DIMENSIONS)])


def rank(words: TurnWords, vectors: VectorMatrix, asked: Vector, question: str, ruleset: Ruleset) -> None:
    """One ranking, as a turn makes it."""
    config, among = EmbeddingsConfig(), len(words.turns)
    scores = vectors.scores(asked, among, SCORED)
    named = {words.turns[n].ref.entry_id: score for n, score in scores.items()}
    similar = Similarity("made-up", config.weight, named, 0)
    wanted = ruleset.context_budget * among // words.tokens(among)
    ranked = words.rank(question, wanted, among, similar)
    for _ in words.matched(ranked, similar):
        pass


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--data", type=Path, required=True, help="the conversations, a JSON file")
    parser.add_argument("--turns", type=int, default=20_000, help="turns of the subject")
    parser.add_argument("--questions", type=int, default=200, help="rankings that are measured")
    parser.add_argument("--json", action="store_true", help="print one JSON object as the last line")
    arguments = parser.parse_args()
    conversations, source = list(read_conversations(arguments.data)), random.Random(7)
    ruleset = ruleset_of(HO2Config(ho3_enabled=True))
    words = words_under(ruleset)
    for item in itertools.islice(said(conversations), 2 * arguments.turns):
        words.note(item)
    known = [made_up(source) for _ in range(1_000)]
    vectors = VectorMatrix(EmbeddingsConfig().max_cached)
    for position in range(len(words.turns)):
        vectors.put(position, source.choice(known))
    questions = [each.text for conversation in conversations for each in conversation.questions]
    rank(words, vectors, known[0], "first, the index is built", ruleset)
    times = []
    for question in itertools.islice(itertools.cycle(source.sample(questions, len(questions))), arguments.questions):
        asked, began = made_up(source), time.thread_time()
        rank(words, vectors, asked, question, ruleset)
        times.append(1e3 * (time.thread_time() - began))
    times.sort()
    report = {
        "turns": arguments.turns,
        "rankings": len(times),
        "median_ms": round(median(times), 2),
        "p95_ms": round(times[int(0.95 * (len(times) - 1))], 2),
    }
    print("{turns} turns, {rankings} rankings: {median_ms} ms median, {p95_ms} ms p95".format(**report))
    if arguments.json:
        print(json.dumps(report))


if __name__ == "__main__":
    main()
