"""Conversations full of words that must not outlive an erasure, and a look at every byte under a root."""

import hashlib
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import anyio

from kitchener import HO2Config, Runtime, RuntimeConfig, open_runtime, tool
from kitchener.config import LedgerConfig, RouterConfig
from kitchener.errors import ProviderError
from kitchener.ids import OPERATOR
from kitchener.ledger import LedgerReader, StoredEntry, verify_file
from kitchener.records.events import SEALED_FIELDS
from kitchener.records.prompt import PromptRequest
from kitchener.sealing import Keyring, Sealer
from kitchener.testing import ScriptedProvider, use_tool

ADA, BO = "ada", "bo"
MARKS: Final = ("marzipan", "nougat", "praline", "truffle", "fondant", "ganache", "toffee", "caramel", "brittle")
"""A word for each place in which a subject leaves something: message, reply, argument, result, label, objective, error, line,
and the name of a tool that is none."""
MESSAGE, REPLY, ARGUMENT, RESULT, LABEL, OBJECTIVE, ERROR, LINE, NO_TOOL = MARKS
TALK: Final = (
    f"which {MESSAGE} is there?",
    f"tool {MESSAGE}",
    f"new: plan the {MESSAGE}",
    f"outage {MESSAGE}",
    f"bad {MESSAGE}",
)


@tool
def fetch(what: str) -> str:
    """Fetches something.

    Args:
        what: its name
    """
    if what.endswith("broken"):
        raise RuntimeError(f"{ERROR} broke")
    return f"{RESULT} for {len(what)}"


def model(request: PromptRequest) -> Any:
    """Answers with the words; what it says depends on the message."""
    if request.wo_type == "consolidate":
        return {
            "bias": f"Often asks for {LINE}.",
            "category": "topic_affinity",
            "salience_weight": 0.9,
            "decay_modifier": 0.9,
            "labels": {"domain": [LABEL], "task": []},
            "context_line": f"Often asks for {LINE}.",
        }
    message = str(request.variables["user_message"])
    if request.wo_type == "classify":
        return {
            "speech_act": "question",
            "ambiguity": "low",
            "confidence": 0.9,
            "intent_relation": "switch" if message.startswith("new:") else "continue",
            "labels": {"domain": LABEL},
            "candidate_objective": f"get the {OBJECTIVE}",
        }
    tools_run = sum(each.role == "tool" for each in request.messages)
    if message.startswith("outage"):
        raise ProviderError("scripted", "bad_request", f"no {ERROR} today")
    if message.startswith("bad") and request.temperature:
        return {"response_text": ""}
    if message.startswith("tool") and tools_run < 3:
        names = (use_tool("fetch", what=ARGUMENT), use_tool("fetch", what=f"{ARGUMENT} broken"), use_tool(NO_TOOL))
        return names[tools_run]
    return {"response_text": f"{REPLY}: yes"}


def config(root: Path, **ledger: Any) -> RuntimeConfig:
    """Two agent classes that share a memory, everything sealed."""
    learning: Mapping[str, Any] = {
        "ho3_enabled": True,
        "ho3_gate_count_threshold": 2,
        "ho3_gate_session_threshold": 2,
        "ho3_gate_window_hours": 87_600,
        "context_mode": "enforce",
        "intent_mode": "classified",
        "recall_scope": "subject",
        "tools": ("*",),
    }
    return RuntimeConfig(
        plane_root=str(root / "plane"),
        ledger=LedgerConfig(**{"durability": "os", "linger_ms": 0, "keyring": str(root / "keys"), **ledger}),
        router=RouterConfig(default_provider="scripted"),
        agents={name: HO2Config(agent_class=name, **learning) for name in ("ADMIN", "RESIDENT:bo")},
    )


@asynccontextmanager
async def running(root: Path, provider: ScriptedProvider | None = None, **ledger: Any) -> AsyncIterator[Runtime]:
    """A runtime with these words in its model's mouth."""
    providers = {"scripted": provider or ScriptedProvider(model)}
    async with open_runtime(config(root, **ledger), providers=providers, tools=[fetch]) as runtime:
        yield runtime


async def converse(runtime: Runtime, subject_id: str, *messages: str, agent_class: str = "ADMIN", name: str = "") -> str:
    """A conversation of a subject; returns its session."""
    supervisor = runtime.supervisor(agent_class)
    session_id = await supervisor.start_session(subject_id=subject_id, external_id=name or None)
    for message in messages or TALK:
        with anyio.fail_after(20):
            await supervisor.handle_turn(message, session_id=session_id)
            await runtime.drain()
    return session_id


async def fill(root: Path, **ledger: Any) -> dict[str, list[str]]:
    """Two conversations of Ada with one agent class and one with the other, two of Bo; their sessions by subject."""
    async with running(root, **ledger) as runtime:
        ada = [await converse(runtime, ADA), await converse(runtime, ADA, TALK[0])]
        ada.append(await converse(runtime, ADA, TALK[0], agent_class="RESIDENT:bo"))
        return {ADA: ada, BO: [await converse(runtime, BO, *TALK[:2])]}


def found(root: Path) -> list[str]:
    """Which of the words stand in which files, in plain text."""
    return [
        f"{word} in {path.relative_to(root)}"
        for path in sorted(root.rglob("*"))
        if path.is_file()
        for word in MARKS
        if word.encode() in path.read_bytes()
    ]


def sealer(root: Path) -> Sealer:
    """As a new process makes it: no key in memory."""
    return Sealer(Keyring(root / "keys"), SEALED_FIELDS)


async def entries(root: Path, *types: str) -> list[StoredEntry]:
    """The entries of these types, of all ledgers, opened as far as there are keys."""
    kept = []
    for path in sorted((root / "plane").rglob("*.jsonl")):
        async with LedgerReader.open(path, sealer=sealer(root)) as reader:
            kept += [entry async for entry in reader.read(entry_type=types)]
    return kept


def verified(root: Path) -> bool:
    """Whether every chain holds."""
    return all(verify_file(path).ok for path in (root / "plane").rglob("*.jsonl"))


def key_files(root: Path) -> list[Path]:
    """The subjects' keys that there are, without the key of what is configured."""
    operators = f"{hashlib.sha256(OPERATOR.encode()).hexdigest()}.key"
    return sorted(path for path in (root / "keys").glob("*.key") if path.name != operators)
