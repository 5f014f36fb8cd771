"""The changelog says each thing once. The names that it gives exist, or are gone where it says so."""

import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from tests.shared.dotted_names import DOTTED_NAME, FILES_OF_A_USER, resolves

RELEASES = (Path(__file__).resolve().parent.parent / "CHANGELOG.md").read_text(encoding="utf-8").split("\n## ")[1:]
FORMER_NAME = re.compile(r"\(was `[^`]*`\)")
FORMER_NAMES_BEGIN = "| was |"
"""The head of a table whose first column has names that are gone."""


def test_the_changelog_says_each_thing_once() -> None:
    """Merges of branches that both add to it can repeat half of it unseen."""
    for release in RELEASES:
        lines = [each for each in release.splitlines() if each.startswith(("### ", "- "))]
        assert [each for each, times in Counter(lines).items() if times > 1] == []


def test_the_names_of_the_next_release_exist() -> None:
    _, told = names_of(RELEASES[0])
    assert {"kitchener.gateway.StreamingProvider", "kitchener.tuning.GateSetting"} <= told  # a list item, a row
    assert [each for each in sorted(told) if not resolves(each)] == []


def test_the_names_that_the_next_release_calls_gone_are_gone() -> None:
    former, told = names_of(RELEASES[0])
    assert {"kitchener.gateway.foreign", "kitchener.tuning.Setting"} <= former  # of a list item, of a row
    assert former & told == set()
    assert [each for each in sorted(former) if resolves(each)] == []


def names_of(release: str) -> tuple[set[str], set[str]]:
    """The names that are told as gone, and all other names."""
    assert release.startswith("Unreleased\n")
    former, told = set[str](), set[str]()
    for gone, rest in parts_of(release):
        former.update(DOTTED_NAME.findall(gone))
        told.update(DOTTED_NAME.findall(rest))
    return former, told - FILES_OF_A_USER


def parts_of(release: str) -> Iterator[tuple[str, str]]:
    """Each line as two texts, about what was and about what is: `(was …)`, the first column of a table of names, the rest."""
    is_of_names = False
    for line in release.splitlines():
        is_of_names = line.startswith("|") and (is_of_names or line.startswith(FORMER_NAMES_BEGIN))
        if is_of_names:
            _, was, now, _ = line.split("|")
            yield was, now
        else:
            yield " ".join(FORMER_NAME.findall(line)), FORMER_NAME.sub("", line)
