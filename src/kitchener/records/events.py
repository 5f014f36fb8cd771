"""The entry types of the ledgers, their versions, and their fields with words of a subject.

The payload of each type is a `TypedDict` of `kitchener.records.entries`, described in `docs/ledger-entries.md`. Readers pass
every payload through `read_payload`, which refuses versions from the future and upgrades older ones, before any other code sees
it.
"""

from collections.abc import Mapping
from typing import Any, Final, Protocol

from kitchener.errors import EventVersionError
from kitchener.records import upgrades
from kitchener.records.entries.common import CommonPayload, P, payload_as
from kitchener.records.entries.intents import IntentScope

VERSION: Final = 1
"""Written into every payload as `v`, but for the types in `VERSIONS`; absent reads as 1."""

SESSION_START: Final = "SESSION_START"
SESSION_END: Final = "SESSION_END"
TURN_STARTED: Final = "TURN_STARTED"
TURN_REJECTED: Final = "TURN_REJECTED"
PART_ATTACHED: Final = "PART_ATTACHED"
TURN_COMPLETED: Final = "TURN_COMPLETED"
TURN_ABORTED: Final = "TURN_ABORTED"
WO_PLANNED: Final = "WO_PLANNED"
WO_DISPATCHED: Final = "WO_DISPATCHED"
WO_EXECUTING: Final = "WO_EXECUTING"
WO_COMPLETED: Final = "WO_COMPLETED"
WO_FAILED: Final = "WO_FAILED"
WO_SUPERSEDED: Final = "WO_SUPERSEDED"
WO_ABANDONED: Final = "WO_ABANDONED"
WO_RETIRED: Final = "WO_RETIRED"
WO_DEFERRED: Final = "WO_DEFERRED"
WO_REOPENED: Final = "WO_REOPENED"
WO_QUALITY_GATE: Final = "WO_QUALITY_GATE"
WO_CHAIN_COMPLETE: Final = "WO_CHAIN_COMPLETE"
ESCALATION: Final = "ESCALATION"
DEGRADATION: Final = "DEGRADATION"
ATTEMPT_STARTED: Final = "ATTEMPT_STARTED"
ATTEMPT_FAILED: Final = "ATTEMPT_FAILED"
LLM_CALL: Final = "LLM_CALL"
TOOL_STARTED: Final = "TOOL_STARTED"
TOOL_CALL: Final = "TOOL_CALL"
APPROVAL_REQUESTED: Final = "APPROVAL_REQUESTED"
APPROVAL_RESOLVED: Final = "APPROVAL_RESOLVED"
INTENT_DECLARED: Final = "INTENT_DECLARED"
INTENT_SUPERSEDED: Final = "INTENT_SUPERSEDED"
INTENT_REOPENED: Final = "INTENT_REOPENED"
INTENT_CLOSED: Final = "INTENT_CLOSED"
INTENT_ABANDONED: Final = "INTENT_ABANDONED"
INTENT_RETIRED: Final = "INTENT_RETIRED"
INTENT_DEFERRED: Final = "INTENT_DEFERRED"
INTENT_FORKED: Final = "INTENT_FORKED"
LIFECYCLE_VOIDED: Final = "LIFECYCLE_VOIDED"
SUBJECT_ERASED: Final = "SUBJECT_ERASED"
SIGNER_DECLARED: Final = "SIGNER_DECLARED"
SESSION_IMPORTED: Final = "SESSION_IMPORTED"
ENTRY_IMPORTED: Final = "ENTRY_IMPORTED"
CONTEXT_IMPORTED: Final = "CONTEXT_IMPORTED"
CONVERSATION_IMPORTED: Final = "CONVERSATION_IMPORTED"
MESSAGE_IMPORTED: Final = "MESSAGE_IMPORTED"
SOURCE_RECORDED: Final = "SOURCE_RECORDED"
SEALING_CHANGED: Final = "SEALING_CHANGED"
PROJECTION_COMPUTED: Final = "PROJECTION_COMPUTED"
CONFLICT_FLAG: Final = "CONFLICT_FLAG"
INTENT_SHADOW_DECISION: Final = "INTENT_SHADOW_DECISION"
HO3_SIGNAL: Final = "HO3_SIGNAL"
HO3_OVERLAY: Final = "HO3_OVERLAY"
HO3_OVERLAY_DEACTIVATED: Final = "HO3_OVERLAY_DEACTIVATED"
HO3_OVERLAY_WEIGHT_UPDATED: Final = "HO3_OVERLAY_WEIGHT_UPDATED"
HO3_QUARANTINED: Final = "HO3_QUARANTINED"

