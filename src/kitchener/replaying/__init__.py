"""Runs recorded sessions again with the recorded answers of models and tools, and compares every decision with the ledger."""

from kitchener.replaying.report import PolicyChange, ReplayDivergence, ReplayReport
from kitchener.replaying.reruns import Rerun, ShownContext
from kitchener.replaying.session import Replays, open_replays, replay_session
from kitchener.replaying.what_if import TurnDiff, WhatIf, WhatIfReport, open_what_if, summary_of, summary_text

__all__ = [
    "PolicyChange",
    "ReplayDivergence",
    "ReplayReport",
    "Replays",
    "Rerun",
    "ShownContext",
    "TurnDiff",
    "WhatIf",
    "WhatIfReport",
    "open_replays",
    "open_what_if",
    "replay_session",
    "summary_of",
    "summary_text",
]
