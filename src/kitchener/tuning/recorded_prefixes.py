"""Reads the beginnings of the prompts of a session's replies, for `prompt_prefixes.py`."""

import json
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Final

from kitchener.actors.sources import SourcesSealed
from kitchener.context import ProjectionLists, read_chain
from kitchener.context.fold.items import IN_INTENT, Reasons
from kitchener.ledger import LedgerReader, StoredEntry
from kitchener.records import events
from kitchener.records.entries import (
    ConstraintsMapping,
    ModelCallPayload,
    ProjectionPayload,
    TurnStartedPayload,
    WorkOrderPlannedPayload,
    opened,
    payload_as,
)
from kitchener.records.ref import Ref
from kitchener.replaying.on_record.recorded_sources import RecordedSources, read_sources
from kitchener.runtime.root_layout import LedgerName
from kitchener.tuning.prompt_prefixes import PromptPrefix, TurnPrefix

_PERSONA: Final = ("instructions", "standing_rules")
_COMPARED: Final = 2
"""A break is between two turns."""

ShownProjection = tuple[ProjectionPayload, ProjectionLists]
"""A projection that a model was shown, with its lists."""


@dataclass(slots=True)
class _PlannedReply:
    """What the supervisor planned for the reply of a turn."""

    config_hash: str
    output: str = ""
    """Hash of the schema of the object that the caller wants; "": text."""
    client_tools: str = ""
    """Hash of the definitions of the tools that the caller runs; "": none."""
    policy_version: int = 1
    wo_id: str = ""
    constraints: ConstraintsMapping = field(default_factory=lambda: ConstraintsMapping())
    criteria: tuple[str, ...] = ()
    """The acceptance criteria, which up to version 11 of the policy stand among the instructions."""


async def read_prefixes(readers: Mapping[LedgerName, LedgerReader], session_id: str) -> list[TurnPrefix]:
    """Returns the beginning of the first request for each turn's reply, in the order of the turns.

    Turns whose request no model answered are left out.

    Args:
        readers: the existing ledgers of the session's agent class
        session_id: the session

    Raises:
        LedgerDamaged: a line does not verify
    """
    if "ho2m" not in readers or "ho1m" not in readers:
        return []
    ho2m = readers["ho2m"]
    planned = ho2m.read(session_id=session_id, entry_type=(events.TURN_STARTED, events.WO_PLANNED))
    turns = _planned([entry async for entry in planned])
    answers = readers["ho1m"].read(session_id=session_id, entry_type=events.LLM_CALL)
    calls = _first_calls([entry async for entry in answers])
    shown = await _projections(readers["context"], session_id) if "context" in readers else {}
    sources: dict[str, RecordedSources | None] = {}
    found = []
    for turn_id, turn in turns.items():
        call = calls.get(turn.wo_id)
        if call is None:
            continue
        if turn.config_hash not in sources:
            sources[turn.config_hash] = await _sources(ho2m, turn.config_hash)
        found.append(_prefix(turn_id, turn, call, sources[turn.config_hash], shown.get(turn_id)))
    return found


async def read_last_prefixes(
    ho2m: LedgerReader,
    session: Iterable[StoredEntry],
    turn_id: str,
    calls_of: Callable[[str], Awaitable[Iterable[StoredEntry]]],
    projection_of: Callable[[str], ShownProjection | None],
) -> list[TurnPrefix]:
    """Returns what `read_prefixes` would return for a turn and the turn before it, and reads nothing of other turns.

    Args:
        ho2m: the supervisor's ledger
        session: the entries of the session in it
        turn_id: the turn
        calls_of: reads the entries of a turn in HO1m
        projection_of: the projection that the model was shown in a turn; None: there is none

    Returns:
        the prefix of the turn before, then that of the turn; (): no model answered the turn's request
    """
    turns, found = _planned(session), list[TurnPrefix]()
    order = list(turns)
    for each in reversed(order[: order.index(turn_id) + 1] if turn_id in turns else ()):
        call = _first_calls(await calls_of(each)).get(turns[each].wo_id)
        if call is not None:
            sources = await _sources(ho2m, turns[each].config_hash)
            found.insert(0, _prefix(each, turns[each], call, sources, projection_of(each)))
        if len(found) == _COMPARED or not found:
            break
    return found


def _prefix(
    turn_id: str,
    turn: _PlannedReply,
    call: ModelCallPayload,
    sources: RecordedSources | None,
    shown: ShownProjection | None,
) -> TurnPrefix:
    prefix, usage = _of_sources(turn, call, sources), call["usage"]
    if shown is not None:
        prefix = _with_projection(prefix, *shown)
    if turn.policy_version > 12 and sources is not None and sources.settings.get("recent_turns", 0) is None:
        prefix = prefix._replace(eligible=None)  # a window over the turns of all intents
    return TurnPrefix(turn_id, prefix, usage["input_tokens"], usage.get("cached_tokens"))


