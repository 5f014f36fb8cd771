"""Validates the calls of a supervisor before anything is started: message, options, session, nesting.

`supervisor.py` calls it first. Each error is a `CallerError` that names the argument, its value and the expected form.
`argument_checks.py` checks single arguments, and `client_tool_checks.py` the tools of a caller.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Final, Literal

import anyio

from kitchener.actors.admission.argument_checks import (
    check_count,
    check_is_text,
    check_list,
    check_name,
    check_not_inside,
    check_speaker,
    check_text,
    fits_entry,
)
from kitchener.actors.admission.client_tool_checks import checked_client_tools
from kitchener.actors.admission.idempotency import APPROVAL_KEY
from kitchener.actors.sessions.fresh_ids import check_session_id
from kitchener.actors.tools.registry import ToolRegistry
from kitchener.config import LedgerConfig, LimitsConfig
from kitchener.criteria import MAX_CRITERIA, criterion_problem
from kitchener.errors import CallerError, InvalidMessage, InvalidPart, ReentrantTurn
from kitchener.ids import anonymous_subject, check_caller
from kitchener.lanes.calling_chain import calling_chain
from kitchener.media.media_types import MEDIA_TYPES
from kitchener.plain_names import is_printable, quoted
from kitchener.records.output_schema import output_schema_of
from kitchener.records.parts import FilePart, ReadPart, StoredPart
from kitchener.records.prompt import ANY_TOOL_CHOICE, NO_TOOL_CHOICE
from kitchener.records.tools.client_tools import ClientTool, ClientToolset
from kitchener.records.turn import ConsolidationCandidate, TurnCall
from kitchener.schemas.compiled_schemas import SchemaBudget

MAX_DEADLINE_S: Final = 86_400
"""Longest deadline of a call, seconds: one day, the same as for all settings."""
_MAX_PART_NAME: Final = 128
_NUMBERS: Final = (int, float)
_ANONYMOUS: Final = anonymous_subject("")


class RequestChecks:
    """Checks the arguments of a supervisor's calls.

    Args:
        limits: the limits of the process
        by_model: whether a model verifies replies, so that acceptance criteria may be statements
        tools: the tools of the agent class; None: it has none
        client_tools: whether a message may bring tools that its caller runs
    """

    def __init__(
        self,
        limits: LimitsConfig,
        *,
        by_model: bool = False,
        tools: ToolRegistry | None = None,
        client_tools: Literal["allow", "refuse"] = "allow",
    ) -> None:
        self._by_model, self._tools, self._takes_client_tools = by_model, tools, client_tools == "allow"
        self._max_chars, self._max_nesting = limits.max_message_chars, limits.max_nesting
        self._max_parts = limits.max_parts

    def message(self, message: str) -> str:
        """Returns the message as a plain `str`, even if the caller passes a subclass of `str`.

        Raises:
            InvalidMessage: the message is not text, is empty, is too long, or contains a lone surrogate
        """
        if type(message) is not str:
            if not issubclass(type(message), str):
                raise InvalidMessage(f"message is {type(message).__name__}: expected text; images and files go into parts=[…]")
            message = str.__str__(message)
        if not message.strip():
            raise InvalidMessage("message is empty: expected text")
        if len(message) > self._max_chars:
            raise InvalidMessage(
                f"message has {len(message)} characters: expected at most max_message_chars = {self._max_chars}"
            )
        try:
            message.isascii() or message.encode()
        except UnicodeEncodeError as error:
            raise InvalidMessage(
                f"message holds half a character (a lone surrogate) at {error.start}: expected text that has a UTF-8 form"
            ) from None
        return message

    def size(self, message: str, ledger: LedgerConfig) -> None:
        """Raises InvalidMessage unless the message fits into one ledger entry beside the entry's other fields."""
        if not fits_entry(message, ledger):
            raise InvalidMessage(
                f"message has {len(message)} characters and does not fit into one ledger entry:"
                f" expected a message that max_entry_bytes = {ledger.max_entry_bytes} has room for"
            )

    def nesting(self, session_id: str) -> None:
        """Raises ReentrantTurn if a turn of the session would wait for itself, or if turns are nested too deep."""
        chain = calling_chain()
        if session_id in chain:
            raise ReentrantTurn(
                f"session {session_id!r} waits for the tool that sends this message: {' → '.join(chain)}; use another session"
            )
        if len(chain) > self._max_nesting:
            raise ReentrantTurn(f"turns nest {len(chain)} deep: expected at most max_nesting = {self._max_nesting}")

    def start(self, session_id: str | None, subject_id: str | None, external_id: str | None) -> None:
        """Raises CallerError unless a session can be started with these ids."""
        _check_ids(session_id, subject_id)
        if external_id is not None:
            self.external_id(external_id, None)

    def external_id(self, external_id: str, subject_id: str | None, limit: int = 1) -> None:
        """Raises CallerError unless these can be the caller's name of a session, its subject, and a number of sessions."""
        check_count("limit", limit)
        check_name("external_id", external_id)
        if subject_id is not None:
            check_name("subject_id", subject_id)

    def consolidation(self, signal_ids: Sequence[str], namespace: str | None) -> dict[str, list[str]]:
        """Returns the signals by namespace.

        Args:
            signal_ids: signals; those from a turn's result know their namespace
            namespace: the namespace of all signals; None: they know it

        Raises:
            CallerError: a signal or the namespace has the wrong type, or the namespace of a signal is missing or differs
        """
        check_list("signal_ids", signal_ids)
        if namespace is not None:
            check_is_text("namespace", namespace)
        found: dict[str, list[str]] = {}
        for each in signal_ids:
            own = each.namespace if isinstance(each, ConsolidationCandidate) else namespace
            if own is None:
                raise CallerError(f"signal_ids = {quoted(each)}: a signal id alone does not say whose it is; pass namespace=")
            if namespace is not None and own != namespace:
                raise CallerError(f"signal_ids = {quoted(each)}: counts in {quoted(own)}, not in {quoted(namespace)}")
            found.setdefault(own, []).append(str.__str__(each))
        return found

    def listener(self, listener: object) -> None:
        """Raises CallerError unless this can be called with the updates of a turn."""
        if isinstance(listener, type) or not callable(listener):
            raise CallerError(f"listener = {quoted(listener)}: expected an asynchronous function of one update")

    def end(self, session_id: str, reason: str) -> None:
        """Raises CallerError unless the session can be ended from here for this reason."""
        check_session_id(session_id)
        check_text("reason", reason)
        check_not_inside(session_id, "ends it")

    def call(  # noqa: PLR0913  the options of `handle_turn`
        self,
        *,
        session_id: str | None = None,
        subject_id: str | None = None,
        idempotency_key: str | None = None,
        memory: bool = True,
        deadline: float | None = None,
        acceptance: Sequence[str] = (),
        parts: Sequence[FilePart | ReadPart | StoredPart] = (),
        speaker: str | None = None,
        output: object = None,
        tool_choice: str = "auto",
        client_tools: Sequence[ClientTool] | ClientToolset = (),
        budget: SchemaBudget | None = None,
    ) -> TurnCall:
        """Returns the validated options of a call, with the deadline on the event loop's clock.

        Args:
            session_id: the session; None: a new one
            subject_id: the subject; None: anonymous
            idempotency_key: 1 to 256 printable characters that do not begin with `approval:`; None: no key
            memory: whether the turn may use long-term memory
            deadline: seconds from now; None: no deadline
            acceptance: criteria that the reply must meet
            parts: images and files of the message
            speaker: the name of the person who said the message; None: the subject
            output: the object that is wanted in place of text, as a pydantic model or a JSON schema; None: text
            tool_choice: `auto`, `none`, `required` or the name of a tool
            client_tools: tools that the caller runs; empty: none
            budget: limits the time for schemas; None: no limit

        Raises:
            CallerError: an argument is wrong
        """
        if deadline is not None and (type(deadline) not in _NUMBERS or not 0 < deadline <= MAX_DEADLINE_S):
            raise CallerError(
                f"deadline = {quoted(deadline)}: expected seconds from now, more than 0 and at most {MAX_DEADLINE_S:,};"
                " leave it out for turn_deadline_s"
            )
        if type(memory) is not bool:
            raise CallerError(f"memory = {quoted(memory)}: expected True or False")
        _check_ids(session_id, subject_id)
        if idempotency_key is not None:
            _check_key(idempotency_key)
        if speaker is not None:
            check_speaker("speaker", speaker)
        until = None if deadline is None else anyio.current_time() + deadline
        criteria = _check_criteria(acceptance, by_model=self._by_model) if acceptance != () else ()
        brought = self._parts(parts) if parts != () else ()
        wanted = output_schema_of(output, budget) if output is not None else None
        call = TurnCall(session_id, subject_id, idempotency_key, memory, until, criteria, brought, speaker, wanted)
        if client_tools != () and client_tools != []:
            return self._with_client_tools(call, client_tools, tool_choice, budget)
        return call if tool_choice == "auto" else call._replace(tool_choice=self._choice(tool_choice))

    def _with_client_tools(self, call: TurnCall, tools: object, tool_choice: str, budget: SchemaBudget | None) -> TurnCall:
        """A call with the tools that its caller runs; raises CallerError unless the agent class takes these."""
        known = self._tools.definitions() if self._tools is not None else ()
        found = checked_client_tools(tools, known, budget)
        if found is not tools and not self._takes_client_tools:
            raise CallerError('client_tools: this agent class takes none (client_tools = "refuse")')
        choice = self._choice(tool_choice, found.names) if tool_choice != "auto" else None
        return call._replace(client_tools=found, tool_choice=choice)

    def _choice(self, choice: str, of_client: tuple[str, ...] = ()) -> str:
        """Returns what the model must call; raises CallerError unless there is such a tool."""
        known = (*self._tools.tool_ids, *of_client) if self._tools is not None else of_client
        if choice == NO_TOOL_CHOICE or (choice == ANY_TOOL_CHOICE and known) or choice in known:
            return choice
        expected = f"expected 'auto', 'none', 'required' or one of {', '.join(known)}" if known else "this class has no tools"
        raise CallerError(f"tool_choice = {quoted(choice)}: {expected}")

    def _parts(self, parts: Sequence[FilePart | ReadPart | StoredPart]) -> tuple[FilePart | ReadPart | StoredPart, ...]:
        """Returns the images and files; raises InvalidPart if one is something else, or if there are too many."""
        if isinstance(parts, str | bytes) or not isinstance(parts, Sequence):
            raise InvalidPart(f"parts = {quoted(parts)}: expected a list of ImagePart and FilePart")
        if len(parts) > self._max_parts:
            raise InvalidPart(f"parts has {len(parts)} members: expected at most max_parts = {self._max_parts}")
        for number, each in enumerate(parts, 1):
            if not isinstance(each, FilePart | ReadPart | StoredPart):
                raise InvalidPart(f"part {number} = {quoted(each)}: expected ImagePart(…) or FilePart(…)")
            if isinstance(each, FilePart):
                _check_part(number, each)
        return tuple(parts)


