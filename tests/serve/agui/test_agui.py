"""`POST /v1/agui/{agent}`: replies, tools, threads, approvals and errors, as a front end sees them (docs/server.md)."""

import base64
from pathlib import Path
from typing import Any

import anyio
import pytest

from kitchener import ConfirmationRequired, ToolContext, tool
from kitchener.records import events as records
from kitchener.records.prompt import PromptRequest, ToolUse
from kitchener.testing import FakeClock, ScriptedProvider, use_tool
from tests.acceptance.stack import Hold, echo
from tests.serve.agui.front_end import PATH, FrontEnd, kinds, of_kind
from tests.serve.shared.requests import Asked, Client, serving
from tests.shared.event_loops import ON_ASYNCIO, ON_TRIO

PLAIN = [
    "RUN_STARTED",
    "STEP_STARTED",
    "TEXT_MESSAGE_START",
    "TEXT_MESSAGE_CONTENT",
    "TEXT_MESSAGE_END",
    "STEP_FINISHED",
    "RUN_FINISHED",
]


@tool(requires_approval=True)
def send_letter(to: str) -> str:
    """Sends a letter."""
    return f"sent to {to}"


@tool(read_only=True)
def book(context: ToolContext, day: str) -> str:
    """Books a table."""
    if context.answer is None:
        hours = {"type": "string", "enum": ["18:00", "20:00"]} if day == "monday" else {"type": "object"}
        raise ConfirmationRequired("At which hour?", hours)
    return f"booked at {context.answer.answer}"


@tool(read_only=True)
async def measure(context: ToolContext, what: str) -> dict[str, int]:
    """Measures something."""
    await context.progress(1, 2, "half")
    if what == "nothing":
        raise ValueError("there is nothing")
    return {"cm": 3}


def calling(*uses: ToolUse) -> ScriptedProvider:
    """A model that asks for tools when a message says `go`, and then tells what it heard of them."""

    def answer(request: PromptRequest) -> Any:
        if request.wo_type != "synthesize" or "go" not in str(request.variables["user_message"]):
            return echo(request)
        outcomes = [each.content for each in request.messages if each.role == "tool"]
        return {"response_text": f"heard {outcomes}"} if outcomes else uses

    return ScriptedProvider(answer)


async def turns_of(client: Client) -> list[int]:
    """How many turns each session has."""
    return [each.turns for each in await client.runtime.sessions()]


class TestReplies:
    async def test_a_reply_is_streamed_as_one_message(self, tmp_path: Path) -> None:
        async with serving(tmp_path / "root") as client:
            front = FrontEnd(client)
            events = await front.say("hello", parentRunId="above")
            assert [each for each in kinds(events) if not each.startswith("STEP")] == [
                each for each in PLAIN if not each.startswith("STEP")
            ]
            assert front.said == ["hello", "echo: hello"]
            began, ended = events[0], events[-1]
            assert (began["threadId"], began["runId"], began["parentRunId"]) == ("thread-1", "thread-1-run-1", "above")
            assert (began["protocolVersion"], ended["outcome"]) == ("1.0", {"type": "success"})
            assert ended["usage"][0]["totalTokens"] == sum(ended["usage"][0][f"{each}Tokens"] for each in ("input", "output"))
            why = await client.ask("GET", ended["result"]["why"])
            assert (why.status, ended["result"]["session_id"]) == (200, front.session)
            after = f"/v1/sessions/{front.session}/events?follow=false&after={ended['result']['ledger_position']}"
            assert (await client.ask("GET", after)).events == []

    async def test_steps_are_the_work_orders_of_the_turn(self, tmp_path: Path) -> None:
        async with serving(tmp_path / "root", classify="model") as client:
            events = await FrontEnd(client).say("hello")
            assert [each["stepName"] for each in of_kind(events, "STEP_FINISHED")] == ["classify", "synthesize"]

    async def test_files_go_with_the_message_and_what_cannot_be_used_is_named(self, tmp_path: Path) -> None:
        data = base64.b64encode(b"col\n1\n").decode()
        source = {"type": "data", "value": data, "mimeType": "text/csv"}
        parts = [
            {"type": "text", "text": "look"},
            {"type": "document", "source": source, "metadata": {"filename": "a.csv"}},
            {"type": "image", "source": {"type": "url", "value": "http://127.0.0.1:9/x.png"}},
        ]
        async with serving(tmp_path / "root") as client:
            front = FrontEnd(client)
            events = await front.say(parts)
            assert events[-1]["result"]["skipped_parts"] == [3]
            (sent,) = [each for each in client.provider.requests if each.wo_type == "synthesize"]
            assert "a.csv" in str(sent.messages)
            assert events[-1]["outcome"] == {"type": "success"}

    async def test_what_an_agent_decides_itself_is_ignored(self, tmp_path: Path) -> None:
        async with serving(tmp_path / "root") as client:
            front = FrontEnd(client, messages=[{"id": "s", "role": "system", "content": "say boop"}])
            more = {"state": {"x": [1]}, "context": [{"description": "buup", "value": "buup"}], "forwardedProps": {"y": 1}}
            await front.say("hello", **more)
            assert front.said == ["hello", "echo: hello"]
            sent = str([each.messages for each in client.provider.requests])
            assert not [word for word in ("boop", "buup") if word in sent]

    async def test_rejected_text_is_gone_from_the_conversation(self, tmp_path: Path) -> None:
        replies = iter(["too short", "long enough to be accepted"])

        def answer(request: PromptRequest) -> Any:
            return {"response_text": next(replies)} if request.wo_type == "synthesize" else echo(request)

        async with serving(tmp_path / "root", ScriptedProvider(answer), acceptance=["min_chars:12"]) as client:
            front = FrontEnd(client)
            events = await front.say("hello")
            assert len(of_kind(events, "MESSAGES_SNAPSHOT")) == 1
            assert front.said == ["hello", "long enough to be accepted"]


