"""Which work orders a turn needs, and what a finished chain adds up to. Pure.

A turn is a short chain: classify, then at most one tool call that the classification asks for, then synthesize. Neighbours: the
turn (`turn.py`) asks here what comes next; nothing here knows ledgers, models or time. Explained in `docs/work-orders.md`.
"""

from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Final, Literal, NamedTuple

import orjson

from kitchener.canonical import canonical_bytes
from kitchener.records.turn import CostSummary, WorkOrderSummary
from kitchener.records.work_order import Constraints, Cost, WorkOrder

UNCLASSIFIED: Final[Mapping[str, Any]] = {"speech_act": "unknown", "ambiguity": "high"}
"""What a turn goes on with when nothing could classify its message."""

_NO_TOOLS: Final = frozenset(("greeting", "farewell", "thanks"))
_TOOL_AND_REPLY: Final = 2
_COMMANDS: Final = frozenset(("command", "tool_query", "request"))


@dataclass(frozen=True, slots=True)
class ToolRequest:
    """A tool that runs before the reply is written."""

    tool_id: str
    arguments: Mapping[str, Any]


class ChainPlan(NamedTuple):
    """What follows the classification."""

    tool_request: ToolRequest | None
    """The tool to run first, or None."""
    offers_tools: bool
    """Whether the model may ask for tools while it writes the reply."""
    offers_items: bool = False
    """Whether it may fetch in full what its context shows as stubs."""


def plan_chain(
    classification: Mapping[str, Any], *, allowed: Collection[str], read_only: Collection[str], room: int
) -> ChainPlan:
    """The rest of a turn's chain after its classification.

    A command with a valid request for an allowed tool runs it before the reply. A question does so only if the tool
    is read-only: an effect needs a command. A greeting gets no tools. Everything else is offered the tools in the reply's loop.

    Args:
        classification: the classify work order's output
        allowed: tools this agent class may use
        read_only: those of them without effects
        room: work orders that still fit into the chain, the reply included
    """
    speech_act = str(classification.get("speech_act", ""))
    if speech_act in _NO_TOOLS or not allowed:
        return ChainPlan(None, offers_tools=False, offers_items=speech_act not in _NO_TOOLS)
    request = _tool_request(classification.get("tool_request"))
    may_run = request is not None and request.tool_id in allowed and room >= _TOOL_AND_REPLY
    if request is not None and may_run and (speech_act in _COMMANDS or request.tool_id in read_only):
        return ChainPlan(request, offers_tools=False, offers_items=True)
    return ChainPlan(None, offers_tools=True, offers_items=True)


def tighter(constraints: Constraints, attempt: int) -> Constraints:
    """The constraints of a retry: no tools, a smaller budget, no creativity."""
    return constraints.model_copy(
        update={
            "temperature": 0.0,
            "token_budget": min(constraints.token_budget, max(256, constraints.token_budget * 3 // 4)),
            "turn_limit": 0,
            "allowed_tools": () if attempt > 1 else constraints.allowed_tools,
        }
    )


def summarize(chain: Iterable[WorkOrder]) -> tuple[WorkOrderSummary, ...]:
    """One summary per work order, in order."""
    summaries: list[WorkOrderSummary] = []
    for wo in chain:
        known = wo.__dict__  # reading a field of a model takes five times as long
        cost = cost_mapping(known["cost"])
        summaries.append({"wo_id": known["wo_id"], "wo_type": known["wo_type"], "state": known["state"], "cost": cost})
    return tuple(summaries)


def cost_mapping(cost: Cost) -> dict[str, Any]:
    """A cost as JSON types."""
    return {**cost.__dict__, "tool_ids_used": list(cost.tool_ids_used)}


def cost_json(cost: Cost) -> orjson.Fragment:
    """A cost as canonical JSON, to stand inside a payload."""
    # Twice a work order, so its integers, which were counted here or checked, go into their places without being walked over.
    used = cost.__dict__
    tools = used["tool_ids_used"]
    tool_ids = canonical_bytes(tools).decode() if tools else "[]"
    return orjson.Fragment(
        f'{{"elapsed_ms":{used["elapsed_ms"]},"input_tokens":{used["input_tokens"]},"llm_calls":{used["llm_calls"]},'
        f'"output_tokens":{used["output_tokens"]},"tool_calls":{used["tool_calls"]},"tool_ids_used":{tool_ids}}}'
    )


def total_cost(chain: Iterable[WorkOrder]) -> CostSummary:
    """Tokens and calls summed over the chain."""
    tokens_in = tokens_out = llm_calls = tool_calls = 0
    for wo in chain:
        used = wo.cost.__dict__
        tokens_in += used["input_tokens"]
        tokens_out += used["output_tokens"]
        llm_calls += used["llm_calls"]
        tool_calls += used["tool_calls"]
    return {"input_tokens": tokens_in, "output_tokens": tokens_out, "llm_calls": llm_calls, "tool_calls": tool_calls}


Vocabulary = Mapping[str, Mapping[str, str]]
"""The labels that there are of a kind, by their case-folded spelling; a kind that is missing may have any."""
ANY_LABEL: Final[Vocabulary] = MappingProxyType({})
"""The vocabulary of those who set none."""


def vocabulary_of(labels: Mapping[Literal["domain", "task"], Iterable[str]]) -> Vocabulary:
    """A configured vocabulary, ready to be looked up; a kind without labels may have any."""
    return {kind: {each.casefold(): each for each in own} for kind, own in labels.items() if own}


def signals_of(classification: Mapping[str, Any], chain: Iterable[WorkOrder], vocabulary: Vocabulary = ANY_LABEL) -> list[str]:
    """The signals that a turn gives, from what its subject asked for and what was done; what is missing gives none.

    Recalled memory and configured text are not looked at, so a line does not support itself by being shown.

    Args:
        classification: the classify work order's output
        chain: the turn's work orders, retries included
        vocabulary: labels outside of it give no signal
    """
    found = []
    speech_act = classification.get("speech_act")
    if speech_act and classification is not UNCLASSIFIED:
        found.append(f"intent:{speech_act}")
    outcome = "unknown"
    for wo in chain:
        found += [f"tool:{tool_id}" for tool_id in wo.cost.tool_ids_used]
        if wo.wo_type == "synthesize":
            outcome = "success" if wo.state == "completed" else "failed"
    labels = labels_of(classification, vocabulary)
    found += [f"{kind}:{labels[kind]}" for kind in ("domain", "task") if kind in labels]
    return [*found, f"outcome:{outcome}"]


def labels_of(classification: Mapping[str, Any], vocabulary: Vocabulary = ANY_LABEL) -> dict[str, str]:
    """The turn's labels, at most one of a kind, in the vocabulary's spelling; one outside of it is none."""
    labels = classification.get("labels")
    found = {}
    for kind in ("domain", "task"):
        label = labels.get(kind) if isinstance(labels, Mapping) else None
        if isinstance(label, list | tuple) and label:
            label = label[0]
        if not isinstance(label, str) or not label:
            continue
        known = vocabulary.get(kind)
        if known is None:
            found[kind] = label
        elif (spelled := known.get(label.strip().casefold())) is not None:
            found[kind] = spelled
    return found


def _tool_request(value: Any) -> ToolRequest | None:
    if not isinstance(value, Mapping):
        return None
    tool_id, arguments = value.get("tool_id"), value.get("arguments", {})
    if not isinstance(tool_id, str) or not isinstance(arguments, Mapping):
        return None
    return ToolRequest(tool_id, arguments)
