"""Golden ledgers: a recorded root of each release, kept for ever, which every later version must read, verify and replay.

    python -m tests.replay.golden_roots            records this version's root anew (until it is released, policy may change)

A root is kept as `golden/<version>.tar.xz`: settings, ledgers and keys, without the index, which is derived. `0.1.0` was
recorded before a policy had one identity, `0.1.0-identity` after; both replay identical, the first under another policy.
`0.1.0-signed` has signed projections, and the public key on record; the private key is not kept. `0.1.0-version-1` was recorded
when turns followed version 1 of the policy, and has turns which version 2 decides otherwise. `0.1.0-version-2` follows
version 2; its contents are sealed, and it has the packed sources of its requests. `0.1.0-version-3` follows version 3: messages
and replies are items of their own under dates, with excerpts, speakers, images, and classification by
rules; a reply was an object. `0.1.0-version-4` follows version 4: replies are text, and the past stands in chat messages.
`0.1.0-version-5` follows version 5: days that a message names. `0.1.0-version-6` follows version 6:
long results are read page by page. `0.1.0-version-7` follows version 7: a turn records things once.
`0.1.0-version-8` follows version 8: tools of the caller, and one entry for all signals of a turn.
`0.1.0-version-9` follows version 9: a long newest reply that takes the room of the oldest messages, below a deferred goal.
`0.1.0-version-10` follows version 10: callers who ask for objects, which the model gives at last or never.
`0.1.0-version-11` follows version 11: replies for which no tool may be called, as none were then offered.
`0.1.0-version-12` follows version 12: chat messages of another intent that leave after twelve turns.
`0.1.0-version-13` follows version 13: recalled turns that are named though they match too little to be shown.
`0.1.0-version-14` follows version 14: replies that failed at the model for one reason each, and tokens of unusable answers.
"""

import argparse
import importlib.metadata
import io
import os
import sys
import tarfile
import tempfile
from pathlib import Path
from typing import Final

import anyio

from tests.replay import corpus

FOLDER: Final = Path(__file__).with_name("golden")
VERSION_1: Final = tuple(FOLDER / f"0.1.0{each}.tar.xz" for each in ("", "-identity", "-signed", "-version-1"))
"""The roots whose turns followed version 1 of the policy. They have no sources of requests and no tags of work orders."""
CHAPTERS: Final = (
    corpus.short,
    corpus.short_again,
    corpus.asking,
    corpus.asking_on,
    corpus.asking_again,
    corpus.taught,
    corpus.policy_versions,
    corpus.clerk,
    corpus.long_replies,
    corpus.objects,
    corpus.without_calls,
    corpus.failures,
)


def unpacked(archive: Path, to: Path) -> Path:
    """A golden root in a directory of its own. Its settings are as its owner has them now: without a key that is gone since."""
    with tarfile.open(archive) as packed:
        packed.extractall(to, filter="data")
    for settings in to.glob("*.toml"):
        settings.write_text(settings.read_text(encoding="utf-8").replace("session_id_digits = 12\n", ""), encoding="utf-8")
    return to


def pack(root: Path, archive: Path) -> None:
    """Packs a root; the same files give the same bytes."""
    with tarfile.open(archive, "w:xz", preset=9) as packed:
        for path in sorted(
            [*root.glob("*.toml"), *root.glob("keys/*.key"), *root.glob("keys/batches/*"), *root.rglob("*.jsonl")]
        ):
            about = tarfile.TarInfo(path.relative_to(root).as_posix())
            if path.is_symlink():
                about.type, about.linkname = tarfile.SYMTYPE, os.readlink(path)
                packed.addfile(about)
                continue
            data = path.read_bytes()
            about.size = len(data)
            packed.addfile(about, io.BytesIO(data))


def main() -> None:
    """Records and packs."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    version = importlib.metadata.version("kitchener").partition(".dev")[0]
    parser.add_argument("--archive", type=Path, default=FOLDER / f"{version}.tar.xz")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        anyio.run(corpus.record, Path(folder), CHAPTERS)
        given.archive.parent.mkdir(exist_ok=True)
        pack(Path(folder), given.archive)
    sys.stderr.write(f"{given.archive}: {given.archive.stat().st_size:,} bytes\n")


if __name__ == "__main__":
    main()
