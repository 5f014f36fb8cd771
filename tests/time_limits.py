"""Ends a test that takes too long, by one thread for all tests: `pytest-timeout` starts a thread for each.

Starting and joining these took more than four seconds of a run's processor time. `tests/conftest.py` imports the hooks. What is
said of the test, and how the process ends, is `pytest-timeout`'s.
"""

import threading
import time
from typing import Any, Final

import pytest
from pytest_timeout import timeout_timer  # type: ignore[import-untyped]  # it says no types

LOOKS_EACH_S: Final = 0.5
_WATCHED: Final[dict[str, tuple[float, pytest.Item, Any]]] = {}
"""The test that runs, by its id: when its time is over, the test, and the settings of its limit."""


def _watch() -> None:
    while True:
        time.sleep(LOOKS_EACH_S)
        for ends, item, settings in list(_WATCHED.values()):
            if time.monotonic() >= ends:
                timeout_timer(item, settings)


_WATCHER: Final = threading.Thread(target=_watch, name="time limits of tests", daemon=True)


def pytest_timeout_set_timer(item: pytest.Item, settings: Any) -> bool:
    """Takes the place of the hook that starts a thread."""
    if not _WATCHER.is_alive():
        _WATCHER.start()
    _WATCHED[item.nodeid] = (time.monotonic() + settings.timeout, item, settings)
    return True


def pytest_timeout_cancel_timer(item: pytest.Item) -> bool:
    """Takes the place of the hook that stops it."""
    _WATCHED.pop(item.nodeid, None)
    return True
