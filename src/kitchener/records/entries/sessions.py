"""Payloads about sessions and subjects, and about who signs."""

from collections.abc import Mapping
from typing import Literal, NotRequired, TypedDict

from kitchener.records.entries.common import CommonPayload, SealedText
from kitchener.records.entries.turns import CostSummary

SpokenRole = Literal["user", "assistant"]
"""Whose side of a conversation a message is from."""


class SessionStartPayload(CommonPayload):
    """`SESSION_START`: a session of an agent class was opened."""

    agent_class: str
    external_id: NotRequired[str]
    """The caller's own name for the session."""


class SessionEndPayload(CommonPayload):
    """`SESSION_END`: a session was closed for good, with the totals of its turns."""

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


class SealingChangedPayload(CommonPayload):
    """`SEALING_CHANGED`: whether the content of later entries is sealed, until the next such entry. Before the first, it was
    sealed only where a keyring was configured."""

    is_sealed: bool
    key_id: str | None
    """The key of the operator's sources, which every keyring has; None: content is not sealed any more."""


class ConversationImportedPayload(CommonPayload):
    """`CONVERSATION_IMPORTED`: the session is a conversation that another program had. Its messages follow, in one commit."""

    format: str
    content_hash: str
    """Hash of the conversation as it was given; keyed with the subject's key where content is sealed."""
    messages: int
    title: NotRequired[SealedText]


class MessageImportedPayload(CommonPayload):
    """`MESSAGE_IMPORTED`: one message of such a conversation. No turn ran for it; it takes a number among the turns."""

    role: SpokenRole
    text: SealedText
    speaker: NotRequired[SealedText]
    """Who said it; absent: the subject, or of the role `assistant` an assistant without a name."""
    said_at: NotRequired[str]
    """When it was said, ISO time; absent: not known."""


class ImportedHead(TypedDict):
    """The end of a ledger as an export saw it."""

    ledger_id: str
    seq: int
    chain_hash: str
    signer: str | None
    """Who signed it; None: it is not signed."""


class SessionImportedPayload(CommonPayload):
    """`SESSION_IMPORTED`: a session of another root was added from a folder. Written last."""

    format: str
    manifest_hash: str
    """`sha256:` and hex digits over the folder's manifest, which names the hash of every other file."""
    exported_at: str
    """ISO time, by the clock of the other machine."""
    heads: list[ImportedHead]
    """Ends of the chains in which the entries stood, by ledger."""
    entries: int
    """Number of imported entries, in all ledgers."""


class ImportOrigin(TypedDict):
    """Where an imported entry stood. The ledger has the same id as the one that holds it now."""

    seq: int
    entry_id: str
    entry_hash: str


class ImportedPayload(CommonPayload):
    """`ENTRY_IMPORTED` and `CONTEXT_IMPORTED`: an entry of another root, whole.

    Readers give the held entry in place of an `ENTRY_IMPORTED`. `CONTEXT_IMPORTED` holds what only the replay of the imported
    turns reads.
    """

    import_of: str
    """The session that was imported."""
    origin: ImportOrigin
    entry: Mapping[str, object]
    """The held entry's body: entity, type, payload and time, as they stood."""
    is_known: NotRequired[bool]
    """True: an earlier import brought the entry for other sessions already. Then it counts for its own session only."""
