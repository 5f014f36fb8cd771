"""Remembers which optional fields of requests the models of an endpoint refuse, so that none of them is sent again.

Where the caller gives the value of a field, an endpoint may refuse that value and take others. Such a refusal holds for the
value alone: one user's bad schema must not leave the schemas of all others unsent.
"""

import hashlib
from collections import OrderedDict
from collections.abc import Mapping
from typing import Final

import orjson

from kitchener.gateway.providers.chat_completions.request_body import OptionalField
from kitchener.logs import get_logger
from kitchener.records.prompt import PromptRequest

_log = get_logger(__name__)

REMEMBERED_MODELS: Final = 64
"""Models whose refusals are remembered, those learned last."""
REMEMBERED_VALUES: Final = 1_024
"""Refused values of fields that are remembered, those learned last."""
_OF_CALLER: Final[frozenset[OptionalField]] = frozenset(("response_format", "tool_choice"))
"""The fields whose values callers give."""

_RefusedValue = tuple[str, OptionalField, bytes]
"""A model, a field, and a digest of its value."""


class RefusedFields:
    """The refusals of one endpoint's models.

    Args:
        provider_id: the provider's id in the configuration, for the log
        always: fields that no request has from the start
    """

    def __init__(self, provider_id: str, always: frozenset[OptionalField]) -> None:
        self._provider_id, self.always = provider_id, always
        self._models: OrderedDict[str, frozenset[OptionalField]] = OrderedDict()
        self._values: OrderedDict[_RefusedValue, None] = OrderedDict()

    def of(self, model: str, request: PromptRequest) -> frozenset[OptionalField]:
        """The fields that a request to a model is sent without."""
        refused = self._models.get(model, self.always)
        if not self._values:
            return refused
        return refused.union(field for field in _OF_CALLER if _refused_value(model, field, request) in self._values)

    def add(self, model: str, request: PromptRequest, refused: frozenset[OptionalField]) -> None:
        """Remembers that a model took a request without these fields, after it had refused them."""
        for field in refused & _OF_CALLER:
            if len(self._values) >= REMEMBERED_VALUES:
                self._values.popitem(last=False)
            self._values[_refused_value(model, field, request)] = None
        if others := refused - _OF_CALLER:
            if model not in self._models and len(self._models) >= REMEMBERED_MODELS:
                self._models.popitem(last=False)
            self._models[model] = self._models.get(model, self.always) | others
        _log.info("model refuses fields", provider_id=self._provider_id, model_id=model, fields=sorted(refused))


def _refused_value(model: str, field: OptionalField, request: PromptRequest) -> _RefusedValue:
    given: Mapping[str, object] | str | None = request.output_schema if field == "response_format" else request.tool_choice
    return model, field, hashlib.sha256(orjson.dumps(given, option=orjson.OPT_SORT_KEYS)).digest()
