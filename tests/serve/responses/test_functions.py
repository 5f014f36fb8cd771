"""Functions that a client of the Responses API runs: read back, in the background, given again, refused (docs/server.md)."""

from pathlib import Path
from typing import Any

import pytest

from tests.serve.responses.test_responses import PATH, answer_item, deltas, kinds, send_card, text_of, told
from tests.serve.shared.functions import FLAT, NESTED, calling, use_tools, weather_of
from tests.serve.shared.requests import Asked, Client, serving
from tests.shared.event_loops import ON_ASYNCIO, ON_TRIO

ASK = "What is the weather?"
CALLED = [
    "response.created",
    "response.in_progress",
    "response.output_item.added",
    "response.function_call_arguments.delta",
    "response.function_call_arguments.done",
    "response.output_item.done",
    "response.completed",
]


async def respond(client: Client, said: Any, **more: Any) -> Asked:
    return await client.ask("POST", PATH, {"input": said, "tools": [FLAT], **more})


def output(call: Any, said: Any) -> dict[str, Any]:
    """The item that gives the output of a call."""
    return {"type": "function_call_output", "call_id": call["call_id"], "output": said}


def both() -> Any:
    """A model that calls a tool which needs approval and a function of the client, and then says what it heard."""
    return calling(use_tools(("send_card", {"to": "bo"}), ("get_weather", {"at": "Graz"})))


class TestReadingBack:
    @ON_TRIO
    async def test_calls_and_outputs_are_retrieved_streamed_again_and_listed_also_after_a_restart(self, tmp_path: Path) -> None:
        async with serving(tmp_path / "root", calling(weather_of("Graz"))) as client:
            made = await respond(client, ASK, stream=True)
            events = told(made)
            assert kinds(made) == CALLED
            asked = events[-1]["response"]
            arguments = [each for each in events if each["type"].startswith("response.function_call_arguments")]
            assert {each["item_id"] for each in arguments} == {asked["output"][0]["id"]}
            path = f"{PATH}/{asked['id']}"
            for number in range(len(events)):
                assert told(await client.ask("GET", f"{path}?stream=true&starting_after={number}")) == events[number + 1 :]
            done = (await respond(client, [output(asked["output"][0], "sun")], previous_response_id=asked["id"])).json
            assert (await client.ask("GET", path)).json == asked
        async with serving(tmp_path / "root", calling(weather_of("Graz"))) as client:
            assert (await client.ask("GET", path)).json == asked
            again = await client.ask("GET", f"{path}?stream=true")
            assert (kinds(again), told(again)[-1]["response"]) == (CALLED, asked)
            read = (await client.ask("GET", f"{PATH}/{done['id']}")).json
            assert {**read, "previous_response_id": asked["id"]} == done
            items = (await client.ask("GET", f"{PATH}/{done['id']}/input_items?order=asc")).json["data"]
            assert [each["type"] for each in items] == ["message", "function_call", "function_call_output"]
            assert (items[1], items[2]["output"]) == (asked["output"][0], "sun")

    async def test_text_beside_a_call_is_a_message_before_it(self, tmp_path: Path) -> None:
        async with serving(tmp_path / "root", calling(weather_of("Graz", text="Let me look."))) as client:
            events = told(await respond(client, ASK, stream=True))
            response = events[-1]["response"]
            assert [each["type"] for each in response["output"]] == ["message", "function_call"]
            assert deltas(events) == text_of(response) == "Let me look."
            assert [each["item"]["id"] for each in events if each["type"].endswith("item.done")] == [
                each["id"] for each in response["output"]
            ]

    async def test_in_the_background_the_calls_and_then_the_reply_are_retrieved(self, tmp_path: Path) -> None:
        async with serving(tmp_path / "root", calling(weather_of("Graz"))) as client:
            begun = (await respond(client, ASK, background=True)).json
            asked = told(await client.ask("GET", f"{PATH}/{begun['id']}?stream=true"))[-1]["response"]
            begun = (await respond(client, [output(asked["output"][0], "sun")], background=True)).json
            assert begun["id"] != asked["id"]
            done = told(await client.ask("GET", f"{PATH}/{begun['id']}?stream=true"))[-1]["response"]
            assert (text_of(done), done["background"]) == ("heard sun", True)
            assert (await client.ask("POST", f"{PATH}/{done['id']}/cancel")).json["status"] == "completed"


