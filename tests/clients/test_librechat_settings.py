"""The settings that docs/server.md gives for LibreChat, read by LibreChat's own schema. `make doors` runs this.

CLIENT_DOORS=.doors/clients   the folder where `npm` has installed `librechat-data-provider`
"""

import os
import re
import subprocess
from pathlib import Path
from typing import Any, Final

import orjson
import pytest

DOORS: Final = os.environ.get("CLIENT_DOORS", "")
SCRIPT: Final = Path(__file__).with_name("doors") / "librechat_settings.cjs"
PAGE: Final = Path(__file__).parents[2] / "docs" / "server.md"
BLOCK: Final = re.compile(r"```yaml\n(version: .*?endpoints:\n.*?)```", re.DOTALL)

pytestmark = pytest.mark.skipif(not DOORS, reason="CLIENT_DOORS names no folder with clients of npm; `make doors` makes one")


def run(settings: str) -> subprocess.CompletedProcess[str]:
    """What the schema says of these settings."""
    command = ["node", str(SCRIPT), str(Path(DOORS).resolve())]
    return subprocess.run(command, input=settings, capture_output=True, text=True, timeout=60, check=False)


def documented() -> str:
    """The settings of the page."""
    (found,) = BLOCK.findall(PAGE.read_text(encoding="utf-8"))
    return str(found)


def test_librechat_reads_the_documented_settings_and_knows_each_of_them() -> None:
    """A setting that its schema does not know is left out of what is read."""
    ran = run(documented())
    assert ran.returncode == 0, ran.stderr
    (given,), (read,) = (orjson.loads(ran.stdout)[each] for each in ("given", "read"))
    assert without_defaults(read, given) == given
    assert {"X-Chat-Id", "X-Kitchener-Subject"} == given["headers"].keys()
    assert given["titleModel"] == "ADMIN-utility"


@pytest.mark.parametrize(
    ("right", "wrong"), [("fetch: false", "fetch: maybe"), ("context: 1000000", "context: all"), ("baseURL", "base_url")]
)
def test_it_would_say_what_is_wrong_with_them(right: str, wrong: str) -> None:
    settings = documented()
    assert right in settings
    ran = run(settings.replace(right, wrong))
    read = orjson.loads(ran.stdout) if ran.returncode == 0 else None
    assert read is None or without_defaults(read["read"][0], read["given"][0]) != read["given"][0]


def without_defaults(read: dict[str, Any], given: dict[str, Any]) -> dict[str, Any]:
    """What was read, without settings that the page leaves to LibreChat."""
    return {name: value for name, value in read.items() if name in given}