OF_MODEL_CALLS: Final = (ATTEMPT_STARTED, ATTEMPT_FAILED, LLM_CALL)
"""The entries of HO1m about a model call. Every call that went out has at least one, unless the process ended first."""
WITH_USAGE: Final = (ATTEMPT_FAILED, LLM_CALL)
"""Those that may tell of an answer, and of the tokens that it used."""

OF_NO_SESSION: Final = frozenset((SUBJECT_ERASED, SIGNER_DECLARED, SEALING_CHANGED, SOURCE_RECORDED))
"""Entries of HO2m that belong to no session. Another program's entry without a session may belong to the one that is read."""

IMPORTED_TYPES: Final = frozenset((ENTRY_IMPORTED, CONTEXT_IMPORTED))
"""Types of the entries that hold an entry of another root. Readers give the held entry for `ENTRY_IMPORTED`."""

SESSION_SCOPE: Final[IntentScope] = "SESSION"
"""The scope of an intent that belongs to one session."""
SHARED_SCOPES: Final[tuple[IntentScope, ...]] = ("PROJECT", "ARTIFACT", "GLOBAL")
"""Scopes of intents that belong to a subject. Every entry about such an intent names its scope."""
OF_SHARED_INTENTS: Final = (
    INTENT_DECLARED,
    INTENT_SUPERSEDED,
    INTENT_REOPENED,
    INTENT_CLOSED,
    INTENT_ABANDONED,
    INTENT_RETIRED,
    INTENT_DEFERRED,
    LIFECYCLE_VOIDED,
)
"""Types of the entries that may be about such an intent."""

SEALED_FIELDS: Final[Mapping[str, tuple[str, ...]]] = {
    TURN_STARTED: ("user_message", "acceptance", "speaker"),
    TURN_REJECTED: ("user_message",),
    PART_ATTACHED: ("name",),
    TURN_COMPLETED: ("response", "error", "client_calls"),
    WO_PLANNED: ("targets", "acceptance"),
    WO_FAILED: ("error",),
    ESCALATION: ("reason",),
    DEGRADATION: ("error",),
    WO_QUALITY_GATE: ("reason",),
    ATTEMPT_FAILED: ("detail",),
    LLM_CALL: ("response",),
    TOOL_STARTED: ("arguments",),
    TOOL_CALL: ("result", "error", "question"),
    APPROVAL_REQUESTED: ("message", "arguments", "response_schema"),
    APPROVAL_RESOLVED: ("override_args", "answer", "message", "answered_by"),
    INTENT_DECLARED: ("objective", "targets"),
    INTENT_SUPERSEDED: ("reason",),
    INTENT_REOPENED: ("reason",),
    INTENT_CLOSED: ("outcome", "reason"),
    INTENT_ABANDONED: ("reason",),
    INTENT_RETIRED: ("reason",),
    INTENT_DEFERRED: ("reason",),
    INTENT_FORKED: ("reason",),
    INTENT_SHADOW_DECISION: ("events",),
    CONVERSATION_IMPORTED: ("title",),
    MESSAGE_IMPORTED: ("text", "speaker"),
    SOURCE_RECORDED: ("text",),
    HO3_SIGNAL: ("metadata", "words"),
    HO3_OVERLAY: ("labels", "context_line", "content", "words"),
    HO3_OVERLAY_DEACTIVATED: ("reason", "words"),
    HO3_OVERLAY_WEIGHT_UPDATED: ("reason", "words"),
    HO3_QUARANTINED: ("reason", "words"),
}
"""Fields with what a subject said, or with what was answered, derived or learned about a subject. With a keyring they are
encrypted under the subject's key. `words` maps the keyed signal ids of an entry to their words. Other ids, references,
hashes, counts and reasons from closed sets are never encrypted."""

REF_FIELDS: Final[Mapping[str, tuple[str, ...]]] = {
    TURN_COMPLETED: ("projection_ref", "tool_results", "user_message_ref"),
    WO_PLANNED: ("attention", "input_refs"),
    WO_COMPLETED: ("output_ref",),
    LIFECYCLE_VOIDED: ("ref",),
    LLM_CALL: ("part_refs",),
    PROJECTION_COMPUTED: ("eligible_refs", "flags", "proof_refs", "suppressed_refs", "visible_refs"),
    CONFLICT_FLAG: ("involved_refs", "proof_refs"),
}
"""Fields that are references or contain some. Anything that looks like a reference in another field is text of a user, a model
or a tool."""

