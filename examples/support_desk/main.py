"""A desk of two agents: the front desk talks with customers and asks a specialist, who may not refund without a manager.

    python -m examples.support_desk.main

What the front desk asks is a turn of the specialist, in a session of its own for the same customer. Both are on record and
replay together. A model of fixed rules plays both agents. The README says how to talk with the desk in a terminal.
"""

import json
import re
import sys
import tempfile
from pathlib import Path

import anyio

from kitchener import Runtime, ToolProgress, TurnCompleted, TurnResult, open_runtime, replay_session
from kitchener.gateway import PromptRequest, ToolUse
from kitchener.runtime import load_config
from kitchener.testing import ScriptedProvider, use_tool

HERE = Path(__file__).parent
sys.path.append(str(HERE))  # where the tools are that the settings name; the commands do this themselves


def next_step(request: PromptRequest) -> str | ToolUse:
    """What the model of fixed rules does next, as one of the two agents."""
    message, last = str(request.variables["user_message"]), request.messages[-1]
    heard = None if last.role != "tool" else json.loads(last.content) if last.content.startswith("{") else last.content
    if not request.tools:
        return "Hello! What can I do for you?"
    if request.tools[0].tool_id == "ask_billing":
        return use_tool("ask_billing", message=message) if heard is None else f"Billing says: {heard}"
    if heard is None:
        named = re.findall(r"invoice (\d{4})", "".join(each.content for each in request.messages))
        number = named[-1]  # the message may name none: the session remembers
        return use_tool("refund_invoice" if "refund it" in message else "find_invoice", number=number)
    if isinstance(heard, dict) and "amount" in heard:
        return f"That one is over {heard['amount']} and {heard['state']}."
    return str(heard if isinstance(heard, str) else heard["error"])


async def say(runtime: Runtime, message: str, *, subject_id: str = "ada", session_id: str | None = None) -> TurnResult:
    """One message to the front desk, with what is told meanwhile."""
    print(f"{subject_id}: {message}")
    async for update in runtime.supervisor("FRONT").stream_turn(message, subject_id=subject_id, session_id=session_id):
        if isinstance(update, ToolProgress):
            print(f"     ({update.tool_id}: {update.message})")
        elif isinstance(update, TurnCompleted):
            result = update.result
    print(f"desk: {result.response}\n")
    return result


async def main(home: Path) -> None:
    """Ada's invoice, a refund that a manager allows, a stranger who asks for Ada's invoice, and the record."""
    changed = {"router": {"default_provider": "fixed"}}
    config = load_config(HERE / "kitchener.toml", root=home / "ledgers", overrides=changed).config
    async with open_runtime(config, providers={"fixed": ScriptedProvider(next_step)}) as runtime:
        ada = (await say(runtime, "Why is invoice 4711 on my statement again?")).session_id
        waits = await say(runtime, "Then refund it, please.", session_id=ada)
        request = re.search(r"WO-SES-\S+-\d+\.\d+", waits.response)
        assert request is not None
        allowed = await runtime.supervisor("BILLING").approve(request[0], answered_by="manager")
        assert allowed is not None
        print(f"(The manager allows {request[0]}. Billing: {allowed.response})\n")
        assert "refunded" in (await say(runtime, "And what about 4711 now?", session_id=ada)).response
        assert "no invoice 4711" in (await say(runtime, "Tell me about invoice 4711.", subject_id="bo")).response

    asked = await replay_session(ada, config=config)
    nested = {turn["session_id"] for turn in asked.nested_turns}
    reports = [asked, *[await replay_session(session_id, config=config) for session_id in nested]]
    assert len(reports) == 2
    for report in reports:
        print(report.text())
        assert report.is_identical


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as folder:
        anyio.run(main, Path(folder))
