"""Every setting, and how settings are read. Explained in `docs/configuration.md`."""

from kitchener.config.admin_socket import AdminConfig
from kitchener.config.approval import ApprovalConfig, ApprovalRule, Decision, condition_terms
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
from kitchener.config.settings import (
    SettingPath,
    Settings,
    annotation_at,
    check_values,
    dotted_key,
    parse_settings,
    read_settings_file,
    replacement_of,
    toml_key,
    without_secrets,
)
from kitchener.config.shown import (
    REFERENCE,
    address_problem,
    described,
    described_key,
    described_name,
    described_names,
    is_reference,
    read_reference,
    shown_address,
    shown_reference,
)
from kitchener.config.spending import SpendingConfig

__all__ = [
    "DEFAULT_AGENT",
    "INHERITED",
    "REFERENCE",
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
    "SettingPath",
    "Settings",
    "SpendingConfig",
    "TelemetryConfig",
    "ToolLimits",
    "address_problem",
    "annotation_at",
    "check_values",
    "condition_terms",
    "described",
    "described_key",
    "described_name",
    "described_names",
    "dotted_key",
    "is_reference",
    "parse_settings",
    "read_reference",
    "read_settings_file",
    "replacement_of",
    "shown_address",
    "shown_reference",
    "toml_key",
    "without_secrets",
]
