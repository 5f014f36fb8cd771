"""Describes one step of a turn's chain: the type, the input and the limits of a work order.

`turn.py` and `reply_check.py` make steps; `chain.py` turns each into a work order. Explained in `docs/turn.md`.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from kitchener.actors.attention.attention_context import AttentionContext
from kitchener.canonical import canonical_bytes
from kitchener.records.entries import WorkOrderType
from kitchener.records.parts import StoredPart
from kitchener.records.ref import RefMapping
from kitchener.records.tokens import tokens_of_bytes
from kitchener.records.tools.deferred_loop import Resumption
from kitchener.records.work_order import Constraints, WorkOrder


class TurnStep(NamedTuple):
    """The plan of one work order. A retry is a changed copy."""

    wo_type: WorkOrderType
    input_context: Mapping[str, object]
    """The input, as JSON types."""
    constraints: Constraints
    """The limits, without the time and the tokens that the turn has left."""
    prior_results: Sequence[Mapping[str, object]] = ()
    """The results of earlier steps, as JSON types."""
    parent: str | None = None
    """The work order that this one retries, verifies or continues; None: there is none."""
    input_refs: Sequence[RefMapping | None] = ()
    """The entries with the content of the input besides the turn's message."""
    context: AttentionContext | None = None
    """The context gathered for the model; None: the step is no reply."""
    acceptance: tuple[str, ...] = ()
    """The criteria that the output must meet."""
    output_schema: Mapping[str, object] | None = None
    """The schema of the object that the caller wants; None: text."""
    resumption: Resumption | None = None
    """The deferred tool loop that the step continues; None: it continues none."""

    def retried(
        self, failed: WorkOrder, constraints: Constraints, prior_results: Sequence[Mapping[str, object]], instructions: str
    ) -> "TurnStep":
        """The next attempt after a failed one: with these limits, the failed attempt's tool results, and its problem."""
        return self._replace(
            input_context={**self.input_context, "instructions": instructions},
            constraints=constraints,
            prior_results=prior_results,
            parent=failed.wo_id,
            resumption=None,
        )

    @property
    def parts(self) -> tuple[StoredPart, ...]:
        """The images and files that the model is shown."""
        return self.context.parts if self.context is not None else ()

    def input_bytes(self) -> bytes:
        """The canonical bytes of the input. The plan has their hash.

        Raises:
            EntryRefused: the input has no canonical form, e.g. an output that is storable alone is too deep inside an input
        """
        return canonical_bytes([self.input_context, self.prior_results], at="input_context")

    def input_tokens(self, data: bytes) -> int:
        """The tokens of the input, estimated from its canonical bytes."""
        earlier = self.resumption.tokens if self.resumption is not None else 0
        return tokens_of_bytes(len(data)) + sum([each.tokens for each in self.parts]) + earlier
