"""For tests of programs that use Kitchener: scripted answers, a clock that stands still, replays, crashes, no real model calls.

A recorded session is a test: `assert_replays` fails with the first decision that comes out otherwise. With pytest there is the
fixture `replayed`, which your tests import by `from kitchener.testing import replayed`. `crash_test` kills your agent at many
places and looks whether everything that was promised is there.
"""

from kitchener.gateway.providers.scripted import ScriptedAnswer, ScriptedProvider, use_tool
from kitchener.gateway.switch import forbid_model_calls
from kitchener.replaying import replay_session
from kitchener.testing import replays
from kitchener.testing.crash import CrashReport, CrashRoot, crash_test
from kitchener.testing.fake_clock import FakeClock
from kitchener.testing.prompt_requests import prompt_request
from kitchener.testing.replays import assert_replays

__all__ = [
    "CrashReport",
    "CrashRoot",
    "FakeClock",
    "ScriptedAnswer",
    "ScriptedProvider",
    "assert_replays",
    "crash_test",
    "forbid_model_calls",
    "prompt_request",
    "replay_session",
    "use_tool",
]

if hasattr(replays, "replayed"):  # pytest is installed
    replayed = replays.replayed
    __all__ += ["replayed"]