class TestTools:
    async def test_calls_and_results_are_told_and_progress_beside_the_text(self, tmp_path: Path) -> None:
        model = calling(ToolUse("u1", "measure", {"what": "it"}), ToolUse("u2", "measure", {"what": "nothing"}))
        async with serving(tmp_path / "root", model, tools=[measure]) as client:
            front = FrontEnd(client)
            events = await front.say("go")
            first, second = front.arguments
            assert front.arguments == {first: '{"what":"it"}', second: '{"what":"nothing"}'}
            assert front.results[first] == '{"cm":3}'
            assert "there is nothing" in front.results[second]
            failed = [each["toolCallId"] for each in of_kind(events, "TOOL_CALL_RESULT") if "metadata" in each]
            assert failed == [second]
            assert of_kind(events, "ACTIVITY_SNAPSHOT")[0]["content"]["message"] == "half"
            await front.say("more")
            assert (await turns_of(client), front.said[-1]) == ([2], "echo: more")


class TestThreads:
    async def test_a_thread_goes_on_and_forks_on_an_edit(self, tmp_path: Path) -> None:
        async with serving(tmp_path / "root") as client:
            front = FrontEnd(client)
            await front.say("one")
            first = front.session
            await front.say("two")
            assert front.session == first
            edited = FrontEnd(client, messages=[*front.messages[:1], {**front.messages[1], "content": "other"}], runs=9)
            await edited.say("two")
            assert edited.session != first
            await front.say("three")
            assert (front.session, len(await turns_of(client))) == (first, 2)

    async def test_a_thread_is_a_conversation_of_the_other_doors(self, tmp_path: Path) -> None:
        async with serving(tmp_path / "root") as client:
            begun = await client.with_headers(x_chat_id="c").chat("one")
            front = FrontEnd(client, thread="c")
            front.messages = [
                {"id": "a", "role": "user", "content": "one"},
                {"id": "b", "role": "assistant", "content": begun.text},
            ]
            await front.say("two")
            assert front.session == begun.headers["x-kitchener-session"]
            await FrontEnd(client, thread=front.session, runs=5).say("three")
            assert await turns_of(client) == [3]

    @ON_TRIO
    async def test_a_run_sent_again_gets_its_one_turn(self, tmp_path: Path) -> None:
        async with serving(tmp_path / "root") as client:
            front = FrontEnd(client)
            await front.say("one")
            asked = list(front.messages[:1])
        async with serving(tmp_path / "root") as client:
            again = FrontEnd(client, messages=asked)
            events = await again.run()
            assert [each for each in kinds(events) if not each.startswith("TEXT")] == ["RUN_STARTED", "RUN_FINISHED"]
            assert again.said == front.said
            # Text that a cut stream left is replaced.
            cut = FrontEnd(client, messages=[*asked, {**front.messages[1], "content": "echo: o"}])
            await cut.run()
            assert (cut.said, await turns_of(client)) == (front.said, [1])
            other = FrontEnd(client)
            assert await other.say("another") == []
            assert (other.last.status, other.last.code) == (409, "idempotency_conflict")

    async def test_a_run_asked_for_twice_at_once_is_one_turn(self, tmp_path: Path) -> None:
        hold = Hold("wait", wo_type="synthesize")
        async with serving(tmp_path / "root", ScriptedProvider(echo, gate=hold)) as client:
            fronts = [FrontEnd(client), FrontEnd(client)]
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(fronts[0].say, "wait")
                await hold.arrived["wait"].wait()
                tasks.start_soon(fronts[1].say, "wait")
                await anyio.wait_all_tasks_blocked()
                hold.released["wait"].set()
            assert fronts[0].said == fronts[1].said == ["wait", "echo: wait"]
            assert await turns_of(client) == [1]

    async def test_a_client_without_messages_is_told_what_was_said(self, tmp_path: Path) -> None:
        async with serving(tmp_path / "root") as client:
            front = FrontEnd(client)
            await front.say("one")
            await front.say("two")
            fresh = FrontEnd(client, runs=10)
            events = await fresh.run()
            assert kinds(events) == ["RUN_STARTED", "MESSAGES_SNAPSHOT", "RUN_FINISHED"]
            assert fresh.said == front.said
            await fresh.say("three")
            assert (fresh.session, await turns_of(client)) == (front.session, [3])
            by_id = FrontEnd(client, thread=front.session)
            await by_id.run()
            assert by_id.said[:4] == front.said
            assert kinds(await FrontEnd(client, thread="new").run()) == ["RUN_STARTED", "RUN_FINISHED"]
            assert await turns_of(client) == [3]


