"""Plans the work orders of a turn and summarizes a finished chain. Pure.

A turn is a short chain: classify, then at most one tool call that the classification asks for, then synthesize. The turn
(`turn.py`) calls this module, which knows no ledgers, models or time. Explained in `docs/work-orders.md`.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal, NamedTuple, cast

from kitchener.config import HO2Config, ModelChoice
from kitchener.records.entries import (
    ConstraintsMapping,
    CostMapping,
    CostSummary,
    NestedCost,
    WorkOrderErrorMapping,
    WorkOrderSummary,
    WorkOrderType,
)
from kitchener.records.events import POLICY_VERSION
from kitchener.records.outputs import Classification
from kitchener.records.prompt import ANY_TOOL_CHOICE, NO_TOOL_CHOICE, RULES_PROVIDER
from kitchener.records.tools.client_tools import ClientToolset
from kitchener.records.work_order import TYPE_TAGS, Constraints, Cost, WorkOrder, WorkOrderError

UNCLASSIFIED: Final[Classification] = {"speech_act": "unknown", "ambiguity": "high"}
"""The classification of a turn whose classify work order failed."""
CONTINUES: Final[Classification] = {"intent_relation": "continue", "confidence": 1.0}
"""The classification of every turn with `classify = "off"`."""

_DEFAULTS: Final = Constraints()
_NO_TOOLS: Final = frozenset(("greeting", "farewell", "thanks"))
_TOOL_AND_REPLY: Final = 2
_COMMANDS: Final = frozenset(("command", "tool_query", "request"))


@dataclass(frozen=True, slots=True)
class ToolRequest:
    """A tool that runs before the reply is written."""

    tool_id: str
    arguments: Mapping[str, object]


class ChainPlan(NamedTuple):
    """The rest of a turn's chain after the classification."""

    tool_request: ToolRequest | None
    """The tool to run first, or None."""
    offers_tools: bool
    """Whether the model may ask for tools while it writes the reply."""
    offers_items: bool = False
    """Whether the model may read stubs of its context in full."""
    tool_choice: str | None = None
    """The tool that the first answer must call: `required` (any), an id, or `none`; None: the model chooses."""

    def choosing(self, choice: str | None, policy_version: int = POLICY_VERSION) -> "ChainPlan":
        """The plan under the caller's choice: `none`, `required` or the id of a tool; None: this plan.

        A tool that the classification asks for runs only if it fits the choice. The model then need not call it again.
        """
        if choice is None:
            return self
        if choice == NO_TOOL_CHOICE:
            if policy_version > 11:
                return self._replace(tool_request=None, tool_choice=NO_TOOL_CHOICE)
            return ChainPlan(None, offers_tools=False)
        asked = self.tool_request
        if asked is not None and choice in (ANY_TOOL_CHOICE, asked.tool_id):
            return self
        return ChainPlan(None, offers_tools=True, offers_items=self.offers_items, tool_choice=choice)


def plan_chain(
    classification: Classification,
    *,
    allowed: Collection[str],
    read_only: Collection[str],
    room: int,
    held_back: Collection[str] = (),
    client_tools: ClientToolset | None = None,
    policy_version: int = POLICY_VERSION,
) -> ChainPlan:
    """Plans the rest of a turn's chain after the classification.

    A command with a valid request for an allowed tool runs the tool before the reply. A question does so only if the tool is
    read-only, because an effect needs a command. After a greeting, the model may call no tool, but is shown them, so that a
    cache can serve the prompt. With any other message, it may call tools while it writes the reply, also after a tool that the
    classification asked for. Under version 1 of the policy, it may not then; up to version 11, a greeting hides the tools.

    Args:
        classification: the classify work order's output
        allowed: tools that this agent class may use
        read_only: the tools without effects among them
        room: work orders that still fit into the chain, including the reply
        held_back: the tools that only the replying model may ask for, because they may need a person's approval
        client_tools: the caller's tools, which only the replying model may ask for; None: there are none
        policy_version: version of the rules
    """
    speech_act = str(classification.get("speech_act", ""))
    has_tools, is_social = bool(allowed) or client_tools is not None, speech_act in _NO_TOOLS
    if is_social and policy_version > 11:
        return ChainPlan(None, offers_tools=has_tools, offers_items=True, tool_choice=NO_TOOL_CHOICE)
    if is_social or not has_tools:
        return ChainPlan(None, offers_tools=False, offers_items=not is_social)
    request = _tool_request(classification.get("tool_request"))
    may_run = (
        request is not None and request.tool_id in allowed and request.tool_id not in held_back and room >= _TOOL_AND_REPLY
    )
    if request is not None and may_run and (speech_act in _COMMANDS or request.tool_id in read_only):
        return ChainPlan(request, offers_tools=policy_version > 1, offers_items=True)
    return ChainPlan(None, offers_tools=True, offers_items=True)


