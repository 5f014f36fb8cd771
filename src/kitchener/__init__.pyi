"""Where each name of the top level is defined: `__init__.py` reads this file, and so do type checkers."""

from kitchener.actors.sessions.history import Exchange as Exchange
from kitchener.actors.supervisor import HO2Supervisor as HO2Supervisor
from kitchener.actors.tools.tool import tool as tool
from kitchener.config import HO2Config as HO2Config
from kitchener.config import RuntimeConfig as RuntimeConfig
from kitchener.errors import ActorStopped as ActorStopped
from kitchener.errors import ApprovalAnswered as ApprovalAnswered
from kitchener.errors import ApprovalVoid as ApprovalVoid
from kitchener.errors import CallerError as CallerError
from kitchener.errors import ConfigError as ConfigError
from kitchener.errors import KitchenerError as KitchenerError
from kitchener.errors import LedgerError as LedgerError
from kitchener.errors import OutcomeUnknown as OutcomeUnknown
from kitchener.errors import Overloaded as Overloaded
from kitchener.errors import RuntimeClosed as RuntimeClosed
from kitchener.errors import SessionBusy as SessionBusy
from kitchener.errors import SessionEnded as SessionEnded
from kitchener.errors import TurnReplaced as TurnReplaced
from kitchener.errors import TurnTimeout as TurnTimeout
from kitchener.errors import UnknownApproval as UnknownApproval
from kitchener.errors import UnknownSession as UnknownSession
from kitchener.memory import HO3Memory as HO3Memory
from kitchener.records.parts import FilePart as FilePart
from kitchener.records.parts import ImagePart as ImagePart
from kitchener.records.tools.client_tools import ClientOutput as ClientOutput
from kitchener.records.tools.client_tools import ClientTool as ClientTool
from kitchener.records.tools.tool_context import ToolContext as ToolContext
from kitchener.records.tools.tool_question import ConfirmationRequired as ConfirmationRequired
from kitchener.records.turn import ClientCallRequested as ClientCallRequested
from kitchener.records.turn import TextDelta as TextDelta
from kitchener.records.turn import TextRetracted as TextRetracted
from kitchener.records.turn import ToolProgress as ToolProgress
from kitchener.records.turn import ToolRan as ToolRan
from kitchener.records.turn import ToolStarted as ToolStarted
from kitchener.records.turn import TurnCompleted as TurnCompleted
from kitchener.records.turn import TurnError as TurnError
from kitchener.records.turn import TurnResult as TurnResult
from kitchener.records.turn import TurnUpdate as TurnUpdate
from kitchener.records.turn import WorkOrderFinished as WorkOrderFinished
from kitchener.records.turn import WorkOrderPlanned as WorkOrderPlanned
from kitchener.replaying import replay_session as replay_session
from kitchener.runtime import Runtime as Runtime
from kitchener.runtime import SessionInfo as SessionInfo
from kitchener.runtime import SyncRuntime as SyncRuntime
from kitchener.runtime import open_runtime as open_runtime
from kitchener.runtime import open_sync as open_sync

__all__ = [
    "ActorStopped",
    "ApprovalAnswered",
    "ApprovalVoid",
    "CallerError",
    "ClientCallRequested",
    "ClientOutput",
    "ClientTool",
    "ConfigError",
    "ConfirmationRequired",
    "Exchange",
    "FilePart",
    "HO2Config",
    "HO2Supervisor",
    "HO3Memory",
    "ImagePart",
    "KitchenerError",
    "LedgerError",
    "OutcomeUnknown",
    "Overloaded",
    "Runtime",
    "RuntimeClosed",
    "RuntimeConfig",
    "SessionBusy",
    "SessionEnded",
    "SessionInfo",
    "SyncRuntime",
    "TextDelta",
    "TextRetracted",
    "ToolContext",
    "ToolProgress",
    "ToolRan",
    "ToolStarted",
    "TurnCompleted",
    "TurnError",
    "TurnReplaced",
    "TurnResult",
    "TurnTimeout",
    "TurnUpdate",
    "UnknownApproval",
    "UnknownSession",
    "WorkOrderFinished",
    "WorkOrderPlanned",
    "open_runtime",
    "open_sync",
    "replay_session",
    "tool",
]
__version__: str
