"""Requests for tests, a recorder of attempts, and a reader of streams."""

from collections.abc import Mapping
from contextlib import aclosing
from dataclasses import replace
from typing import Any

from kitchener.errors import ProviderError
from kitchener.gateway import LLMGateway
from kitchener.records.prompt import Attempt, Message, PromptRequest, StreamItem
from kitchener.testing import prompt_request

FAR = 30.0
"""Seconds until the deadline of a request that is not about deadlines."""


def ask(
    text: str = "hello", *, within_s: float = FAR, variables: Mapping[str, Any] | None = None, **fields: Any
) -> PromptRequest:
    """A synthesize request due `within_s` seconds from now, with an instruction before the message."""
    fields = {"messages": (Message("system", "be brief"), Message("user", text)), "max_tokens": 100, **fields}
    if variables is not None:
        fields["variables"] = variables
    return prompt_request(text, within_s=within_s, **fields)


def as_type(request: PromptRequest, wo_type: Any) -> PromptRequest:
    return replace(request, wo_type=wo_type)


class Told:
    """An `on_attempt` that remembers."""

    def __init__(self) -> None:
        self.attempts: list[Attempt] = []

    async def __call__(self, attempt: Attempt, /) -> None:
        self.attempts.append(attempt)

    @property
    def lines(self) -> list[str]:
        """`1 started local`, `1 failed local server_error`, …"""
        return [
            " ".join(str(part) for part in (each.attempt, each.state, each.provider_id, each.reason) if part is not None)
            for each in self.attempts
        ]


async def read_until_error(
    gateway: LLMGateway, request: PromptRequest, told: Told
) -> tuple[list[StreamItem], ProviderError | None]:
    """What came before the error, and the error."""
    seen: list[StreamItem] = []
    try:
        async with aclosing(gateway.stream(request, on_attempt=told)) as items:
            async for item in items:
                seen.append(item)  # noqa: PERF401 - an extension would lose what came before the error
    except ProviderError as error:
        return seen, error
    return seen, None
