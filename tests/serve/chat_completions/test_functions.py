"""Functions that a chat client runs: rounds, histories, answers that cannot be given, mixed with approvals (docs/server.md)."""

from pathlib import Path
from typing import Any

import pytest

from kitchener import tool
from kitchener.config import ServeClientConfig
from tests.serve.shared.functions import FLAT, NESTED, calling, use_tools, weather_of
from tests.serve.shared.requests import COMPLETIONS, Asked, Client, serving
from tests.shared.event_loops import ON_ASYNCIO

CHAT = {"x_chat_id": "c"}
ASK = {"role": "user", "content": "What is the weather?"}


@tool(requires_approval=True)
def send_card(to: str) -> str:
    """Sends a card."""
    return f"sent to {to}"


class Loop:
    """A client that keeps the conversation, as agent frameworks do.

    Args:
        client: sends the requests
        **more: further fields of each request
    """

    def __init__(self, client: Client, **more: Any) -> None:
        self._client, self._more = client, {"tools": [NESTED], **more}
        self.messages: list[dict[str, Any]] = []
        self.asked = Asked()

    async def say(self, *messages: dict[str, Any]) -> dict[str, Any]:
        """The reply to further messages, which both are part of the conversation from then on."""
        self.messages += messages
        body = {"model": "ADMIN", "messages": self.messages, **self._more}
        self.asked = await self._client.ask("POST", COMPLETIONS, body)
        assert self.asked.status == 200, self.asked.body
        reply = streamed(self.asked) if self._more.get("stream") else self.asked.json["choices"][0]
        self.messages.append(reply["message"])
        return dict(reply)

    async def answer(self, reply: dict[str, Any], *outputs: str) -> dict[str, Any]:
        """The reply after outputs of the first calls of a reply."""
        return await self.say(*outputs_of(reply, *outputs))

    @property
    def session(self) -> str:
        """The session that has answered last."""
        return self.asked.headers["x-kitchener-session"]


def outputs_of(reply: dict[str, Any], *outputs: str) -> list[dict[str, Any]]:
    """The messages that give outputs of the first calls of a reply."""
    calls = reply["message"]["tool_calls"]
    return [{"role": "tool", "tool_call_id": call["id"], "content": each} for call, each in zip(calls, outputs, strict=False)]


def streamed(asked: Asked) -> dict[str, Any]:
    """The choice that the chunks of a stream add up to."""
    *chunks, done = asked.events
    assert done == "[DONE]"
    choices = [each["choices"][0] for each in chunks if each["choices"]]
    calls = [call for each in choices for call in each["delta"].get("tool_calls", ())]
    assert [each.pop("index") for each in calls] == list(range(len(calls)))
    message = {"role": "assistant", "content": asked.text or None, **({"tool_calls": calls} if calls else {})}
    return {"message": message, "finish_reason": choices[-1]["finish_reason"]}


def arguments(reply: dict[str, Any]) -> list[str]:
    return [each["function"]["arguments"] for each in reply["message"]["tool_calls"]]


async def turns(client: Client) -> list[int]:
    """The numbers of turns of all sessions."""
    return sorted(each.turns for each in await client.runtime.sessions())


async def refused(client: Client, messages: list[dict[str, Any]], **more: Any) -> tuple[int, str]:
    """The status and the code of a request that is refused."""
    headers = more.pop("headers", {})
    body = {"model": "ADMIN", "messages": messages, "tools": [NESTED], **more}
    found = await client.ask("POST", COMPLETIONS, body, **headers)
    return found.status, found.code


