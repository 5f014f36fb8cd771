"""Projects a session's next turn, and records the projection on request."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import anyio.to_thread

from kitchener.actors.authority.agent_ruleset import ruleset_of
from kitchener.actors.authority.authority import SHOWN_ELSEWHERE, sign_projection
from kitchener.actors.authority.ranking import TurnRanking
from kitchener.actors.policy_identity import policy_identity
from kitchener.canonical import digest
from kitchener.choices import ConflictPolicy
from kitchener.cli.memory.agent_memory import AgentMemory
from kitchener.clock import SystemClock
from kitchener.config import HO2Config
from kitchener.context import (
    ContextState,
    Flag,
    Item,
    Projection,
    Projector,
    Resolution,
    Ruleset,
    bias_item,
    conflict_flag_payload,
    estimator,
    projection_payload,
    render,
    resolve_active,
)
from kitchener.errors import NotOnRecord
from kitchener.ids import path_part
from kitchener.inspection.ledger_files import LedgerPaths
from kitchener.inspection.turn_views.recorded_results import kept_results, result_items
from kitchener.inspection.turn_views.recorded_session import RecordedSession, state_of
from kitchener.ledger import LedgerClient, LedgerEntry
from kitchener.memory.bias import select_biases
from kitchener.records import events
from kitchener.records.entries import ProjectionMode, TurnStartedPayload, payload_as
from kitchener.records.ref import Ref
from kitchener.replaying.on_record.recorded_ledgers import memory_settings
from kitchener.runtime.root_layout import index_dir
from kitchener.signing import load_signer
from kitchener.times import iso_of


@dataclass(frozen=True, slots=True)
class ProjectOptions:
    """The changes to the configured policy, and the message."""

    intent_id: str | None = None
    budget: int | None = None
    conflict_policy: ConflictPolicy | None = None
    message: str | None = None

    def settings(self, configured: HO2Config) -> HO2Config:
        """The settings for the projection. Invalid events always block, because a read must not repair anything."""
        changed: dict[str, object] = {"invalid_lifecycle_policy": "block"}
        if self.budget is not None:
            changed["context_budget"] = self.budget
        if self.conflict_policy is not None:
            changed["intent_conflict_policy"] = self.conflict_policy
        if self.message is None:  # without a message, turns cannot be ranked
            changed["admission"] = "newest_first"
        return configured.model_copy(update=changed)


@dataclass(frozen=True, slots=True)
class ProjectionPreview:
    """The result of `context project`."""

    past: RecordedSession
    state: ContextState
    ruleset: Ruleset
    resolution: Resolution
    projection: Projection | None
    """None: a problem prevents it."""

    @property
    def flags(self) -> tuple[Flag, ...]:
        """Warnings for the reader."""
        return self.projection.flags if self.projection is not None else self.resolution.flags

    def as_json(self) -> dict[str, object]:
        """Everything that `--json` prints."""
        projection = self.projection
        counted = projection.counted if projection is not None else None
        suppressed = list(projection.suppressed()) if projection is not None else []
        return {
            "active_intent": self.resolution.active,
            "eligible": [
                {"entity_id": item.entity_id, "reasons": list(item.reasons)}
                for item in (projection.eligible() if projection is not None else ())
            ],
            "visible": [
                {"entity_id": each.item.entity_id, "form": each.form, "tokens": each.tokens}
                for each in (projection.visible if projection is not None else ())
            ],
            "suppressed": [
                {
                    "entity_id": each.item.entity_id,
                    "form": each.form,
                    # One stub counts all failed work orders beyond the limit. Its tokens are shown with the newest of them.
                    "tokens": counted.tokens if counted is not None and each.item.ref == counted.ref else each.tokens,
                    "reason": each.reason,
                }
                for each in suppressed
            ],
            "flags": [flag_json(flag) for flag in self.flags],
            "token_budget": projection.token_budget if projection is not None else self.ruleset.context_budget,
            "tokens_used": projection.tokens_used if projection is not None else 0,
            "ruleset_hash": self.ruleset.ruleset_hash,
        }


def flag_json(flag: Flag) -> dict[str, object]:
    return {
        "kind": flag.kind,
        "detail": flag.detail,
        "details_ref": flag.details_ref.as_mapping() if flag.details_ref is not None else None,
        "involved_refs": [ref.as_mapping() for ref in flag.involved_refs],
    }


async def project_session(
    paths: LedgerPaths, past: RecordedSession, chosen: ProjectOptions, as_of: str | None = None
) -> ProjectionPreview:
    """Projects the next turn of a session: its intents, work orders, turns, tool results and learned lines.

    Args:
        paths: where ledgers are
        past: the session
        chosen: the changes to the settings
        as_of: ISO time of the turn, for learned lines and dates; None: now

    Raises:
        NotOnRecord: the chosen intent was never declared
    """
    settings = chosen.settings(past.config)
    ruleset = ruleset_of(settings, policy_identity(settings, memory_settings(paths.config, settings)))
    state = await state_of(paths, past)
    if chosen.intent_id is not None and chosen.intent_id not in state.intents:
        known = f"it has {', '.join(state.intents)}" if state.intents else "it has none"
        raise NotOnRecord(f"--intent {chosen.intent_id!r}: no intent of {past.name}; {known}")
    resolution = resolve_active(state, ruleset, intent_id=chosen.intent_id, with_shared=True)
    projection = None
    if resolution.blocked_by is None:
        ranking = TurnRanking(ruleset)
        ranking.follow(state)
        projector = Projector(ruleset)
        mode: ProjectionMode = "shadow" if past.config.context_mode == "shadow" else "enforce"
        message = chosen.message or ""
        results = result_items(past, await kept_results(paths, past, past.entries), state, message)
        started = [each.payload for each in past.entries if each.entry_type == events.TURN_STARTED]
        taken = payload_as(TurnStartedPayload, started[-1]).get("media_types", ()) if started else ()
        moment = as_of if as_of is not None else iso_of(SystemClock().time_us())
        learned = await _learned(paths, past, moment)
        projection = projector.project(
            state,
            resolution,
            message=message,
            ranking=ranking,
            biases=learned,
            results=results,
            mode=mode,
            media_types=taken,
            turn_ts=moment,
        )
    return ProjectionPreview(past, state, ruleset, resolution, projection)


async def _learned(paths: LedgerPaths, past: RecordedSession, as_of_ts: str) -> list[Item]:
    """The learned lines that a turn is shown whatever its message says. Other lines depend on the labels of a message."""
    if past.subject_id is None or not past.config.ho3_enabled:
        return []
    memory, estimate = AgentMemory(paths, past.agent_class), estimator(past.config.token_estimator)
    async with memory.reader() as reader:
        if reader is None:
            return []
        namespace = memory.namespace(past.subject_id)
        active = await reader.read_active_biases(as_of_ts, namespace=namespace)
        chosen = select_biases(active, None, past.config.ho3_bias_budget, as_of_ts)
        refs = await reader.read_refs([each.key for each in chosen], namespace=namespace)
    return [bias_item(each.key, *refs[each.key], each.line, estimate) for each in chosen if each.key in refs]


async def record(paths: LedgerPaths, projected: ProjectionPreview) -> Ref | None:
    """Appends the flags and, where there is one, `PROJECTION_COMPUTED` to the ledger of decisions.

    Returns the projection's entry, or None if a problem prevents one.

    Raises:
        LedgerLocked: a process is writing it
        SigningError: the signing key of the settings cannot be read
    """
    key = paths.config.ledger.signing_key
    signer = await anyio.to_thread.run_sync(load_signer, key) if key is not None else None
    past, projection = projected.past, projected.projection
    opened = LedgerClient.open(
        past.context_path,
        ledger_id=f"CONTEXT:{path_part(past.agent_class)}",
        config=paths.config.ledger,
        index_dir=index_dir(paths.config),
        sealer=paths.sealer(),
    )
    timestamp = iso_of(SystemClock().time_us())
    base, about = past.common_fields(), past.session_id or projected.resolution.active or "none"
    async with opened as ledger:
        for flag in projected.resolution.flags:
            flagged = conflict_flag_payload(
                flag,
                timestamp=timestamp,
                intent_id=projected.resolution.active,
                ruleset_hash=projected.ruleset.ruleset_hash,
            )
            await ledger.write(LedgerEntry(events.CONFLICT_FLAG, about, {**base, **flagged}))
        ref = None
        if projection is not None:
            rendering = render(projection, projected.state.estimate, elsewhere=SHOWN_ELSEWHERE)
            hashed: Callable[[bytes], str] = digest
            if past.subject_id is not None and not past.is_erased:  # an erased subject must not get a new key here
                hashed = partial(ledger.content_digest, past.subject_id)
            fields = projection_payload(projection, rendering, timestamp=timestamp, turn_id=None, hashed=hashed)
            written: dict[str, object] = {**base, "turn_id": None, **fields}
            if signer is not None:
                sign_projection(written, signer)
            ref = await ledger.write(LedgerEntry(events.PROJECTION_COMPUTED, about, written))
        await ledger.commit()
    return ref
