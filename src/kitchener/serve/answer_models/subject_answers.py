"""Describes answers about a subject's rights and memory, and about its erasure."""

from kitchener.config import ServeRight
from kitchener.inspection.memory_views import LineState
from kitchener.memory.gate import GateReason
from kitchener.serve.answer_models.answer import DescribedAnswer, JsonObject


class OwnRightsAnswer(DescribedAnswer):
    """The subject, agents and rights of a key."""

    subject_id: str
    agents: list[str]
    default_agent: str | None
    """The agent class of requests that name none; null: they must name one."""
    rights: list[ServeRight]
    needs_key: bool
    """False: everybody who reaches the server is this subject."""
    max_message_chars: int
    keep_alive_s: float
    """After this silence a stream sends a comment, seconds."""
    version: str


class LearnedLineAnswer(DescribedAnswer):
    """What was learned from a signal that recurred."""

    artifact_id: str | None
    overlay_id: str
    signal_id: str
    """The signal that it was learned from."""
    state: LineState
    """`speaks`, or why not."""
    why: str | None
    line: str | None
    artifact_type: str | None
    labels: JsonObject | None
    """When it applies; null: always."""
    scope: str | None
    weight: float
    weight_now: float
    """What decay has left of the weight."""
    learned_at: str | None
    expires_at: str | None


class GateAnswer(DescribedAnswer):
    """The progress of a signal towards a learned line."""

    state: GateReason
    crossed: bool
    progress: float
    """0 to 1."""
    count_threshold: int
    session_threshold: int
    already_consolidated: bool


class SignalAnswer(DescribedAnswer):
    """A signal, and what it adds up to."""

    signal_id: str
    count: int
    sessions: int
    session_ids: list[str]
    first_seen: str | None
    last_seen: str | None
    decay: float | None
    gate: GateAnswer


class MemoryAnswer(DescribedAnswer):
    """What was learned about a subject."""

    agent: str
    subject_id: str
    enabled: bool
    """False: this agent class has no memory."""
    as_of: str | None
    learned: list[LearnedLineAnswer]
    signals: list[SignalAnswer]


class WithdrawnLineAnswer(DescribedAnswer):
    """A learned line that is no longer used."""

    artifact_id: str | None
    signal_id: str
    line: str | None


class MemoryChangeAnswer(DescribedAnswer):
    """What was forgotten."""

    target: str
    written: bool
    """False: it was forgotten before."""
    withdrawn: list[WithdrawnLineAnswer]


class ErasureAnswer(DescribedAnswer):
    """The report of an erasure."""

    subject_id: str
    key_id: str
    erased_at: str
    was_erased_before: bool
    sessions: int
    turns: int
    plain_turns: int
    """Turns that were stored in plain text and stay readable."""
    artifacts: int
    files: int
