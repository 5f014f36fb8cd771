"""Knows for whom a task works: the context of the asker of a message, and the turn that waits for it.

A turn that is cut off at its deadline may have waited for room in a full queue all the time. The queue is then the cause, and
the turn's end says so. A cancellation carries no reason, so the queue leaves its refusal at the turn. The mailbox sets
`ASKERS_CONTEXT` in its workers, and the runner of turns sets `WAITING_TURN`.
"""

from contextvars import Context, ContextVar

from kitchener.errors import Overloaded

ASKERS_CONTEXT: ContextVar[Context | None] = ContextVar("ASKERS_CONTEXT", default=None)
"""The context variables of the asker whose message is being handled; None outside of a worker. Tools run in this context."""


class WaitingTurn:
    """One running turn, as the queues know it.

    Args:
        deadline: the turn's, on the event loop's clock, seconds
    """

    __slots__ = ("deadline", "refusal")

    def __init__(self, deadline: float) -> None:
        self.deadline = deadline
        self.refusal: Overloaded | None = None
        """The full queue in which a call of the turn waited for room when the deadline passed."""


WAITING_TURN: ContextVar[WaitingTurn | None] = ContextVar("WAITING_TURN", default=None)
"""The turn that this task runs. Workers find it in `ASKERS_CONTEXT`."""


def tell_turn(refusal: Overloaded, now: float) -> None:
    """Leaves the refusal at the turn that this task works for, if there is one and its deadline has passed.

    Before its deadline a turn may go on: it is a tool of the turn, or a caller of its own, that found no room.
    """
    context = ASKERS_CONTEXT.get()
    turn = WAITING_TURN.get() if context is None else context.get(WAITING_TURN)
    if turn is not None and now >= turn.deadline:
        turn.refusal = refusal
