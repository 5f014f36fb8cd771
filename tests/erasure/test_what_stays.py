"""docs/erasure.md, "What stays": what callers say in every field, and what an erasure leaves of it."""

import re
from pathlib import Path
from typing import Final

from kitchener.actors.tools.tool import tool
from kitchener.config import HO2Config, RouterConfig, RuntimeConfig
from kitchener.inspection.ledger_files import LedgerPaths
from kitchener.records import events
from kitchener.records.parts import FilePart
from kitchener.records.prompt import PromptRequest
from kitchener.records.tools.client_tools import ClientTool
from kitchener.runtime import open_runtime
from kitchener.testing import ScriptedAnswer, ScriptedProvider, use_tool

STAYS_PLAIN: Final = {
    "MARK_subjectZ": "subject, session and external ids",
    "MARK_externalZ": "subject, session and external ids",
    "MARK_keyZ": "idempotency keys",
    "MARK_titleZ": "The title of a schema",
    "MARK_client_toolZ": "the names of these tools",
    "MARK_endZ": "to `end_session`",
}
"""What stays readable without any key, and the words of the page that say so."""
STAYS_SEALED: Final = {"MARK_propertyZ", "MARK_choiceZ", "MARK_client_saysZ"}
"""What the operator's key still opens: schemas and definitions that callers bring."""
SCHEMA: Final = {
    "title": "MARK_titleZ",
    "type": "object",
    "properties": {"MARK_propertyZ": {"type": "string", "enum": ["MARK_choiceZ"]}},
    "required": ["MARK_propertyZ"],
}
PAGE: Final = Path(__file__).parents[2] / "docs" / "erasure.md"


@tool(requires_approval=True)
def book(day: str) -> str:
    """Books a table."""
    raise ValueError(f"MARK_errorZ {day}")


def model(request: PromptRequest) -> ScriptedAnswer:
    """Labels everything, and does what the message names."""
    if request.wo_type == "classify":
        return {"speech_act": "command", "labels": {"domain": ["MARK_domainZ"], "task": ["MARK_taskZ"]}}
    message = str(request.variables["user_message"])
    if not any(each.role == "tool" for each in request.messages):
        if "book" in message:
            return use_tool("book", day="MARK_argumentZ")
        if "theirs" in message:
            return use_tool("MARK_client_toolZ", place="MARK_placeZ")
        if "unknown" in message:
            return use_tool("MARK_unknown_toolZ", place="MARK_placeZ")
    return {"MARK_propertyZ": "MARK_choiceZ"} if request.output_schema is not None else "MARK_replyZ"


async def talk(config: RuntimeConfig) -> None:
    """A conversation with a mark in every field that a caller, a client or a model can fill, and then the erasure."""
    place = {"type": "object", "properties": {"place": {"type": "string"}}}
    theirs = ClientTool("MARK_client_toolZ", "MARK_client_saysZ", place)
    async with open_runtime(config, providers={"scripted": ScriptedProvider(model)}, tools=[book]) as runtime:
        supervisor = runtime.supervisor()
        session = await supervisor.start_session(subject_id="MARK_subjectZ", external_id="MARK_externalZ")
        booked = await supervisor.handle_turn(
            "book MARK_messageZ",
            session_id=session,
            speaker="MARK_speakerZ",
            idempotency_key="MARK_keyZ",
            acceptance=["not_contains:MARK_criterionZ"],
            parts=[FilePart(b"MARK_contentZ", name="MARK_fileZ.txt")],
        )
        edited = {"day": "MARK_editedZ"}
        await supervisor.approve(booked.pending_approval[0], arguments=edited, message="MARK_toldZ", answered_by="MARK_personZ")
        again = await supervisor.handle_turn("book", session_id=session)
        await supervisor.deny(again.pending_approval[0], "MARK_deniedZ", answered_by="MARK_personZ")
        await supervisor.handle_turn("unknown", session_id=session)
        await supervisor.handle_turn("fill in", session_id=session, output=SCHEMA)
        called = await supervisor.handle_turn("theirs", session_id=session, client_tools=[theirs])
        await supervisor.answer_client_calls({called.client_calls[0].call_id: "MARK_outputZ"})
        await supervisor.declare_intent(session, "MARK_objectiveZ", targets=["MARK_targetZ"])
        await supervisor.end_session(session, reason="MARK_endZ")
        await runtime.erase_subject("MARK_subjectZ")


async def test_an_erasure_leaves_what_the_page_lists_and_nothing_else(tmp_path: Path) -> None:
    settings = HO2Config(tools=("*",), ho3_enabled=True, context_mode="enforce", intent_mode="classified")
    router = RouterConfig(default_provider="scripted")
    config = RuntimeConfig(plane_root=str(tmp_path / "root"), router=router, agents={"ADMIN": settings})
    await talk(config)
    files = [each for each in tmp_path.rglob("*") if each.is_file() and not each.is_symlink()]
    stored = b"\n".join([*(each.read_bytes() for each in files), *(each.name.encode() for each in files)])
    assert {each.decode() for each in re.findall(rb"MARK_[a-z_]+Z", stored)} == {*STAYS_PLAIN}

    async with LedgerPaths(config).reader("ADMIN") as ho2m:
        assert ho2m is not None
        sources = str([each.payload async for each in ho2m.read(entry_type=events.SOURCE_RECORDED)])
    assert {*re.findall(r"MARK_[a-z_]+Z", sources)} >= STAYS_SEALED
    listed = " ".join(PAGE.read_text(encoding="utf-8").partition("## What stays")[2].partition("\n## ")[0].split())
    assert [words for words in STAYS_PLAIN.values() if words not in listed] == []
    assert "so an erasure does not reach it" in listed
