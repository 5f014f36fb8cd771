"""Turns a provider's unexpected exceptions and invalid answers into `ProviderError`.

A provider is foreign code that reads foreign data. Any failure of it becomes a `ProviderError` of this provider, which is
recorded and may be retried. It is never a failure of the gateway. Explained in `docs/gateway.md`.
"""

import traceback
from collections.abc import Mapping
from typing import Final, get_args

import anyio

from kitchener.errors import ConfigError, ProviderError, ProviderReason
from kitchener.logs import get_logger
from kitchener.model_usage import Usage
from kitchener.plain_names import origin_of, quoted
from kitchener.records.prompt import Echo, PromptResponse, TextPiece, ToolUse

_REASONS: Final = frozenset(get_args(ProviderReason))

_log = get_logger(__name__)


def provider_failure(provider_id: str, error: BaseException) -> ProviderError:
    """Converts an exception of a provider. Omits the exception's text, which may contain an answer or a key."""
    if isinstance(error, anyio.get_cancelled_exc_class()):
        failure = ProviderError(provider_id, "connection", "something that the provider waited for was cancelled")
    else:
        detail = f"the provider raised {origin_of(error)} instead of a ProviderError"
        failure = ProviderError(provider_id, "malformed", detail)
        frames = "".join(traceback.format_tb(error.__traceback__))
        _log.error("provider failed", provider_id=provider_id, error=origin_of(error), traceback=frames)
    failure.__cause__ = error
    return failure


def checked_failure(provider_id: str, error: ProviderError) -> ProviderError:
    """Returns a provider's error if its fields are valid, else a `malformed` error in its place."""
    pause_s = error.retry_after_s
    is_whole = type(error.reason) is str and error.reason in _REASONS and type(error.detail) is str
    if (usage := error.usage) is not None:
        is_whole = is_whole and type(usage) is Usage and usage.problem() is None
    if is_whole and (pause_s is None or (type(pause_s) in (int, float) and 0 <= pause_s < float("inf"))):
        return error
    told = "the provider's error has a reason, detail, pause or usage that it cannot have"
    return ProviderError(provider_id, "malformed", told)


def check_provider(provider_id: str, provider: object) -> None:
    """Raises ConfigError unless an object that the program passes in can be called as a provider."""
    if isinstance(provider, type) or not callable(getattr(provider, "complete", None)):
        found = f"the class {provider.__name__}" if isinstance(provider, type) else type(provider).__name__
        raise ConfigError(
            "argument providers", quoted(provider_id), found, "expected an object with `async def complete(request)`"
        )


def check_response(provider_id: str, response: object) -> None:
    """Raises ProviderError unless the fields of an answer have the declared types and its token counts are valid."""
    if type(response) is not PromptResponse:
        raise ProviderError(provider_id, "malformed", f"the answer is {type(response).__name__}: expected PromptResponse")
    if type(response.text) is not str:
        raise ProviderError(provider_id, "malformed", f"the answer's text is {type(response.text).__name__}: expected str")
    structured = response.structured
    if structured is not None and type(structured) is not dict:
        raise ProviderError(provider_id, "malformed", f"the structured answer is {type(structured).__name__}: expected dict")
    if response.tool_uses:
        for use in response.tool_uses:
            if not _is_tool_use(use):
                raise ProviderError(provider_id, "malformed", "the answer's tool requests are not all ToolUse")
    if type(response.usage) is not Usage:
        raise ProviderError(provider_id, "malformed", f"the answer's usage is {type(response.usage).__name__}: expected Usage")
    if type(response.provider_id) is not str or type(response.model_id) is not str:
        raise ProviderError(provider_id, "malformed", "the answer's provider_id or model_id is not a str")
    if (problem := response.usage.problem()) is not None:
        raise ProviderError(provider_id, "malformed", problem)


def checked_item(provider_id: str, item: object) -> TextPiece | PromptResponse:
    """Returns an item of a stream. Raises ProviderError unless it is a piece of text or a valid answer."""
    if type(item) is TextPiece and type(item.text) is str:
        return item
    if type(item) is PromptResponse:
        check_response(provider_id, item)
        return item
    raise ProviderError(provider_id, "malformed", f"the stream gave {type(item).__name__}: expected a TextPiece of str")


def _is_tool_use(use: object) -> bool:
    return (
        isinstance(use, ToolUse)
        and isinstance(use.use_id, str)
        and isinstance(use.tool_id, str)
        and isinstance(use.arguments, Mapping)
        and (use.problem is None or isinstance(use.problem, str))
        and (use.echo is None or (type(use.echo) is Echo and all(isinstance(each, str) for each in use.echo)))
    )
