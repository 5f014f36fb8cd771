"""Payloads about intents and their life."""

from typing import Literal, NotRequired

from kitchener.records.entries.common import CommonPayload, Sealed, SealedText
from kitchener.records.ref import RefMapping

IntentScope = Literal["SESSION", "ARTIFACT", "PROJECT", "GLOBAL"]
"""To whom an intent belongs: a session, or all sessions of its subject."""
IntentCloser = Literal["classification", "user", "tool", "reply"]
"""Who closed an intent: the classification of a message, a call of the user or the program, a tool that its declaration
permits to, or, under version 1 of the policy, the model's reply."""


class IntentDeclaredPayload(CommonPayload):
    """`INTENT_DECLARED`: the session, or the scope that its sessions share, has a new intent."""

    intent_id: str
    scope: IntentScope
    objective: SealedText
    targets: list[str] | Sealed
    created_by: str
    """`HO2` or `user`."""
    parent_intent_id: NotRequired[str]
    adopts_turns: NotRequired[bool]
    """The session's earlier turns without an intent belong to this one."""


class IntentSupersededPayload(CommonPayload):
    """`INTENT_SUPERSEDED`: another intent has taken the place of this one."""

    intent_id: str
    superseded_by_intent_id: str
    reason: SealedText
    scope: NotRequired[IntentScope]
    """Where the intent is shared by sessions; the same in the payloads below."""


class IntentReopenedPayload(CommonPayload):
    """`INTENT_REOPENED`: an intent that had ended or was deferred is live again."""

    intent_id: str
    reason: SealedText
    scope: NotRequired[IntentScope]


class IntentClosedPayload(CommonPayload):
    """`INTENT_CLOSED`: the intent has ended, with an outcome."""

    intent_id: str
    outcome: SealedText
    reason: NotRequired[SealedText]
    closed_by: NotRequired[IntentCloser]
    """Absent: version 1 of the policy closed it in a turn; or another program did."""
    scope: NotRequired[IntentScope]


class IntentAbandonedPayload(CommonPayload):
    """`INTENT_ABANDONED`: the intent was given up without an outcome."""

    intent_id: str
    reason: SealedText
    scope: NotRequired[IntentScope]


class IntentRetiredPayload(CommonPayload):
    """`INTENT_RETIRED`: the intent is no longer of use. Kitchener reads it and does not write it."""

    intent_id: str
    reason: SealedText
    scope: NotRequired[IntentScope]


class IntentDeferredPayload(CommonPayload):
    """`INTENT_DEFERRED`: the intent stays live and is shown as a stub at most, until it is reopened."""

    intent_id: str
    reason: SealedText
    scope: NotRequired[IntentScope]


class IntentForkedPayload(CommonPayload):
    """`INTENT_FORKED`; the children are declared by entries of their own before it."""

    parent_intent_id: str
    child_intent_ids: list[str]
    reason: SealedText
    active_child_intent_id: NotRequired[str]


class LifecycleVoidedPayload(CommonPayload):
    """`LIFECYCLE_VOIDED`: another entry no longer counts."""

    ref: RefMapping
    reason: str
    intent_id: NotRequired[str]
    wo_id: NotRequired[str]


IntentPayload = (
    IntentDeclaredPayload
    | IntentSupersededPayload
    | IntentReopenedPayload
    | IntentClosedPayload
    | IntentAbandonedPayload
    | IntentRetiredPayload
    | IntentDeferredPayload
    | IntentForkedPayload
)
"""What may happen to an intent."""
