"""Asks the Context Authority for the decisions about a session, and records them.

The decisions themselves are pure code in `kitchener.context`; `session_thread.py` has their input. In `enforce` the intents'
events go to HO2m, and the model sees the projection. In `shadow` decisions and projections go only to the context ledger and
change nothing. Explained in `docs/context.md`.
"""

from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Final, Protocol

from kitchener.actors.authority.agent_ruleset import ruleset_of
from kitchener.actors.authority.index_cache import IndexCache
from kitchener.actors.authority.ranking import TurnWords
from kitchener.actors.authority.session_thread import SessionThread
from kitchener.actors.authority.shared_intents import SharedIntents
from kitchener.actors.authority.subject_turns import SubjectTurns
from kitchener.canonical import canonical_bytes
from kitchener.config import HO2Config
from kitchener.context import (
    ContextState,
    Flag,
    IntentEvent,
    Item,
    Projection,
    Projector,
    Rendering,
    Resolution,
    Ruleset,
    SessionIntents,
    TransitionDecision,
    base_of,
    bridge_declaration,
    conflict_flag_payload,
    make_event,
    projection_payload,
    render,
    resolve_active,
)
from kitchener.context.fold.items import OF_MESSAGE
from kitchener.context.fold.lifecycle import first_intent_problem
from kitchener.errors import InvalidLifecycle
from kitchener.ledger import LedgerEntry, LedgerGroup, StoredEntry
from kitchener.records import events
from kitchener.records.embedding import Similarity
from kitchener.records.entries import (
    CommonPayload,
    ProjectionMode,
    ShadowDecisionPayload,
    SignerDeclaredPayload,
    TransitionStep,
    payload_as,
)
from kitchener.records.index_keys import SIGNERS_KEY
from kitchener.records.ref import Ref
from kitchener.signing import Signer

SHOWN_ELSEWHERE: Final = ("rule", "bias")
"""Kinds of items that a prompt shows outside the context: rules in the instructions, learned lines in a block of their own."""
SHOWN_TO_OTHERS: Final = frozenset((events.TURN_COMPLETED, *events.OF_SHARED_INTENTS))
"""Types of entries that the subject's other sessions may need; see `ContextAuthority.show_others`."""
_NO_REF: Final = Ref("", "", "")


class TurnComparer(Protocol):
    """Compares a message with earlier turns: with vectors, or in a replay from the record."""

    async def compare(self, subject_id: str, message: str, words: TurnWords, among: int) -> Similarity | None:
        """Returns how similar the first `among` items of `words` are; None: there is nothing to compare."""
        ...


