"""Sessions to be replayed: made by a real runtime in a directory of the test's own, with all that may happen in a session."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import anyio

from kitchener.config import LedgerConfig, RuntimeConfig
from kitchener.errors import ProviderError
from kitchener.records.prompt import PromptRequest
from kitchener.runtime import Runtime, open_runtime
from kitchener.signing import make_key
from kitchener.testing import ScriptedProvider, use_tool
from tests.acceptance.memory.memory_kit import LESSON
from tests.acceptance.stack import QUESTION, QUICK, Hold, scripted_config
from tests.replay.tools import break_down, list_packages

KEY = "signing.pem"
MESSAGES = ("hello there", "which packages are there?", "new: plan the garden", "and the weather?", "thanks, that is all")


TOOLS = (list_packages, break_down)


def model(request: PromptRequest) -> Any:
    """A model whose answers depend on the message: it classifies, asks for tools, fails, and answers badly once."""
    if request.wo_type == "consolidate":
        return LESSON
    message = request.variables["user_message"]
    if request.wo_type == "classify":
        relation = "switch" if message.startswith("new:") else "close" if "that is all" in message else "continue"
        return {**QUESTION, "intent_relation": relation, "labels": {"domain": "software"}, "candidate_objective": message}
    if message == "outage":
        raise ProviderError("scripted", "bad_request", "no such model")
    if message == "unstorable":
        return {"response_text": "x" * 2_000_000}
    if message.startswith("tool") and not any(each.role == "tool" for each in request.messages):
        return use_tool("break_down", reason="on purpose") if "broken" in message else use_tool("list_packages", prefix="a")
    if message == "empty at first" and request.temperature > 0:
        return {"response_text": ""}
    return {"response_text": f"echo: {message}"}


async def record(
    root: Path,
    messages: Sequence[str] = MESSAGES,
    *,
    sessions: int = 1,
    provider: ScriptedProvider | None = None,
    tools: Sequence[Callable[..., Any]] = TOOLS,
    ledger: LedgerConfig = QUICK,
    is_signed: bool = True,
    **admin: Any,
) -> tuple[RuntimeConfig, list[str]]:
    """Sessions of one subject with these messages, and the configuration they ran under; with a signing key in the root."""
    key = root / KEY
    if is_signed:
        if not key.exists():
            make_key(key)
        ledger = ledger.model_copy(update={"signing_key": str(key)})
    config = scripted_config(root, ledger=ledger, **admin)
    made: list[str] = []
    providers = {"scripted": provider or ScriptedProvider(model)}
    async with open_runtime(config, providers=providers, tools=tools) as runtime:
        for _ in range(sessions):
            session_id = await runtime.supervisor().start_session(subject_id="ada", external_id=f"number {len(made)}")
            await say_all(runtime, session_id, messages)
            made.append(session_id)
    return config, made


async def say_all(runtime: Runtime, session_id: str, messages: Sequence[str]) -> None:
    """One turn for each message, and what is learned from it."""
    for message in messages:
        with anyio.fail_after(10):
            await runtime.supervisor().handle_turn(message, session_id=session_id)
            await runtime.drain()


async def cut_off(root: Path, config: RuntimeConfig, session_id: str, message: str) -> None:
    """One more turn of a session, cancelled while its model thinks."""
    hold = Hold(message)
    providers = {"scripted": ScriptedProvider(model, gate=hold)}
    async with open_runtime(config, providers=providers, tools=TOOLS) as runtime:
        with anyio.CancelScope() as scope:
            async with anyio.create_task_group() as tasks:

                async def stop() -> None:
                    await hold.arrived[message].wait()
                    scope.cancel()

                tasks.start_soon(stop)
                await runtime.supervisor().handle_turn(message, session_id=session_id)
