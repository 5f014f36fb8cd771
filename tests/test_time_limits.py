"""A test that hangs is ended, and named."""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
TESTS = """
import threading

def test_that_ends():
    pass

def test_that_hangs():
    threading.Event().wait()
"""


def test_a_test_that_hangs_ends_the_run_and_its_stack_is_shown(tmp_path: Path) -> None:
    """Also in a call that no signal interrupts."""
    (tmp_path / "pytest.ini").write_text("[pytest]\n")
    (tmp_path / "test_it.py").write_text(TESTS)
    command = (
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-p",
        "pytest_timeout",
        "-p",
        "tests.time_limits",
        "--timeout=1",
        "test_it.py",
    )
    environ = {**os.environ, "PYTHONPATH": str(ROOT), "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    run = subprocess.run(command, cwd=tmp_path, env=environ, capture_output=True, text=True, timeout=60, check=False)
    assert run.returncode == 1
    assert "Timeout" in run.stdout
    assert "in test_that_hangs" in run.stdout + run.stderr
    assert run.stdout.count(".") >= 1, "the first one has passed"
