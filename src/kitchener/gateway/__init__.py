"""The gateway: turns one prompt request into one model response."""

from kitchener.gateway.gateway import LLMGateway
from kitchener.gateway.providers.factory import build_providers
from kitchener.records.prompt import PromptGateway, PromptRequest, PromptResponse, Provider, ToolUse, Usage

__all__ = ["LLMGateway", "PromptGateway", "PromptRequest", "PromptResponse", "Provider", "ToolUse", "Usage", "build_providers"]