class ContextAuthority:
    """The Authority of one agent class; not created if `context_mode` is `off`.

    Args:
        config: mode and policy
        ledgers: decisions are recorded here
        signer: signs projections; None: projections are not signed
        ruleset: the policy, recorded by its hash with each decision; None: that of `config`, as if nothing is recorded
        comparer: compares a message with earlier turns by meaning; None: their words alone count
    """

    def __init__(
        self,
        config: HO2Config,
        ledgers: LedgerGroup,
        signer: Signer | None = None,
        *,
        ruleset: Ruleset | None = None,
        comparer: TurnComparer | None = None,
    ) -> None:
        self._ledgers, self._signer, self.comparer = ledgers, signer, comparer
        self.is_signer_due = signer is not None
        """Whether the signer must still be declared before the first signed projection."""
        self.is_shadow = config.context_mode == "shadow"
        self.ruleset = ruleset or ruleset_of(config)
        self.projector = Projector(self.ruleset)
        self._mode: ProjectionMode = "shadow" if self.is_shadow else "enforce"
        self._indexes = IndexCache()
        self.shared = SharedIntents(ledgers)
        self.subject_turns = SubjectTurns(ledgers, self.projector.estimate, self.ruleset)

    def thread(self, session_id: str) -> SessionThread:
        """Returns the thread of a new session."""
        state = ContextState(self.projector.estimate, session_id, is_split=self.ruleset.is_split)
        return SessionThread(state, self.ruleset, is_shadow=self.is_shadow)

    async def read_back(self, session_id: str, entries: Iterable[StoredEntry]) -> SessionThread:
        """Rebuilds the thread of a session from the ledgers, by the same fold over the same entries.

        Args:
            session_id: the session
            entries: the session's entries in HO2m, in order
        """
        thread = self.thread(session_id)
        await thread.read_back(session_id, entries, self._ledgers.context)
        return thread

    async def follow_shared(self, thread: SessionThread, session_id: str, subject_id: str, position: int) -> None:
        """Applies other sessions' entries about the subject's shared intents to a thread, up to a position of HO2m."""
        for entry in await self.shared.news(session_id, subject_id, thread.shared_to, position):
            payload = events.read_payload(entry.entry_type, entry.payload)
            thread.apply(entry.entry_type, entry.entity_id, entry.timestamp, payload, entry.ref)
        thread.shared_to = max(thread.shared_to, position)

    def show_others(
        self, subject_id: str, thread: SessionThread, entry_type: str, entity_id: str, payload: Mapping[str, object]
    ) -> None:
        """Shows the subject's other sessions an entry that one of them has just written, so that they need not read it.

        Args:
            subject_id: the subject
            thread: the thread of the session, which has applied the entry. Nothing else was written since
            entry_type: type of the entry, one of `SHOWN_TO_OTHERS`
            entity_id: what the entry is about
            payload: the entry's payload
        """
        if entry_type == events.TURN_COMPLETED:
            if self.ruleset.recall_scope == "subject":
                turns = thread.state.turns
                items = (turns.get(f"{entity_id}{OF_MESSAGE}"), turns.get(entity_id))
                self.subject_turns.completed(subject_id, entity_id, items)
        elif events.is_of_shared_intent(entry_type, payload):
            self.shared.wrote(subject_id)

    def resolve(self, thread: SessionThread) -> Resolution:
        """Returns the active intent of a session, or why there is none."""
        return resolve_active(thread.state, self.ruleset)

    def first_intent(self, thread: SessionThread, session_id: str, turn_id: str = "") -> IntentEvent | None:
        """Returns the declaration of an intent that the session still needs, or None.

        A session needs a first intent. Turns from a time without the Authority need one, too.
        """
        state, is_bridge = thread.state, self.ruleset.intent_mode == "bridge"
        session, has_past = SessionIntents(session_id, turn_id, state.intents), bool(state.turns)
        can_share = self.ruleset.shared_intent_policy == "active"
        mine = (each.is_declared_in if can_share else each.is_own_of for each in state.intents.values())
        if not any(is_mine(state.session_id) for is_mine in mine):
            return bridge_declaration(session, adopts_turns=has_past) if is_bridge or has_past else None
        if not is_bridge or self.is_shadow or not state.has_unattached:
            return None
        found = self.resolve(thread)
        if found.blocked_by is not None:
            return None
        return bridge_declaration(session, adopts_turns=True, parent_intent_id=found.active)

    def check(self, thread: SessionThread, made: Iterable[IntentEvent], timestamp: str) -> None:
        """Checks that each event is valid after all earlier ones. Call it before writing the events.

        Raises:
            InvalidLifecycle: an event is invalid in its intent's state
        """
        read = [make_event(each.entry_type, each.entity_id, timestamp, each.payload, _NO_REF) for each in made]
        found = first_intent_problem([each for each in read if each is not None], thread.state.intents)
        if found is not None:
            raise InvalidLifecycle(*found)

    def project(
        self,
        thread: SessionThread,
        resolution: Resolution,
        message: str,
        *,
        biases: Sequence[Item],
        recalled: Sequence[Item],
        results: Sequence[Item],
        tokens_left: int | None,
        turn_ts: str,
    ) -> tuple[Projection, Rendering]:
        """Computes the projection of the running turn, which started at `turn_ts`, and its text."""
        projection = self.projector.project(
            thread.state,
            resolution,
            message=message,
            ranking=thread.ranking,
            biases=biases,
            recalled=recalled,
            results=results,
            tokens_left=tokens_left,
            mode=self._mode,
            media_types=thread.media_types,
            turn_ts=turn_ts,
            resumed_id=thread.resumed_id,
        )
        self._indexes.used(thread.ranking.words)
        thread.projection = projection
        return projection, render(projection, self.projector.estimate, elsewhere=SHOWN_ELSEWHERE)

    async def declare_signer(self) -> None:
        """Writes `SIGNER_DECLARED` to HO2m if the last one names another signer.

        A runtime calls it before the first turn. In a supervisor that was assembled by hand, its first session does.

        Without the entry, a reader without a signed head could not check a signature or notice that one was removed.
        """
        ho2m, signer = self._ledgers.ho2m, self._signer
        last = await ho2m.last(key=SIGNERS_KEY)
        declared = payload_as(SignerDeclaredPayload, last[0].payload)["signer"] if last else None
        fields: SignerDeclaredPayload = {"v": events.VERSION, "signer": None, "public_key": None}
        if signer is not None:
            fields |= {"signer": signer.signer, "public_key": signer.public_key}
        if declared != fields["signer"]:
            await ho2m.write(LedgerEntry(events.SIGNER_DECLARED, fields["signer"] or "nobody", dict(fields)))
        self.is_signer_due = False

    async def record(
        self,
        thread: SessionThread,
        base: CommonPayload,
        shown: tuple[Projection, Rendering],
        timestamp: str,
        transition_refs: Sequence[Ref],
    ) -> Ref:
        """Writes `PROJECTION_COMPUTED` with references and hashes, as a change of an earlier one if there is one."""
        projection, rendering = shown
        payload = projection_payload(
            projection,
            rendering,
            timestamp=timestamp,
            turn_id=base["turn_id"],
            bases=thread.bases_for(projection.intent_id),
            transition_refs=transition_refs,
            hashed=partial(self._ledgers.context.content_digest, base["subject_id"]),
        )
        if (similar := thread.ranking.similar) is not None:
            payload["similarity"] = similar.as_mapping()
        fields: dict[str, object] = {**base, **payload}
        if self._signer is not None:
            sign_projection(fields, self._signer)
        ref = await self._ledgers.context.write(LedgerEntry(events.PROJECTION_COMPUTED, base["turn_id"], fields))
        thread.keep_base(projection.intent_id, base_of(projection, ref))
        return ref

    async def record_flags(self, base: CommonPayload, flags: Iterable[Flag], timestamp: str, intent_id: str | None) -> None:
        """Writes a `CONFLICT_FLAG` entry for each flag."""
        for flag in flags:
            payload = conflict_flag_payload(
                flag, timestamp=timestamp, intent_id=intent_id, ruleset_hash=self.ruleset.ruleset_hash
            )
            await self._ledgers.context.write(LedgerEntry(events.CONFLICT_FLAG, base["turn_id"], {**base, **payload}))

    async def record_shadow(
        self,
        thread: SessionThread,
        base: CommonPayload,
        decision: TransitionDecision,
        step: TransitionStep,
        decided_after: str,
    ) -> None:
        """Writes `INTENT_SHADOW_DECISION` and applies it to the shadow's own state.

        Args:
            thread: the session's thread
            base: the fields that every payload carries
            decision: the decision
            step: whether to record the decision's events from before the reply or after it
            decided_after: id of the session's last entry in HO2m when the decision was made
        """
        decided = decision.before_turn if step == "before" else decision.after_turn
        payload: ShadowDecisionPayload = {
            **base,
            "step": step,
            "decided_after": decided_after,
            "action": decision.action,
            "reason": decision.reason,
            "intent_id": decision.intent_id,
            "events": [
                {"entry_type": each.entry_type, "entity_id": each.entity_id, "payload": each.payload} for each in decided
            ],
            "ruleset_hash": self.ruleset.ruleset_hash,
        }
        context = self._ledgers.context
        ref = await context.write(LedgerEntry(events.INTENT_SHADOW_DECISION, base["turn_id"], payload))
        thread.apply_decision(payload, context.last_timestamp, ref)


def sign_projection(fields: dict[str, object], signer: Signer) -> None:
    """Puts the signature of a projection's payload into its `authority`."""
    del fields["authority"]
    signature = signer.sign(canonical_bytes(fields, at="payload"))
    fields["authority"] = {"tier": "HO2", "signer": signer.signer, "sig": signature}