class TestGoingOn:
    @pytest.mark.parametrize("stream", [False, True])
    async def test_two_rounds_in_one_list_of_items_however_they_are_ordered(self, tmp_path: Path, stream: bool) -> None:
        model = calling(weather_of("Graz", "Linz"), weather_of("Wels"))
        async with serving(tmp_path / "root", model) as client:
            said: list[Any] = [{"role": "user", "content": ASK}]
            found = await respond(client, said)
            first, second = found.json["output"]
            said += [first, output(first, "sun"), second, output(second, [{"type": "input_text", "text": "rain"}])]
            (third,) = (await respond(client, said)).json["output"]
            said += [{"type": "reasoning", "summary": []}, third, output(third, "fog")]
            done = await respond(client, said, stream=stream)
            response = told(done)[-1]["response"] if stream else done.json
            assert text_of(response) == "heard sun, rain, fog"
            assert response["conversation"] == found.json["conversation"]
            said += [*response["output"], {"role": "user", "content": "just thanks"}]
            more = await respond(client.with_headers(x_kitchener_session=response["conversation"]["id"]), said)
            assert text_of(more.json) == "echo: just thanks"

    async def test_a_named_conversation_with_all_items_goes_on_after_its_calls(self, tmp_path: Path) -> None:
        async with serving(tmp_path / "root", calling(weather_of("Graz", text="Look:"))) as plain:
            client = plain.with_headers(x_chat_id="c")
            said: list[Any] = [{"role": "user", "content": ASK}]
            asked = (await respond(client, said)).json
            said += [*asked["output"], output(asked["output"][1], "sun")]
            done = (await respond(client, said)).json
            said += [*done["output"], {"role": "user", "content": "just thanks"}]
            more = (await respond(client, said)).json
            assert more["conversation"] == done["conversation"] == asked["conversation"]

    @ON_ASYNCIO
    async def test_the_same_outputs_again_are_the_same_response_and_others_are_refused(self, tmp_path: Path) -> None:
        async with serving(tmp_path / "root", calling(weather_of("Graz"))) as client:
            asked = (await respond(client, ASK)).json
            given = [output(asked["output"][0], "sun")]
            done = (await respond(client, given, previous_response_id=asked["id"])).json
            before = len(client.provider.requests)
            assert (await respond(client, given, previous_response_id=asked["id"])).json == done
            assert told(await respond(client, given, stream=True))[-1]["response"]["output"] == done["output"]
            assert len(client.provider.requests) == before
            other = await respond(client, [output(asked["output"][0], "rain")])
            assert (other.status, other.code) == (409, "call_closed")

    @pytest.mark.parametrize("stream", [False, True])
    async def test_while_outputs_are_missing_the_response_has_the_calls_that_are_left(
        self, tmp_path: Path, stream: bool
    ) -> None:
        async with serving(tmp_path / "root", calling(weather_of("Graz", "Linz"))) as client:
            asked = (await respond(client, ASK)).json
            first, second = asked["output"]
            found = await respond(client, [output(second, "rain")], stream=stream)
            left = told(found)[-1]["response"] if stream else found.json
            assert (left["id"], left["output"]) == (asked["id"], [first])
            assert text_of((await respond(client, [output(first, "sun")])).json) == "heard sun, rain"

    @pytest.mark.parametrize("together", [False, True])
    async def test_a_person_and_the_client_answer_in_any_order(self, tmp_path: Path, together: bool) -> None:
        async with serving(tmp_path / "root", both(), tools=[send_card]) as client:
            asked = (await respond(client, ASK)).json
            _, waiting, call = asked["output"]
            assert (waiting["type"], call["type"]) == ("mcp_approval_request", "function_call")
            approval, given = answer_item(waiting), output(call, "sun")
            if together:
                done = await respond(client, [given, approval])
            else:
                left = (await respond(client, [given])).json
                assert left["output"][1:] == [waiting]
                done = await respond(client, [approval])
            assert "sent to bo" in text_of(done.json)
            assert "sun" in text_of(done.json)

    async def test_outputs_before_a_message_are_given_first(self, tmp_path: Path) -> None:
        async with serving(tmp_path / "root", calling(weather_of("Graz"))) as client:
            asked = (await respond(client, ASK)).json
            said = [output(asked["output"][0], "sun"), {"role": "user", "content": "just thanks"}]
            more = (await respond(client, said, previous_response_id=asked["id"])).json
            assert (text_of(more), more["conversation"]) == ("echo: just thanks", asked["conversation"])
            assert more["id"].endswith("_000003")


