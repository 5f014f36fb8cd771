"""Runs recorded sessions again with the recorded answers of models and tools, and compares every decision with the ledger."""

from kitchener.replaying.on_record.recorded_sources import SourceChange
from kitchener.replaying.rebuilt_prompts import RecordedPrompt, RequestPart, TurnPrompts, read_prompts
from kitchener.replaying.report import PolicyChange, ReplayDivergence, ReplayReport
from kitchener.replaying.reruns import Rerun, ShownContext
from kitchener.replaying.session_replay import Replays, open_replays, replay_session
from kitchener.replaying.what_if import TurnDiff, WhatIf, WhatIfReport, open_what_if, summary_of, summary_text

__all__ = [
    "PolicyChange",
    "RecordedPrompt",
    "ReplayDivergence",
    "ReplayReport",
    "Replays",
    "RequestPart",
    "Rerun",
    "ShownContext",
    "SourceChange",
    "TurnDiff",
    "TurnPrompts",
    "WhatIf",
    "WhatIfReport",
    "open_replays",
    "open_what_if",
    "read_prompts",
    "replay_session",
    "summary_of",
    "summary_text",
]
