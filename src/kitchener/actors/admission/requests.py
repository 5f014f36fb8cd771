"""Validates a caller's arguments before anything is started: names, message, deadline, nesting, and tools of the caller.

`supervisor.py` calls it first. Each error is a `CallerError` that names the argument, its value and the expected form.
`docs/tools.md` explains the tools of a caller.
"""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final, Literal

import anyio

from kitchener.actors.sessions.fresh_ids import check_session_id
from kitchener.actors.tools.registry import ToolRegistry
from kitchener.canonical import canonical_bytes
from kitchener.config import LedgerConfig, LimitsConfig
from kitchener.config.settings import MAX_COUNT
from kitchener.criteria import MAX_CRITERIA, criterion_problem
from kitchener.errors import CallerError, EntryRefused, InvalidMessage, InvalidPart, ReentrantTurn
from kitchener.ids import anonymous_subject, check_caller
from kitchener.lanes.calling_chain import calling_chain
from kitchener.media.media_types import MEDIA_TYPES
from kitchener.plain_names import quoted
from kitchener.records.entries.sources import ToolDefinition
from kitchener.records.output_schema import output_schema_of
from kitchener.records.parts import FilePart, ReadPart, StoredPart
from kitchener.records.prompt import ANY_TOOL_CHOICE, NO_TOOL_CHOICE
from kitchener.records.spoken import MAX_SPEAKER_CHARS
from kitchener.records.tools.client_tools import ClientTool, ClientToolset
from kitchener.records.turn import ConsolidationCandidate, TurnCall
from kitchener.schemas.compiled_schemas import SchemaBudget

_TOOL_NAME: Final = re.compile(r"[A-Za-z0-9_-]{1,64}")
_ALIKE: Final = str.maketrans("-.", "__")
_MAX_TOOLS: Final = 128
"""Most tools of one message, as OpenAI's API has it."""
_DEFINITION_BYTES: Final = 2_048 * _MAX_TOOLS
"""Most bytes of JSON of all definitions of one message."""


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

    def session_id(self, session_id: str) -> None:
        """Raises CallerError unless the text has the form of a session id."""
        check_session_id(session_id)

    def listener(self, listener: object) -> None:
        """Raises CallerError unless this can be called with the updates of a turn, or is None."""
        if listener is not None and (isinstance(listener, type) or not callable(listener)):
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
        criteria = check_criteria(acceptance, by_model=self._by_model) if acceptance != () else ()
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
    if name is not None and (
        not isinstance(name, str) or not 1 <= len(name) <= _MAX_PART_NAME or not name.isprintable() or set(name) & set("/\\[]")
    ):
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


def check_criteria(acceptance: Sequence[str], *, by_model: bool) -> tuple[str, ...]:
    """Returns the acceptance criteria; raises CallerError unless they are texts that the quality gate can apply."""
    check_list("acceptance", acceptance)
    if len(acceptance) > MAX_CRITERIA:
        raise CallerError(f"acceptance has {len(acceptance)} criteria: expected at most {MAX_CRITERIA}")
    for each in acceptance:
        problem = criterion_problem(each, by_model=by_model)
        if problem is not None:
            raise CallerError(f"acceptance = {quoted(each)}: {problem}")
    return tuple(acceptance)


def check_is_text(what: str, value: object) -> None:
    """Raises CallerError unless the value is a `str`."""
    if not isinstance(value, str):
        raise CallerError(f"{what} = {quoted(value)}: expected text")


def check_texts_if_given(**values: object) -> None:
    """Raises CallerError unless each value, by its argument's name, is a `str` or None."""
    for what, value in values.items():
        if value is not None:
            check_is_text(what, value)


def check_count(what: str, number: object) -> None:
    """Raises CallerError unless this is a whole number, at least 1 and at most `MAX_COUNT`."""
    if type(number) is not int or not 1 <= number <= MAX_COUNT:
        raise CallerError(f"{what} = {quoted(number)}: expected a whole number from 1 to {MAX_COUNT:,}")


def check_list(what: str, texts: object) -> None:
    """Raises CallerError unless this is a list of texts. A single text is refused, although it is a sequence of texts, too."""
    if isinstance(texts, str) or not isinstance(texts, Sequence):
        raise CallerError(f"{what} = {quoted(texts)}: expected a list of texts")
    for each in texts:
        check_is_text(what, each)


def check_name(what: str, name: str) -> None:
    """Raises CallerError unless a name chosen by the caller has 1 to 256 printable characters."""
    if not isinstance(name, str) or not 1 <= len(name) <= MAX_NAME or not name.isprintable():
        raise CallerError(f"{what} = {quoted(name)}: expected 1 to {MAX_NAME} printable characters")


def _check_key(key: str) -> None:
    """Raises CallerError unless a caller may use this idempotency key."""
    check_name("idempotency_key", key)
    if key.startswith(APPROVAL_KEY):
        problem = f"keys that begin with {APPROVAL_KEY!r} belong to turns that continue after an approval; choose another"
        raise CallerError(f"idempotency_key = {quoted(key)}: {problem}")


def check_speaker(what: str, name: object) -> None:
    """Raises CallerError unless this can be the name of a person who talks."""
    if not isinstance(name, str) or not name.strip() or len(name) > MAX_SPEAKER_CHARS or not name.isprintable():
        raise CallerError(f"{what} = {quoted(name)}: expected a name of 1 to {MAX_SPEAKER_CHARS} printable characters")


