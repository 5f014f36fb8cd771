"""Opens everything in order and closes it in the order of the flow."""

from kitchener.runtime.loading import LoadedConfig, load_config
from kitchener.runtime.runtime import Runtime, open_runtime, tune_gc

__all__ = ["LoadedConfig", "Runtime", "load_config", "open_runtime", "tune_gc"]
