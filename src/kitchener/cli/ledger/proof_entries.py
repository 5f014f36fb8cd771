"""Which entries are the evidence of a turn: what was said, decided, called, shown and learned in it, ledger by ledger."""

from collections.abc import Awaitable, Callable

from kitchener.cli.options import Options, Places
from kitchener.context import base_ref
from kitchener.errors import CallerError, KitchenerError
from kitchener.ids import memory_namespace, session_of_turn
from kitchener.ledger import LedgerReader, StoredEntry
from kitchener.ledger.audit.bundle import Selection
from kitchener.memory.index import OVERLAYS, artifact_key
from kitchener.memory.signals import event_id
from kitchener.records import events
from kitchener.runtime.ledger_paths import LedgerName

_ORDINALS = 64
"""A turn logs a signal once or twice; so many event ids of a sealed signal are tried."""


async def evidence_of(options: Options, turn_id: str) -> list[Selection]:
    """What a bundle of the turn holds, of HO2m, HO1m, the context ledger, and the memory's two where the turn touched them.

    Raises:
        CallerError: the id is none
        UnknownSession: no agent class has its session
        KitchenerError: the session has no such turn
    """
    session_id = session_of_turn(turn_id)
    if session_id is None:
        raise CallerError(f"{turn_id!r} is not a turn id: expected T-, the session's hex digits, and a number such as -000001")
    places = Places(options.load().config)
    agent_class = await places.class_of(session_id, options.agent)
    turn = _Turn(turn_id, session_id, agent_class)
    found = [await _wanted(places, agent_class, name, select) for name, select in turn.selections()]
    return [each for each in found if each is not None]


_Select = Callable[[LedgerReader], Awaitable[set[int]]]


async def _wanted(places: Places, agent_class: str, name: LedgerName, select: _Select) -> Selection | None:
    async with places.reader(agent_class, name) as reader:
        if reader is None:
            return None
        seqs = await select(reader)
        return Selection(reader.path, reader.ledger_id, tuple(sorted(seqs)), reader.head()) if seqs else None


class _Turn:
    """One turn, found ledger by ledger: HO2m first, since it says what to look for in the others."""

    def __init__(self, turn_id: str, session_id: str, agent_class: str) -> None:
        self.turn_id, self.session_id, self._agent_class = turn_id, session_id, agent_class
        self._artifacts: set[str] = set()
        self._namespace = ""
        self._overlays_position: int | None = None

    def selections(self) -> tuple[tuple[LedgerName, _Select], ...]:
        """How each ledger's entries are chosen, in the order in which that has to be done."""
        return (
            ("ho2m", self._of_ho2m),
            ("ho1m", self._of_turn),
            ("context", self._of_context),
            ("signals", self._of_signals),
            ("overlays", self._of_overlays),
        )

    async def _of_ho2m(self, reader: LedgerReader) -> set[int]:
        seqs, is_known, has_ended = set[int](), False, False
        async for entry in reader.read(session_id=self.session_id):
            is_mine = entry.payload.get("turn_id") == self.turn_id
            if is_mine or entry.entry_type == events.SESSION_START:
                seqs.add(entry.seq)
            if is_mine and entry.entry_type == events.TURN_STARTED:
                is_known = True
                self._namespace = memory_namespace(self._agent_class, entry.payload["subject_id"])
                self._overlays_position = entry.payload.get("read_positions", {}).get(OVERLAYS)
            has_ended = has_ended or (is_mine and entry.entry_type in (events.TURN_COMPLETED, events.TURN_ABORTED))
            if is_mine and entry.entry_type == events.WO_PLANNED:
                self._artifacts.update((entry.payload.get("attention") or {}).get("biases", ()))
        if not is_known:
            raise KitchenerError(
                f"session {self.session_id} has no turn {self.turn_id}; `kitchener session show` lists those it has"
            )
        if not has_ended:
            raise KitchenerError(
                f"turn {self.turn_id} has not ended, so nothing can prove it yet; one that a crash cut off is closed"
                " when its session is next used"
            )
        return seqs

    async def _of_turn(self, reader: LedgerReader) -> set[int]:
        return {
            entry.seq async for entry in reader.read(session_id=self.session_id) if entry.payload.get("turn_id") == self.turn_id
        }

    async def _of_context(self, reader: LedgerReader) -> set[int]:
        """The turn's own, and the projections without which its lists cannot be read: they are changes of those."""
        seqs = await self._of_turn(reader)
        for seq in sorted(seqs):
            entry = await reader.get(seq)
            while entry is not None and entry.entry_type == events.PROJECTION_COMPUTED:
                seqs.add(entry.seq)
                base = base_ref(entry.payload)
                entry = await reader.get(int(base.entry_id.rpartition("-")[2])) if base is not None else None
        return seqs

    async def _of_signals(self, reader: LedgerReader) -> set[int]:
        return {entry.seq async for entry in reader.read(session_id=self.session_id) if self._is_my_signal(entry)}

    def _is_my_signal(self, entry: StoredEntry) -> bool:
        payload = entry.payload
        metadata = payload.get("metadata")
        if isinstance(metadata, dict) and "turn_id" in metadata:
            return bool(metadata["turn_id"] == self.turn_id)
        # Sealed under a key that is not here: the event's id was derived from the turn.
        ids = tuple(event_id(self.session_id, self.turn_id, str(payload.get("signal_id")), n) for n in range(_ORDINALS))
        return bool(payload.get("event_id") in ids)

    async def _of_overlays(self, reader: LedgerReader) -> set[int]:
        """All records of the lines that a model was shown, up to where the turn read."""
        return {
            entry.seq
            for artifact_id in sorted(self._artifacts)
            async for entry in reader.read(key=artifact_key(artifact_id), up_to_seq=self._overlays_position)
            if entry.payload.get("namespace") == self._namespace
        }