POLICY_VERSION: Final = 15
"""The version of the rules that turns follow. `TURN_STARTED` records it, and a replay follows the recorded version; an absent
field means 1. The list says what each version changed. Brackets say what the version before it did.

Version 2:
- A reply that the budget did not cover has the outcome `unknown` (`failed`), and a reply closes no intent (`completes_intent`
  closed one).
- `intent.scope` of a classification is the objective (it was ignored). Null fields beside `intent` do not hide those in it
  (they did).
- Tools stay offered after one that the classification asked for (they were not). A turn without tokens left makes a last call
  without tools (it failed).
- The Context Authority shows the newest turns (it did not).

Version 3:
- A turn's message and reply are items of their own, and a long one is shown as an excerpt. Turns are shown under the dates of
  their days (a turn was one item, without a date).
- Where memory is on, turns of the subject's other sessions are recalled, and twice as many turns. A standing statement begins a
  clause, and a ranking reads more words (other defaults and weights).
- A reply meets the criteria of the tools that the model called for it (only of a tool that ran before it). A retry is given the
  results of these tools (it was not).

Version 4:
- A reply is text, by the contract `PRC-SYNTHESIZE-002` where the settings name none (an object with the key `response_text`, by
  `PRC-SYNTHESIZE-001`).
- The model gets a session's past as chat messages. Beside a long history, it gets only what matches the message well (one text,
  as with `prompt_layout = "block"`).
- Names before what is said rank as its speakers, recalled replies have a shorter label, and more long items are offered.
  Recalled items have no stubs, and the goal of a bridge has no header.

Version 5:
- What was said on a day that the message names matches the message. Where many items have room, hints count for more and
  sessions take turns. Bare numbers relate nothing of other sessions to a message.

Version 6:
- A model reads a long result of a tool page by page (it read all of it). It is told when it repeats a call again and again, or
  makes too many calls (only rounds were counted).
- What matches a message never takes the room of the chat messages (a good match did). The goal of the running intent is after
  them (before them), and defaults give more room to both.

Version 7:
- A turn records things once. HO1m has the calls of a work order, and HO2m its life. `WO_EXECUTING` and `WO_COMPLETED` of HO1m
  are those of consolidations only (of every work order), and `WO_COMPLETED` of HO2m has the output's hash.
- Empty fields are left out: `targets` and `acceptance` of `WO_PLANNED`, the reason of a verdict that all checks passed, and the
  time and positions of gates that `TURN_COMPLETED` did not check.
- The deferred work order that a turn continues is not shown as one that waits (it was).

Version 8:
- A turn can bring tools that its caller runs. `TURN_STARTED` names their definitions, a call of one is a request with the
  reason `client_tool`, and `TURN_COMPLETED` has the calls that wait.
- The signals of a turn have one entry, which names the turn (an entry each, with the turn in its sealed metadata). `input_refs`
  of `WO_PLANNED` name the input besides the turn's message, and are left out if there is none (the message too).
- A model is shown the text of a tool as it is, with a line below it about a page or a cut (as JSON, in quotes and escapes).

Version 9:
- A reply does not fit the schema of its caller if checking it takes too many steps. Matches of patterns are among the steps,
  and a single match ends after a thousand tries (only references counted).

Version 10:
- A long message or reply of the newest turn takes only the room that older chat messages leave, and is cut to it (it was whole,
  and the oldest messages left for one turn if it needed their room).
- An intent above the running one is marked as deferred (as put off). A stub that counts one failed work order does not call it
  the last of several (it did).

Version 11:
- If a reply never fits the schema of its caller, the failure says so (it named the `output_schema` of the contract, which has
  none). The verdict on an empty reply says that the reply is empty (that it has no `response_text`).
- After a model call that would fail again, the user is told what would help (to try again in a moment).

Version 12:
- If a model may call no tool, as after a greeting, in a retry or in its last call, it is shown its tools with the choice `none`
  (no tools).
- What one reply must be is beside the message: the caller's schema, criteria, and what was wrong with the last attempt (among
  the instructions). The next attempt is always told what was wrong (only which criteria were not met, and why the caller's
  model refused an object).

Version 13:
- If `recent_turns` is unset, the newest turns of all intents that have room are chat messages, in one window (those of the
  active intent in a window, and the newest 12 of others).

Version 14:
- Beside chat messages, a projection names recalled turns that are shown, and the first that match well enough and have no room
  (all that share a word with the message).
- The cost of a turn has its `cached_tokens` (only the costs of its work orders).
- Of a classification, and where a caller asks for an object, an object on lines of its own is read although there are sentences
  around it (the answer was repaired).

Version 15:
- A reply that failed because the model's answers could not be used or were too late, or because it had too much to do, says so
  (it said that the model could not be reached).
"""