def fits_entry(text: str, ledger: LedgerConfig) -> bool:
    """Whether a message or a reply fits into one ledger entry beside the entry's other fields."""
    if len(text) * 16 <= ledger.max_entry_bytes:  # six bytes a character at most; at least three eighths of an entry are left
        return True
    limit = ledger.max_entry_bytes - min(_BESIDE_THE_TEXT, ledger.max_entry_bytes // 2)
    if ledger.seal:  # sealed text is written in base64
        limit = limit * 3 // 4
    return len(canonical_bytes(text)) <= limit


def check_text(what: str, text: str) -> None:
    """Raises CallerError unless the text is not blank, has at most 2,000 characters, and has no lone surrogate."""
    if not isinstance(text, str) or not text.strip() or len(text) > _MAX_TEXT or _SURROGATE.search(text):
        raise CallerError(f"{what} = {quoted(text)}: expected 1 to {_MAX_TEXT} characters of text")


def check_not_inside(session_id: str, what: str) -> None:
    """Raises ReentrantTurn if a call would wait for the turn whose tool makes the call.

    Args:
        session_id: the session that the call needs
        what: what the call would do, for the error message
    """
    if session_id in calling_chain():
        raise ReentrantTurn(f"session {session_id!r} runs the turn whose tool {what}; do it after the turn, from outside of it")


_ANONYMOUS = anonymous_subject("")
MAX_DEADLINE_S = 86_400
"""Longest deadline of a call, seconds: one day, the same as for all settings."""
_BESIDE_THE_TEXT = 8_192
"""Most bytes that the other fields of an entry with a message or a reply can take."""
_NUMBERS = (int, float)
_SURROGATE = re.compile("[\ud800-\udfff]")
_MAX_TEXT = 2_000
MAX_NAME = 256
APPROVAL_KEY = "approval:"
"""Prefix of the idempotency key of a turn that continues after an approval. No caller may use such a key."""
_MAX_PART_NAME = 128


def checked_client_tools(tools: object, known: Sequence[ToolDefinition], budget: SchemaBudget | None = None) -> ClientToolset:
    """Returns the tools of a message as a set.

    Args:
        tools: as the caller gives them; a `ClientToolset` was checked when it was made, and is returned as it is
        known: the tools of the agent class and the built-in ones, whose names are taken
        budget: limits the time for their schemas; None: no limit

    Raises:
        CallerError: a tool is not a `ClientTool`, its name is taken or invalid, or its schema does not describe an object; or
            the tools are too many or too large
    """
    if isinstance(tools, ClientToolset):
        return tools
    if isinstance(tools, str) or not isinstance(tools, Sequence):
        raise CallerError(f"client_tools = {quoted(tools)}: expected a list of ClientTool(…)")
    if len(tools) > _MAX_TOOLS:
        raise CallerError(f"client_tools has {len(tools)} members: expected at most {_MAX_TOOLS}")
    taken, checked = {_alike(each["tool_id"]): _owned(each) for each in known}, list[ClientTool]()
    for number, each in enumerate(tools, 1):
        if not isinstance(each, ClientTool):
            raise CallerError(f"client tool {number} = {quoted(each)}: expected ClientTool(name, description, parameters)")
        if not isinstance(each.name, str) or not _TOOL_NAME.fullmatch(each.name):
            raise CallerError(f"client tool {number}: name = {quoted(each.name)}: expected 1 to 64 letters, digits, '_' or '-'")
        if (other := taken.get(_alike(each.name))) is not None:
            raise CallerError(f"client tool {each.name!r} has the name of {other}: expected another name")
        taken[_alike(each.name)] = f"client tool {each.name!r} of the same message"
        checked.append(_with_type(each))
    return _compiled(checked, _DEFINITION_BYTES, budget)


def _owned(tool: ToolDefinition) -> str:
    return f"the built-in tool {tool['tool_id']!r}" if tool["built_in"] else f"tool {tool['tool_id']!r} of the agent class"


def _alike(name: str) -> str:
    """The form in which names are compared: a model confuses names that differ only in case or in separators."""
    return name.casefold().translate(_ALIKE)


def _with_type(tool: ClientTool) -> ClientTool:
    """The tool with `type: object` in its schema, where the schema leaves the type out.

    Raises:
        CallerError: its description is not text, or its schema does not describe an object
    """
    if not isinstance(tool.description, str):
        raise CallerError(f"client tool {tool.name!r}: description = {quoted(tool.description)}: expected text")
    schema = tool.parameters
    if not isinstance(schema, Mapping) or schema.get("type", "object") != "object":
        raise CallerError(f"client tool {tool.name!r}: parameters = {quoted(schema)}: expected a JSON schema of an object")
    try:
        canonical_bytes([tool.description, schema], at="definition")  # checks that it is JSON, and not too deep
    except EntryRefused as error:
        raise CallerError(f"client tool {tool.name!r}: {error}") from None
    return tool if "type" in schema else ClientTool(tool.name, tool.description, {"type": "object", **schema})


def _compiled(tools: Sequence[ClientTool], max_bytes: int, budget: SchemaBudget | None) -> ClientToolset:
    """The set of these tools. Raises CallerError if a schema cannot be used, or if the tools are too large."""
    found = ClientToolset.of(tools)
    if (size := len(found.text.encode())) > max_bytes:  # before they are compiled, which takes seconds for megabytes
        raise CallerError(f"client_tools has {size:,} bytes as JSON: expected at most {max_bytes:,}")
    try:
        found.compiled(budget)
    except ValueError as error:
        raise CallerError(str(error)) from None
    return found
