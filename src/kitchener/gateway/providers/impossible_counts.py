"""Tells the counts of tokens that can be from those that cannot, for one real provider.

A statistic never fails an answer: a count that cannot be is taken as not given, so that the gateway estimates it, and is logged
once for each provider. `token_counts.py` reads counts with it; `bodies.py` sets wrong ones to 0 before a vendor's library,
which may fail for them, reads the body. Explained in `docs/gateway.md`.
"""

import re
from typing import Final

from kitchener.logs import get_logger
from kitchener.model_usage import MOST_TOKENS
from kitchener.plain_names import quoted

_HOLDERS: Final = ("message", "response")
"""Fields of an answer or an event whose objects may have the counts."""
_DUE: Final = ("prompt_tokens", "completion_tokens", "total_tokens")
"""Counts of OpenAI's chat completions. Its library fails where only some of them are there."""
_USAGE: Final[dict[str, dict[str, object]]] = {
    "usage": dict.fromkeys((*_DUE, "input_tokens", "output_tokens"), 0),
    "usageMetadata": {},
}
"""Fields that hold the counts, and what stands there in place of something that is no object. Some libraries need the names."""
_IS_COUNT: Final = re.compile(r"(?i)token(?:s|_?count)?\Z")
"""Names of counts. Beside them stand names, lists and objects, such as `service_tier` and `prompt_tokens_details`."""

_log = get_logger(__name__)


class CountCheck:
    """Checks the counts of one provider's answers.

    Args:
        provider_id: the provider's id in the configuration, for the log
    """

    def __init__(self, provider_id: str) -> None:
        self._provider_id, self._has_logged = provider_id, False

    def count(self, name: str, value: object) -> int | None:
        """Returns a count; None: it was not given, or cannot be."""
        if value is None:
            return None
        if type(value) is float and value.is_integer():
            value = int(value)
        if type(value) is int and 0 <= value <= MOST_TOKENS:
            return value
        self.note(name, value)
        return None

    def note(self, name: str, value: object) -> None:
        """Logs that a count cannot be, if it is the provider's first."""
        if not self._has_logged:
            self._has_logged = True
            shown = quoted(value, 40)
            _log.warning("provider sends impossible token counts", provider_id=self._provider_id, count=name, value=shown)

    def mend(self, answer: dict[str, object]) -> bool:
        """Sets the counts of an answer or an event that cannot be, or are missing beside others, to 0.

        Returns whether there were any.

        The depth of the answer has been checked before.
        """
        is_changed = False
        for holder in (answer, *map(answer.get, _HOLDERS)):
            if not isinstance(holder, dict):
                continue
            for name, nothing in _USAGE.items():
                found = holder.get(name)
                if isinstance(found, dict):
                    is_changed |= self._mend_all(found)
                elif found is not None:
                    self.note(name, found)
                    holder[name], is_changed = dict(nothing), True
        return is_changed

    def _mend_all(self, counts: dict[str, object]) -> bool:
        is_changed, rest = False, [counts]
        if any(name in counts for name in _DUE) and not all(name in counts for name in _DUE):
            counts |= {name: 0 for name in _DUE if name not in counts}
            is_changed = True
        while rest:
            each = rest.pop()
            for name, value in each.items():
                if _IS_COUNT.search(name) is None:
                    rest += [item for item in (value if isinstance(value, list) else [value]) if isinstance(item, dict)]
                elif value is not None and (type(value) is not int or not 0 <= value <= MOST_TOKENS):
                    each[name], is_changed = self.count(name, value) or 0, True
        return is_changed
