"""Chooses the contract for the replies of an agent class, even if its prompt packs are older than replies as text.

A reply used to be a JSON object with the key `response_text`; now it is text. If the `prompt_dir` of a class overrides the old
contract or the old pack, and its settings name no contract, the class keeps the old contract. Explained in `docs/prompts.md`.
"""

from typing import Final

from kitchener.actors.executor.prompt_files import own_ids
from kitchener.actors.executor.prompts import PromptLibrary
from kitchener.config import HO2Config

OBJECT_REPLY: Final = "PRC-SYNTHESIZE-001"
"""The shipped contract of replies as objects, which was the default up to version 3 of the policy."""
_TEXT_DIRECT: Final = "PRC-DIRECT-002"
_OBJECT_DIRECT: Final = "PRC-DIRECT-001"


def with_reply_contract(agent: HO2Config) -> HO2Config:
    """Returns the settings of an agent class with the contract of its replies filled in. It reads the names in `prompt_dir`.

    Raises:
        PromptError: the directory has no readable manifest
    """
    if "synthesize_contract_id" in agent.model_fields_set or not _is_of_then(agent, "SYNTHESIZE"):
        return agent
    return agent.model_copy(update={"synthesize_contract_id": OBJECT_REPLY})


def direct_contract_of(agent: HO2Config, policy_version: int = 4) -> str:
    """Returns the contract of calls that are made without HO1. It reads the names in `prompt_dir`.

    Args:
        agent: the settings of the agent class
        policy_version: version of the rules that turns follow
    """
    return _OBJECT_DIRECT if policy_version < 4 or _is_of_then(agent, "DIRECT") else _TEXT_DIRECT


def is_object_reply(agent: HO2Config, prompts: PromptLibrary) -> bool:
    """Whether the contract of an agent class makes its replies objects, which a later version will refuse."""
    name = agent.synthesize_contract_id
    return name in prompts.contract_ids and prompts.contract(name).output_schema is not None


def lacks_history(agent: HO2Config, prompts: PromptLibrary) -> bool:
    """Whether chat messages of earlier turns are configured, but the pack of replies has no place for them."""
    name, is_wanted = agent.synthesize_contract_id, agent.context_mode == "enforce" and agent.prompt_layout == "chat"
    return is_wanted and name in prompts.contract_ids and not prompts.contract(name).shows_history


def _is_of_then(agent: HO2Config, name: str) -> bool:
    """Whether the class overrides the contract or the pack of replies as objects, and neither of replies as text."""
    own = own_ids(agent.prompt_dir)
    return not own.isdisjoint(_ids(name, "001")) and own.isdisjoint(_ids(name, "002"))


def _ids(name: str, number: str) -> tuple[str, str]:
    return f"PRC-{name}-{number}", f"PRM-{name}-{number}"
