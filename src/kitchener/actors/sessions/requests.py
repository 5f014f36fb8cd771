"""What a caller may ask of a supervisor: names, message, deadline and nesting, checked before anything is started.

`supervisor.py` asks here first. Each problem is a `CallerError` that names the argument, its value and what was expected.
"""

import re

import anyio

from kitchener.actors.sessions.fresh_ids import check_session_id
from kitchener.canonical import canonical_bytes
from kitchener.config import LedgerConfig
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
    if seconds is not None and (type(seconds) not in _NUMBERS or not 0 < seconds <= MAX_DEADLINE_S):
        raise CallerError(
            f"deadline = {seconds!r:.80}: expected seconds from now, more than 0 and at most {MAX_DEADLINE_S:,};"
            " leave it out for turn_deadline_s"
        )
    if type(memory) is not bool:
        raise CallerError(f"memory = {memory!r:.80}: expected True or False")
    if session_id is not None:
        check_session_id(session_id)
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


def plain_message(message: str, max_chars: int) -> str:
    """The message as plain text, also where it comes as a class of the caller's that only extends text.

    Raises:
        InvalidMessage: it is no text, says nothing, is longer than allowed, or holds half a character
    """
    if type(message) is not str:
        if not issubclass(type(message), str):
            raise InvalidMessage(f"message is {type(message).__name__}: expected text; other content is not supported")
        message = str.__str__(message)
    if not message.strip():
        raise InvalidMessage("message is empty: expected text")
    if len(message) > max_chars:
        raise InvalidMessage(f"message has {len(message)} characters: expected at most max_message_chars = {max_chars}")
    try:
        message.isascii() or message.encode()
    except UnicodeEncodeError as error:
        raise InvalidMessage(
            f"message holds half a character (a lone surrogate) at {error.start}: expected text that has a UTF-8 form"
        ) from None
    return message


def check_size(message: str, ledger: LedgerConfig) -> None:
    """Raises InvalidMessage unless the message fits into one ledger entry, beside what else stands there."""
    if not fits_entry(message, ledger):
        raise InvalidMessage(
            f"message has {len(message)} characters and does not fit into one ledger entry:"
            f" expected a message that max_entry_bytes = {ledger.max_entry_bytes} has room for"
        )


def fits_entry(text: str, ledger: LedgerConfig) -> bool:
    """Whether a message or a reply fits into one ledger entry, beside everything else that stands there."""
    limit = ledger.max_entry_bytes
    limit -= min(_BESIDE_THE_TEXT, limit // 2)
    if ledger.keyring:  # sealed text is written in base64
        limit = limit * 3 // 4
    # A character takes six bytes at the most, so nearly every text needs no encoding to be sure.
    return len(text) * 6 <= limit or len(canonical_bytes(text)) <= limit


def check_text(what: str, text: str) -> None:
    """Raises CallerError unless the text says something, in no more than 2,000 characters that all have a UTF-8 form."""
    if not isinstance(text, str) or not text.strip() or len(text) > _MAX_TEXT or _SURROGATE.search(text):
        raise CallerError(f"{what} = {text!r:.80}: expected 1 to {_MAX_TEXT} characters of text")


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


def check_not_inside(chain: tuple[str, ...], session_id: str, what: str) -> None:
    """Raises ReentrantTurn where a call would wait for the turn whose tool makes it.

    Args:
        chain: the sessions whose turns wait for this call, outermost first
        session_id: the session that the call needs
        what: what it would do, for the error
    """
    if session_id in chain:
        raise ReentrantTurn(f"session {session_id!r} runs the turn whose tool {what}; do it after the turn, from outside of it")


MAX_DEADLINE_S = 86_400
"""Longest deadline that a call may name, seconds: a day, as for all settings."""
_BESIDE_THE_TEXT = 8_192
"""Bytes that the other fields of an entry with a message or a reply take at the most."""
_NUMBERS = (int, float)
_SURROGATE = re.compile("[\ud800-\udfff]")
_MAX_TEXT = 2_000
_MAX_NAME = 256
