"""Runs the tests that need programs of other makers, as far as this machine has them. `make doors` calls it.

For each group of such tests it looks for what only the system can install, lets `make` install the rest below `.doors`, and
gives pytest the files of the groups that can run. At the end it says which groups were left out, and why.

    python -m tests.doors [ARGUMENTS OF PYTEST]
"""

import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from typing import Final

from tests.serve.web_chat.browser import PROGRAMS


@dataclass(frozen=True)
class Group:
    """Tests that need the same programs."""

    needs: tuple[tuple[str, ...], ...]
    """Programs of the system; one of each tuple has to be on the `PATH`."""
    remedy: str
    """What to install if one is missing."""
    stamps: tuple[str, ...]
    """The targets of `make` that install what else these tests need."""
    tests: tuple[str, ...]

    @property
    def missing(self) -> str:
        """The programs that are missing; "": none."""
        return ", ".join(" or ".join(names) for names in self.needs if not any(map(shutil.which, names)))


GROUPS: Final = (
    Group(
        needs=(("node",), ("npm",)),
        remedy="install Node.js 20 or newer, with npm",
        stamps=(".doors/.stamp", ".doors/clients/.stamp"),
        tests=(
            "tests/mcp/test_doors.py",
            "tests/serve/agui/test_official_client.py",
            "tests/clients/test_openai_javascript.py",
            "tests/clients/test_librechat_settings.py",
        ),
    ),
    Group(
        needs=(PROGRAMS,),
        remedy="install Chromium, for example with: apt-get install chromium",
        stamps=(".doors/python/.stamp",),
        tests=("tests/serve/web_chat/test_page_in_browser.py",),
    ),
)
PLACES: Final = {"MCP_DOORS": ".doors", "CLIENT_DOORS": ".doors/clients", "PAGE_DOORS": ".doors/python"}


def run(arguments: list[str]) -> int:
    """Runs what can be run, and returns 0 if these tests pass and none of their programs failed to install."""
    chosen, told, code = list[str](), list[str](), 0
    for group in GROUPS:
        if missing := group.missing:
            told.append(f"skipped, because {missing} is not installed ({group.remedy}): {' '.join(group.tests)}")
        elif subprocess.run(["make", "--no-print-directory", *group.stamps], check=False).returncode:
            told.append(f"not run, because their programs could not be installed (see above): {' '.join(group.tests)}")
            code = 1
        else:
            chosen += group.tests
    if chosen:
        ended = subprocess.run([sys.executable, "-m", "pytest", *chosen, *arguments], check=False, env={**os.environ, **PLACES})
        code = ended.returncode or code
    else:
        code = 1
    sys.stdout.flush()
    for line in told:
        sys.stderr.write(f"make doors: {line}\n")
    return code


if __name__ == "__main__":
    sys.exit(run(sys.argv[1:]))
