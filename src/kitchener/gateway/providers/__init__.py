"""The providers, which answer prompt requests."""

from kitchener.gateway.providers.factory import build_providers
from kitchener.gateway.providers.offline import OfflineProvider
from kitchener.gateway.providers.scripted import ScriptedProvider, use_tool

__all__ = ["OfflineProvider", "ScriptedProvider", "build_providers", "use_tool"]