def constraints_for(
    config: HO2Config,
    wo_type: WorkOrderType,
    *,
    contract_id: str | None,
    token_budget: int,
    policy_version: int = POLICY_VERSION,
) -> Constraints:
    """The constraints of an agent class's work orders of one type, with the tags and the model that the class gives them.

    Args:
        config: the settings of the agent class
        wo_type: the type of the work orders
        contract_id: their prompt contract; None: they ask no model
        token_budget: tokens that each of them may use
        policy_version: version of the rules
    """
    chosen = model_choice(config, TYPE_TAGS[wo_type]) if contract_id is not None else ModelChoice()
    is_reply = wo_type == "synthesize"
    goes_on = policy_version > 1 and wo_type in ("classify", "synthesize", "verify")
    return Constraints(
        prompt_contract_id=contract_id,
        token_budget=token_budget,
        reply_reserve=config.reply_reserve if goes_on else None,
        domain_tags=tags_for(config, wo_type),
        provider_id=chosen.provider,
        model_id=chosen.model,
        temperature=config.temperature if is_reply else None,
        max_tokens=config.max_tokens if is_reply else None,
    )


def model_choice(config: HO2Config, task: str) -> ModelChoice:
    """The provider and model for one type of work order: those set for the type, else those of the class.

    A model belongs to its provider, so a type with another provider does not take the model of the class. With
    `classify = "rules"`, the rules classify, whatever is set.
    """
    if task == TYPE_TAGS["classify"] and config.classify == "rules":
        return ModelChoice(provider=RULES_PROVIDER)
    own = next((choice for each, choice in config.models.items() if each == task), ModelChoice())
    is_same = own.provider in (None, config.provider)
    return ModelChoice(provider=own.provider or config.provider, model=own.model or (config.model if is_same else None))


def tags_for(config: HO2Config, wo_type: WorkOrderType) -> tuple[str, ...]:
    """The domain tags of an agent class's work orders of one type."""
    return tuple(dict.fromkeys((*config.domain_tags, TYPE_TAGS[wo_type])))


def plan_acceptance(planned: tuple[str, ...], more: tuple[str, ...]) -> tuple[str, ...]:
    """Returns the acceptance criteria of two sources, each once, in order."""
    return tuple(dict.fromkeys((*planned, *more)))


def told_criteria(instructions: str, acceptance: Sequence[str], unmet: Sequence[str] = ()) -> str:
    """Returns what a model is told of a reply, with its criteria, and on a retry with those that the last reply failed.

    `instructions` are what it is told besides: requirements of this reply, or up to version 11 the instructions of its class.
    Prompt packs need no place for either.
    """
    parts = [instructions] if instructions else []
    parts.append("The reply is accepted only if it meets each of these criteria:\n" + _listed(acceptance))
    if unmet:
        parts.append("The last reply was rejected, because it did not meet these criteria:\n" + _listed(unmet))
    return "\n\n".join(parts)


def told_output(instructions: str, schema: str) -> str:
    """Returns what a model is told of a reply that must be an object of this schema. `instructions`: see `told_criteria`."""
    asked = (
        "This reply is read by a program. When you ask for no tool, answer with one JSON object that fits this JSON schema, and"
        f" with nothing else, without a code fence:\n{schema}"
    )
    return f"{instructions}\n\n{asked}" if instructions else asked


def told_refusal(instructions: str, problem: str, refused: Literal["object", "reply"] = "object") -> str:
    """Returns what a model is told of a retry, with what was wrong with the last object or reply, in a data block.

    `instructions`: see `told_criteria`.
    """
    told = f"The last {refused} was refused. What is wrong with it stands in this data block:\n{problem}"
    return f"{instructions}\n\n{told}" if instructions else told


def _listed(criteria: Sequence[str]) -> str:
    return "\n".join([f"- {each}" for each in criteria])


