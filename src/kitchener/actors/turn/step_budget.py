"""Decides whether the tokens left cover a step, and what happens to a step that they do not cover.

Such a step may still run as the turn's last call, without tools. `chain.py` asks before it plans a work order. Explained in
`docs/turn.md`.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from kitchener.actors.turn.reply import MESSAGE_TOO_LARGE, SESSION_USED_UP, Reply, apology_for
from kitchener.actors.turn.step import TurnStep
from kitchener.actors.work.budget import Budget
from kitchener.records.entries import ConstraintsMapping
from kitchener.records.turn import TurnError
from kitchener.records.work_order import WorkOrder


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
