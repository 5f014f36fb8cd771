"""Turns present settings into those that an older version of the policy ran with: settings left out get that version's
defaults."""

from kitchener.actors.authority.authority import BEFORE_6, recall_scope_of
from kitchener.actors.executor.reply_contract import OBJECT_REPLY
from kitchener.config import HO2Config


def without_memory(agent: HO2Config, policy_version: int) -> HO2Config:
    """The settings of a class without long-term memory. They recall from where the class did before."""
    changes: dict[str, object] = {"ho3_enabled": False}
    if policy_version > 2:
        changes["recall_scope"] = recall_scope_of(agent)
    return agent.model_copy(update=changes)


def of_version(agent: HO2Config, policy_version: int) -> HO2Config:
    """The settings of a class with the defaults of a version of the policy."""
    changes: dict[str, object] = {}
    if policy_version == 1:
        changes["recalled_results"] = 0
        if "turn_budget" not in agent.model_fields_set:
            changes["turn_budget"] = 16_000
    if policy_version < 6:
        changes |= {key: value for key, value in BEFORE_6.items() if key not in agent.model_fields_set}
    if policy_version < 4 and "synthesize_contract_id" not in agent.model_fields_set:
        changes["synthesize_contract_id"] = OBJECT_REPLY
    return agent.model_copy(update=changes)
