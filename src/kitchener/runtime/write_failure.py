"""Wakes the tasks that wait for the first failed commit of a runtime, after which its ledgers accept no entries."""

import anyio

from kitchener.errors import LedgerWriteError


class WriteFailure:
    """The first failed commit of a runtime, if there is one."""

    def __init__(self) -> None:
        self.error: LedgerWriteError | None = None
        self._noted = anyio.Event()

    def note(self, error: LedgerWriteError) -> None:
        """Records that a commit failed. Only the first failure counts, because the others follow from it."""
        if self.error is None:
            self.error = error
            self._noted.set()

    async def wait(self) -> LedgerWriteError:
        """Returns the failure as soon as there is one."""
        await self._noted.wait()
        assert self.error is not None
        return self.error
