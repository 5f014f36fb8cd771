"""Opens everything in order and closes it in the order of the flow."""

from kitchener.runtime.erasure import ErasureReport, erase_subject
from kitchener.runtime.loading import LoadedConfig, load_config
from kitchener.runtime.runtime import Runtime, open_runtime, tune_gc

__all__ = ["ErasureReport", "LoadedConfig", "Runtime", "erase_subject", "load_config", "open_runtime", "tune_gc"]
