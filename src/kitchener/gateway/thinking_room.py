"""Learns which models of a provider think, and gives their calls tokens for that beside `max_tokens`.

Thoughts count as output tokens. So a model that thinks may reach `max_tokens`, which is meant for its answer, before the answer
begins. Servers say in no common way which models think, but their answers show it. `attempts.py` uses this. Explained in
`docs/gateway.md`.
"""

from typing import Final

from kitchener.logs import get_logger
from kitchener.records.prompt import PromptRequest, PromptResponse
from kitchener.records.tokens import tokens_of_bytes

_log = get_logger(__name__)

_BYTES_OF_CHARACTER: Final = 4
"""Most bytes of a character, and so the most tokens: no token is shorter than a byte."""
_MARKS: Final = 64
"""Output tokens that are neither text nor thoughts, such as those that begin and end a message, at most."""
_NO_LIMIT: Final = 1 << 60


class ThinkingRoom:
    """The tokens for thoughts of one provider's models.

    Args:
        provider_id: the provider's id in the configuration, for the log
        most: the setting `thinking_tokens`
    """

    __slots__ = ("_limits", "_most", "_provider_id")

    def __init__(self, provider_id: str, most: int) -> None:
        self._provider_id, self._most = provider_id, most
        self._limits: dict[str, int] = {}
        """For each model that thinks, the tokens that one call may ask for, prompt and output together."""

    def __bool__(self) -> bool:
        """Whether any model thinks."""
        return bool(self._limits)

    def of(self, model: str, request: PromptRequest) -> int:
        """Returns the tokens that a call of a model gets beside its `max_tokens`."""
        limit = self._limits.get(model)
        if limit is None:
            return 0
        room = min(self._most, limit - _asked(request))
        if request.tokens_left is not None:
            room = min(room, request.tokens_left - request.max_tokens)
        return max(0, room)

    def heard(self, model: str, response: PromptResponse) -> None:
        """Learns from an answer. A model whose answer took more tokens than its text can have has thought."""
        spoken = _BYTES_OF_CHARACTER * len(response.text) + _MARKS
        if response.usage.output_tokens > spoken and not response.tool_uses and model not in self._limits:
            self.thinks(model)

    def thinks(self, model: str) -> None:
        """Remembers that a model thinks."""
        if model not in self._limits and self._most:
            self._limits[model] = _NO_LIMIT
            _log.info("model thinks", provider_id=self._provider_id, model_id=model, thinking_tokens=self._most)

    def was_too_much(self, model: str, request: PromptRequest, sent: int, room: int) -> None:
        """Learns that a provider refused a request with so much room, and answered it with at most half of that.

        The limit is halfway between the two. It counts the prompt, so that one long prompt does not take the room from others.

        Args:
            model: the model
            request: the request, without room
            sent: the tokens of the prompt, as the provider counted them. An estimate may be far less, such as of digits
            room: what was refused
        """
        limit = max(_asked(request), sent + request.max_tokens) + room // 2
        self._limits[model] = min(limit, self._limits.get(model, _NO_LIMIT))
        _log.info("model takes less", provider_id=self._provider_id, model_id=model, tokens=limit)


def _asked(request: PromptRequest) -> int:
    """The tokens of a prompt, estimated, and of the answer."""
    return tokens_of_bytes(request.text_bytes) + request.part_tokens + request.max_tokens
