"""The intents of sessions as their entries left them, for a list."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from kitchener.actors.authority.authority import ruleset_of
from kitchener.cli.context.past import fold_entries, fold_shadow, open_reader, read_past
from kitchener.cli.context.text import conflict_lines, invalid_lines
from kitchener.cli.options import Places
from kitchener.cli.terminal.output import one_line
from kitchener.config import HO2Config
from kitchener.context import ContextState, resolve_active
from kitchener.errors import InvalidLifecycle
from kitchener.ledger import StoredEntry
from kitchener.records import events

_WIDTH = 60
_OF_INTENTS = (
    events.INTENT_DECLARED,
    events.INTENT_SUPERSEDED,
    events.INTENT_REOPENED,
    events.INTENT_CLOSED,
    events.INTENT_ABANDONED,
    "INTENT_DEFERRED",
    events.INTENT_FORKED,
    events.LIFECYCLE_VOIDED,
    events.TURN_STARTED,
    events.TURN_COMPLETED,
)


@dataclass(frozen=True, slots=True)
class SessionThreads:
    """One session's intents."""

    session_id: str
    config: HO2Config
    state: ContextState
    is_one_of_many: bool = False
    """Then an intent that sessions share stands with the one that declared it."""

    def rows(self) -> Iterator[dict[str, Any]]:
        """One for each intent, in the order of their declarations."""
        resolution = resolve_active(self.state, ruleset_of(self.config))
        for record in self.state.intents.values():
            owner = record.facts.session_id or self.session_id
            if self.is_one_of_many and owner != self.session_id:
                continue
            status: str = record.status
            if record.intent_id == resolution.active:
                status = "active"
            elif record.intent_id in resolution.competing:
                status = "competing"
            yield {
                "session_id": owner,
                "intent_id": record.intent_id,
                "status": status,
                "scope": record.facts.scope,
                "turns": len(self.state.attached(record.intent_id).turns),
                "parent": record.facts.parent_id,
                "superseded_by": record.superseded_by,
                "objective": one_line(record.facts.objective, _WIDTH),
                "declared_at": record.declared.timestamp,
                "last_entry": record.last.ref.entry_id,
            }

    def notes(self) -> Iterator[str]:
        """What stands in the way of the session, where something does."""
        resolution = resolve_active(self.state, ruleset_of(self.config))
        if resolution.competing:
            yield from conflict_lines(self.state, resolution.competing, self.session_id)
        if self.state.invalid:
            yield from invalid_lines(self.state, self.session_id)


async def read_threads(places: Places, preferred: str, session_id: str | None) -> list[SessionThreads]:
    """The intents of one session, or of all sessions of an agent class that have any.

    Raises:
        UnknownSession: no ledger knows the session
    """
    if session_id is not None:
        past = await read_past(places, session_id, preferred)
        if past.config.context_mode == "shadow":
            state = await fold_shadow(places, past, past.entries)
        else:
            state = past.state()
        return [SessionThreads(session_id, past.config, state)]
    config, sessions = places.agent(preferred), dict[str, list[StoredEntry]]()
    shared: dict[str, list[StoredEntry]] = {}
    async with open_reader(places, places.ledger(preferred, "ho2m"), is_ho2m=True) as ho2m:
        if ho2m is not None:
            async for entry in ho2m.read(entry_type=_OF_INTENTS):
                sessions.setdefault(entry.session_id or "", []).append(entry)
                if events.SHARED_INTENTS in events.index_keys(entry.entry_type, entry.payload):
                    shared.setdefault(str(entry.payload["subject_id"]), []).append(entry)
    found = []
    for name, entries in sessions.items():
        others = [each for each in shared.get(str(entries[0].payload.get("subject_id")), ()) if each.session_id != name]
        found.append(SessionThreads(name, config, fold_entries([*entries, *others], config, name), is_one_of_many=True))
    return [each for each in found if each.state.intents]


async def session_of_intent(places: Places, intent_id: str, preferred: str) -> tuple[str, str]:
    """The agent class and the session that declared an intent. Reads whole ledgers.

    Raises:
        InvalidLifecycle: nobody declared it
    """
    for agent_class in [preferred, *[name for name in places.agent_classes() if name != preferred]]:
        async with open_reader(places, places.ledger(agent_class, "ho2m"), is_ho2m=True) as ho2m:
            if ho2m is None:
                continue
            async for entry in ho2m.read(entity_id=intent_id, entry_type=events.INTENT_DECLARED):
                if entry.session_id is not None:
                    return agent_class, entry.session_id
    text = f"intent {intent_id!r} was never declared; `kitchener intent list` shows those there are"
    raise InvalidLifecycle(intent_id, text)
