"""Rebuilds the requests to models in a turn, word for word, from the ledgers.

The turn runs again through the real supervisor and executor, under the recorded configuration and with the recorded answers, as
in a replay. Each request is kept as it is rendered, and its hash is compared with the recorded `request_hash`. So there is no
second renderer that could differ from the first. `_parts_of` divides a request into named parts: it renders the prompt again
and notes which text each value became. Explained in `docs/prompts.md`.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple

import anyio.to_thread

from kitchener.actors.executor.contracts import CompiledContract, Placed
from kitchener.actors.executor.prompts import PromptLibrary
from kitchener.actors.sources import SourcesSealed
from kitchener.canonical import canonical_bytes
from kitchener.config import RuntimeConfig
from kitchener.errors import CallerError, KitchenerError, NotOnRecord
from kitchener.gateway.providers.recorded import RecordedProvider
from kitchener.ids import session_of_turn
from kitchener.ledger import StoredEntry
from kitchener.model_usage import UsageMapping
from kitchener.plain_names import quoted
from kitchener.records import events
from kitchener.records.entries import ModelCallPayload, WorkOrderPlannedPayload, payload_as
from kitchener.records.prompt import Message, OnAttempt, PromptRequest, PromptResponse
from kitchener.records.ref import Ref
from kitchener.records.tokens import ESTIMATORS
from kitchener.replaying.consolidations import PREFIX, Consolidation, ConsolidationTape
from kitchener.replaying.doubles import RecordedClock, RecordedGateway
from kitchener.replaying.on_record.before_import import ledgers_before_import
from kitchener.replaying.on_record.recorded_ledgers import RecordedLedgers, open_recorded
from kitchener.replaying.on_record.recorded_sources import read_sources
from kitchener.replaying.on_record.refused_arguments import argument_problem
from kitchener.replaying.on_record.route_differences import AnyRoute
from kitchener.replaying.on_record.turn_tape import TurnTape, recordings_of
from kitchener.replaying.replay_ledgers import ReplayLedger
from kitchener.replaying.replay_supervisors import run_turn
from kitchener.replaying.session_replay import Replays, replays_now
from kitchener.replaying.tape import Diverged, Tape
from kitchener.runtime.root_layout import agent_classes, class_of, settings_of
from kitchener.runtime.sealed_root import why_unreadable
from kitchener.runtime.tools.connected_servers import PREFIX as SERVER_PREFIX

_WORK_ORDER: Final = "WO-"
_CONTRACT: Final = "contract"
_NAMES: Final[Mapping[str, str]] = {
    "user_message": "message",
    "assembled_context.context_text": "history",
    "assembled_context.ho3_biases": "learned lines",
    "assembled_context.stable_text": "goals",
    "recent_turns": "history",
    "prior_results": "results of earlier steps",
    "tools": "tool schemas",
    "labels_vocabulary": "labels",
    "response_text": "reply to verify",
}
"""Variables of prompt packs by the part that they belong to; another variable is a part of its own name."""
_OF_ROLES: Final[Mapping[str, str]] = {"assistant": "earlier answers", "tool": "tool results", "user": "repair"}
"""The parts of the messages that follow the prompt."""


class RequestPart(NamedTuple):
    """How many tokens of a request one kind of text takes."""

    name: str
    """The kind: `contract` (the prompt pack's own text), `instructions`, `history`, `learned lines`, `message` and others."""
    tokens: int
    """Its estimated tokens."""


@dataclass(frozen=True, slots=True)
class RecordedPrompt:
    """One request to a model, rebuilt."""

    request: PromptRequest
    """The messages, offered tools, schema of the answer, and limits."""
    request_hash: str
    """The hash of the rebuilt request."""
    parts: tuple[RequestPart, ...]
    """The parts of the request with their estimated tokens, which add up to `tokens`."""
    answer: ModelCallPayload | None
    """The recorded `LLM_CALL`; None: no provider answered."""
    ref: Ref | None
    """The entry of `answer`."""
    request_fields: Mapping[str, object] = field(default_factory=dict)
    """The fields that the settings of the provider that answered added to the request."""

    @property
    def tokens(self) -> int:
        """Estimated tokens of the whole request."""
        return sum(part.tokens for part in self.parts)

    @property
    def usage(self) -> UsageMapping | None:
        """Tokens as the provider counted them; None: no provider answered."""
        return self.answer["usage"] if self.answer is not None else None

    @property
    def is_verified(self) -> bool | None:
        """Whether the hash is the recorded one; None: none is recorded, because no provider answered."""
        return self.answer["request_hash"] == self.request_hash if self.answer is not None else None


@dataclass(frozen=True, slots=True)
class TurnPrompts:
    """The requests to models in one turn, or in one consolidation."""

    turn_id: str
    """The turn, or the work order of the consolidation."""
    agent_class: str
    config_hash: str
    """The recorded configuration; "": the entries name none."""
    calls: tuple[RecordedPrompt, ...]
    """The rebuilt requests, in order."""
    missing: tuple[StoredEntry, ...] = ()
    """The `LLM_CALL` entries whose request could not be rebuilt."""
    problem: str | None = None
    """Why a request is missing or differs from the recorded hash; None: all are right."""


async def read_prompts(
    turn_id: str,
    *,
    config: RuntimeConfig | str | Path | None = None,
    root: str | Path | None = None,
    agent_class: str | None = None,
    tools: Sequence[Callable[..., object]] = (),
) -> TurnPrompts:
    """Rebuilds the requests of a turn from the ledgers. Takes no lock, writes nothing and calls no model.

    The present settings say where the ledgers are; what shaped the requests is read from them. If an earlier version did
    not record that, the present settings, prompts and `tools` are tried, and only requests with the recorded hash are returned.

    Args:
        turn_id: a turn, or the work order of a consolidation
        config: path of a `kitchener.toml`, or a `RuntimeConfig`; None: the built-in defaults
        root: overrides `plane_root`
        agent_class: the agent class of the turn; None: the one whose ledger has it
        tools: the tools that were passed to `open_runtime`, for turns without recorded sources

    Raises:
        CallerError: the id is neither a turn's nor a consolidation's
        UnknownSession, NotOnRecord: no ledger has the turn
        LedgerDamaged: a line is not what was written
    """
    session_id = _session_of(turn_id)
    settings = await anyio.to_thread.run_sync(partial(settings_of, config, root))
    known = await anyio.to_thread.run_sync(agent_classes, settings)
    classes = [agent_class] if agent_class is not None else known
    if not session_id.startswith(PREFIX):
        classes = [await class_of(settings, session_id, classes)]
    for each in classes:
        async with open_recorded(settings, each) as recorded:
            ho2m = recorded.readers.get(recorded.ho2m)
            if ho2m is not None and await ho2m.last(session_id=session_id):
                return await _Rebuild(settings, recorded, turn_id, session_id, tools).run()
    raise NotOnRecord(f"work order {turn_id!r} is not on record; `kitchener memory explain` shows what was learned")


def _without_functions(recorded: RecordedLedgers) -> RecordedLedgers:
    """The ledgers, opened for reading only: functions that the settings name may be gone, or need their own program."""
    tools = recorded.agent.tools
    servers = None if tools is None else tuple(name for name in tools if name.startswith(SERVER_PREFIX))
    return replace(recorded, agent=recorded.agent.model_copy(update={"tools": servers}))


def _session_of(turn_id: str) -> str:
    session_id: str | None = session_of_turn(turn_id)
    if session_id is None and turn_id.startswith(f"{_WORK_ORDER}{PREFIX}"):
        session_id = turn_id.removeprefix(_WORK_ORDER).rpartition("-")[0]
    if session_id is None:
        raise CallerError(f"{quoted(turn_id)}: expected a turn id such as T-0a1b2c3d-000001, or a consolidation's work order")
    return session_id


class _AskedGateway(RecordedGateway):
    """Keeps each request, and gives its recorded answer, whatever the request is."""

    def __init__(self, tape: Tape, ho1m: ReplayLedger) -> None:
        super().__init__(tape, ho1m, RecordedProvider(recordings_of(tape.turns)), AnyRoute())
        self.asked: list[PromptRequest] = []

    async def complete(self, request: PromptRequest, *, on_attempt: OnAttempt) -> PromptResponse:
        """See `RecordedGateway`."""
        self.asked.append(request)
        return await super().complete(request, on_attempt=on_attempt)


class _Rebuild:
    """One turn's requests, from its entries."""

    def __init__(
        self,
        settings: RuntimeConfig,
        recorded: RecordedLedgers,
        turn_id: str,
        session_id: str,
        tools: Sequence[Callable[..., object]],
    ) -> None:
        self._settings, self._recorded, self._tools = settings, recorded, tools
        self._turn_id, self._session_id = turn_id, session_id
        self._tape: Tape
        self._has_sources = False
        self._fields: Mapping[str, Mapping[str, object]] = {}

    async def run(self) -> TurnPrompts:
        root = self._recorded.readers[self._recorded.ho2m]
        replays, self._tape, turn = await self._find()
        config_hash = _config_hash(turn)
        nothing = TurnPrompts(self._turn_id, replays.agent_class, config_hash, (), tuple(turn.of_type(events.LLM_CALL)))
        if turn.is_erased:
            return replace(
                nothing,
                problem=await why_unreadable(root, [each.payload for entries in turn.entries.values() for each in entries]),
            )
        try:
            replays = await self._as_recorded(config_hash) or await replays_now(self._settings, self._recorded, self._tools)
        except SourcesSealed as error:
            return replace(nothing, problem=str(error))
        self._tape.compares = False
        asked, stopped = await self._ask_again(replays, turn)
        return self._done(nothing, replays, asked, stopped)

    async def _find(self) -> tuple[Replays, Tape, TurnTape]:
        """The turn, and the object that replays it. An imported turn reads the ledgers of its own root."""
        before: RecordedLedgers | None = self._recorded
        while before is not None:
            self._recorded = before
            replays = await replays_now(self._settings, _without_functions(self._recorded))
            if self._session_id.startswith(PREFIX):
                tape: Tape = await replays.consolidation_tape(self._session_id)
            else:
                tape = await replays.tape_of(self._session_id)
            for turn in tape.turns:
                if turn.turn_id == self._turn_id:
                    return replays, tape, turn
            before = await ledgers_before_import(self._recorded, self._session_id)
        raise NotOnRecord(f"turn {self._turn_id!r} is not on record; `kitchener session show` lists those of its session")

    async def _as_recorded(self, config_hash: str) -> Replays | None:
        """Runs turns under a recorded configuration; None: it is not on record."""
        recorded = self._recorded
        sources = self._tape.configurations.get(config_hash)
        if sources is None and config_hash:
            sources = await read_sources(recorded.sources, config_hash)
        self._has_sources = sources is not None
        if sources is None:
            return None
        self._fields = sources.request_fields
        then = replace(recorded, agent=sources.agent(recorded.agent), memory=sources.memory(self._settings.memory))
        prompts: PromptLibrary = await anyio.to_thread.run_sync(sources.prompts)
        tools = sources.tools(self._argument_problem)
        return Replays(self._settings, then, tools, prompts, unnamed_tools=tools, sources=sources.for_requests())

    async def _ask_again(self, replays: Replays, turn: TurnTape) -> tuple[list[PromptRequest], str | None]:
        """The requests in order, and why the turn could not be followed to its end; None: it could, or it had none."""
        tape, clock = self._tape, RecordedClock()
        ledgers = replays.ledgers_for(tape)
        gateway = _AskedGateway(tape, ledgers.ho1m)
        try:
            if isinstance(tape, ConsolidationTape) and isinstance(turn, Consolidation):
                if replays.recorded.memory is None:
                    return [], "long-term memory is off, and its settings of that time are not on record"
                await replays.run_consolidation(tape, turn, ledgers, clock, gateway)
            else:
                tape.begin(turn)
                clock.put_to(turn.start["turn_ts"])
                supervisor = replays.supervisors.of(tape, ledgers, clock, replays.memory_for(tape, clock), gateway)
                await run_turn(supervisor, tape, turn)
        except Diverged as stop:
            return gateway.asked, stop.divergence.text() if turn.is_replayable else None
        except KitchenerError as error:  # the present limits may refuse what was accepted then
            return gateway.asked, str(error)
        return gateway.asked, None

    def _done(self, nothing: TurnPrompts, replays: Replays, asked: Sequence[PromptRequest], stopped: str | None) -> TurnPrompts:
        answered = {(each.entity_id, payload_as(ModelCallPayload, each.payload)["call"]): each for each in nothing.missing}
        hashed = replays.supervisors.hashed_by(replays.ledgers_for(self._tape))
        calls: list[RecordedPrompt] = []
        for request in asked:
            entry = answered.get((request.wo_id, request.call))
            payload = None if entry is None else events.read_as(ModelCallPayload, entry)
            parts = _parts_of(
                request, replays.prompts.contract(request.contract_id), self._prompt_id, replays.recorded.agent.token_estimator
            )
            ref = entry.ref if entry is not None else None
            added = self._fields.get(payload["provider_id"], {}) if payload is not None else {}
            found = RecordedPrompt(request, hashed(request), parts, payload, ref, added)
            if self._has_sources or found.is_verified:
                calls.append(found)
                answered.pop((request.wo_id, request.call), None)
        missing = tuple(answered.values())
        return replace(nothing, calls=tuple(calls), missing=missing, problem=self._problem(calls, missing, stopped))

    @property
    def _prompt_id(self) -> str:
        """The source of a prompt's delimiters: the turn's id, which a consolidation lacks."""
        return "" if isinstance(self._tape, ConsolidationTape) else self._turn_id

    def _problem(self, calls: Sequence[RecordedPrompt], missing: Sequence[StoredEntry], stopped: str | None) -> str | None:
        if missing and not self._has_sources:
            return (
                "the texts of its requests are not on record: an earlier version of Kitchener stored hashes only, and with the"
                " present settings, prompts and tools the requests get other hashes"
            )
        if missing or any(each.is_verified is False for each in calls):
            return "this version of Kitchener makes other requests from the same record" + (f"; {stopped}" if stopped else "")
        return None

    def _argument_problem(self, tool_id: str, arguments: Mapping[str, object]) -> str | None:
        """See `argument_problem`."""
        entry = self._tape.next_of(self._recorded.ho1m)
        turn = self._tape.turn
        if entry is None or turn is None:
            return None
        return argument_problem(turn.entries.get(self._recorded.ho1m, ()), entry, tool_id, arguments)


def _config_hash(turn: TurnTape) -> str:
    """The configuration of a turn, or of a consolidation; "": the entries name none."""
    if isinstance(turn, Consolidation):
        return payload_as(WorkOrderPlannedPayload, turn.started.payload).get("config_hash", "")
    return turn.start.get("config_hash", "")


def _parts_of(request: PromptRequest, contract: CompiledContract, turn_id: str, estimator: str) -> tuple[RequestPart, ...]:
    """Returns the parts in order of appearance. Their tokens add up to the estimate of the whole request.

    Args:
        request: as it was sent
        contract: the contract that it was rendered under
        turn_id: the turn, from which delimiters of data are derived
        estimator: the name of the token estimator
    """
    texts: dict[str, list[str]] = {}
    for name, text in _pieces(request, contract, turn_id):
        texts.setdefault(name, []).append(text)
    found, before, whole = list[RequestPart](), 0, ""
    for name, pieces in texts.items():
        whole += "".join(pieces)
        total = ESTIMATORS[estimator](whole)  # of everything so far, so that rounding up each part adds nothing
        found.append(RequestPart(name, total - before))
        before = total
    return tuple(found)


def _pieces(request: PromptRequest, contract: CompiledContract, turn_id: str) -> Iterator[tuple[str, str]]:
    names = dict(_names_of(request.variables))
    said = len(contract.history_in(request.variables))
    if said:
        names[id(request.variables["assembled_context"]["context_text"])] = "context of the turn"
    of_system, of_user = contract.values_in(request.variables, turn_id, request.session_id)
    yield from _of_prompt(request.messages[0], of_system, names)
    yield from (("history", message.content) for message in request.messages[1 : 1 + said])
    yield from _of_prompt(request.messages[1 + said], of_user, names)
    for message in request.messages[2 + said :]:
        asked = canonical_bytes([use.as_mapping() for use in message.tool_uses]).decode() if message.tool_uses else ""
        yield _OF_ROLES.get(message.role, message.role), message.content + asked
    for tool in request.tools:
        shown = {"tool_id": tool.tool_id, "description": tool.description, "parameters": dict(tool.parameters)}
        yield "tool schemas", canonical_bytes(shown).decode()
    if request.output_schema is not None:
        yield "answer schema", canonical_bytes(request.output_schema).decode()


def _of_prompt(message: Message, values: Iterable[Placed], names: Mapping[int, str]) -> Iterator[tuple[str, str]]:
    """The pieces of a message: the pack's own text, and the values between it."""
    text, at = message.content, 0
    for value, shown in values:
        found = text.find(shown, at)
        if found >= 0 and shown:
            yield _CONTRACT, text[at:found]
            yield names.get(id(value), "data"), shown
            at = found + len(shown)
    yield _CONTRACT, text[at:]


def _names_of(variables: Mapping[str, object], prefix: str = "") -> Iterator[tuple[int, str]]:
    """The part of each value, by the value's identity: a pack shows a variable, or a key of one."""
    for key, value in variables.items():
        path = f"{prefix}{key}"
        if isinstance(value, Mapping) and not prefix:
            yield from _names_of(value, f"{path}.")
        yield id(value), _NAMES.get(path, key.replace("_", " "))
