"""Payloads about sessions and subjects, and about who signs."""

from typing import NotRequired

from kitchener.records.entries.common import CommonPayload
from kitchener.records.entries.turns import CostSummary


class SessionStartPayload(CommonPayload):
    """`SESSION_START`"""

    agent_class: str
    external_id: NotRequired[str]
    """The caller's own name for the session."""


class SessionEndPayload(CommonPayload):
    """`SESSION_END`"""

    turn_count: int
    """Completed turns."""
    total_cost: CostSummary
    reason: str
    key_id: NotRequired[str]
    """The destroyed key, where the session ended because its subject was erased."""


class SubjectErasedPayload(CommonPayload):
    """`SUBJECT_ERASED`, in HO2m and in both ledgers of the memory. Each ledger counts what it held."""

    key_id: str
    """The destroyed key."""
    erased_at: str
    """ISO time."""
    sessions: NotRequired[int]
    turns: NotRequired[int]
    artifacts: NotRequired[int]
    events: NotRequired[int]
    namespace: NotRequired[str]
    """In the memory's ledgers."""


class SignerDeclaredPayload(CommonPayload):
    """`SIGNER_DECLARED`: who signs the projections of later turns, until the next such entry."""

    signer: str | None
    """`ed25519:` and 16 hex digits; None: nobody signs any more."""
    public_key: str | None
    """The key that checks the signatures, 64 hex digits; None: nobody signs any more."""
