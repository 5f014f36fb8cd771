"""The gateway: turns one prompt request into one model response."""

from kitchener.gateway.gateway import LLMGateway
from kitchener.gateway.providers.factory import build_providers
from kitchener.gateway.providers.offline import OfflineProvider
from kitchener.gateway.traits import ProviderTraits
from kitchener.model_usage import Usage
from kitchener.records.prompt import (
    Attempt,
    PromptGateway,
    PromptRequest,
    PromptResponse,
    Provider,
    StreamingProvider,
    StreamRestart,
    TextPiece,
    ToolUse,
)

__all__ = [
    "Attempt",
    "LLMGateway",
    "OfflineProvider",
    "PromptGateway",
    "PromptRequest",
    "PromptResponse",
    "Provider",
    "ProviderTraits",
    "StreamRestart",
    "StreamingProvider",
    "TextPiece",
    "ToolUse",
    "Usage",
    "build_providers",
]
