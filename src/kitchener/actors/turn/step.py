"""Describes one step of a turn's chain: the type, the input and the limits of a work order, and whether its tokens suffice.

`turn.py` and `reply_check.py` make steps; `chain.py` turns each into a work order. A step that the tokens left do not cover may
still run as the turn's last call, which may call no tool. Explained in `docs/turn.md`.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from kitchener.actors.attention.attention_context import AttentionContext
from kitchener.actors.turn.reply import MESSAGE_TOO_LARGE, SESSION_USED_UP, Reply, apology_for
from kitchener.actors.work.budget import Budget
from kitchener.canonical import canonical_bytes
from kitchener.records.entries import ConstraintsMapping, WorkOrderType
from kitchener.records.events import POLICY_VERSION
from kitchener.records.parts import StoredPart
from kitchener.records.prompt import NO_TOOL_CHOICE
from kitchener.records.ref import RefMapping
from kitchener.records.tokens import tokens_of_bytes
from kitchener.records.tools.deferred_loop import Resumption
from kitchener.records.turn import TurnError
from kitchener.records.work_order import Constraints, WorkOrder


class TurnStep(NamedTuple):
    """The plan of one work order. A retry is a changed copy."""

    wo_type: WorkOrderType
    input_context: Mapping[str, object]
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
        self,
        failed: WorkOrder,
        constraints: Constraints,
        prior_results: Sequence[Mapping[str, object]],
        told: Mapping[str, object],
    ) -> "TurnStep":
        """The next attempt after a failed one: with these limits, the failed attempt's tool results, and its problem."""
        return self._replace(
            input_context={**self.input_context, **told},
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


class StepBudget(NamedTuple):
    """The tokens that a step needs, and the tokens that are left for it."""

    step: TurnStep
    needed: int
    """Estimated tokens of the step's input, and the reserve for its answer."""
    left: int | None
    """Tokens left in the turn and the session; None: without limit."""
    session: Callable[[], Budget]
    """Returns the session's budget; called if the tokens left do not cover the step."""
    turn_budget: int
    earlier: Sequence[WorkOrder]
    """The turn's earlier work orders."""
    policy_version: int = POLICY_VERSION
    """The version of the rules that the turn follows."""

    @property
    def is_last_call(self) -> bool:
        """Whether a step is executed as the turn's last call, although the tokens left do not cover it.

        True for the first attempt at a reply, if a whole `turn_budget` covers it, or if a tool ran for it.
        """
        if self.left is None or self.left >= self.needed:
            return False
        if self.step.constraints.reply_reserve is None or self.step.wo_type != "synthesize":
            return False
        done = [each.wo_type for each in self.earlier]
        is_first = "synthesize" not in done and (self.needed <= self.turn_budget or "tool_call" in done)
        return is_first and self.session().covers(self.needed)

    def limited(self, limits: ConstraintsMapping) -> tuple[Mapping[str, object], ConstraintsMapping]:
        """The changes to the step's constraints that the tokens left require, and `limits` with these changes."""
        constraints = self.step.constraints
        if constraints.reply_reserve is None or self.left is None or self.left >= constraints.token_budget:
            return {}, limits
        most = max(1, self.left)
        limits = {**limits, "token_budget": most}
        if self.left >= self.needed or not self.is_last_call:
            return {"token_budget": most}, limits
        limits.pop("turn_limit", None)
        if self.policy_version > 11:
            choice = NO_TOOL_CHOICE if constraints.allowed_tools else None
            if choice is not None:
                limits["tool_choice"] = choice
            return {"token_budget": most, "turn_limit": 0, "tool_choice": choice}, limits
        limits.pop("allowed_tools", None)
        limits.pop("results_budget", None)
        return {"token_budget": most, "turn_limit": 0, "allowed_tools": (), "results_budget": None}, limits

    def refusal(self, wo: WorkOrder, remaining: int | None, policy_version: int) -> Reply:
        """The reply about a work order that is not executed, with an error that names the remedy."""
        message = f"the {wo.wo_type} step needs about {self.needed} tokens and {max(0, remaining or 0)} are left"
        text = apology_for("BUDGET", policy_version)
        if policy_version == 1:
            message += "; raise turn_budget or budget_ceiling, or start a new session"
        elif not self.session().covers(self.needed):
            message, text = f"{message} for the session; raise budget_ceiling, or start a new session", SESSION_USED_UP
        elif self.needed > self.turn_budget and all(each.wo_type != "synthesize" for each in self.earlier):
            message, text = f"{message} for the turn; raise turn_budget, or send less", MESSAGE_TOO_LARGE
        else:
            message += " for the turn; raise turn_budget"
        return Reply(text, TurnError("BUDGET", message, wo.wo_id))
