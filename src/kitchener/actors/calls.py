"""What a caller may ask of a supervisor: names, message, deadline and nesting, checked before anything is started.

`supervisor.py` asks here first. Each problem is a `CallerError` that names the argument, its value and what was expected.
"""

import anyio

from kitchener.errors import CallerError, InvalidMessage, ReentrantTurn
from kitchener.ids import check_caller
from kitchener.records.turn import TurnCall


def turn_call(
    session_id: str | None, subject_id: str | None, idempotency_key: str | None, memory: bool, seconds: float | None
) -> TurnCall:
    """The call's options, with its deadline on the event loop's clock.

    Args:
        seconds: the caller's deadline, from now; None: there is none
    """
    if seconds is not None and not seconds > 0:
        raise CallerError(f"deadline = {seconds}: expected seconds from now, more than 0")
    if subject_id is not None:
        check_caller(subject_id, session_id)
    if idempotency_key is not None:
        check_name("idempotency_key", idempotency_key)
    deadline = None if seconds is None else anyio.current_time() + seconds
    return TurnCall(session_id, subject_id, idempotency_key, memory, deadline)


def check_name(what: str, name: str) -> None:
    """Raises CallerError unless a name that the caller chose is text of a sensible length."""
    if not isinstance(name, str) or not 1 <= len(name) <= _MAX_NAME or not name.isprintable():
        raise CallerError(f"{what} = {name!r:.80}: expected 1 to {_MAX_NAME} printable characters")


def check_message(message: str, max_chars: int) -> None:
    """Raises InvalidMessage unless the message is text, says something, and is no longer than allowed."""
    if not isinstance(message, str):
        raise InvalidMessage(f"message is {type(message).__name__}: expected text; other content is not supported")
    if not message.strip():
        raise InvalidMessage("message is empty: expected text")
    if len(message) > max_chars:
        raise InvalidMessage(f"message has {len(message)} characters: expected at most max_message_chars = {max_chars}")


def check_chain(chain: tuple[str, ...], session_id: str, max_nesting: int) -> None:
    """Raises ReentrantTurn where a turn would wait for itself, or turns wait for each other too deep.

    Args:
        chain: the sessions whose turns wait for this call, outermost first
        session_id: the session that it is for
        max_nesting: how long the chain may be
    """
    if session_id in chain:
        raise ReentrantTurn(
            f"session {session_id!r} waits for the tool that sends this message: {' → '.join(chain)}; use another session"
        )
    if len(chain) > max_nesting:
        raise ReentrantTurn(f"turns nest {len(chain)} deep: expected at most max_nesting = {max_nesting}")


_MAX_NAME = 256
