"""How long a signal waits after consolidations that failed: doubling, up to a bound, on the event loop's clock.

Under a clock that moves only when told to, which is trio's; the turns before and after run as ever.
"""

from pathlib import Path
from typing import Any

import pytest
import trio.testing

from kitchener.errors import ProviderError
from tests.acceptance.conftest import OpenRuntime
from tests.acceptance.memory.remembering import ADA, EASY, LESSON, QUESTIONS, lives, overlays, say, student

CLOCK = trio.testing.MockClock(rate=0)


@pytest.fixture(scope="module")
def anyio_backend() -> tuple[str, dict[str, Any]]:
    """Time stands still until a test moves it."""
    return "trio", {"clock": CLOCK}


async def test_the_wait_doubles_up_to_its_bound_and_ends_with_a_success(tmp_path: Path, scripted: OpenRuntime) -> None:
    """60, 120, then 200 seconds for ever; one second before the end nothing is tried; in between, who asks is served."""
    answers: list[Any] = [ProviderError("scripted", "refused", "no")] * 6
    provider = student(lambda request: answers.pop() if answers else LESSON)
    settings = {"consolidation_backoff_s": 60, "consolidation_backoff_max_s": 200}
    async with scripted(provider, **EASY, **settings) as runtime:

        async def attempts_after(seconds: float) -> int:
            CLOCK.jump(seconds)
            await say(runtime)
            await runtime.drain()
            return len(lives(tmp_path))

        assert await attempts_after(0) == 1
        tried = 1
        for wait in (60, 120, 200, 200):
            assert await attempts_after(wait - 1) == tried
            assert await attempts_after(1) == tried + 1
            tried += 1
        (asked_for,) = await runtime.supervisor().run_consolidation([QUESTIONS], namespace=ADA)
        assert asked_for.state == "failed"
        assert await attempts_after(199) == 6
        assert await attempts_after(1) == 7
    assert len(overlays(tmp_path)) == 1
    assert [told[-1] for told in lives(tmp_path).values()] == ["WO_FAILED:PROVIDER"] * 6 + ["WO_COMPLETED"]
