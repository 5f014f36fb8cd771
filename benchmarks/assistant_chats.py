"""Turns short task dialogues into chats with an assistant that replies at length, and asks what was said in them.

    python benchmarks/assistant_chats.py --data dialogues.jsonl -o chats.json
    python benchmarks/evidence.py --data chats.json

The dialogues are a JSONL file: a dialogue a line, with `turns` of `{"speaker": "user" | "system", "text": …}`, such as the
public Schema-Guided Dialogue set in that form. They are not part of this project. Thirty dialogues are the sessions of one
user, one a day. Each answer of the system becomes a reply of 200 to 600 words: the answer, among sentences of other dialogues
with words of this one, so that the rest of a reply is as much to the point as its answer. The same data and seed give the
same chats.

A question names some of the words of what it asks for, and not the others: `user` asks for a message, `assistant` for the
answer inside a reply, `both` for two messages of different days. What it wants is its evidence: the position of the message
among all of the chat, and the passage that must be shown.
"""

import argparse
import json
import random
import re
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

SESSIONS = 30
"""Dialogues of one user."""
WORDS = (200, 600)
"""Least and most words of a reply."""
SAID_BY_MANY = 0.01
"""Share of all texts above which a word names nothing in particular."""
TRIED = 4
"""Sentences of which the one nearest to the talk at hand is taken into a reply."""
BEGIN = datetime(2026, 3, 2, 9, tzinfo=UTC)
OPENINGS = ("Happy to help with that.", "Of course, let me look into it.", "Here is what I can tell you.", "Good question.")
SENTENCE = re.compile(r"(?<=[.!?])\s+")
WORD = re.compile(r"[a-zA-Z][a-z'A-Z]{3,}|\d[\d:,.]*\d")


class Fact(NamedTuple):
    """Something that was said and can be asked for."""

    position: int
    """Position of its message among all messages of the chat."""
    text: str
    day: int


def read_dialogues(path: Path) -> Iterator[list[tuple[str, str]]]:
    """The dialogues as pairs of a user's message and the system's answer."""
    for line in path.read_text(encoding="utf-8").splitlines():
        said = [(each["speaker"], each["text"]) for each in json.loads(line)["turns"]]
        pairs = [(text, answer) for (who, text), (_, answer) in pairwise(said) if who == "user"]
        if pairs:
            yield pairs


class Writer:
    """Writes the chats of users.

    Args:
        dialogues: all dialogues
        seed: of the choices
    """

    def __init__(self, dialogues: Sequence[Sequence[tuple[str, str]]], seed: int) -> None:
        self._random = random.Random(seed)
        texts = [text for pairs in dialogues for pair in pairs for text in pair]
        self._sentences = sorted({each for text in texts for each in SENTENCE.split(text) if len(each.split()) > 4})
        self._said = Counter(word for text in texts for word in {each.lower() for each in WORD.findall(text)})
        self._most = SAID_BY_MANY * len(texts)

    def chat(self, name: str, dialogues: Sequence[Sequence[tuple[str, str]]]) -> dict[str, Any]:
        """One user's sessions and the questions about them."""
        sessions: list[list[dict[str, str]]] = []
        asked: list[Fact] = []
        answered: list[Fact] = []
        position = 0
        for day, pairs in enumerate(dialogues):
            time, messages = BEGIN + timedelta(days=day), list[dict[str, str]]()
            for text, answer in pairs:
                messages.append({"role": "user", "content": text, "time": time.isoformat()})
                messages.append({"role": "assistant", "content": self._reply(text, answer), "time": time.isoformat()})
                asked.append(Fact(position, text, day))
                answered.append(Fact(position + 1, answer, day))
                position, time = position + 2, time + timedelta(minutes=2)
            sessions.append(messages)
        return {"id": name, "sessions": sessions, "questions": [*self._questions(asked, answered)]}

    def _reply(self, message: str, answer: str) -> str:
        """A long reply with the answer somewhere inside."""
        wanted, sentences = self._random.randint(*WORDS), list[str]()
        left, about = wanted - len(answer.split()), self._rare_words(f"{message} {answer}")
        while left > 0:
            tried = self._random.sample(self._sentences, TRIED)
            sentences.append(max(tried, key=lambda each: len(about & self._rare_words(each))))
            left -= len(sentences[-1].split())
        sentences.insert(self._random.randint(0, len(sentences)), answer)
        if wanted > WORDS[0] + 20:
            sentences.insert(0, self._random.choice(OPENINGS))
        paragraphs = [" ".join(sentences[at : at + 6]) for at in range(0, len(sentences), 6)]
        return "\n\n".join(paragraphs)

    def _questions(self, asked: Sequence[Fact], answered: Sequence[Fact]) -> Iterator[dict[str, Any]]:
        mine, theirs = self._told(asked), self._told(answered)
        for fact, words in mine[:4]:
            yield _question("user", f"What exactly did I say to you about {' and '.join(words)}?", fact)
        for fact, words in theirs[:4]:
            yield _question("assistant", f"What was it that you told me about {' and '.join(words)}?", fact)
        for (one, (word, *_)), (other, (second, *_)) in zip(mine[4:8], mine[8:12], strict=False):
            if one.day != other.day:
                yield _question("both", f"I once asked about {word}, and on another day about {second}. Remind me.", one, other)

    def _told(self, facts: Sequence[Fact]) -> list[tuple[Fact, list[str]]]:
        """Facts in any order, each with the two of its words that a question names."""
        told = list[tuple[Fact, list[str]]]()
        for fact in self._random.sample(facts, len(facts)):
            words = sorted(self._rare_words(fact.text))
            if len(words) > 3:
                told.append((fact, self._random.sample(words, 2)))
        return told

    def _rare_words(self, text: str) -> set[str]:
        return {each for each in WORD.findall(text) if self._said[each.lower()] <= self._most}


def _question(category: str, text: str, *facts: Fact) -> dict[str, Any]:
    evidence = [{"position": each.position, "passage": each.text} for each in facts]
    return {"question": text, "category": category, "evidence": evidence}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--data", type=Path, required=True, help="the dialogues, a JSONL file")
    parser.add_argument("-o", "--output", type=Path, required=True, help="file for the chats")
    parser.add_argument("--users", type=int, default=20, help="number of users, thirty dialogues each")
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    try:
        dialogues = list(read_dialogues(arguments.data))
    except OSError as error:
        sys.exit(f"cannot read {str(arguments.data)!r}: {error.strerror}; give the path of the dialogues with --data")
    except (KeyError, TypeError, ValueError) as error:
        sys.exit(f"{str(arguments.data)!r} does not hold a dialogue a line: {error!r}; see the head of this program")
    writer = Writer(dialogues, arguments.seed)
    users = range(min(arguments.users, len(dialogues) // SESSIONS))
    chats = [writer.chat(f"user-{n:02d}", dialogues[n * SESSIONS : (n + 1) * SESSIONS]) for n in users]
    arguments.output.write_text(json.dumps(chats), encoding="utf-8")
    print(f"{len(chats)} users, {sum(len(each['questions']) for each in chats)} questions")


if __name__ == "__main__":
    main()
