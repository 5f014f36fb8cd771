"""Looks at all live objects of a process that has erased a subject; fails where one still holds a word or a key of theirs.

python -m tests.erasure.live_objects ROOT BACKEND
"""

import gc
import sys
from pathlib import Path
from typing import TypeVar

import anyio

from kitchener.config import RouterConfig
from kitchener.runtime import open_runtime
from kitchener.sealing import SubjectKey
from tests.erasure.kit import ADA, BO, config, converse, sealer

T = TypeVar("T")


async def look(root: Path) -> None:
    """Sessions, recalled turns, learned lines, keys, a provider's caches: no live object holds a word of an erased subject."""
    offline = config(root).model_copy(update={"router": RouterConfig()})
    secret = "".join(("quetzal", "coatl"))  # put together here, so that this file's own text is not what is found
    async with open_runtime(offline) as runtime:
        for _ in range(3):
            await converse(runtime, ADA, f"please order one {secret} for the garden", f"and where is the {secret}?")
        await converse(runtime, BO, "hello")
        kid = sealer(root).keyring.get(ADA).kid
        assert kid in [each.kid for each in alive(SubjectKey)]
        assert len(texts_with(secret)) > 10
        await runtime.erase_subject(ADA)
        assert texts_with(secret) == []
        kids = [each.kid for each in alive(SubjectKey)]
        assert kid not in kids
        assert len(kids) == 2, "Bo's, and that of what is configured"


def alive(kind: type[T]) -> list[T]:
    """All objects of a class that somebody still holds."""
    gc.collect()
    return [each for each in gc.get_objects() if type(each) is kind]


def texts_with(word: str) -> list[str]:
    """All texts in live containers that hold a word."""
    gc.collect()
    found: list[str] = []
    for each in gc.get_objects():
        values = each.values() if isinstance(each, dict) else each if isinstance(each, list | tuple | set | frozenset) else ()
        found += [value for value in [*values] if type(value) is str and word in value]
    return found


if __name__ == "__main__":
    anyio.run(look, Path(sys.argv[1]), backend=sys.argv[2])
