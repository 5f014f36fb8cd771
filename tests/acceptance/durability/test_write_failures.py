"""If a disk fails, the caller is told, no acknowledged turn is lost, and the remaining ledger still verifies."""

import errno
from pathlib import Path

import anyio
import pytest

from kitchener.errors import LedgerError, LedgerWriteError
from kitchener.ledger.disk.file_ops import FileOps
from kitchener.records import events
from kitchener.records.turn import TurnResult
from tests.acceptance.stack import open_by_hand, outcome, read_all


class FailingDisk(FileOps):
    """A file system whose n-th write or sync fails, for once or from then on."""

    def __init__(self, fails_at: int, *, for_ever: bool) -> None:
        self._left, self._for_ever = fails_at, for_ever
        self.has_failed = False

    def write(self, fd: int, data: bytes | memoryview) -> int:
        self._step()
        return super().write(fd, data)

    def sync(self, fd: int) -> None:
        self._step()
        super().sync(fd)

    def _step(self) -> None:
        self._left -= 1
        if self._left == 0 or (self._left < 0 and self._for_ever):
            self.has_failed = True
            raise OSError(errno.ENOSPC, "No space left on device")


async def talk_until_it_fails(disk: FileOps, root: Path) -> tuple[list[TurnResult], Exception | None]:
    """The turns that were acknowledged, and what ended them."""
    acknowledged: list[TurnResult] = []
    error: Exception | None = None
    try:
        async with open_by_hand(root, disk=disk) as stack:
            session_id = None
            for n in range(3):
                result = await outcome(stack.turn(f"message {n}", session_id=session_id))
                if isinstance(result, Exception):
                    error = result
                    break
                acknowledged.append(result)
                session_id = result.session_id
    except LedgerError as failure:
        error = error or failure
    return acknowledged, error


@pytest.mark.parametrize("for_ever", [False, True])
async def test_no_acknowledged_turn_is_lost_wherever_the_disk_fails(tmp_path: Path, for_ever: bool) -> None:
    """The n-th write or sync fails, for every n of three turns: LedgerWriteError, and no acknowledged turn is lost."""
    n, failed = 0, True
    with anyio.fail_after(40):
        while failed:
            n += 1
            disk, root = FailingDisk(n, for_ever=for_ever), tmp_path / str(n)
            acknowledged, error = await talk_until_it_fails(disk, root)
            failed = disk.has_failed
            if not failed:
                assert (len(acknowledged), error) == (3, None)
                break
            assert isinstance(error, LedgerError)
            assert isinstance(error, LedgerWriteError) or not acknowledged
            async with open_by_hand(root) as stack:
                completed = await read_all(stack.ledgers.ho2m, entry_type=events.TURN_COMPLETED)
                kept = [TurnResult.from_payload(entry.payload) for entry in completed]
                assert kept[: len(acknowledged)] == acknowledged
                for session_id in [payload["session_id"] for payload in await stack.payloads(events.SESSION_START)]:
                    assert (await stack.turn("still here?", session_id=session_id)).response == "re: still here?"
                await stack.ledgers.commit()
                assert (await stack.ledgers.ho2m.verify()).ok
    assert n > 6


async def test_a_failed_ledger_refuses_every_later_turn(tmp_path: Path) -> None:
    """After a failed write each call raises LedgerWriteError at once; none of them hangs and none pretends."""
    async with open_by_hand(tmp_path) as stack:
        session_id = await stack.supervisor.start_session()
    outcomes: list[TurnResult | Exception] = []

    async def go_on() -> None:
        async with open_by_hand(tmp_path, disk=FailingDisk(4, for_ever=True)) as failing:
            calls = [failing.turn(message, session_id=session_id) for message in ("one", "two", "three")]
            outcomes.extend([await outcome(call) for call in calls])
            with pytest.raises(LedgerWriteError):
                await failing.supervisor.start_session()

    with anyio.fail_after(10), pytest.raises(LedgerWriteError):
        await go_on()
    assert [type(each) for each in outcomes][1:] == [LedgerWriteError, LedgerWriteError]
    async with open_by_hand(tmp_path) as stack:
        assert (await stack.turn("again", session_id=session_id)).error is None
