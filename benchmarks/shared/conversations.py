"""Reads conversations and what is asked about them, of either kind, into one form.

Two friends: the public LoCoMo set (`locomo10.json`), or its turns in a simpler form: `sessions`, each with `date` and `turns`.
The first speaker of a conversation becomes the user and the other one the assistant. Their names stand in what they say
(`Ada: …`), as a program that relays a talk would write it.

A user and an assistant: a list of `{"id", "sessions", "questions"}`. A session is a list of `{"role": "user" | "assistant",
"content", "time"?}`; a question is `{"question", "evidence", "category"?, "time"?}`. Its evidence is a list of positions
among all messages of the conversation, from 0, or of `{"position", "passage"}` where only that passage of a message is wanted.
Times are ISO times. `assistant_chats.py` writes such a file.
"""

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, NamedTuple

CATEGORIES = {1: "multi-hop", 2: "temporal", 3: "open-domain", 4: "single-hop", 5: "adversarial"}
EVIDENCE_ID = re.compile(r"D:?(\d+):(\d+)")
UNDATED = datetime(2026, 1, 5, 9, tzinfo=UTC)
"""Begin of a session without a date; the next one begins a day later."""


class Said(NamedTuple):
    """One message."""

    role: str
    """`user` or `assistant`."""
    text: str
    at: datetime
    speaker: str
    """The name, or the role where nobody is named."""


class Evidence(NamedTuple):
    """What a question needs."""

    position: int
    """Position of the message among all messages of the conversation."""
    passage: str
    """The words that must be shown; "": the message as it is shown."""


@dataclass(frozen=True, slots=True)
class Question:
    """One question of the data set."""

    text: str
    category: str
    evidence: tuple[Evidence, ...]
    at: datetime | None
    """When it is asked; None: a day after the last message."""


@dataclass(frozen=True, slots=True)
class Conversation:
    """The history of one subject, and what is asked about it."""

    name: str
    sessions: list[list[Said]]
    questions: list[Question]


def read_conversations(path: Path) -> Iterator[Conversation]:
    """The conversations of a file; questions without marked evidence are left out."""
    for raw in json.loads(path.read_text(encoding="utf-8")):
        yield _friends(raw) if "qa" in raw else _chat(raw)


def _friends(raw: dict[str, Any]) -> Conversation:
    sessions: list[list[Said]] = []
    places: dict[str, int] = {}
    user = None
    for number, (date, turns) in enumerate(_dated_turns(raw)):
        said, at = list[Said](), _moment(date) or UNDATED + timedelta(days=number)
        for each in turns:
            places[each["dia_id"]] = len(places)
            caption = each.get("caption") or each.get("blip_caption")
            text = f"{each['speaker']}: {each['text']}" + (f" [image: {caption}]" if caption else "")
            user = user or each["speaker"]
            role = "user" if each["speaker"] == user else "assistant"
            said.append(Said(role, text, at + timedelta(minutes=len(said)), each["speaker"]))
        sessions.append(said)
    questions = []
    for asked in raw["qa"]:
        ids = [f"D{int(a)}:{int(b)}" for item in asked["evidence"] for a, b in EVIDENCE_ID.findall(item)]
        if evidence := tuple(Evidence(places[each], "") for each in dict.fromkeys(ids) if each in places):
            questions.append(Question(asked["question"], CATEGORIES[asked["category"]], evidence, None))
    return Conversation(raw["sample_id"], sessions, questions)


def _dated_turns(raw: dict[str, Any]) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """Date text and turns of each session, in order, of either form of the data."""
    if "sessions" in raw:
        yield from ((session["date"] or "", session["turns"]) for session in raw["sessions"])
        return
    talk = raw["conversation"]
    for number in sorted(int(key[8:]) for key in talk if re.fullmatch(r"session_\d+", key)):
        yield talk.get(f"session_{number}_date_time", ""), talk[f"session_{number}"]


def _moment(date: str) -> datetime | None:
    """The time of "1:56 pm on 8 May, 2023"; None: it has another form."""
    try:
        return datetime.strptime(date, "%I:%M %p on %d %B, %Y").replace(tzinfo=UTC)
    except ValueError:
        return None


def _chat(raw: dict[str, Any]) -> Conversation:
    sessions = []
    for number, messages in enumerate(raw["sessions"]):
        said = list[Said]()
        at: datetime = UNDATED + timedelta(days=number)
        for each in messages:
            at = datetime.fromisoformat(each["time"]) if "time" in each else at + timedelta(minutes=1)
            said.append(Said(each["role"], each["content"], at, each["role"]))
        sessions.append(said)
    questions = []
    for asked in raw["questions"]:
        asked_at = datetime.fromisoformat(asked["time"]) if "time" in asked else None
        if evidence := tuple(map(_evidence, asked["evidence"])):
            questions.append(Question(asked["question"], asked.get("category", "any"), evidence, asked_at))
    return Conversation(raw["id"], sessions, questions)


def _evidence(raw: int | dict[str, Any]) -> Evidence:
    return Evidence(raw, "") if isinstance(raw, int) else Evidence(raw["position"], raw.get("passage", ""))