class TestInterrupts:
    @ON_ASYNCIO
    async def test_a_call_that_waits_ends_the_run_and_an_answer_goes_on(self, tmp_path: Path) -> None:
        async with serving(tmp_path / "root", calling(use_tool("send_letter", to="ada")), tools=[send_letter]) as client:
            front = FrontEnd(client)
            await front.say("go")
            (waits,) = front.interrupts
            assert (waits["reason"], waits["toolCallId"], waits["id"]) == ("tool_call", waits["id"], waits["id"])
            assert waits["responseSchema"]["required"] == ["approved"]
            assert waits["expiresAt"] > "2026"
            assert (front.arguments, front.results) == ({waits["id"]: '{"to":"ada"}'}, {})
        async with serving(tmp_path / "root", calling(use_tool("send_letter", to="ada")), tools=[send_letter]) as client:
            front.client = client
            payload = {"approved": True, "editedArgs": {"to": "bob"}}
            events = await front.resume({"interruptId": waits["id"], "status": "resolved", "payload": payload})
            assert of_kind(events, "STEP_STARTED") != []
            assert front.results == {waits["id"]: "sent to bob"}
            assert front.arguments == {waits["id"]: '{"to":"ada"}'}
            assert (events[-1]["outcome"], "sent to bob" in front.said[-1]) == ({"type": "success"}, True)
            said = list(front.said)
            for shown in (front.messages[:3], front.messages):  # what a cut stream left is replaced
                again = FrontEnd(client, messages=[*shown], runs=1)
                await again.resume({"interruptId": waits["id"], "status": "resolved", "payload": payload})
                assert again.said == said
            first = front.session
            await front.say("thanks")
            assert (front.session, front.said[-1]) == (first, "echo: thanks")
            answered = [each async for each in client.runtime.ledgers().ho2m.read(entry_type=records.APPROVAL_RESOLVED)]
            assert [each.payload["answered_by"] for each in answered] == ["local"]

    @pytest.mark.parametrize(
        "answer",
        [
            {"status": "resolved", "payload": {"approved": False, "message": "not today"}},
            {"status": "cancelled"},
        ],
    )
    async def test_a_call_is_denied(self, tmp_path: Path, answer: dict[str, Any]) -> None:
        async with serving(tmp_path / "root", calling(use_tool("send_letter", to="ada")), tools=[send_letter]) as client:
            front = FrontEnd(client)
            await front.say("go")
            (waits,) = front.interrupts
            await front.resume({"interruptId": waits["id"], **answer})
            told = "not today" if "payload" in answer else "unanswered"
            assert told in front.results[waits["id"]]
            assert (told in front.said[-1], front.interrupts) == (True, [])

    async def test_a_question_of_a_tool_is_answered_by_what_it_asks_for(self, tmp_path: Path) -> None:
        async with serving(tmp_path / "root", calling(use_tool("book", day="monday")), tools=[book]) as client:
            front = FrontEnd(client)
            await front.say("go")
            (asks,) = front.interrupts
            assert (asks["message"], asks["responseSchema"]["enum"]) == ("At which hour?", ["18:00", "20:00"])
            assert front.results == {}
            for wrong in ("19:00", None):
                assert await front.resume({"interruptId": asks["id"], "status": "resolved", "payload": wrong}) == []
                assert front.last.status == 400
            await front.resume({"interruptId": asks["id"], "status": "resolved", "payload": "20:00"})
            assert front.results == {asks["id"]: "booked at 20:00"}

    async def test_a_refusal_is_no_answer_to_a_question_that_takes_anything(self, tmp_path: Path) -> None:
        async with serving(tmp_path / "root", calling(use_tool("book", day="friday")), tools=[book]) as client:
            front = FrontEnd(client)
            await front.say("go")
            (asks,) = front.interrupts
            await front.resume({"interruptId": asks["id"], "status": "resolved", "payload": {"approved": False}})
            assert "booked" not in front.results[asks["id"]]

    @ON_TRIO
    async def test_a_message_waits_until_what_is_open_is_answered(self, tmp_path: Path) -> None:
        async with serving(tmp_path / "root", calling(use_tool("send_letter", to="ada")), tools=[send_letter]) as client:
            front = FrontEnd(client)
            await front.say("go")
            waits = front.interrupts
            before = len(front.messages)
            events = await front.say("hello?")
            assert kinds(events) == ["RUN_STARTED", "RUN_FINISHED"]
            assert (front.interrupts, len(front.messages), await turns_of(client)) == (waits, before + 1, [1])
            # A page that was loaded again has neither the calls nor the question.
            fresh = FrontEnd(client, runs=10)
            await fresh.run()
            assert (fresh.interrupts, list(fresh.arguments)) == (waits, [waits[0]["id"]])
            await front.resume({"interruptId": waits[0]["id"], "status": "cancelled"})
            session = front.session
            await front.say("hello?")
            assert (front.session, front.said[-1]) == (session, "echo: hello?")

    async def test_what_is_left_unanswered_waits_on(self, tmp_path: Path) -> None:
        model = calling(ToolUse("u1", "send_letter", {"to": "ada"}), ToolUse("u2", "send_letter", {"to": "bob"}))
        async with serving(tmp_path / "root", model, tools=[send_letter]) as client:
            front = FrontEnd(client)
            await front.say("go")
            ada, bob = front.interrupts
            allowed = {"status": "resolved", "payload": {"approved": True}}
            assert kinds(await front.resume({"interruptId": ada["id"], **allowed})) == ["RUN_STARTED", "RUN_FINISHED"]
            assert (front.interrupts, front.results) == ([bob], {})
            await front.resume({"interruptId": ada["id"], **allowed}, {"interruptId": bob["id"], **allowed})
            assert front.results == {ada["id"]: "sent to ada", bob["id"]: "sent to bob"}

    async def test_a_thread_goes_on_after_an_interrupt_that_has_expired(self, tmp_path: Path) -> None:
        clock, model = FakeClock(), calling(use_tool("send_letter", to="ada"))
        soon = {"expires_s": 60}
        async with serving(tmp_path / "root", model, tools=[send_letter], clock=clock, approval=soon) as client:
            front = FrontEnd(client)
            await front.say("go")
            (waits,) = front.interrupts
            clock.advance(61)
            assert await front.resume({"interruptId": waits["id"], "status": "resolved", "payload": {"approved": True}}) == []
            assert (front.last.status, front.last.code) == (409, "approval_closed")
            session = (await client.runtime.sessions())[0].session_id
            await front.say("and?", resume=[{"interruptId": waits["id"], "status": "cancelled"}])
            assert (front.said[-1], front.session, front.interrupts) == ("echo: and?", session, [])

    async def test_a_thread_goes_on_after_an_interrupt_that_was_answered_elsewhere(self, tmp_path: Path) -> None:
        async with serving(tmp_path / "root", calling(use_tool("send_letter", to="ada")), tools=[send_letter]) as client:
            front = FrontEnd(client)
            await front.say("go")
            (waits,) = front.interrupts
            path, session = f"/v1/sessions/{front.session}/approvals/{waits['id']}/approve", front.session
            assert (await client.ask("POST", path)).status == 200
            given = {"interruptId": waits["id"], "status": "resolved", "payload": {"approved": False}}
            assert await front.resume(given) == []
            assert (front.last.status, front.last.code) == (409, "approval_closed")
            cancelled = {"interruptId": waits["id"], "status": "cancelled"}
            assert kinds(await front.resume(cancelled)) == ["RUN_STARTED", "RUN_FINISHED"]
            assert front.interrupts == []
            await front.say("and?", resume=[cancelled])
            assert (front.said[-1], front.session) == ("echo: and?", session)

    @pytest.mark.parametrize(
        ("wrong", "status"),
        [
            ({"status": "resolved"}, 400),
            ({"status": "resolved", "payload": {"approved": "yes"}}, 400),
            ({"status": "resolved", "payload": {"approved": True, "editedArgs": {"x": 1}}}, 400),
            ({"status": "done"}, 400),
            ({"status": "cancelled", "interruptId": "nonsense"}, 404),
            ({"status": "cancelled", "interruptId": "WO-SES-00000000-001.1"}, 404),
        ],
    )
    async def test_a_wrong_answer_changes_nothing(self, tmp_path: Path, wrong: dict[str, Any], status: int) -> None:
        async with serving(tmp_path / "root", calling(use_tool("send_letter", to="ada")), tools=[send_letter]) as client:
            front = FrontEnd(client)
            await front.say("go")
            (waits,) = front.interrupts
            assert await front.resume({"interruptId": waits["id"], **wrong}) == []
            assert front.last.status == status
            if "interruptId" in wrong:
                good = {"interruptId": waits["id"], "status": "resolved", "payload": {"approved": True}}
                assert await front.resume(good, wrong) == await front.resume(good, good) == []
            await front.run(messages=[])
            assert (front.interrupts, front.results) == ([waits], {})


