"""Strangers' schemas are compiled once, in a worker thread, and what is kept of them is bounded."""

import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kitchener import ClientTool
from kitchener.errors import CallerError
from kitchener.schemas.compiled_schemas import CompiledSchemas, StrangerSchema
from kitchener.schemas.pattern_limits import compiled_bytes
from tests.acceptance.stack import open_scripted

TEXT = {"type": "object", "properties": {"a": {"type": "string"}}}


class Watched:
    """Notes what compiling counts against it, and in which thread."""

    def __init__(self) -> None:
        self.checked, self.spent, self.threads = 0, list[float](), set[int]()

    def check(self, *, is_new: bool) -> None:
        self.checked += is_new

    def book_compiling(self, seconds: float) -> None:
        self.spent.append(seconds)
        self.threads.add(threading.get_ident())


def compiled(kept: CompiledSchemas, key: str, schema: dict[str, Any], time: Watched) -> tuple[StrangerSchema, ...]:
    return kept.of(key, [schema], lambda: [StrangerSchema(schema)], time)


def test_a_schema_is_compiled_once() -> None:
    kept, time = CompiledSchemas(1_000_000), Watched()
    first = compiled(kept, "a", TEXT, time)
    assert compiled(kept, "a", TEXT, time) is first
    assert (time.checked, len(time.spent)) == (1, 1)
    assert first[0].problem({"a": 1}) is not None


def test_why_a_schema_cannot_be_used_is_remembered() -> None:
    kept, time, found = CompiledSchemas(1_000_000), Watched(), list[str]()
    for _ in range(2):
        with pytest.raises(ValueError, match="nothing") as caught:
            compiled(kept, "a", {"type": "nothing"}, time)
        found.append(str(caught.value))
    assert (found[0], time.checked) == (found[1], 1)


def test_a_key_without_time_compiles_nothing_new() -> None:
    class Spent(Watched):
        def check(self, *, is_new: bool) -> None:
            if is_new:
                raise CallerError("no time")

    kept = CompiledSchemas(1_000_000)
    with pytest.raises(CallerError):
        compiled(kept, "a", TEXT, Spent())
    compiled(kept, "a", TEXT, Watched())
    compiled(kept, "a", TEXT, Spent())


@given(st.lists(st.integers(0, 9), max_size=40), st.integers(1, 5))
def test_the_newest_are_kept_as_far_as_there_is_room(used: Sequence[int], room: int) -> None:
    kept, time = CompiledSchemas(room * compiled_bytes([TEXT])), Watched()
    newest, misses = list[int](), 0
    for each in used:
        if each in newest:
            newest.remove(each)
        else:
            misses += 1
        newest = [*newest, each][-room:]
        compiled(kept, str(each), TEXT, time)
        assert len(kept) == len(newest)
    assert time.checked == misses


def test_patterns_weigh_what_they_take() -> None:
    plain, small, large = (compiled_bytes([{"pattern": each}]) for each in ("", "^a$", "(?i)[a-z]{4000}"))
    assert plain <= small < large / 10
    assert compiled_bytes([TEXT, TEXT]) == 2 * compiled_bytes([TEXT])


MEASURE = """
import gc, resource, sys
from kitchener.schemas.compiled_schemas import CompiledSchemas, StrangerSchema
from kitchener.schemas.pattern_limits import compiled_bytes

def keep(number):
    schema = {"title": str(number), **SHAPE}
    kept.of(f"sha256:{number:064}", [schema], lambda: [StrangerSchema(schema)])
    return compiled_bytes([schema])

SHAPE, kept, unit = eval(sys.argv[1]), CompiledSchemas(2**40), 1_024 if sys.platform == "linux" else 1
for number in range(-50, 0):
    keep(number)
gc.collect()
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit
estimated = sum(map(keep, range(int(sys.argv[2]))))
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit - before) / estimated)
"""


@pytest.mark.parametrize(
    ("shape", "count"), [("{}", 4_000), ("{'prefixItems': [{}] * 1_000}", 60), ("{'pattern': '^a'}", 200)], ids=str
)
def test_what_is_kept_takes_no_more_memory_than_is_estimated(shape: str, count: int) -> None:
    """Measured in a process of its own. The first two shapes are those with the most memory for each character."""
    ran = subprocess.run([sys.executable, "-c", MEASURE, shape, str(count)], capture_output=True, text=True, check=True)
    assert float(ran.stdout) < 1.1  # a process grows in steps


async def test_a_message_has_its_schemas_compiled_in_another_thread(tmp_path: Path) -> None:
    async with open_scripted(tmp_path) as runtime:
        supervisor, time = runtime.supervisor(), Watched()
        tools = [ClientTool(f"t_{tmp_path.name}", "", TEXT)]
        content = await supervisor.content.checked(
            "hello", client_tools=tools, output={**TEXT, "title": tmp_path.name}, budget=time
        )
        assert (len(time.spent), threading.get_ident() in time.threads) == (2, False)
        again = await supervisor.content.checked(
            "hello", client_tools=tools, output={**TEXT, "title": tmp_path.name}, budget=time
        )
        assert (len(time.spent), again) == (2, content)
        result = await supervisor.handle_turn("hello", **content._asdict())
        assert result.response
