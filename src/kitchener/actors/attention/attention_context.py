"""The context that attention gathers for a turn: its fragments, its text, and what gathering used of its budgets.

Plain values. `retriever.py` gathers them, or the turn makes them of a projection. Explained in `docs/attention.md`.
"""

from collections.abc import Sequence
from typing import Final, NamedTuple, NotRequired, TypedDict

from kitchener.canonical import digest
from kitchener.context.fold.items import rule_ref
from kitchener.records.entries import CutReason
from kitchener.records.parts import StoredPart
from kitchener.records.ref import Ref
from kitchener.records.tokens import estimate_tokens

EMPTY_HASH: Final = digest(b"")
STANDING_RULE: Final = "standing_rule"
TOOL_RESULT: Final = "HO1M"
"""The `source` of a context fragment that is a tool result of an earlier turn."""


class FragmentMapping(TypedDict):
    """A `ContextFragment` in the input of a work order."""

    source: str
    source_id: str
    token_estimate: int


class AssembledContext(TypedDict):
    """The context in the input of a work order."""

    context_text: str
    context_hash: str
    fragments: list[FragmentMapping]
    """The fragments in the text, then the learned lines."""
    ho3_biases: NotRequired[list[str]]
    """The learned lines of long-term memory that the model is shown."""
    stable_text: NotRequired[str]
    """Text that seldom changes, such as goals; only in chat layout."""
    history: NotRequired[list[str]]
    """Chat messages, alternately of the user and the agent, oldest first; only in chat layout."""


class ContextFragment(NamedTuple):
    """One piece of gathered context."""

    source: str
    """The kind of source: `HO2M`, `HO1M`, `HO3M`, `standing_rule` …"""
    source_id: str
    """The id in the source: a turn id or a rule's number."""
    content: str
    """The text that a model is shown; "": it is in the context's text."""
    token_estimate: int
    """Estimated size of the text in tokens."""
    relevance_score: float = 1.0
    """How well the fragment fits the message, from 0 to 1, as its source judges. Kitchener's own sources leave it at 1, because
    they order their fragments themselves; nothing reads it."""
    ref: Ref | None = None
    """The ledger entry of the fragment; None: it has none."""
    timestamp: str = ""
    """Timestamp of that entry; "": not known."""
    said: tuple[str, ...] = ()
    """A turn as chat messages, alternately of the user and the agent; (): the turn is shown as `content`."""

    def located(self, ref: Ref, timestamp: str) -> "ContextFragment":
        """This fragment with the entry that holds it."""
        return self._replace(ref=ref, timestamp=timestamp)

    def as_mapping(self) -> FragmentMapping:
        """Source, id and size as JSON types. The content is omitted, because the context's text contains it."""
        return {"source": self.source, "source_id": self.source_id, "token_estimate": self.token_estimate}


class BudgetUsed(NamedTuple):
    """What gathering used of its budgets, and the limit that cut it short; `cut_by` is None if no limit did."""

    tokens: int = 0
    queries: int = 0
    elapsed_ms: int = 0
    cut_by: CutReason | None = None


class AttentionContext(NamedTuple):
    """The context of a turn: its text and the fragments in it."""

    context_text: str = ""
    """The text for the model."""
    context_hash: str = EMPTY_HASH
    """`sha256:` of the text."""
    fragments: tuple[ContextFragment, ...] = ()
    template_id: str = ""
    """The attention template that set the limits."""
    budget_used: BudgetUsed = BudgetUsed()
    """What gathering used of its budgets."""
    biases: tuple[ContextFragment, ...] = ()
    """Learned lines, best first. They are shown beside `context_text`, not in it."""
    projection_ref: Ref | None = None
    """The recorded projection that this context shows; None: attention gathered it."""
    parts: tuple[StoredPart, ...] = ()
    """Images and files: first those of earlier turns that are shown again, in the projection's order, then the message's."""
    stable_text: str = ""
    """Text that seldom changes, such as goals, and stands before the history; "": there is none."""
    history: tuple[str, ...] | None = None
    """Chat messages, alternately of the user and the agent, oldest first; None: turns are part of `context_text`."""

    def as_assembled(self) -> AssembledContext:
        """The `assembled_context` of a work order."""
        assembled: AssembledContext = {
            "context_text": self.context_text,
            "context_hash": self.context_hash,
            "fragments": [fragment.as_mapping() for fragment in (*self.fragments, *self.biases)],
        }
        if self.biases:
            assembled["ho3_biases"] = [fragment.content for fragment in self.biases]
        if self.history is not None:
            assembled["stable_text"], assembled["history"] = self.stable_text, [*self.history]
        return assembled


def standing_rule_fragments(rules: Sequence[str], estimator: str) -> tuple[ContextFragment, ...]:
    """The configured rules as fragments with the ids `INV-1`, `INV-2` …"""
    return tuple(
        ContextFragment(
            STANDING_RULE,
            f"INV-{n}",
            rule,
            estimate_tokens(rule, estimator),
            ref=rule_ref(n, rule),
        )
        for n, rule in enumerate(rules, 1)
    )
