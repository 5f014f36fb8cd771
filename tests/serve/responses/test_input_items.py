"""The input items of a response, page by page, and why a response cannot be deleted (docs/server.md)."""

from pathlib import Path
from typing import Any

import pytest
from openai.types.responses.response_item_list import ResponseItemList

from kitchener.config import ServeClientConfig
from kitchener.testing import ScriptedProvider
from tests.acceptance.stack import Hold, echo
from tests.serve.responses.test_responses import KEYS, PATH, answer_item, asking, respond, send_card
from tests.serve.shared.requests import Client, serving
from tests.shared.event_loops import ON_ASYNCIO, ON_TRIO

PNG = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="


async def items_of(client: Client, response_id: str, query: str = "") -> Any:
    found = await client.ask("GET", f"{PATH}/{response_id}/input_items?order=asc{query}")
    assert found.status == 200, found.body
    ResponseItemList.model_validate(found.json)
    return found.json["data"]


def text_of(items: list[Any]) -> list[str]:
    return [part["text"] for each in items for part in each.get("content", ()) if "text" in part]


@ON_TRIO
async def test_a_response_lists_the_conversation_up_to_its_message(tmp_path: Path) -> None:
    async with serving(tmp_path / "root") as client:
        first = (await respond(client, "one")).json
        second = (await respond(client, "two", previous_response_id=first["id"])).json
        assert text_of(await items_of(client, first["id"])) == ["one"]
        assert text_of(await items_of(client, second["id"])) == ["one", "echo: one", "two"]
        (_, reply, _) = await items_of(client, second["id"])
        assert reply == first["output"][0]
        other = (await respond(client, "other", previous_response_id=first["id"])).json
        assert text_of(await items_of(client, other["id"])) == ["one", "echo: one", "other"]
    async with serving(tmp_path / "root") as client:
        assert text_of(await items_of(client, second["id"])) == ["one", "echo: one", "two"]


@ON_ASYNCIO
async def test_pages_follow_each_other_in_both_orders(tmp_path: Path) -> None:
    async with serving(tmp_path / "root") as client:
        last = {"id": None}
        for number in range(4):
            last = (await respond(client, f"n{number}", previous_response_id=last["id"])).json
        path = f"{PATH}/{last['id']}/input_items"
        whole = (await client.ask("GET", f"{path}?limit=100")).json
        assert text_of(whole["data"])[:2] == ["n3", "echo: n2"]
        assert whole["has_more"] is False
        for order in ("asc", "desc"):
            found: list[Any] = []
            while True:
                after = f"&after={found[-1]['id']}" if found else ""
                page = (await client.ask("GET", f"{path}?limit=2&order={order}{after}")).json
                assert (page["first_id"], page["last_id"]) == (page["data"][0]["id"], page["data"][-1]["id"])
                found += page["data"]
                if not page["has_more"]:
                    break
            assert found == (whole["data"] if order == "desc" else whole["data"][::-1])
        empty = (await client.ask("GET", f"{path}?after={whole['last_id']}")).json
        assert (empty["data"], empty["has_more"], empty["first_id"]) == ([], False, None)
        for query in ("limit=0", "limit=101", "limit=x", "order=up", "after=msg_1"):
            refused = await client.ask("GET", f"{path}?{query}")
            assert (refused.status, refused.code) == (400, "invalid_request"), query


async def test_files_are_named_and_messages_of_aborted_turns_are_left_out(tmp_path: Path) -> None:
    hold = Hold("wait", wo_type="synthesize")
    async with serving(tmp_path / "root", ScriptedProvider(echo, gate=hold)) as client:
        stopped = (await respond(client, "wait", background=True)).json
        await hold.arrived["wait"].wait()
        assert text_of(await items_of(client, stopped["id"])) == ["wait"]
        await client.ask("POST", f"{PATH}/{stopped['id']}/cancel")
        said = [
            {"type": "input_text", "text": "look"},
            {"type": "input_image", "image_url": f"data:image/png;base64,{PNG}"},
            {"type": "input_file", "filename": "note.txt", "file_data": "data:text/plain;base64,aGVsbG8="},
        ]
        session = stopped["conversation"]["id"]
        made = (await respond(client, [{"role": "user", "content": said}], conversation=session)).json
        (message,) = await items_of(client, made["id"])
        assert [each["type"] for each in message["content"]] == ["input_text", "input_image", "input_file"]
        assert message["content"][2]["filename"] == "note.txt"


async def test_requests_and_answers_about_tools_are_items(tmp_path: Path) -> None:
    async with serving(tmp_path / "root", asking("ada", "bob"), tools=[send_card]) as client:
        asked = (await respond(client, "cards")).json
        _, one, other = asked["output"]
        done = (await respond(client, [answer_item(one), answer_item(other, approve=False, reason="not bob")])).json
        said, *rest = await items_of(client, done["id"])
        assert text_of([said]) == ["cards"]
        assert sorted(rest[:3], key=str) == sorted(asked["output"], key=str)
        answers = {each["approval_request_id"]: (each["approve"], each["reason"]) for each in rest[3:]}
        assert answers == {one["id"]: (True, None), other["id"]: (False, "not bob")}


async def test_items_of_another_subject_are_as_unknown_as_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, key in KEYS.items():
        monkeypatch.setenv(f"{name.upper()}_KEY", key)
    keys = {"clients": {name: ServeClientConfig(key=f"env:{name.upper()}_KEY", subject=name) for name in KEYS}}
    async with serving(tmp_path / "root", serve=keys) as client:
        ada, bob = (client.with_headers(authorization=f"Bearer {KEYS[name]}") for name in ("ada", "bob"))
        made = (await respond(ada, "my secret")).json["id"]
        later = f"{made[:-6]}000009"
        for method, path in (("GET", f"{made}/input_items"), ("DELETE", made)):
            refused = await bob.ask(method, f"{PATH}/{path}")
            none = await ada.ask(method, f"{PATH}/{path.replace(made, later)}")
            assert (refused.status, refused.code) == (none.status, none.code) == (404, "response_not_found")


async def test_a_response_cannot_be_deleted_and_the_refusal_says_what_can(tmp_path: Path) -> None:
    async with serving(tmp_path / "root") as client:
        made = (await respond(client, "my secret")).json
        refused = await client.ask("DELETE", f"{PATH}/{made['id']}")
        assert (refused.status, refused.code) == (405, "cannot_delete")
        assert "/v1/subject/erase" in refused.json["error"]["message"]
        assert (await client.ask("GET", f"{PATH}/{made['id']}")).json == made
        await client.ask("POST", "/v1/subject/erase", {"subject_id": "local"})
        erased = await client.ask("GET", f"{PATH}/{made['id']}/input_items")
        assert erased.status == 200
        assert b"my secret" not in erased.body
