"""Calls of clients' tools on record: sealed and erased, moved to another root, rebuilt, compared, shown (docs/tools.md)."""

from pathlib import Path
from typing import Any, cast

import pytest

from kitchener import ClientOutput, ClientTool
from kitchener.errors import CallerError, SubjectErased
from kitchener.inspection.ledger_files import LedgerPaths
from kitchener.inspection.turn_views.recorded_turn import read_turn
from kitchener.records import events
from kitchener.replaying import open_what_if, read_prompts
from kitchener.runtime.portable.exporter import export_session
from kitchener.runtime.portable.importer import import_session
from tests.acceptance.approval.kit import Desk, open_desk, replayed
from tests.acceptance.client_tools.kit import PARIS, SCREEN, WEATHER, model
from tests.acceptance.stack import read_all, scripted_config
from tests.shared.payloads import payload_of

TRUSTED: dict[str, Any] = {"client_tools_trusted": True}
ENFORCE: dict[str, Any] = {"context_mode": "enforce"}
SECRET = "bo's diary"


def stored(root: Path) -> bytes:
    """All bytes of the ledgers."""
    return b"".join(path.read_bytes() for path in sorted(root.rglob("*")) if path.is_file())


async def test_an_erasure_takes_arguments_and_outputs_along(tmp_path: Path) -> None:
    root, desk, asked = tmp_path / "root", Desk(), [("get_weather", {"place": SECRET})] * 2
    async with open_desk(root, desk, model(asked)) as runtime:
        supervisor = runtime.supervisor()
        waiting = await supervisor.handle_turn("hi", subject_id="bo", client_tools=[WEATHER])
        answered = await supervisor.handle_turn("hi", subject_id="bo", client_tools=[WEATHER])
        outputs = dict.fromkeys((each.call_id for each in answered.client_calls), "the output of bo")
        outputs[answered.client_calls[0].call_id] = ClientOutput(error="the failure of bo")  # type: ignore[assignment]
        done = await supervisor.answer_client_calls(outputs)
        assert done is not None
        assert "the output of bo" in done.response
        await runtime.erase_subject("bo")
        for each in (waiting, answered):
            with pytest.raises(SubjectErased):
                await supervisor.answer_client_calls({each.client_calls[0].call_id: "sun"})
        ends = await read_all(runtime.ledgers("ADMIN").ho2m, entry_type=events.TURN_COMPLETED)
        assert all("$sealed" in payload_of(each)["client_calls"] for each in ends if "client_calls" in payload_of(each))
        assert sum("client_calls" in each.payload for each in ends) == 2
    for words in (SECRET, "the output of bo", "the failure of bo"):
        assert words.encode() not in stored(root)


async def test_a_call_that_moved_to_another_root_is_answered_there(tmp_path: Path) -> None:
    """The definitions move along, and both turns are replayed there and rebuilt word for word."""
    root, there, desk = tmp_path / "a" / "root", tmp_path / "b" / "root", Desk()
    async with open_desk(root, desk, model([PARIS], [("get_weather", {"place": "Rome"})])) as runtime:
        waiting = await runtime.supervisor().handle_turn("hi", subject_id="ada", client_tools=[WEATHER])
    for name, with_key in (("sealed", False), ("whole", True)):
        await export_session(waiting.session_id, tmp_path / name, config=scripted_config(root), with_key=with_key)
    await import_session(tmp_path / "sealed", config=scripted_config(there))
    (call,) = waiting.client_calls
    provider = model([PARIS], [("get_weather", {"place": "Rome"})])
    async with open_desk(there, desk, provider) as runtime:
        with pytest.raises(CallerError, match="cannot be read"):
            await runtime.supervisor().answer_client_calls({call.call_id: "sun"})
    await import_session(tmp_path / "whole", config=scripted_config(there))
    async with open_desk(there, desk, provider) as runtime:
        more = await runtime.supervisor().answer_client_calls({call.call_id: "sun"})
        assert more is not None
        assert [each.arguments for each in more.client_calls] == [{"place": "Rome"}]
        assert [each.tool_id for each in provider.requests[-1].tools][-1] == "get_weather"
    assert await replayed(there, desk, waiting.session_id) == 2
    for turn_id in (waiting.turn_id, more.turn_id):
        rebuilt = await read_prompts(turn_id, config=scripted_config(there))
        assert rebuilt.problem is None
        (reply,) = [each for each in rebuilt.calls if each.request.wo_type == "synthesize"]
        assert reply.is_verified
        assert reply.request.tools[-1].parameters == WEATHER.parameters


