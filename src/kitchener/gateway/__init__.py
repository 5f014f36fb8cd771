"""The gateway: one request in, one response out."""

from kitchener.gateway.gateway import LLMGateway
from kitchener.gateway.providers.opening import build_providers

__all__ = ["LLMGateway", "build_providers"]
