"""Judges an output by fixed rules: accept or reject. Pure and without a model.

The fixed checks come first: there is an output, it is not empty, it marks no error, and its reply has text. Then come the work
order's own acceptance criteria. Explained in `docs/work-orders.md`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from kitchener.config import HO2Config


@dataclass(frozen=True, slots=True)
class QualityGateResult:
    """The verdict on one output."""

    decision: Literal["accept", "reject"]
    reason: str
    """Why; names the first criterion that was not met."""
    wo_id: str

    @property
    def is_accepted(self) -> bool:
        """Whether the decision is `accept`."""
        return self.decision == "accept"


class QualityGate:
    """Judges outputs by fixed rules.

    Acceptance criteria are texts of the form `min_chars:N`, `max_chars:N`, `contains:TEXT` or `not_contains:TEXT`, applied
    to the reply. Any other criterion passes here and is left to a model's verdict (`verify_with_model`).
    """

    def __init__(self, config: HO2Config) -> None:
        self._config = config

    def verify(
        self, output_result: Mapping[str, object] | None, acceptance_criteria: Sequence[str], wo_id: str
    ) -> QualityGateResult:
        """Accepts or rejects the output of a synthesize work order."""
        problem = _problem(output_result)
        for criterion in acceptance_criteria:
            problem = problem or _unmet(criterion, output_result or {})
        if problem is None:
            return QualityGateResult("accept", "all checks passed", wo_id)
        return QualityGateResult("reject", problem, wo_id)


def _problem(output: Mapping[str, object] | None) -> str | None:
    if output is None:
        return "there is no output"
    if not output:
        return "the output is empty"
    if output.get("error"):
        return f"the output marks an error: {output['error']}"
    text = output.get("response_text")
    if not isinstance(text, str) or not text.strip():
        return "the output has no response_text"
    return None


_MAX_DIGITS = 9


def _unmet(criterion: str, output: Mapping[str, object]) -> str | None:
    kind, _, operand = criterion.partition(":")
    text = str(output.get("response_text", ""))
    met = True
    is_number = operand.isdecimal() and len(operand) <= _MAX_DIGITS
    if kind == "min_chars" and is_number:
        met = len(text) >= int(operand)
    elif kind == "max_chars" and is_number:
        met = len(text) <= int(operand)
    elif kind == "contains":
        met = operand in text
    elif kind == "not_contains":
        met = operand not in text
    return None if met else f"acceptance criterion not met: {criterion}"
