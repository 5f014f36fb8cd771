"""Turns settings into a running Kitchener: opens its parts in order, and closes them in order."""

from kitchener.runtime.erasure import ErasureReport, erase_subject
from kitchener.runtime.loading import LoadedConfig, load_config
from kitchener.runtime.portable.conversations import ConversationsImport, ImportedConversation, import_conversations
from kitchener.runtime.portable.exporter import SessionExport, export_session
from kitchener.runtime.portable.importer import SessionImport, import_session
from kitchener.runtime.queries.approval_list import ApprovalInfo
from kitchener.runtime.queries.session_list import SessionInfo
from kitchener.runtime.runtime import Runtime, open_runtime, tune_gc
from kitchener.runtime.synchronous import SyncRuntime, open_sync
from kitchener.runtime.tools.agent_tools import agent_tool

__all__ = [
    "ApprovalInfo",
    "ConversationsImport",
    "ErasureReport",
    "ImportedConversation",
    "LoadedConfig",
    "Runtime",
    "SessionExport",
    "SessionImport",
    "SessionInfo",
    "SyncRuntime",
    "agent_tool",
    "erase_subject",
    "export_session",
    "import_conversations",
    "import_session",
    "load_config",
    "open_runtime",
    "open_sync",
    "tune_gc",
]
