"""Keeps an error of a caller's listener apart from errors of the turn that tells it updates.

The listener is called in the middle of a turn, also by the executor. Its error ends the turn and belongs to the caller; it is
no failure of the executor. `runner.py` raises it as it was.
"""

from kitchener.cancellation import failed_alone
from kitchener.errors import KitchenerError
from kitchener.records.turn import TurnUpdate, UpdateListener


class ListenerFailed(KitchenerError):
    """The listener of a turn raised an error. Passes through the turn, and never reaches a caller."""

    def __init__(self, error: BaseException) -> None:
        self.error = error
        super().__init__("the listener of the turn failed")


def kept_apart(listener: UpdateListener) -> UpdateListener:
    """The listener of a turn, whose errors come as `ListenerFailed`."""

    async def tell(update: TurnUpdate) -> None:
        try:
            await listener(update)
        except BaseException as error:
            if not await failed_alone(error):
                raise
            raise ListenerFailed(error) from None

    return tell
