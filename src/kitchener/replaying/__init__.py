"""Replays recorded sessions: with what models and tools said then, does every decision come out as it stands in the ledger?"""

from kitchener.replaying.report import PolicyChange, ReplayDivergence, ReplayReport
from kitchener.replaying.session import Replays, open_replays, replay_session

__all__ = ["PolicyChange", "ReplayDivergence", "ReplayReport", "Replays", "open_replays", "replay_session"]
