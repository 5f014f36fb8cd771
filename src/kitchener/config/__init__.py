"""Every setting, and how settings are read. Explained in `docs/configuration.md`."""

from kitchener.config.admin_socket import AdminConfig
from kitchener.config.approval import ApprovalConfig, ApprovalRule, Decision
from kitchener.config.embeddings import EmbeddingsConfig
from kitchener.config.limits import LimitsConfig, ToolLimits
from kitchener.config.mcp_servers import McpServerConfig
from kitchener.config.memory import SIGNAL_KINDS, GateThresholds, HO3MemoryConfig
from kitchener.config.router import ModelPrice, ProviderConfig, Route, RouterConfig
from kitchener.config.runtime_config import (
    DEFAULT_AGENT,
    INHERITED,
    HO2Config,
    LedgerConfig,
    ModelChoice,
    RuntimeConfig,
    TelemetryConfig,
)
from kitchener.config.serve import ServeClientConfig, ServeConfig, ServeRight
from kitchener.config.settings_parser import (
    Settings,
)
from kitchener.config.spending import SpendingConfig

__all__ = [
    "DEFAULT_AGENT",
    "INHERITED",
    "SIGNAL_KINDS",
    "AdminConfig",
    "ApprovalConfig",
    "ApprovalRule",
    "Decision",
    "EmbeddingsConfig",
    "GateThresholds",
    "HO2Config",
    "HO3MemoryConfig",
    "LedgerConfig",
    "LimitsConfig",
    "McpServerConfig",
    "ModelChoice",
    "ModelPrice",
    "ProviderConfig",
    "Route",
    "RouterConfig",
    "RuntimeConfig",
    "ServeClientConfig",
    "ServeConfig",
    "ServeRight",
    "Settings",
    "SpendingConfig",
    "TelemetryConfig",
    "ToolLimits",
]