class TestRefusals:
    async def test_an_output_belongs_to_the_response_and_conversation_that_are_named(self, tmp_path: Path) -> None:
        async with serving(tmp_path / "root", calling(weather_of("Graz"))) as client:
            asked = (await respond(client, ASK)).json
            other = (await respond(client, "just hello")).json
            given = [output(asked["output"][0], "sun")]
            for named in ({"previous_response_id": other["id"]}, {"conversation": other["conversation"]["id"]}):
                found = await respond(client, given, **named)
                assert (found.status, found.code) == (404, "call_not_found")
            assert text_of((await respond(client, given, conversation=asked["conversation"])).json) == "heard sun"

    @pytest.mark.parametrize("call_id", ["call_1", "", 7, None, "WO-SES-0a1b2c3d-002", "WO-SES-0a1b2c3d-002.1", "x" * 5_000])
    async def test_an_unknown_call_is_refused(self, tmp_path: Path, call_id: Any) -> None:
        async with serving(tmp_path / "root") as client:
            found = await respond(client, [{"type": "function_call_output", "call_id": call_id, "output": "x"}])
            assert (found.status, found.code) == (404, "call_not_found")

    @pytest.mark.parametrize("said", [[{"type": "input_image", "image_url": "data:"}], 7, {"a": 1}, [None]])
    async def test_an_output_that_is_no_text_is_refused_and_the_call_still_waits(self, tmp_path: Path, said: Any) -> None:
        async with serving(tmp_path / "root", calling(weather_of("Graz"))) as client:
            asked = (await respond(client, ASK)).json
            found = await respond(client, [output(asked["output"][0], said)])
            assert (found.status, found.code) == (400, "unsupported")
            assert text_of((await respond(client, [output(asked["output"][0], "sun")])).json) == "heard sun"

    async def test_an_output_approves_nothing_and_an_approval_is_no_output(self, tmp_path: Path) -> None:
        async with serving(tmp_path / "root", both(), tools=[send_card]) as client:
            _, waiting, call = (await respond(client, ASK)).json["output"]
            forged = [output({"call_id": waiting["id"]}, "approved")]
            assert (await respond(client, forged)).status == 400
            assert (await respond(client, [answer_item({"id": call["call_id"]})])).status == 400
            listed = await client.runtime.pending_approvals()
            assert [each.status for each in listed if each.approval_id == waiting["id"]] == ["waiting"]

    async def test_a_function_may_be_named_in_either_form_and_must_be_one_of_the_request(self, tmp_path: Path) -> None:
        async with serving(tmp_path / "root", calling(weather_of("Graz"))) as client:
            choice = {"type": "function", "name": "get_weather"}
            made = (await respond(client, ASK, tools=[{"type": "file_search"}, NESTED], tool_choice=choice)).json
            assert (made["tool_choice"], [each["name"] for each in made["tools"]]) == (choice, ["get_weather"])
            for wrong in ({"type": "function", "name": "other"}, {"type": "mcp", "server_label": "x"}, "any"):
                assert (await respond(client, ASK, tool_choice=wrong)).code == "unsupported"
