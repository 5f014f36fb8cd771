"""Waits until an earlier server has released the ledgers of a root, before the runtime is opened."""

from collections.abc import Iterator
from pathlib import Path
from typing import Final

import anyio

from kitchener.config import RuntimeConfig
from kitchener.ledger.disk.file_ops import is_locked
from kitchener.logs import get_logger
from kitchener.runtime.root_layout import agent_classes, ledger_paths

_log = get_logger(__name__)
_LOOK_S: Final = 0.1


async def wait_for_root(config: RuntimeConfig) -> None:
    """Returns when no process writes the ledgers of the root, or after `serve.lock_wait_s`.

    If a process still has them then, opening the runtime fails with an error that names it.
    """
    with anyio.move_on_after(config.serve.lock_wait_s):
        is_first = True
        while (path := await anyio.to_thread.run_sync(_in_use, config)) is not None:
            if is_first:
                _log.warning("waiting for another process to release the ledgers", path=str(path))
            is_first = False
            await anyio.sleep(_LOOK_S)


def _in_use(config: RuntimeConfig) -> Path | None:
    """A ledger that another process writes; None: there is none."""
    return next((path for path in _ledgers(config) if path.is_file() and is_locked(path)), None)


def _ledgers(config: RuntimeConfig) -> Iterator[Path]:
    for agent_class in sorted({"ADMIN", *agent_classes(config)}):
        yield from ledger_paths(config, agent_class).values()