def _check_part(number: int, part: FilePart) -> None:
    """Raises InvalidPart unless the fields of an image or a file have the right types."""
    if not isinstance(part.source, str | bytes | Path):
        raise InvalidPart(f"part {number}: source = {quoted(part.source)}: expected a path, or the content as bytes")
    if part.media_type is not None and part.media_type not in MEDIA_TYPES:
        raise InvalidPart(f"part {number}: media_type = {quoted(part.media_type)}: expected {', '.join(MEDIA_TYPES)}")
    name = part.name
    if name is not None and (not is_printable(name, _MAX_PART_NAME) or set(name) & set("/\\[]")):
        raise InvalidPart(
            f"part {number}: name = {quoted(name)}: expected 1 to {_MAX_PART_NAME} printable characters without / \\ [ ]"
        )


def _check_ids(session_id: str | None, subject_id: str | None) -> None:
    """Raises CallerError unless these can be a session's id and the subject of a message to it."""
    if session_id is not None:
        check_session_id(session_id)
    if subject_id is not None:
        check_is_text("subject_id", subject_id)
        if not (subject_id.startswith(_ANONYMOUS) and _is_of_caller(subject_id)):
            check_caller(subject_id, session_id)


def _is_of_caller(subject_id: str) -> bool:
    """Whether this is the anonymous subject of a session whose turn waits for the calling tool."""
    return any(subject_id == anonymous_subject(each) for each in calling_chain())


def _check_key(key: str) -> None:
    """Raises CallerError unless a caller may use this idempotency key."""
    check_name("idempotency_key", key)
    if key.startswith(APPROVAL_KEY):
        problem = f"keys that begin with {APPROVAL_KEY!r} belong to turns that continue after an approval; choose another"
        raise CallerError(f"idempotency_key = {quoted(key)}: {problem}")


def _check_criteria(acceptance: Sequence[str], *, by_model: bool) -> tuple[str, ...]:
    """Returns the acceptance criteria; raises CallerError unless they are texts that the quality gate can apply."""
    check_list("acceptance", acceptance)
    if len(acceptance) > MAX_CRITERIA:
        raise CallerError(f"acceptance has {len(acceptance)} criteria: expected at most {MAX_CRITERIA}")
    for each in acceptance:
        problem = criterion_problem(each, by_model=by_model)
        if problem is not None:
            raise CallerError(f"acceptance = {quoted(each)}: {problem}")
    return tuple(acceptance)
