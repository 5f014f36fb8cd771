"""Knows for whom a task works: the context of the asker of a message, and the turn that waits for it.

If a turn passes its deadline while it waits for room in a full queue, the queue is the cause, and the end of the turn says so.
A cancellation carries no reason, so the queue leaves its refusal at the turn. The mailbox sets `ASKERS_CONTEXT` in its workers,
and the runner of turns sets `WAITING_TURN`.
"""

from collections.abc import Callable, Mapping
from contextvars import Context, ContextVar
from typing import TypeVar

from kitchener.errors import Overloaded
from kitchener.logs import FIELDS

ASKERS_CONTEXT: ContextVar[Context | None] = ContextVar("ASKERS_CONTEXT", default=None)
"""The context variables of the asker whose message is being handled; None outside of a worker. Tools run in this context."""


_T = TypeVar("_T")


def take_from_asker(variable: ContextVar[_T | None]) -> None:
    """Sets a context variable of the present worker to its asker's value, until the worker takes another message. Does nothing
    outside of a worker, where the task has the value already.
    """
    context = ASKERS_CONTEXT.get()
    if context is not None:
        variable.set(context.get(variable))


class WaitingTurn:
    """One running turn, as the queues know it.

    Args:
        deadline: the turn's, on the event loop's clock, seconds
        ids: gives the ids of the turn, and of its work order that runs; asked where an event is logged
    """

    __slots__ = ("deadline", "ids", "refusal")

    def __init__(self, deadline: float, ids: Callable[[], Mapping[str, str]]) -> None:
        self.deadline, self.ids = deadline, ids
        self.refusal: Overloaded | None = None
        """The full queue in which a call of the turn waited for room when the deadline passed."""


WAITING_TURN: ContextVar[WaitingTurn | None] = ContextVar("WAITING_TURN", default=None)
"""The turn that this task runs. Workers find it in `ASKERS_CONTEXT`."""


def tell_turn(refusal: Overloaded, now: float) -> None:
    """Leaves the refusal at the turn that this task works for, if there is one and its deadline has passed.

    Before its deadline a turn may continue: it is a tool of the turn, or a caller of its own, that found no room.
    """
    context = ASKERS_CONTEXT.get()
    turn = WAITING_TURN.get() if context is None else context.get(WAITING_TURN)
    if turn is not None and now >= turn.deadline:
        turn.refusal = refusal


def first_askers_context() -> Context | None:
    """The context of the task at the beginning of the asks that led to this one; None: this task was not asked by another.

    An actor may ask another, so the asker's context can have an asker's context in it.
    """
    found = ASKERS_CONTEXT.get()
    while found is not None and (further := found.get(ASKERS_CONTEXT)) is not None:
        found = further
    return found


def ids_of_turn() -> Mapping[str, str]:
    """The ids of the turn that this task works for: `session_id`, `turn_id`, and `wo_id` of its work order; empty: none."""
    context = first_askers_context()
    turn = WAITING_TURN.get() if context is None else context.get(WAITING_TURN)
    return turn.ids() if turn is not None else {}


FIELDS.append(ids_of_turn)
