"""Tools that a front end runs: calls without a result, runs that continue with outputs, threads that keep one session
(docs/server.md)."""

from pathlib import Path
from typing import Any

from tests.serve.agui.front_end import FrontEnd, of_kind
from tests.serve.agui.test_agui import measure, send_letter, turns_of
from tests.serve.shared.functions import PLACE, calling, use_tools, weather_of
from tests.serve.shared.requests import serving
from tests.shared.event_loops import ON_ASYNCIO, ON_TRIO

TOOLS = [{"name": "get_weather", "description": "The weather at a place.", "parameters": PLACE}]


class Screen(FrontEnd):
    """A front end with tools of its own."""

    async def run(self, **more: Any) -> list[Any]:
        """Runs the agent, and says which tools there are."""
        return await super().run(**{"tools": TOOLS, **more})

    def give(self, call_id: str, output: str, **more: str) -> None:
        """Adds the output of a call to the conversation."""
        self.messages.append(
            {"id": f"out-{len(self.messages)}", "role": "tool", "toolCallId": call_id, "content": output, **more}
        )

    @property
    def waiting(self) -> list[str]:
        """The calls without a result."""
        return [each for each in self.arguments if each not in self.results]


@ON_ASYNCIO
async def test_calls_of_the_front_end_have_no_result_and_the_next_run_goes_on_with_outputs(tmp_path: Path) -> None:
    model = calling(weather_of("Graz", text="First Graz."), weather_of("Linz", "Wels"))
    async with serving(tmp_path / "root", model) as client:
        front = Screen(client)
        events = await front.say("what is the weather?")
        assert (events[-1]["type"], events[-1]["outcome"]) == ("RUN_FINISHED", {"type": "success"})
        assert [each["toolCallName"] for each in of_kind(events, "TOOL_CALL_START")] == ["get_weather"]
        assert of_kind(events, "TOOL_CALL_RESULT") == []
        (first,) = front.waiting
        front.give(first, "sun")
        await front.run()
        linz, wels = front.waiting
        assert [front.arguments[each] for each in (linz, wels)] == ['{"at":"Linz"}', '{"at":"Wels"}']
        front.give(linz, "rain")
        front.give(wels, "", error="no connection")
        await front.run()
        assert front.said[:2] == ["what is the weather?", "First Graz."]
        assert "heard sun, rain, " in front.said[-1]
        assert "no connection" in front.said[-1]
        session = front.session
        await front.say("just thanks")
        assert (front.session, front.said[-1], await turns_of(client)) == (session, "echo: just thanks", [4])


async def test_a_run_with_outputs_that_is_tried_again_has_the_same_reply_once(tmp_path: Path) -> None:
    async with serving(tmp_path / "root", calling(weather_of("Graz"))) as client:
        front = Screen(client)
        await front.say("what is the weather?")
        front.give(front.waiting[0], "sun")
        await front.run()
        said, before = front.said, len(client.provider.requests)
        front.runs -= 1
        await front.run()
        assert (front.said, len(client.provider.requests), await turns_of(client)) == (said, before, [2])
        front.messages = [each for each in front.messages if each["role"] != "assistant" or each.get("toolCalls")]
        front.messages[-1]["content"] = "rain"
        assert await front.run() == []
        assert (front.last.status, front.last.code) == (409, "call_closed")


async def test_outputs_one_by_one_and_a_tool_of_the_agent_beside_them(tmp_path: Path) -> None:
    model = calling(use_tools(("measure", {"what": "it"}), ("get_weather", {"at": "Graz"}), ("get_weather", {"at": "Linz"})))
    async with serving(tmp_path / "root", model, tools=[measure]) as client:
        front = Screen(client)
        events = await front.say("what is the weather?")
        assert [each["content"] for each in of_kind(events, "TOOL_CALL_RESULT")] == ['{"cm":3}']
        graz, linz = front.waiting
        front.give(linz, "rain")
        events = await front.run()
        assert (of_kind(events, "TOOL_CALL_START"), front.waiting, await turns_of(client)) == ([], [graz], [1])
        front.give(graz, "sun")
        await front.run()
        assert front.said[-1] == 'heard {"cm":3}, sun, rain'


@ON_TRIO
async def test_a_message_in_place_of_outputs_goes_on_in_the_thread_and_outputs_before_one_are_given_first(
    tmp_path: Path,
) -> None:
    async with serving(tmp_path / "root", calling(weather_of("Graz"))) as client:
        front = Screen(client)
        await front.say("what is the weather?")
        session = front.session
        await front.say("just wait")
        assert (front.session, front.said[-1]) == (session, "echo: just wait")
        await front.say("and now?")
        front.give(front.waiting[-1], "sun")
        await front.say("just thanks")
        assert (front.session, front.said[-1], await turns_of(client)) == (session, "echo: just thanks", [5])
        assert any("sun" in each.messages[-1].content for each in client.provider.requests)
        await front.say("just more")
        assert (front.session, await turns_of(client)) == (session, [6])


async def test_a_round_with_an_interrupt_needs_the_person_and_the_front_end(tmp_path: Path) -> None:
    model = calling(use_tools(("send_letter", {"to": "bo"}), ("get_weather", {"at": "Graz"})))
    async with serving(tmp_path / "root", model, tools=[send_letter]) as client:
        front = Screen(client)
        events = await front.say("what is the weather?")
        (interrupt,) = events[-1]["outcome"]["interrupts"]
        (call,) = [each for each in front.waiting if each != interrupt["id"]]
        wrong = await front.resume({"interruptId": call, "status": "resolved", "payload": {"approved": True}})
        assert (wrong, front.last.code) == ([], "approval_not_found")
        front.give(call, "sun")
        events = await front.run()
        assert [each["id"] for each in events[-1]["outcome"]["interrupts"]] == [interrupt["id"]]
        await front.resume({"interruptId": interrupt["id"], "status": "resolved", "payload": {"approved": True}})
        assert "sent to bo" in front.said[-1]
        assert "sun" in front.said[-1]


@ON_ASYNCIO
async def test_a_front_end_that_is_opened_again_is_told_the_calls_that_wait(tmp_path: Path) -> None:
    async with serving(tmp_path / "root", calling(weather_of("Graz"), weather_of("Linz", text="Almost."))) as client:
        front = Screen(client)
        await front.say("what is the weather?")
        front.give(front.waiting[0], "sun")
        await front.run()
    async with serving(tmp_path / "root", calling(weather_of("Graz"), weather_of("Linz", text="Almost."))) as client:
        other = Screen(client, runs=7)
        await other.run()
        assert other.said == ["what is the weather?", "Almost."]
        assert other.waiting == front.waiting
        other.give(other.waiting[0], "rain")
        await other.run()
        assert other.said[-1] == "heard sun, rain"


async def test_another_thread_does_not_reach_a_call(tmp_path: Path) -> None:
    async with serving(tmp_path / "root", calling(weather_of("Graz"))) as client:
        front = Screen(client)
        await front.say("what is the weather?")
        front.give(front.waiting[0], "sun")
        other = Screen(client, thread="thread-2", messages=front.messages)
        assert await other.run() == []
        assert (other.last.status, other.last.code) == (404, "call_not_found")


async def test_an_agent_that_takes_no_tools_of_front_ends_ignores_them(tmp_path: Path) -> None:
    async with serving(tmp_path / "root", calling(weather_of("Graz")), client_tools="refuse") as client:
        front = Screen(client)
        await front.say("hello")
        assert (front.said, front.waiting) == (["hello", "echo: hello"], [])
