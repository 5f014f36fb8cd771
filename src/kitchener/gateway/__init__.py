"""The gateway: turns one prompt request into one model response."""

from kitchener.gateway.gateway import LLMGateway
from kitchener.gateway.providers.factory import build_providers

__all__ = ["LLMGateway", "build_providers"]
