"""Every setting, and how settings are read. Explained in `docs/configuration.md`."""

from kitchener.config.knobs import (
    SIGNAL_KINDS,
    GateThresholds,
    HO2Config,
    HO3MemoryConfig,
    LedgerConfig,
    LimitsConfig,
    ModelPrice,
    ProviderConfig,
    Route,
    RouterConfig,
    RuntimeConfig,
)
from kitchener.config.parsing import (
    Location,
    Settings,
    annotation_at,
    dotted_key,
    parse_settings,
    read_settings_file,
    without_secrets,
)

__all__ = [
    "SIGNAL_KINDS",
    "GateThresholds",
    "HO2Config",
    "HO3MemoryConfig",
    "LedgerConfig",
    "LimitsConfig",
    "Location",
    "ModelPrice",
    "ProviderConfig",
    "Route",
    "RouterConfig",
    "RuntimeConfig",
    "Settings",
    "annotation_at",
    "dotted_key",
    "parse_settings",
    "read_settings_file",
    "without_secrets",
]