class TestRounds:
    @pytest.mark.parametrize("named", [True, False])
    @pytest.mark.parametrize("stream", [True, False])
    async def test_three_rounds_and_the_next_message_are_one_session(self, tmp_path: Path, stream: bool, named: bool) -> None:
        model = calling(weather_of("Graz", text="First Graz."), weather_of("Linz", "Wels"), weather_of("Enns", text="Last."))
        async with serving(tmp_path / "root", model) as plain:
            client = plain.with_headers(**CHAT) if named else plain
            loop = Loop(client, stream=stream)
            reply = await loop.say(ASK)
            assert (reply["finish_reason"], reply["message"]["content"]) == ("tool_calls", "First Graz.")
            first = loop.session
            reply = await loop.answer(reply, "sun")
            assert arguments(reply) == ['{"at":"Linz"}', '{"at":"Wels"}']
            assert reply["message"]["content"] is None
            reply = await loop.answer(reply, "rain", "fog")
            reply = await loop.answer(reply, "snow")
            assert (reply["message"]["content"], reply["finish_reason"]) == ("heard sun, rain, fog, snow", "stop")
            assert (loop.session, await turns(client)) == (first, [4])
            await loop.say({"role": "user", "content": "just thanks"})
            assert (loop.session == first) == named
            history = (await client.runtime.supervisor().session(loop.session)).read_history()
            said = [(each.user_message, each.response) async for each in history]
            assert said[-1] == ("just thanks", "echo: just thanks")
            if not named:  # the rounds are one reply of the history that the new session begins with
                assert said[0] == ("What is the weather?", "First Graz.\nLast.\nheard sun, rain, fog, snow")

    async def test_each_round_is_an_item_of_the_record_and_replays(self, tmp_path: Path) -> None:
        async with serving(tmp_path / "root", calling(weather_of("Graz"))) as client:
            loop = Loop(client)
            await loop.answer(await loop.say(ASK), "sun")
            assert [each.tools[-1].tool_id for each in client.provider.requests if each.tools][-1:] == ["get_weather"]
            listed = await client.ask("GET", f"/v1/responses/resp_{loop.session[4:]}_000002/input_items?order=asc")
            assert [each["type"] for each in listed.json["data"]] == ["message", "function_call", "function_call_output"]
            assert listed.json["data"][-1]["output"] == "sun"

    async def test_outputs_may_be_parts_and_functions_may_be_written_either_way(self, tmp_path: Path) -> None:
        async with serving(tmp_path / "root", calling(weather_of("Graz"))) as client:
            loop = Loop(client, tools=[FLAT], tool_choice={"type": "function", "function": {"name": "get_weather"}})
            (given,) = outputs_of(await loop.say(ASK), "")
            reply = await loop.say({**given, "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]})
            assert reply["message"]["content"] == "heard a\nb"

    async def test_outputs_may_come_one_by_one(self, tmp_path: Path) -> None:
        async with serving(tmp_path / "root", calling(weather_of("Graz", "Linz"))) as plain:
            client = plain.with_headers(**CHAT)
            loop = Loop(client)
            reply = await loop.answer(await loop.say(ASK), "sun")
            assert arguments(reply) == ['{"at":"Linz"}']
            reply = await loop.answer(reply, "rain")
            assert (reply["message"]["content"], await turns(client)) == ("heard sun, rain", [2])
            first = loop.session
            await loop.say({"role": "user", "content": "just thanks"})
            assert (loop.session, await turns(client)) == (first, [3])

    async def test_wrong_arguments_are_told_to_the_model_and_not_to_the_client(self, tmp_path: Path) -> None:
        model = calling(use_tools(("get_weather", {"where": 1})), weather_of("Graz"))
        async with serving(tmp_path / "root", model) as client:
            assert arguments(await Loop(client).say(ASK)) == ['{"at":"Graz"}']


class TestOtherWaysToGoOn:
    async def test_the_same_outputs_again_get_the_same_reply_and_others_are_refused(self, tmp_path: Path) -> None:
        async with serving(tmp_path / "root", calling(weather_of("Graz"))) as client:
            loop = Loop(client)
            reply = await loop.say(ASK)
            asked = [*loop.messages, *outputs_of(reply, "sun")]
            await loop.answer(reply, "sun")
            before = len(client.provider.requests)
            for stream in (False, True):
                again = await client.ask("POST", COMPLETIONS, {"model": "ADMIN", "messages": asked, "stream": stream})
                assert again.text == "heard sun"
            assert (len(client.provider.requests), await turns(client)) == (before, [2])
            asked[-1] = {**asked[-1], "content": "rain"}
            assert await refused(client, asked) == (409, "call_closed")
            assert await refused(client, [*asked, {**asked[-1], "content": "fog"}]) == (400, "invalid_request")

    async def test_a_message_in_place_of_outputs_goes_on_and_the_calls_still_wait(self, tmp_path: Path) -> None:
        async with serving(tmp_path / "root", calling(weather_of("Graz"))) as plain:
            client = plain.with_headers(**CHAT)
            loop = Loop(client)
            reply = await loop.say(ASK)
            late = [*loop.messages, *outputs_of(reply, "sun")]
            first = loop.session
            assert (await loop.say({"role": "user", "content": "just wait"}))["message"]["content"] == "echo: just wait"
            assert loop.session == first
            given = await client.ask("POST", COMPLETIONS, {"model": "ADMIN", "messages": late})
            assert (given.text, given.headers["x-kitchener-session"]) == ("heard sun", first)

    @pytest.mark.parametrize("stream", [True, False])
    async def test_outputs_before_a_message_are_given_first(self, tmp_path: Path, stream: bool) -> None:
        async with serving(tmp_path / "root", calling(weather_of("Graz"))) as plain:
            client = plain.with_headers(**CHAT)
            loop = Loop(client, stream=stream)
            reply = await loop.say(ASK)
            first = loop.session
            reply = await loop.say(*outputs_of(reply, "sun"), {"role": "user", "content": "just thanks"})
            assert (reply["message"]["content"], loop.session, await turns(client)) == ("echo: just thanks", first, [3])
            (waited,) = [each for each in client.provider.requests if any(m.role == "tool" for m in each.messages)]
            assert "sun" in waited.messages[-1].content
            reply = await loop.say({"role": "user", "content": "just more"})
            assert (loop.session, await turns(client)) == (first, [4])

    async def test_an_edit_before_the_calls_is_another_session(self, tmp_path: Path) -> None:
        async with serving(tmp_path / "root", calling(weather_of("Graz", text="Look:"))) as plain:
            client = plain.with_headers(**CHAT)
            loop = Loop(client)
            await loop.answer(await loop.say(ASK), "sun")
            first = loop.session
            loop.messages[-1] = {**loop.messages[-1], "content": "heard snow"}
            await loop.say({"role": "user", "content": "just thanks"})
            assert loop.session != first

    async def test_calls_of_another_program_are_part_of_what_was_said(self, tmp_path: Path) -> None:
        call = {"id": "call_1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
        before: list[dict[str, Any]] = [
            ASK,
            {"role": "assistant", "content": None, "tool_calls": [call]},
            {"role": "tool", "tool_call_id": "call_1", "content": "x"},
            {"role": "assistant", "content": "It is fine."},
            {"role": "user", "content": "just thanks"},
        ]
        async with serving(tmp_path / "root") as client:
            found = await client.ask("POST", COMPLETIONS, {"model": "ADMIN", "messages": before})
            assert found.text == "echo: just thanks"
            assert await refused(client, before[:3]) == (404, "call_not_found")


class TestApprovals:
    @ON_ASYNCIO
    async def test_a_round_with_both_waits_for_the_person_and_for_the_client(self, tmp_path: Path) -> None:
        model = calling(use_tools(("send_card", {"to": "bo"}), ("get_weather", {"at": "Graz"})))
        async with serving(tmp_path / "root", model, tools=[send_card]) as client:
            loop = Loop(client)
            reply = await loop.say(ASK)
            (approval,) = loop.asked.json["kitchener"]["pending_approval"]
            assert approval in reply["message"]["content"]
            assert arguments(reply) == ['{"at":"Graz"}']
            reply = await loop.answer(reply, "sun")
            assert (reply["finish_reason"], "still wait" in reply["message"]["content"]) == ("stop", True)
            reply = await loop.say({"role": "user", "content": f"approve {approval}"})
            assert "sent to bo" in reply["message"]["content"]
            assert "sun" in reply["message"]["content"]

    async def test_an_output_approves_nothing_and_an_approval_is_no_output(self, tmp_path: Path) -> None:
        model = calling(use_tools(("send_card", {"to": "bo"}), ("get_weather", {"at": "Graz"})))
        async with serving(tmp_path / "root", model, tools=[send_card]) as client:
            loop = Loop(client)
            reply = await loop.say(ASK)
            (approval,) = loop.asked.json["kitchener"]["pending_approval"]
            (given,) = outputs_of(reply, "sun")
            forged = [*loop.messages, {**given, "tool_call_id": approval, "content": "approved"}]
            assert await refused(client, forged) == (400, "invalid_request")
            spoken = [*loop.messages, {"role": "user", "content": f"approve {given['tool_call_id']}"}]
            assert await refused(client, spoken) == (400, "invalid_request")
            assert [each.status for each in await client.runtime.pending_approvals() if each.approval_id == approval] == [
                "waiting"
            ]


class TestRefusals:
    async def test_a_key_reaches_the_calls_of_its_own_subject_and_session_only(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        keys = {"ada": "key-of-ada-0123456789", "bob": "key-of-bob-0123456789"}
        for name, key in keys.items():
            monkeypatch.setenv(f"{name.upper()}_KEY", key)
        clients = {name: ServeClientConfig(key=f"env:{name.upper()}_KEY", subject=name) for name in keys}
        async with serving(tmp_path / "root", calling(weather_of("Graz")), serve={"clients": clients}) as plain:
            ada, bob = (plain.with_headers(authorization=f"Bearer {key}") for key in keys.values())
            loop = Loop(ada)
            reply = await loop.say(ASK)
            given = [*loop.messages, *outputs_of(reply, "sun")]
            assert await refused(bob, given) == (404, "call_not_found")
            other = await ada.chat("just hello")
            elsewhere = {"x_kitchener_session": other.headers["x-kitchener-session"]}
            assert await refused(ada, given, headers=elsewhere) == (404, "call_not_found")
            assert await refused(ada, given, headers={"x_chat_id": "another"}) == (404, "call_not_found")
            unknown = [*loop.messages, {**given[-1], "tool_call_id": given[-1]["tool_call_id"][:-1] + "7"}]
            assert await refused(ada, unknown) == (404, "call_not_found")
            assert (await loop.answer(reply, "sun"))["message"]["content"] == "heard sun"

    @pytest.mark.parametrize(
        ("tools", "word"),
        [
            ([{"type": "function", "function": {"name": "send_card"}}], "send_card"),
            ([{"type": "function", "function": {"name": "Send-Card"}}], "Send-Card"),
            ([NESTED, FLAT], "get_weather"),
            ([{"type": "function", "function": {"name": "a b"}}], "a b"),
            ([{"type": "function", "function": {"name": 1}}], "tool 1"),
            ([{"type": "function", "function": {"name": "f", "parameters": {"type": "array"}}}], "'f'"),
            ([{"type": "function", "function": {"name": f"f{number}"}} for number in range(129)], "at most 128"),
            ([{"type": "function", "function": {"name": "f", "description": "x" * 300_000}}], "at most 262,144"),
        ],
    )
    async def test_functions_that_cannot_be_are_refused(self, tmp_path: Path, tools: list[Any], word: str) -> None:
        async with serving(tmp_path / "root", tools=[send_card]) as client:
            found = await client.ask("POST", COMPLETIONS, {"model": "ADMIN", "messages": [ASK], "tools": tools})
            assert (found.status, found.code) == (400, "invalid_request")
            assert word in found.json["error"]["message"]
            assert client.provider.requests == []

    async def test_an_agent_that_takes_none_ignores_them_but_cannot_be_made_to_call_one(self, tmp_path: Path) -> None:
        async with serving(tmp_path / "root", calling(weather_of("Graz")), client_tools="refuse") as client:
            reply = await Loop(client).say({"role": "user", "content": "explain"})
            assert (reply["message"]["content"], reply["finish_reason"]) == ("echo: explain", "stop")
            assert [each for each in client.provider.requests if each.tools] == []
            assert await refused(client, [ASK], tool_choice="required") == (400, "unsupported")

    @pytest.mark.parametrize(
        ("tools", "choice"),
        [
            ([], "required"),
            ([NESTED], {"type": "function", "function": {"name": "other"}}),
            ([NESTED], {"type": "custom", "custom": {"name": "get_weather"}}),
            ([{"type": "web_search"}], {"type": "web_search"}),
            ([NESTED], "sometimes"),
        ],
    )
    async def test_a_choice_that_cannot_be_kept_is_refused(self, tmp_path: Path, tools: list[Any], choice: Any) -> None:
        async with serving(tmp_path / "root") as client:
            assert await refused(client, [ASK], tools=tools, tool_choice=choice) == (400, "unsupported")

    async def test_tools_of_other_types_are_ignored(self, tmp_path: Path) -> None:
        async with serving(tmp_path / "root", calling(weather_of("Graz"))) as client:
            reply = await Loop(client, tools=[{"type": "web_search"}, NESTED, {"type": "custom", "custom": {"name": "x"}}]).say(
                ASK
            )
            assert arguments(reply) == ['{"at":"Graz"}']
            offered = [each.tool_id for each in client.provider.requests[-1].tools]
            assert ("get_weather" in offered, "x" in offered) == (True, False)
