"""The built-in provider of `classify = "rules"`: it classifies messages by `gateway.rules`, without a model or a network.

It reads a request's `variables` and none of its messages, so it works with any prompt pack. Explained in `docs/gateway.md`.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

import orjson

from kitchener.errors import ProviderError
from kitchener.gateway.rules.classification import RuleClassification, classify
from kitchener.gateway.traits import ProviderTraits
from kitchener.model_usage import Usage
from kitchener.records.prompt import RULES_MODEL, RULES_PROVIDER, PromptRequest, PromptResponse, ToolSpec

_INPUTS: Final = ("active_objective", "prior_intent_id", "recent_turns", "labels_vocabulary")


class RulesProvider:
    """Classifies messages by fixed rules: the same request always gets the same answer, uses no tokens and requests no tool."""

    traits = ProviderTraits(built_in=True, needs_timeout=False, model_id=RULES_MODEL)

    async def complete(self, request: PromptRequest) -> PromptResponse:
        """Returns the classification.

        Raises:
            ProviderError: the work order is no classification (reason `bad_request`)
        """
        if request.wo_type != "classify":
            raise ProviderError(RULES_PROVIDER, "bad_request", f"the rules only classify; a {request.wo_type} needs a model")
        answer = classified(request.variables)
        return PromptResponse(
            provider_id=RULES_PROVIDER,
            model_id=RULES_MODEL,
            text=orjson.dumps(answer).decode(),
            structured=dict(answer),
            usage=Usage(0, 0),
        )


def classified(given: Mapping[str, Any], tools: Sequence[ToolSpec] = ()) -> RuleClassification:
    """Classifies the message of a classify work order.

    Args:
        given: the input of the work order, as its contract requires it
        tools: the tools that the message may request
    """
    return classify(given.get("user_message", ""), tools=tools, **{name: given.get(name) for name in _INPUTS})
