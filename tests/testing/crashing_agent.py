"""An agent with a tool that has an effect, for crash tests; and what may be wrong with such agents."""

import os
from collections import Counter
from collections.abc import Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

from kitchener import HO2Config, Runtime, RuntimeConfig, open_runtime, tool
from kitchener.config import HO3MemoryConfig, LedgerConfig, RouterConfig
from kitchener.records.prompt import PromptRequest
from kitchener.testing import CrashRoot, ScriptedProvider, use_tool
from tests.acceptance.memory.memory_kit import LESSON
from tests.acceptance.stack import QUESTION

MESSAGES = {"ada": ["order tea", "how are you?", "order milk"], "bo": ["how are you?", "order bread"]}


def model(request: PromptRequest) -> Any:
    """Orders what it is told to."""
    if request.wo_type == "classify":
        return QUESTION
    if request.wo_type == "consolidate":
        return LESSON
    verb, _, what = request.variables["user_message"].partition(" ")
    if verb == "order" and request.call == 1:
        return use_tool("order", what=what)
    return {"response_text": f"done: {verb} {what}"}


def config(root: Path, *, seal: bool = True) -> RuntimeConfig:
    """Memory and the Context Authority, and a gate that one turn opens."""
    return RuntimeConfig(
        plane_root=str(root),
        ledger=LedgerConfig(durability="fsync", linger_ms=0, seal=seal),
        memory=HO3MemoryConfig(gate_count_threshold=1, gate_session_threshold=1),
        router=RouterConfig(default_provider="scripted"),
        agents={"ADMIN": HO2Config(ho3_enabled=True, context_mode="enforce", tools=("order",))},
    )


def shop(root: Path, *, seal: bool = True) -> AbstractAsyncContextManager[Runtime]:
    """The agent. Each order is a line of a file beside the ledgers."""

    @tool
    def order(what: str) -> str:
        """Orders something."""
        fd = os.open(root / "orders.txt", os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        try:
            os.write(fd, f"{what}\n".encode())
        finally:
            os.close(fd)
        return "ordered"

    return open_runtime(config(root, seal=seal), providers={"scripted": ScriptedProvider(model, record=False)}, tools=[order])


def each_order_at_most_twice(found: CrashRoot) -> Iterator[str]:
    """An order of an acknowledged message was placed; one whose outcome is unknown is not placed again."""
    path = found.root / "orders.txt"
    orders = Counter(path.read_text().split() if path.exists() else [])
    for subject, messages in MESSAGES.items():
        for number, message in enumerate(messages):
            verb, _, what = message.partition(" ")
            if verb == "order" and (subject, number) in found.acknowledged and not orders[what]:
                yield f"{what} was acknowledged and never ordered"
            if (subject, number) in found.unknown and orders[what] > 1:
                yield f"{what} was ordered {orders[what]} times although the first outcome is unknown"


def never_content(found: CrashRoot) -> Iterator[str]:
    """A check that finds something wrong."""
    yield f"{len(found.acknowledged)} acknowledged, and still not content"


def forgetful(root: Path) -> AbstractAsyncContextManager[Runtime]:
    """An agent that begins a new set of ledgers whenever it is opened, so what was acknowledged is lost."""
    return shop(root / f"life-{len(list(root.glob('life-*')))}")


def unsafe(root: Path) -> AbstractAsyncContextManager[Runtime]:
    """An agent that damages its record, whose words it can read."""

    @asynccontextmanager
    async def opened() -> Any:
        async with shop(root, seal=False) as runtime:
            yield runtime
        path = root / "HO1" / "ADMIN" / "ho1m.jsonl"
        path.write_bytes(path.read_bytes().replace(b"done: ", b"DONE: "))

    return opened()


def broken(root: Path) -> AbstractAsyncContextManager[Runtime]:
    """An agent that does not open."""
    raise ValueError("no such agent")