LAST_UNBOUNDED: Final = 8
"""The last version of the policy under which a check against a caller's schema has no limit."""

VERSIONS: Final[Mapping[str, int]] = {
    PROJECTION_COMPUTED: 5,
    CONFLICT_FLAG: 2,
    HO3_SIGNAL: 2,
    HO3_OVERLAY_DEACTIVATED: 2,
    HO3_OVERLAY_WEIGHT_UPDATED: 2,
}
"""The newest version of the types whose shape has changed."""

UPGRADES: Mapping[tuple[str, int], upgrades.Upgrade] = {
    (PROJECTION_COMPUTED, 1): upgrades.name_projection,
    (PROJECTION_COMPUTED, 2): upgrades.keep_lists,
    (PROJECTION_COMPUTED, 3): upgrades.keep_recalled,
    (PROJECTION_COMPUTED, 4): upgrades.keep_groups,
    (CONFLICT_FLAG, 1): upgrades.name_conflict,
    (HO3_SIGNAL, 1): upgrades.gather_event,
    (HO3_OVERLAY_DEACTIVATED, 1): upgrades.keep_order,
    (HO3_OVERLAY_WEIGHT_UPDATED, 1): upgrades.name_weight,
}
"""`(entry type, version)` to the function that turns such a payload into the next version's."""


class RecordedEntry(Protocol):
    """An entry as a ledger gives it back."""

    @property
    def entry_type(self) -> str:
        """Its type, one of the constants of this module."""
        ...

    @property
    def payload(self) -> Mapping[str, object]:
        """Its payload, as it was written."""
        ...


def read_payload(entry_type: str, payload: Mapping[str, object]) -> dict[str, object]:
    """Returns a stored payload in the current shape. Unknown fields are kept; payloads of unknown types are not changed.

    Raises:
        EventVersionError: a newer version of Kitchener wrote it
    """
    version, newest = payload.get("v", 1), VERSIONS.get(entry_type, VERSION)
    if not isinstance(version, int) or version < 1 or version > newest:
        raise EventVersionError(
            f"{entry_type} has version {version!r}; this version of Kitchener reads up to {newest}, use a newer one"
        )
    current = dict(payload)
    while version < newest:
        current = UPGRADES[entry_type, version](current)
        version += 1
    return in_words(current)


def read_as(shape: type[P], entry: RecordedEntry) -> P:
    """Returns the payload of a stored entry in the current shape, typed as the shape of its entry type.

    Args:
        shape: the `TypedDict` of the entry's type, such as `TurnStartedPayload`
        entry: the entry. What another program wrote may lack fields

    Raises:
        EventVersionError: a newer version of Kitchener wrote it
    """
    return payload_as(shape, read_payload(entry.entry_type, entry.payload))


def read_common(entry: RecordedEntry) -> CommonPayload:
    """Returns the fields that entries of all types share, such as `turn_id`.

    They are the same in every version, so this neither checks the version nor copies the payload. An entry that another program
    wrote may lack some.
    """
    return payload_as(CommonPayload, entry.payload)


def in_words(payload: dict[str, object]) -> dict[str, object]:
    """Returns a payload of the memory with the words of its keyed signal ids. Without readable words it is not changed."""
    words = payload.get("words")
    return with_signals(payload, words) if isinstance(words, dict) and "namespace" in payload else payload


def with_signals(payload: Mapping[str, object], ids: Mapping[str, str]) -> dict[str, object]:
    """Returns a payload of the memory with some signal ids replaced, in every field that names signals."""
    found = dict(payload)
    for name in ("signal_id", "target"):
        if isinstance(stored := found.get(name), str):
            found[name] = ids.get(stored, stored)
    if isinstance(sources := found.get("source_signal_ids"), list | tuple):
        found["source_signal_ids"] = [ids.get(each, each) for each in sources]
    if isinstance(signals := found.get("signals"), dict):
        found["signals"] = {event_id: ids.get(each, each) for event_id, each in signals.items()}
    return found


def is_of_shared_intent(entry_type: str, payload: Mapping[str, Any]) -> bool:
    """Whether an entry of HO2m is about an intent that a subject's sessions share, or may be."""
    if entry_type not in OF_SHARED_INTENTS:
        return False
    return entry_type == LIFECYCLE_VOIDED or payload.get("scope") in SHARED_SCOPES


def ends_by_erasure(entry_type: str, payload: Mapping[str, object]) -> bool:
    """Whether an entry ends a session because its subject was erased. The session's text can no longer be read."""
    return entry_type == SESSION_END and "key_id" in payload