def _planned(session: Iterable[StoredEntry]) -> dict[str, _PlannedReply]:
    turns: dict[str, _PlannedReply] = {}
    for entry in session:
        if entry.entry_type == events.TURN_STARTED:
            started = payload_as(TurnStartedPayload, entry.payload)
            turns[entry.entity_id] = _PlannedReply(
                started.get("config_hash", ""),
                started.get("output_schema", ""),
                started.get("client_tools", ""),
                started.get("policy_version", 1),
            )
            continue
        if entry.entry_type != events.WO_PLANNED:
            continue
        planned = payload_as(WorkOrderPlannedPayload, entry.payload)
        turn = turns.get(planned.get("turn_id", ""))
        if turn is not None and not turn.wo_id and planned["wo_type"] == "synthesize":
            turn.wo_id, turn.constraints = entry.entity_id, planned["constraints"]
            turn.criteria = tuple(opened(planned.get("acceptance", ())) or ())
    return turns


def _first_calls(calls: Iterable[StoredEntry]) -> dict[str, ModelCallPayload]:
    """The first answered call of each work order."""
    found: dict[str, ModelCallPayload] = {}
    for entry in calls:
        if entry.entry_type != events.LLM_CALL:
            continue
        call = payload_as(ModelCallPayload, entry.payload)
        if call["call"] == 1:
            found.setdefault(entry.entity_id, call)
    return found


async def _projections(context: LedgerReader, session_id: str) -> dict[str, ShownProjection]:
    """The projections that models were shown, by turn."""
    payloads: dict[Ref, Mapping[str, object]] = {}
    known: dict[Ref, ProjectionLists] = {}
    found: dict[str, ShownProjection] = {}
    async for entry in context.read(session_id=session_id, entry_type=events.PROJECTION_COMPUTED):
        payloads[entry.ref] = entry.payload
        payload = events.read_as(ProjectionPayload, entry)
        if payload["mode"] == "enforce" and "turn_id" in payload:
            known[entry.ref] = read_chain(entry.payload, known, payloads.__getitem__)
            found[payload["turn_id"]] = payload, known[entry.ref]
    return found


async def _sources(ho2m: LedgerReader, config_hash: str) -> RecordedSources | None:
    """The sources of a configuration; None: they are not on record, or cannot be read."""
    try:
        return await read_sources(ho2m, config_hash)
    except SourcesSealed:
        return None


def _of_sources(turn: _PlannedReply, call: ModelCallPayload, sources: RecordedSources | None) -> PromptPrefix:
    limits, pack = turn.constraints, call["prompt_pack_version"]
    has_tools = bool(limits.get("turn_limit")) or turn.policy_version > 11
    criteria = turn.criteria if turn.policy_version < 12 else ()
    tools = tuple(limits.get("allowed_tools", ())) if has_tools else ()
    of_caller = (f"of the caller: {turn.client_tools}",) if has_tools and limits.get("client_tools") else ()
    prefix = PromptPrefix(call["provider_id"], call["model_id"], (*tools, *of_caller), pack, json.dumps(criteria), turn.output)
    if sources is None:
        return prefix._replace(unread_settings=turn.config_hash)
    contract = sources.hashes.get(("contract", limits.get("prompt_contract_id", "")), "")
    told = json.dumps([*[sources.settings.get(name) for name in _PERSONA], criteria])
    defined = tuple(f"{name} {sources.hashes.get(('tool', name), '')}" for name in tools)
    return prefix._replace(tools=(*defined, *of_caller), prompt_pack=f"{pack} {contract}", instructions=told)


def _with_projection(prefix: PromptPrefix, payload: ProjectionPayload, lists: ProjectionLists) -> PromptPrefix:
    learned = [ref.entry_id for ref in lists.visible if "HO3_BIAS" in _why(lists, ref)]
    prefix = prefix._replace(
        intent_id=payload["intent_id"], learned_lines=tuple(learned), stable_hash=payload["stable_prefix_hash"]
    )
    if (history := payload.get("history")) is None:
        return prefix
    first = history["first"]
    shown = tuple(_history(lists, Ref.from_mapping(first))) if first is not None else ()
    eligible = frozenset(ref.entry_id for ref in lists.eligible)
    return prefix._replace(history=shown, eligible=eligible, is_cut="cut_by" in history)


def _history(lists: ProjectionLists, first: Ref) -> Iterator[str]:
    """The messages and replies that are shown from the first on, oldest first."""
    own = [
        ref
        for ref in lists.visible
        if ref.ledger_id == first.ledger_id and (_why(lists, ref) == IN_INTENT or "RECENT" in _why(lists, ref))
    ]
    for ref in sorted(own, key=attrgetter("seq")):
        if ref.seq >= first.seq:
            yield ref.entry_id


def _why(lists: ProjectionLists, ref: Ref) -> Reasons:
    return lists.why(ref) or IN_INTENT
