"""The wait of a signal after failed consolidations: doubling, up to a bound, on the event loop's clock.

Under a clock that moves only when told to, which is trio's; the turns before and after run as ever.
"""

from pathlib import Path
from typing import Any

import pytest
import trio.testing

from kitchener.errors import ProviderError
from tests.acceptance.conftest import OpenRuntime
from tests.acceptance.memory.memory_kit import ADA, EASY, LESSON, QUESTIONS, lives, overlays, say, student

CLOCK = trio.testing.MockClock(rate=0)


@pytest.fixture(scope="module")
def anyio_backend() -> tuple[str, dict[str, Any]]:
    """Time stands still until a test moves it."""
    return "trio", {"clock": CLOCK}


async def test_the_wait_doubles_up_to_its_bound_and_ends_with_a_success(tmp_path: Path, scripted: OpenRuntime) -> None:
    """1, 2, 4 and so on up to 60 seconds for ever; just before the end nothing is tried; in between, who asks is served."""
    answers: list[Any] = [ProviderError("scripted", "refused", "no")] * 9
    provider = student(lambda request: answers.pop() if answers else LESSON)
    async with scripted(provider, **EASY, consolidation_deadline_s=2) as runtime:

        async def attempts_after(seconds: float) -> int:
            CLOCK.jump(seconds)
            await say(runtime)
            await runtime.drain()
            return len(lives(tmp_path))

        assert await attempts_after(0) == 1
        tried = 1
        for wait in (1, 2, 4, 8, 16, 32, 60):
            assert await attempts_after(wait - 0.5) == tried
            assert await attempts_after(0.5) == tried + 1
            tried += 1
        (asked_for,) = await runtime.supervisor().run_consolidation([QUESTIONS], namespace=ADA)
        assert asked_for.state == "failed"
        assert await attempts_after(59) == 9
        assert await attempts_after(1) == 10
    assert len(overlays(tmp_path)) == 1
    assert [told[-1] for told in lives(tmp_path).values()] == ["WO_FAILED:PROVIDER"] * 9 + ["WO_COMPLETED"]
