"""A provider of one's own, and a route to it: all that is needed is one async method.

    python -m examples.custom_provider.main

`ShoutingProvider` answers loudly. It is the default of this runtime; classification stays with the built-in offline model.
"""

import tempfile

import anyio

from kitchener import HO2Config, RuntimeConfig, open_runtime
from kitchener.config import RouterConfig
from kitchener.gateway import OfflineProvider, PromptRequest, PromptResponse, Usage


class ShoutingProvider:
    """Repeats what the user said, in capitals."""

    def __init__(self) -> None:
        self._offline = OfflineProvider()

    async def complete(self, request: PromptRequest) -> PromptResponse:
        """One attempt; a provider that fails raises `kitchener.errors.ProviderError` with a reason."""
        if request.wo_type != "synthesize":
            return await self._offline.complete(request)
        text = str(request.variables["user_message"]).upper()
        return PromptResponse(
            provider_id="shouting",
            model_id="shout-1",
            text=text,
            usage=Usage(input_tokens=len(text), output_tokens=len(text)),
        )


async def main(root: str) -> None:
    """One message to the provider, and the proof of who answered."""
    config = RuntimeConfig(
        plane_root=root, router=RouterConfig(default_provider="shouting"), agents={"ADMIN": HO2Config(instructions="Be loud.")}
    )
    async with open_runtime(config, providers={"shouting": ShoutingProvider()}) as runtime:
        result = await runtime.supervisor("ADMIN").handle_turn("good morning, machine")
        print(result.response)
        assert result.response == "GOOD MORNING, MACHINE"
        calls = [
            entry.payload
            async for entry in runtime.ledgers("ADMIN").ho1m.read(session_id=result.session_id, entry_type="LLM_CALL")
        ]
        assert [call["provider_id"] for call in calls] == ["shouting", "shouting"]
        assert [call["route_reason"] for call in calls] == ["default", "default"]


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        anyio.run(main, folder)
