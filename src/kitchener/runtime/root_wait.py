"""Waits until no process writes the ledgers of a root, as at a restart whose old process still finishes its turns."""

from collections.abc import Iterator
from math import inf
from pathlib import Path
from typing import Final

import anyio
import anyio.to_thread

from kitchener.config import DEFAULT_AGENT, RuntimeConfig
from kitchener.errors import ConfigError
from kitchener.ledger.disk.file_ops import is_locked
from kitchener.logs import get_logger
from kitchener.plain_names import quoted
from kitchener.runtime.root_layout import agent_classes, ledger_paths
from kitchener.small_files import is_file

_log = get_logger(__name__)
_LOOK_S: Final = 0.1
"""Time between two looks at the locks of the ledgers, seconds."""


async def wait_until_released(config: RuntimeConfig, lock_wait_s: float) -> None:
    """Returns when no process writes the ledgers of the root, or after `lock_wait_s` seconds.

    If a process still has them then, opening the runtime fails with an error that names it.
    """
    with anyio.move_on_after(lock_wait_s):
        is_first = True
        while (path := await anyio.to_thread.run_sync(_in_use, config)) is not None:
            if is_first:
                _log.warning("waiting for another process to release the ledgers", path=str(path))
            is_first = False
            await anyio.sleep(_LOOK_S)


def check_wait(lock_wait_s: object) -> None:
    """Raises ConfigError unless this is a time to wait, in seconds."""
    if isinstance(lock_wait_s, bool) or not isinstance(lock_wait_s, int | float) or not 0 <= lock_wait_s < inf:
        raise ConfigError("argument lock_wait_s", "", quoted(lock_wait_s), "expected seconds, 0 or more")


def _in_use(config: RuntimeConfig) -> Path | None:
    """A ledger that another process writes; None: there is none."""
    return next((path for path in _ledgers(config) if is_file(path) and is_locked(path)), None)


def _ledgers(config: RuntimeConfig) -> Iterator[Path]:
    for agent_class in sorted({DEFAULT_AGENT, *agent_classes(config)}):
        yield from ledger_paths(config, agent_class).values()
