"""Applies the Context Authority to one turn: finds the turn's intent, projects its context, and records the transitions.

In `enforce` the model sees the Authority's projection, and the Authority may answer a message itself, for example with a
question about two competing intents. In `shadow` it takes the same steps, but none of them affects the turn. Explained in
`docs/context.md`.
"""

from collections.abc import Callable, Container, Mapping, Sequence
from typing import Final

import anyio.lowlevel

from kitchener.actors.attention.attention_context import AttentionContext, BudgetUsed, ContextFragment
from kitchener.actors.authority.authority import ContextAuthority
from kitchener.actors.authority.session_thread import SessionThread
from kitchener.actors.sessions.active_session import SessionManager
from kitchener.actors.turn.context_time import booked
from kitchener.actors.turn.reply import Reply
from kitchener.actors.turn_memory import TurnMemory
from kitchener.context import (
    ContextState,
    IntentEvent,
    Item,
    Projection,
    Rendering,
    Resolution,
    SessionIntents,
    TransitionDecision,
    are_shared,
    bias_item,
    choose_thread,
    describe_conflict,
    keep_intent,
    recall_last_closed,
    resolve_after_turn,
    resolve_intent_transition,
    with_scopes,
)
from kitchener.context.fold.context_events import Brought
from kitchener.records import events
from kitchener.records.entries import CommonPayload, TransitionStep, TurnErrorKind
from kitchener.records.outputs import Classification
from kitchener.records.parts import StoredPart
from kitchener.records.ref import Ref
from kitchener.records.turn import TurnError

_INDEXED_AT_ONCE: Final = 64
"""Most turns that are indexed at a time, before other tasks run."""
_OFFERED: Final = 2
"""Budget times this: most tokens of offered matches from other turns. Shorter ones fill the room that longer ones leave."""


