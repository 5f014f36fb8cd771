"""What a turn ends with: its reply, its outcome, and the replies for turns that could not do what was asked."""

from collections.abc import Mapping
from typing import Final, NamedTuple

from kitchener.actors.turn_memory import OpenGates
from kitchener.records.entries.work_orders import CallFailure, FailureReason
from kitchener.records.tools.client_tools import ClientCall
from kitchener.records.turn import TurnError, TurnResult


class Reply(NamedTuple):
    """The reply of a turn. A step that returns one instead of its own result ends the turn's chain of work orders."""

    response: str
    """The text for the user."""
    error: TurnError | None
    """The error of a turn that could not do what was asked; None if it could."""
    pending: tuple[str, ...] = ()
    """The requests for approval that the turn ends with."""
    client_calls: tuple[ClientCall, ...] = ()
    """The calls that the caller of the turn has to make."""
    truncated: bool = False
    """Whether the model reached its limit of output tokens, or a content filter stopped it, before the text ended."""


class TurnOutcome(NamedTuple):
    """The outcome of a turn for the supervisor."""

    result: TurnResult
    """The result for the caller."""
    gates: OpenGates | None = None
    """The memory gates that the turn found open; None: it used no memory, or the result is a copy of an earlier turn's."""


_UNUSABLE: Final = "The model gave no answer that can be used. Your message is recorded; please try again."
_BUSY: Final = "The model has more to answer than it can just now. Your message is recorded; please try again later."
_TOO_SLOW: Final = "The model took too long to answer. Your message is recorded; please try again."
APOLOGY: Final = "I could not produce a reply to this message. Nothing was lost; please try again."
APOLOGIES: Final[Mapping[FailureReason, str]] = {
    "PROVIDER": "I could not reach the model just now. Your message is recorded; please try again in a moment.",
    "TIMEOUT": _TOO_SLOW,
    "BUDGET": (
        "The tokens that one turn may use ran out before there was a reply that I can give you. Your message is recorded;"
        " please ask for less at once."
    ),
}
"""Replies by the reason of a failure; `APOLOGY` for other reasons."""
_NOT_SET_UP: Final = (
    "The model cannot be used as this service is set up, so trying again will not help until its operator has looked at it."
    " Your message is recorded."
)
APOLOGIES_OF_CALLS: Final[Mapping[CallFailure, str]] = {
    "authentication": _NOT_SET_UP,
    "bad_request": _NOT_SET_UP,
    "forbidden": _NOT_SET_UP,
    "out_of_credit": _NOT_SET_UP,
    "context_length": (
        "A reply would need more text to be read than the model takes at once. Your message is recorded; a shorter one, or a"
        " new conversation, may help."
    ),
    "refused": (
        "The provider of the model declined to answer this message. Your message is recorded; it may help to put it in other"
        " words."
    ),
    "empty": _UNUSABLE,
    "malformed": _UNUSABLE,
    "overloaded": _BUSY,
    "rate_limited": _BUSY,
    "timeout": _TOO_SLOW,
}
"""Replies by the reason of a model call's failure, where it says more than that there was one. Before version 11 of the policy,
and before version 15 for those in `_SINCE_VERSION_15`, users were told that the model could not be reached."""
_SINCE_VERSION_15: Final[frozenset[CallFailure]] = frozenset(("empty", "malformed", "overloaded", "rate_limited", "timeout"))
SPENDING_LIMIT: Final = (
    "What model calls may cost here is used up for now, so I could not give you a reply. Your message is recorded. A daily"
    " limit begins anew at midnight, UTC."
)
MESSAGE_TOO_LARGE: Final = (
    "Your message, with what has to be read along with it, needs more tokens than one turn may use, so no model was asked for a"
    " reply. A shorter message may help."
)
SESSION_USED_UP: Final = (
    "This conversation has used the tokens that it may use, so I could not finish a reply. Please start a new conversation."
)
_BUDGET_OF_VERSION_1: Final = "The token budget for this conversation does not cover another reply, so the model was not asked."


def apology_for(reason: FailureReason, policy_version: int, of_call: CallFailure | None = None) -> str:
    """Returns the reply to the user for a work order that failed for this reason; `of_call`: the reason of its model call."""
    if reason == "BUDGET" and policy_version == 1:
        return _BUDGET_OF_VERSION_1
    if of_call is not None and policy_version > (14 if of_call in _SINCE_VERSION_15 else 10):
        return APOLOGIES_OF_CALLS.get(of_call) or APOLOGIES.get(reason, APOLOGY)
    return APOLOGIES.get(reason, APOLOGY)