class TestEndings:
    async def test_a_run_that_somebody_stops_is_cancelled(self, tmp_path: Path) -> None:
        hold = Hold("wait", wo_type="synthesize")
        async with serving(tmp_path / "root", ScriptedProvider(echo, gate=hold)) as client:
            front = FrontEnd(client)
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(front.say, "wait")
                await hold.arrived["wait"].wait()
                (session,) = await client.runtime.sessions()
                await client.ask("POST", f"/v1/sessions/{session.session_id}/stop")
            assert front.last.events[-1]["outcome"] == {"type": "cancelled"}

    async def test_a_server_that_shuts_down_ends_the_run_with_an_error(self, tmp_path: Path) -> None:
        hold = Hold("wait", wo_type="synthesize")
        provider, limits = ScriptedProvider(echo, gate=hold), {"shutdown_grace_s": 0.01}
        async with serving(tmp_path / "root", provider, limits=limits) as client:
            front = FrontEnd(client)
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(front.say, "wait")
                await hold.arrived["wait"].wait()
                assert await client.server.drain() is False
            assert (front.last.events[-1]["type"], front.last.events[-1]["code"]) == ("RUN_ERROR", "shutting_down")

    async def test_a_turn_goes_on_when_its_client_goes(self, tmp_path: Path) -> None:
        hold = Hold("wait", wo_type="synthesize")
        async with serving(tmp_path / "root", ScriptedProvider(echo, gate=hold)) as client:
            asked = Asked()
            asked.taking.set()
            message = {"id": "u", "role": "user", "content": "wait"}
            body = {"threadId": "thread-1", "runId": "thread-1-run-1", "messages": [message]}
            async with anyio.create_task_group() as tasks:
                tasks.start_soon(client.run, asked, "POST", PATH, body)
                await hold.arrived["wait"].wait()
                asked.gone.set()
                await asked.done.wait()
                hold.released["wait"].set()
            front = FrontEnd(client, messages=[message])
            await front.run()
            assert (front.said, await turns_of(client)) == (["wait", "echo: wait"], [1])

    async def test_a_model_that_fails_is_a_reply_that_says_so(self, tmp_path: Path) -> None:
        def answer(request: PromptRequest) -> Any:
            return ValueError("no") if request.wo_type == "synthesize" else echo(request)

        async with serving(tmp_path / "root", ScriptedProvider(answer)) as client:
            front = FrontEnd(client)
            events = await front.say("hello")
            assert events[-1]["outcome"] == {"type": "success"}
            assert events[-1]["result"]["error"]["kind"] is not None
            assert len(front.said) == 2
