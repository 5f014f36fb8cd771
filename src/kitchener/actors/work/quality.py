"""Judges an output by fixed rules: accept or reject. Pure and without a model.

The fixed checks come first: there is an output, it is not empty, it marks no error, and its reply has text. Then come the work
order's own acceptance criteria. Explained in `docs/work-orders.md`.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from kitchener.config import HO2Config
from kitchener.criteria import is_for_model, is_met
from kitchener.records.entries import GateDecision
from kitchener.records.events import POLICY_VERSION
from kitchener.records.outputs import ReplyOutput


@dataclass(frozen=True, slots=True)
class QualityGateResult:
    """The verdict on one output."""

    decision: GateDecision
    reason: str
    """Why it was accepted or rejected; names all criteria that were not met."""
    wo_id: str
    unmet: tuple[str, ...] = ()
    """The acceptance criteria that were not met, in the order given."""
    refusal: str = ""
    """Why the caller's pydantic model refuses the object; "": it does not."""

    @property
    def is_accepted(self) -> bool:
        """Whether the decision is `accept`."""
        return self.decision == "accept"


class QualityGate:
    """Judges outputs by fixed rules.

    Acceptance criteria are texts of the form `min_chars:N`, `max_chars:N`, `contains:TEXT` or `not_contains:TEXT`, applied
    to the reply. Any other criterion is never met; settings, tools and `handle_turn` refuse it.

    Args:
        config: the settings of the agent class
        policy_version: version of the rules that turns follow
    """

    def __init__(self, config: HO2Config, policy_version: int = POLICY_VERSION) -> None:
        self._config, self._policy_version = config, policy_version

    def verify(self, output_result: ReplyOutput | None, acceptance_criteria: Sequence[str], wo_id: str) -> QualityGateResult:
        """Accepts or rejects the output of a synthesize work order."""
        problem = _problem(output_result, self._policy_version)
        if problem is not None or not acceptance_criteria:
            return QualityGateResult("reject" if problem else "accept", problem or "all checks passed", wo_id)
        text = str((output_result or {}).get("response_text", ""))
        judged = [each for each in acceptance_criteria if not (self._config.verify_with_model and is_for_model(each))]
        unmet = tuple([each for each in judged if not is_met(each, text)])
        if not unmet:
            return QualityGateResult("accept", "all checks passed", wo_id)
        what = "criterion" if len(unmet) == 1 else "criteria"
        return QualityGateResult("reject", f"acceptance {what} not met: {'; '.join(unmet)}", wo_id, unmet)


def _problem(output: ReplyOutput | None, policy_version: int) -> str | None:
    if output is None:
        return "there is no output"
    if not output:
        return "the output is empty"
    if output.get("error"):
        return f"the output marks an error: {output['error']}"
    text = output.get("response_text")
    if isinstance(text, str) and text.strip():
        return None
    is_plain = isinstance(text, str) and policy_version > 10
    return "the reply is empty" if is_plain else "the output has no response_text"
