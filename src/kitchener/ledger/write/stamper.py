"""Turns clock readings into entry timestamps that never decrease; refuses a clock that jumped ahead."""

from datetime import datetime

from kitchener.clock import Clock, TimestampText, elapsed_us, to_us
from kitchener.config import LedgerConfig
from kitchener.errors import LedgerClockError


def check_last(ledger_id: str, last: str, now_us: int, config: LedgerConfig) -> None:
    """Refuses a clock that is behind a ledger's last entry.

    Args:
        ledger_id: the ledger's name, for the error
        last: the last entry's ISO time
        now_us: the clock's reading, microseconds since the Unix epoch
        config: how far ahead the entry may be

    Raises:
        LedgerClockError: the entry lies further in the future
    """
    ahead = _us_of(last) - now_us
    if ahead > config.max_clock_jump_s * 1_000_000 and not config.accept_clock_jump:
        raise LedgerClockError(
            f"{ledger_id}: its last entry is dated {last}, {ahead // 1_000_000} s ahead of the clock; set the clock right,"
            " or set accept_clock_jump of [ledger] for one run to date further entries from then on"
        )


def _us_of(timestamp: str) -> int:
    return to_us(datetime.fromisoformat(timestamp))


class Stamper:
    """Gives each entry of one ledger its timestamp.

    Args:
        ledger_id: the ledger's name, for errors
        clock: the time of day
        config: how far the clock may jump ahead
        last: the last entry's ISO time; "": the ledger is empty

    Raises:
        LedgerClockError: the timestamp of the last entry lies in the future
    """

    def __init__(self, ledger_id: str, clock: Clock, config: LedgerConfig, last: str) -> None:
        self._ledger_id, self.time_us = ledger_id, clock.time_us
        self._max_jump_us = int(config.max_clock_jump_s * 1_000_000)
        self._accepts_jumps = config.accept_clock_jump
        self._last_us = _us_of(last) if last else 0
        self._text = TimestampText()
        self.last = self._text.render(self._last_us)
        # The last accepted clock reading, and the monotonic time when it was read.
        self._accepted_us, self._elapsed_us = clock.time_us(), elapsed_us()
        if last:
            check_last(ledger_id, last, self._accepted_us, config)

    def stamp(self) -> str:
        """The ISO time of the next entry.

        Raises:
            LedgerClockError: the clock jumped ahead; no timestamp was issued
        """
        now = self.time_us()
        if now > self._last_us:
            if now - self._last_us > self._max_jump_us:
                self._check_jump(now)
            self._last_us = now
            self.last = self._text.render(now)
        return self.last

    def _check_jump(self, now: int) -> None:
        # A long pause between two entries is no jump, because the monotonic clock advanced by the same time.
        elapsed = elapsed_us()
        ahead = now - self._accepted_us - (elapsed - self._elapsed_us)
        if ahead > self._max_jump_us and not self._accepts_jumps:
            raise LedgerClockError(
                f"{self._ledger_id}: the clock jumped ahead by {ahead // 1_000_000} s, more than max_clock_jump_s ="
                f" {self._max_jump_us / 1_000_000:g}; set it right, or restart this process if it is right now"
            )
        self._accepted_us, self._elapsed_us = now, elapsed
