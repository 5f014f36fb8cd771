"""A ledger against a list: whatever is written, committed, lost or reopened, reading gives what the list gives."""

from collections.abc import Mapping
from contextlib import AsyncExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from kitchener.config import LedgerConfig
from kitchener.ledger import LedgerClient, LedgerEntry, LedgerReader, verify_file
from tests.ledger.support import SetClock, forget_index, numbers
from tests.shared.property_examples import examples

Model = list[tuple[str | None, str, str]]
SESSIONS = ("SES-00000000", "SES-00000001", "SES-00000002", None)


def keys_of(entry_type: str, payload: Mapping[str, object]) -> tuple[str, ...]:
    return (f"type:{entry_type}", "all") if entry_type != "PLAIN" else ()


writes = st.tuples(
    st.just("write"), st.sampled_from(SESSIONS), st.sampled_from(["PLAIN", "A", "B"]), st.sampled_from(["X-1", "X-2"])
)
steps = st.lists(
    st.one_of(writes, writes, writes, st.tuples(st.sampled_from(["commit", "reopen", "lose index", "tear"]))), max_size=40
)
bounds = st.tuples(st.integers(0, 30), st.integers(0, 40))


async def check(ledger: LedgerClient | LedgerReader, model: Model, after: int, up_to: int) -> None:
    """Compares every kind of read with the list, and index reads with a full scan."""

    async def read(**filters: Any) -> list[int]:
        return await numbers(ledger.read(after_seq=after, up_to_seq=up_to, **filters))

    rows = [(seq, *each) for seq, each in enumerate(model, 1) if after < seq <= up_to]
    scan = [entry async for entry in ledger.read(after_seq=after, up_to_seq=up_to)]
    assert [entry.seq for entry in scan] == [row[0] for row in rows]
    for wanted in ("SES-00000000", "SES-00000001", "SES-00000002"):
        found = [entry async for entry in ledger.read(session_id=wanted, after_seq=after, up_to_seq=up_to)]
        assert [entry.body for entry in found] == [entry.body for entry in scan if entry.session_id == wanted]
        newest = [seq for seq, each in enumerate(model, 1) if each[0] == wanted]
        assert [entry.seq for entry in await ledger.last(session_id=wanted, limit=3)] == newest[-3:]
        narrow = [row[0] for row in rows if row[1:] == (wanted, "A", "X-1")]
        assert await read(session_id=wanted, entry_type="A", entity_id="X-1") == narrow
    assert await read(key="type:A") == [row[0] for row in rows if row[2] == "A"]
    assert await read(key="all") == [row[0] for row in rows if row[2] != "PLAIN"]
    assert await read(entity_id="X-2") == [row[0] for row in rows if row[3] == "X-2"]


@settings(max_examples=examples(few=10, many=400))  # on each event loop
@given(steps=steps, bound=bounds)
async def test_a_ledger_is_a_list_that_survives(steps: list[tuple[Any, ...]], bound: tuple[int, int]) -> None:
    with TemporaryDirectory() as directory:
        path, clock = Path(directory) / "l.jsonl", SetClock()
        model: Model = []
        durable = 0

        async with AsyncExitStack() as stack:

            async def reopen() -> LedgerClient:
                await stack.aclose()
                return await stack.enter_async_context(
                    LedgerClient.open(
                        path, ledger_id="L", clock=clock, index_keys=keys_of, config=LedgerConfig(durability="os")
                    )
                )

            ledger = await reopen()
            for step, *what in steps:
                if step == "write":
                    session_id, entry_type, entity_id = what
                    payload: dict[str, Any] = {"n": len(model)}
                    if session_id is not None:
                        payload["session_id"] = session_id
                    await ledger.write(LedgerEntry(entry_type, entity_id, payload))
                    model.append((session_id, entry_type, entity_id))
                    clock.now += 1
                    continue
                await ledger.commit()
                durable = len(model)
                if step != "commit":
                    await stack.aclose()
                    if step == "lose index":
                        forget_index(path)
                    if step == "tear":
                        path.write_bytes(path.read_bytes() + b'{"ledger_id":"L","seq":')
                    ledger = await reopen()
                    assert ledger.position == len(model)
            await check(ledger, model, *bound)
            async with LedgerReader.open(path, index_keys=keys_of) as reader:
                await check(reader, model[:durable], *bound)
            await ledger.commit()
            await check(ledger, model, *bound)
        report = verify_file(path)
        assert report.ok
        assert report.entries == len(model)