async def test_definitions_are_recorded_once_and_with_the_keys_of_a_schema_in_their_order(tmp_path: Path) -> None:
    root, desk, provider = tmp_path / "root", Desk(), model([("plan", {"z": 1, "a": 2})])
    ordered = ClientTool("plan", "Plans – ☀.", {"type": "object", "properties": {"z": {"type": "integer"}, "a": {}}})
    async with open_desk(root, desk, provider) as runtime:
        supervisor = runtime.supervisor()
        for _ in range(2):
            waiting = await supervisor.handle_turn("hi", subject_id="ada", client_tools=[ordered])
        await supervisor.handle_turn("hi", subject_id="ada", client_tools=[WEATHER])
    async with open_desk(root, desk, provider) as runtime:
        await runtime.supervisor().handle_turn("hi", subject_id="ada", client_tools=[ordered])
        await runtime.supervisor().answer_client_calls({waiting.client_calls[0].call_id: "done"})
        offered = provider.requests[-1].tools[-1]
        assert [*cast(dict[str, object], offered.parameters["properties"])] == ["z", "a"]
        ledger = runtime.ledgers("ADMIN").ho2m
        sources = [each async for each in ledger.read(entry_type=events.SOURCE_RECORDED)]
        kinds = [each.payload["kind"] for each in sources]
        assert kinds.count("client_tools") == 2
        starts = await read_all(ledger, entry_type=events.TURN_STARTED)
        hashes = {each.entity_id for each in sources if each.payload["kind"] == "client_tools"}
        assert {each.payload["client_tools"] for each in starts} == hashes


async def test_a_replay_needs_neither_the_client_nor_the_limits_of_then(tmp_path: Path) -> None:
    """Also where the class takes no tools of clients any more, or has got a tool of that name; other trust changes nothing."""
    root, desk = tmp_path / "root", Desk()
    async with open_desk(root, desk, model([PARIS]), **ENFORCE) as runtime:
        waiting = await runtime.supervisor().handle_turn("hi", subject_id="ada", client_tools=[WEATHER, SCREEN])
        await runtime.supervisor().handle_turn("chat meanwhile", session_id=waiting.session_id)
        await runtime.supervisor().answer_client_calls({waiting.client_calls[0].call_id: ["sun", 21]})
        await runtime.supervisor().handle_turn("chat again", session_id=waiting.session_id)
    others: tuple[dict[str, Any], ...] = ({}, {"client_tools": "refuse"}, TRUSTED)
    for other in others:
        assert await replayed(root, desk, waiting.session_id, **ENFORCE, **other) == 4
    config = scripted_config(root, **ENFORCE)
    policy = scripted_config(root, **ENFORCE, max_client_calls=0, client_tools_trusted=True)
    async with open_what_if(config, policy, "ADMIN", tools=desk.tools) as what_if:
        report = await what_if.compare(waiting.session_id)
    assert (len(report.turns), report.changed) == (4, ())


async def test_the_record_says_who_ran_what(tmp_path: Path) -> None:
    root, desk = tmp_path / "root", Desk()
    async with open_desk(root, desk, model([PARIS, PARIS])) as runtime:
        supervisor = runtime.supervisor()
        waiting = await supervisor.handle_turn("hi", subject_id="ada", client_tools=[WEATHER])
        one, other = (each.call_id for each in waiting.client_calls)
        done = await supervisor.answer_client_calls({one: "sun", other: ClientOutput(error="no network")})
        assert done is not None
        ho2m = runtime.ledgers("ADMIN").ho2m
        asked = await read_all(ho2m, entry_type=events.APPROVAL_REQUESTED)
        assert [(each.payload["reason"], each.payload["rule"]) for each in asked] == [("client_tool", "client")] * 2
        (deferred,) = await read_all(ho2m, entry_type=events.WO_DEFERRED)
        assert deferred.payload["reason"] == "client_tool"
        planned = [payload_of(each)["constraints"] for each in await read_all(ho2m, entry_type=events.WO_PLANNED)]
        assert [each.get("client_tools") for each in planned] == [None, ["get_weather"], ["get_weather"]]
        started = await read_all(runtime.ledgers("ADMIN").ho1m, entry_type=events.TOOL_STARTED)
        assert [(each.payload["approval_id"], each.payload["read_only"]) for each in started] == [(one, True)]
    paths = LedgerPaths(scripted_config(root))
    first, second = [await read_turn(paths, "ADMIN", each) for each in (waiting.turn_id, done.turn_id)]
    lines = "\n".join([*first.approvals.lines(), *second.approvals.lines()])
    assert f'asked the client to run {one}, get_weather {{"place":"Paris"}}' in lines
    assert "returned by the client at" in lines
    assert "failed by the client at" not in lines
    assert "failed at the client at" in lines
    assert lines.endswith("– no network")


@pytest.mark.parametrize("prompt_layout", ["chat", "block"])
async def test_another_session_recalls_the_call_and_the_explanation_shows_what_the_model_saw(
    tmp_path: Path, prompt_layout: str
) -> None:
    """A reply that only called a tool has no words of its own; both name the call in their place."""
    root, provider = tmp_path / "root", model([PARIS])
    settings: dict[str, Any] = {**ENFORCE, "prompt_layout": prompt_layout, "recall_scope": "subject"}
    async with open_desk(root, Desk(), provider, **settings) as runtime:
        supervisor = runtime.supervisor()
        asked = await supervisor.handle_turn("the weather in Paris", subject_id="ada", client_tools=[WEATHER])
        await supervisor.answer_client_calls({asked.client_calls[0].call_id: "sunny"})
        later = await supervisor.handle_turn("chat: the weather in Paris?", subject_id="ada")
    told = '[asked the client to run get_weather {"place":"Paris"}]'
    assert any(told in each.content for each in provider.requests[-1].messages)
    view = await read_turn(LedgerPaths(scripted_config(root, **settings)), "ADMIN", later.turn_id)
    assert view.is_exact
    assert view.projection is not None
    assert any(told in each.item.text for each in view.projection.placed)