def given_results(
    classification: Classification,
    results: list[Mapping[str, object]],
    inputs: dict[str, object],
    *,
    is_chat: bool,
) -> list[Mapping[str, object]]:
    """The results of earlier steps that the replying model is shown.

    Args:
        classification: the message's classification
        results: the results of tools that ran before the reply
        inputs: the input of the reply; in chat layout, the classification is added here, where only local providers read it
        is_chat: whether earlier turns are shown as chat messages
    """
    if classification is CONTINUES:
        return results
    if not is_chat:
        return [dict(classification), *results]
    inputs["classification"] = dict(classification)
    return results


def tighter(constraints: Constraints, attempt: int, policy_version: int = POLICY_VERSION) -> Constraints:
    """The constraints of a retry: temperature 0, a smaller budget and no tool rounds.

    Args:
        constraints: those of the last attempt
        attempt: number of the last attempt, from 1
        policy_version: version of the rules
    """
    tools = constraints.allowed_tools if attempt == 1 or policy_version > 11 else ()
    return constraints.replaced(
        temperature=0.0,
        token_budget=min(constraints.token_budget, max(256, constraints.token_budget * 3 // 4)),
        turn_limit=0,
        tool_choice=NO_TOOL_CHOICE if tools and policy_version > 11 else None,
        allowed_tools=tools,
    )


def summarize(chain: Iterable[WorkOrder]) -> tuple[WorkOrderSummary, ...]:
    """Returns one summary for each work order, in order."""
    return tuple([{"wo_id": wo.wo_id, "wo_type": wo.wo_type, "state": wo.state, "cost": cost_mapping(wo.cost)} for wo in chain])


def cost_mapping(cost: Cost) -> CostMapping:
    found: CostMapping = {
        "input_tokens": cost.input_tokens,
        "output_tokens": cost.output_tokens,
        "llm_calls": cost.llm_calls,
        "tool_calls": cost.tool_calls,
        "tool_ids_used": list(cost.tool_ids_used),
        "elapsed_ms": cost.elapsed_ms,
    }
    if cost.cached_tokens:
        found["cached_tokens"] = cost.cached_tokens
    if cost.nested is not None:
        found["nested"] = nested_mapping(cost.nested)
    return found


def nested_mapping(cost: Cost) -> NestedCost:
    """The cost of turns in other sessions as JSON types."""
    found: NestedCost = {
        "input_tokens": cost.input_tokens,
        "output_tokens": cost.output_tokens,
        "llm_calls": cost.llm_calls,
        "tool_calls": cost.tool_calls,
    }
    if cost.cached_tokens:
        found["cached_tokens"] = cost.cached_tokens
    return found


def constraints_mapping(constraints: Constraints) -> ConstraintsMapping:
    """The constraints that differ from their defaults, as JSON types."""
    set_ones = {name: value for name, value in vars(constraints).items() if value != getattr(_DEFAULTS, name)}
    return cast(
        ConstraintsMapping, {name: list(value) if isinstance(value, tuple) else value for name, value in set_ones.items()}
    )


def error_mapping(error: WorkOrderError) -> WorkOrderErrorMapping:
    """An error as JSON types, without the fields that are not set."""
    found: WorkOrderErrorMapping = {"reason": error.reason, "detail": error.detail}
    if error.provider_reason is not None:
        found["provider_reason"] = error.provider_reason
    return found


def total_cost(chain: Iterable[WorkOrder], policy_version: int) -> CostSummary:
    """Sums tokens and calls over the chain and over the turns that its tools ran in other sessions."""
    nested: Cost | None = None
    tokens_in = tokens_out = cached = llm_calls = tool_calls = 0
    for wo in chain:
        cost = wo.cost
        tokens_in += cost.input_tokens
        tokens_out += cost.output_tokens
        cached += cost.cached_tokens
        llm_calls += cost.llm_calls
        tool_calls += cost.tool_calls
        if cost.nested is not None:
            nested = cost.nested.plus(nested)
    total: CostSummary = {
        "input_tokens": tokens_in,
        "output_tokens": tokens_out,
        "llm_calls": llm_calls,
        "tool_calls": tool_calls,
    }
    if cached and policy_version > 13:
        total["cached_tokens"] = cached
    if nested is None:
        return total
    return {**nested_mapping(nested.plus(Cost.of(total))), "nested": nested_mapping(nested)}


def _tool_request(value: object) -> ToolRequest | None:
    if not isinstance(value, Mapping):
        return None
    tool_id, arguments = value.get("tool_id"), value.get("arguments", {})
    if not isinstance(tool_id, str) or not isinstance(arguments, Mapping):
        return None
    return ToolRequest(tool_id, arguments)