class TurnAuthority:
    """The Authority's steps in one turn.

    Args:
        authority: the Authority of the agent class
        session: the session, held by the turn
        turn_id: the turn
        message: the user's message
        turn_ts: when the turn started, ISO time
        position: the position of HO2m when the turn started
    """

    def __init__(
        self,
        authority: ContextAuthority,
        session: SessionManager,
        turn_id: str,
        message: str,
        *,
        turn_ts: str,
        position: int,
    ) -> None:
        assert session.thread is not None
        self._authority, self._session, self._turn_id = authority, session, turn_id
        self._message, self._turn_ts, self._position = message, turn_ts, position
        self._thread: SessionThread = session.thread
        self._decision: TransitionDecision | None = None
        self._transition: list[Ref] = []
        self._is_blocked = self._has_answered = False
        self.projection_ref: Ref | None = None
        """The entry of the turn's projection; None before it is recorded, and always None in `shadow`."""

    @property
    def is_shadow(self) -> bool:
        """Whether the Authority runs in `shadow`, where it must not affect the turn."""
        return self._authority.is_shadow

    @property
    def shows_stubs(self) -> bool:
        """Whether the context shows stubs or excerpts that the model could read in full with a tool."""
        projection = self._thread.projection
        if projection is None or self.is_shadow:
            return False
        return any(
            (each.form == "STUB" and each.tokens) or (each.form == "FULL" and each.item.whole)
            for each in (*projection.head, *projection.placed)
        )

    @property
    def intent_id(self) -> str | None:
        """The intent that the turn is recorded under; None in `shadow` or without an active intent."""
        return None if self.is_shadow else self._thread.intent_id

    async def open(self) -> Reply | None:
        """Ensures that the session has exactly one active intent. If that is impossible, returns the Authority's own answer."""
        self._thread.projection = self._thread.ranking.similar = None
        session = self._session
        await self._authority.follow_shared(self._thread, session.session_id, session.subject_id, self._position)
        first = self._authority.first_intent(self._thread, self._session.session_id, self._turn_id)
        if first is not None:
            await self._write(TransitionDecision("DECLARE", (first,), (), "the session's first intent", first.entity_id))
        resolution = self._authority.resolve(self._thread)
        if resolution.blocked_by == "COMPETING_INTENTS":
            return await self._settle(resolution)
        if resolution.flags:
            await self._flag(resolution)
        if resolution.blocked_by is not None:
            self._thread.intent_id = None
            self._is_blocked = True
            text = "This session's record has an impossible entry, so nothing can be shown to the model."
            return self._answer(text, "INVALID_LIFECYCLE", resolution.flags[0].detail if resolution.flags else "")
        self._thread.intent_id = resolution.active
        return None

    def classify_inputs(self) -> dict[str, object]:
        """The active and prior intent as input for classification; empty in `shadow` and in `bridge` mode."""
        if self.is_shadow or self._authority.ruleset.intent_mode == "bridge":
            return {}
        active = self._thread.intent_id
        record = self._thread.state.intents.get(active) if active is not None else None
        return {
            "active_objective": record.facts.objective if record is not None else None,
            "prior_intent_id": self._thread.prior_intent_id,
        }

    async def decide(self, classification: Classification) -> Reply | None:
        """Decides how the message changes the active intent. Returns a question if the policy is to ask the user."""
        thread = self._thread
        if self._is_blocked:  # only in `shadow`, which cannot ask the user: no intent was resolved
            return None
        decision = self._decision = resolve_intent_transition(
            thread.intent_id,
            classification,
            self._authority.ruleset,
            message=self._message,
            session_intents=SessionIntents(self._session.session_id, self._turn_id, thread.state.intents),
        )
        await self._write(decision)
        thread.intent_id = decision.intent_id
        if decision.flags:
            await self._authority.record_flags(self._base(), decision.flags, self._turn_ts, thread.intent_id)
        if decision.action == "ASK":
            record = thread.state.intents.get(thread.intent_id or "")
            about = f"“{record.facts.objective}”" if record is not None else "what we spoke of"
            return self._answer(f"Does this belong to {about}, or is it something new?", "UNCLEAR_INTENT", decision.reason)
        return None

    async def compare(self, shown: AttentionContext, memory: TurnMemory | None, tokens_left: int | None) -> None:
        """Records the projection that would have been shown instead of `shown`; in `shadow`."""
        anchors = await self.with_refs(shown.biases, memory) if memory is not None else ()
        await self.show(shown, anchors, tokens_left)

    async def show(
        self, gathered: AttentionContext, anchors: Sequence[ContextFragment], tokens_left: int | None
    ) -> AttentionContext:
        """Step 2b: returns the context that the model sees: the projection in `enforce`, `gathered` in `shadow`.

        Args:
            gathered: the context that attention found
            anchors: the learned lines that match this message, `with_refs`
            tokens_left: tokens left in the turn's budget; None: without limit
        """
        authority, thread = self._authority, self._thread
        resolution = authority.resolve(thread)
        if resolution.blocked_by is not None:  # only in `shadow`, or because of an entry that this turn wrote
            if not self._is_blocked:
                await self._flag(resolution)
            return gathered
        recalled = await self._recalled(resolution.active)
        results = await self._session.results.items(self._message, thread.state.turns)
        with booked():
            projection, rendering = authority.project(
                thread,
                resolution,
                self._message,
                biases=_bias_items(anchors, authority.projector.estimate) if anchors else (),
                recalled=recalled,
                results=results,
                tokens_left=tokens_left,
                turn_ts=self._turn_ts,
            )
        ref = await authority.record(thread, self._base(), (projection, rendering), self._turn_ts, self._transition)
        if self.is_shadow:
            return gathered
        self.projection_ref = ref
        shown = _as_context(projection, rendering, gathered.template_id, anchors)
        return shown._replace(projection_ref=ref, parts=_shown_parts(projection, thread.state))

    async def finish(self, output: Mapping[str, object], *, is_failed: bool, closing_tool: str | None) -> None:
        """After step 4: closes the intent if the message or a tool completed it, and counts failures.

        Args:
            output: the accepted output of the reply
            is_failed: whether the turn failed
            closing_tool: a tool that ran and may close the intent; None: no such tool
        """
        thread, after = self._thread, self._decision
        if self._has_answered or self._is_blocked:
            return  # no model was called, so no intent failed or was completed
        if after is None or after.action != "CLOSE":
            after = resolve_after_turn(
                thread.intent_id,
                output,
                self._authority.ruleset,
                is_failed=is_failed,
                failures_before=thread.state.attached(thread.intent_id).failures_in_row,
                intents=thread.state.intents,
                closing_tool=closing_tool,
            )
            if after.flags:
                await self._authority.record_flags(self._base(), after.flags, self._turn_ts, thread.intent_id)
        if after.after_turn:
            await self._write(after, "after")

    def done_with(self, earlier: Sequence[str], own: Container[str]) -> list[str]:
        """The failed work orders that this turn abandons as it completes: those of its intent and those without an intent.

        In `shadow` these are all of `earlier`.

        Args:
            earlier: failed work orders of earlier turns; the session remembers a limited number
            own: the turn's own work orders
        """
        if self.is_shadow:
            return list(earlier)
        state = self._thread.state
        known, attached = state.work_orders, state.attached(self._thread.intent_id).work_orders
        loose = [wo_id for wo_id in earlier if wo_id not in known or known[wo_id].facts.intent_id is None]
        return [*loose, *[wo_id for wo_id, each in attached.items() if each.status == "failed" and wo_id not in own]]

    async def _settle(self, resolution: Resolution) -> Reply | None:
        """Resolves competing intents if the message names one of them; otherwise answers with a question."""
        intents, competing = self._thread.state.intents, resolution.competing
        if self.is_shadow:  # it cannot ask the user
            await self._flag(resolution)
            self._thread.intent_id = None
            self._is_blocked = True
            return None
        chosen = choose_thread(self._message, competing, intents)
        if chosen is None:
            await self._flag(resolution)
            self._thread.intent_id = None
            return self._answer(describe_conflict(competing, intents), "CONFLICT", resolution.flags[-1].detail)
        await self._write(TransitionDecision("KEEP", keep_intent(chosen, competing), (), "the user chose", chosen))
        self._thread.intent_id = chosen
        self._has_answered = True
        return Reply(f"Good, we go on with: {intents[chosen].facts.objective}", None)

    def _answer(self, response: str, kind: TurnErrorKind, detail: str) -> Reply:
        self._has_answered = True
        return Reply(response, TurnError(kind, detail))

    async def _recalled(self, active: str | None) -> Sequence[Item]:
        """Turns outside the active intent that match the message, within the limits of the policy."""
        ruleset, thread = self._authority.ruleset, self._thread
        if active is None:
            return recall_last_closed(thread.state, ruleset)
        if ruleset.admission != "lexical":
            return ()
        mine: Mapping[str, Item] = thread.state.turns
        count, subject = len(mine), None
        if ruleset.recall_scope == "subject":
            view = await self._authority.subject_turns.of(self._session.subject_id, self._position)
            count, subject = view.known, (view.words, view.known)
        thread.ranking.follow(thread.state, subject)
        while thread.ranking.words.index_ahead(_INDEXED_AT_ONCE):
            await anyio.lowlevel.checkpoint()
        if (comparer := self._authority.comparer) is not None:
            words, among = thread.ranking.words, thread.ranking.among
            thread.ranking.similar = await comparer.compare(self._session.subject_id, self._message, words, among)
        if ruleset.recall_scope == "intent" or count == len(thread.state.attached(active).turns):
            return ()  # every known turn is already eligible
        found, most = list[Item](), ruleset.recalled_turns * (2 if ruleset.is_split else 1)
        room = _OFFERED * ruleset.context_budget
        longest = ruleset.excerpt_tokens // 2 if ruleset.is_terse else ruleset.excerpt_tokens  # most excerpts are half as long
        words = thread.ranking.words
        for number, is_related in thread.ranking.answering(self._message):
            if len(found) == most or room <= 0:
                break
            item = words.turns[number]
            own = mine.get(item.entity_id)
            # If nothing else was said about a message, other sessions are not shown because of a common word.
            is_wanted = own.intent_id != active if own is not None else is_related or not ruleset.is_terse
            if is_wanted:
                found.append(words.evidence(number))
                # What could hardly fit beside better matches is not offered: in one text, each offer is on record.
                room -= min(item.tokens, longest)
        return tuple(found)

    async def with_refs(self, anchors: Sequence[ContextFragment], memory: TurnMemory) -> Sequence[ContextFragment]:
        """Learned lines with the references and times of their entries. Leaves out a line without an entry."""
        if not anchors:
            return ()
        refs = await memory.refs_of(self._session.subject_id, [each.source_id for each in anchors])
        found = [(each, refs[each.source_id]) for each in anchors if each.source_id in refs]
        return tuple([each.located(ref, timestamp) for each, (ref, timestamp) in found])

    async def _flag(self, resolution: Resolution) -> None:
        await self._authority.record_flags(self._base(), resolution.flags, self._turn_ts, resolution.active)

    async def _write(self, decision: TransitionDecision, step: TransitionStep = "before") -> None:
        """Records a decision's events in HO2m, or in the context ledger in `shadow`."""
        if self.is_shadow:
            await self._authority.record_shadow(self._thread, self._base(), decision, step, self._session.state.head)
            return
        if made := decision.before_turn if step == "before" else decision.after_turn:
            self._authority.check(self._thread, made, self._turn_ts)
            events = with_scopes(made, self._thread.state.intents)
            write = self._write_shared if are_shared(events) else self._session.write_all
            self._transition += await write(events, turn=self._turn_id)

    async def _write_shared(self, made: Sequence[IntentEvent], *, turn: str) -> list[Ref]:
        """Records events about a shared intent, or none if another session changed the intent since the turn began.

        The next turn then decides about the changed intent.
        """
        shared, session = self._authority.shared, self._session
        async with shared.lock:
            news = await shared.news(session.session_id, session.subject_id, self._position, None)
            if {entry.entity_id for entry in news}.intersection(each.entity_id for each in made):
                return []
            return await session.write_all(made, turn=turn)

    def _base(self) -> CommonPayload:
        session = self._session
        return {
            "v": events.VERSION,
            "session_id": session.session_id,
            "subject_id": session.subject_id,
            "turn_id": self._turn_id,
        }


