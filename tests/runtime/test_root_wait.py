"""A runtime can wait for a root that another one still has, as at a restart (docs/runtime.md)."""

import logging
from pathlib import Path
from typing import Any

import anyio
import pytest

from kitchener import open_runtime, open_sync
from kitchener.errors import ConfigError, LedgerLocked
from kitchener.runtime import Runtime


class Heard(logging.Handler):
    """Tells when a runtime says that it waits."""

    def __init__(self) -> None:
        super().__init__()
        self.waits = anyio.Event()
        self.lines = list[str]()

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())
        self.waits.set()


async def test_a_runtime_waits_until_the_one_before_it_has_finished_its_turns(tmp_path: Path) -> None:
    """As a worker of gunicorn that starts while the old one still drains. It was refused, and gunicorn ended."""
    opened, heard = list[Runtime](), Heard()
    logging.getLogger("kitchener.runtime.root_wait").addHandler(heard)

    async def open_second() -> None:
        async with open_runtime(root=tmp_path, lock_wait_s=60) as runtime:
            opened.append(runtime)

    try:
        with anyio.fail_after(30):
            async with anyio.create_task_group() as tasks, open_runtime(root=tmp_path):
                tasks.start_soon(open_second)
                await heard.waits.wait()
                assert opened == []
    finally:
        logging.getLogger("kitchener.runtime.root_wait").removeHandler(heard)
    assert len(opened) == 1
    assert heard.lines == ["waiting for another process to release the ledgers"]


def test_the_error_about_another_process_says_how_to_wait_for_it() -> None:
    """Regression: it only said to stop the process."""
    assert "let `open_runtime(lock_wait_s=…)` wait for it" in str(LedgerLocked("a.jsonl", "process 7"))


async def test_after_the_wait_the_error_names_who_has_the_root(tmp_path: Path) -> None:
    async with open_runtime(root=tmp_path):
        with anyio.fail_after(20), pytest.raises(LedgerLocked, match="is in use by"):
            async with open_runtime(root=tmp_path, lock_wait_s=0.01):
                raise AssertionError


@pytest.mark.parametrize("wrong", [-1, float("inf"), float("nan"), "5", True, None])
def test_a_wait_that_is_no_time_is_refused(tmp_path: Path, wrong: Any) -> None:
    with pytest.raises(ConfigError, match=r"^argument lock_wait_s = .*: expected seconds, 0 or more$"):
        open_sync(root=tmp_path, lock_wait_s=wrong)
    assert list(tmp_path.iterdir()) == []
