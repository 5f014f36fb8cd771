"""Describes answers about sessions and their intents."""

from kitchener.context.fold.lifecycle import IntentStatus
from kitchener.records.entries import IntentScope
from kitchener.serve.answer_models.answer import DescribedAnswer
from kitchener.serve.answer_models.turn_answers import CostAnswer


class SessionAnswer(DescribedAnswer):
    """A session, and the calls that wait in it."""

    session_id: str
    agent: str
    """The agent class."""
    subject_id: str
    external_id: str | None
    """The client's own name for it."""
    turns: int
    """Completed turns."""
    is_ended: bool
    running_turn: str | None
    pending_approval: list[str]
    cost: CostAnswer


class ListedSessionAnswer(DescribedAnswer):
    """A session without its turns."""

    session_id: str
    agent: str
    subject_id: str
    external_id: str | None
    started_at: str
    last_at: str
    turns: int
    """Number of turns begun and messages imported."""
    is_ended: bool
    title: str | None
    """The beginning of its first message; null: there is none, or it cannot be read."""


class SessionListAnswer(DescribedAnswer):
    """Sessions, newest first."""

    sessions: list[ListedSessionAnswer]


class SpokenTurnAnswer(DescribedAnswer):
    """The message and the reply of a turn, or an imported message with its reply."""

    turn_id: str
    started_at: str
    """ISO time; "": not known."""
    user_message: str
    response: str
    speaker: str | None
    """The speaker of the message; null: the subject."""
    replied_by: str | None
    """The speaker of the reply in an imported conversation; null: the assistant."""
    is_imported: bool
    is_resumed: bool
    """Whether the turn continued after a person's answer about a tool, or with the output of a client's function."""
    continues: str | None
    """The turn that called the functions of the client whose outputs this one continues with; null: there is none."""


class SpokenTurnsAnswer(DescribedAnswer):
    """The turns of a session, oldest first."""

    turns: list[SpokenTurnAnswer]


class StoppedAnswer(DescribedAnswer):
    """Number of aborted turns."""

    session_id: str
    stopped: int


class IntentAnswer(DescribedAnswer):
    """An intent of a session."""

    intent_id: str
    status: IntentStatus
    is_active: bool
    is_competing: bool
    scope: IntentScope
    parent_intent_id: str | None
    superseded_by: str | None
    objective: str
    declared_at: str


class IntentListAnswer(DescribedAnswer):
    """The intents of a session, in the order of their declarations."""

    intents: list[IntentAnswer]


class DeclaredIntentAnswer(DescribedAnswer):
    """The answer to a declaration: the id under which the intent can be changed later."""

    intent_id: str