def _bias_items(anchors: Sequence[ContextFragment], estimate: Callable[[str], int]) -> Sequence[Item]:
    """The learned lines as items of the projection."""
    return [
        bias_item(each.source_id, each.ref, each.timestamp, each.content, estimate) for each in anchors if each.ref is not None
    ]


def _shown_parts(projection: Projection, state: ContextState) -> tuple[StoredPart, ...]:
    """The images and files that the projection shows in full."""
    shown = {each.item.ref for each in projection.head if each.item.kind == "part" and each.form == "FULL"}
    found = [event for brought in state.parts.values() for event in brought if event.ref in shown] if shown else ()
    return tuple([event.facts.part for event in found if isinstance(event.facts, Brought)])


def _as_context(
    projection: Projection, rendering: Rendering, template_id: str, anchors: Sequence[ContextFragment]
) -> AttentionContext:
    """Converts a projection into the context of a work order: its text, its fragments and the visible learned lines."""
    visible = projection.visible
    fragments = tuple(
        [ContextFragment(each.item.kind, each.item.entity_id, "", each.tokens) for each in visible if each.item.kind != "bias"]
    )
    lines: tuple[ContextFragment, ...] = ()
    if anchors:
        spoken = {each.item.entity_id for each in visible if each.item.kind == "bias"}
        lines = tuple([each for each in anchors if each.source_id in spoken])
    used = BudgetUsed(projection.tokens_used)
    shown = AttentionContext(rendering.text, rendering.text_hash, fragments, template_id, used, lines)
    return shown._replace(stable_text=rendering.stable_text, history=rendering.history)
