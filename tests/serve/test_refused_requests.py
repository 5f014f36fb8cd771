"""A request that is refused for its content leaves nothing: no session, no entry, no file and no key (docs/server.md)."""

import base64
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from kitchener import tool
from kitchener.config import LedgerConfig
from tests.acceptance.stack import QUICK
from tests.hostile.test_schemas_of_strangers import COSTLY_TO_COMPILE
from tests.serve.shared.functions import NESTED
from tests.serve.shared.requests import COMPLETIONS, Asked, Client, serving
from tests.shared.event_loops import ON_ASYNCIO, ON_TRIO

PNG = base64.b64decode("iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg==")
TEXT_ONLY: dict[str, Any] = {"media_types": ()}
LIMITS = {"max_message_chars": 1_000, "max_part_bytes": 1_000}


@tool
def look_up(word: str) -> str:
    """Looks a word up."""
    return word


class Wrong(NamedTuple):
    """What is wrong with a request."""

    message: str = "hello"
    functions: tuple[Mapping[str, Any], ...] = ()
    schema: Mapping[str, Any] | None = None
    data: bytes | None = None
    """The content of an attached file, called a picture."""
    key: str | None = None
    choice: Any = None


def function(name: str, **parameters: Any) -> dict[str, Any]:
    """A function of the client."""
    return {"type": "function", "function": {"name": name, "parameters": {"type": "object", **parameters}}}


WRONG: dict[str, Wrong] = {
    "a function with the name of a tool": Wrong(functions=(function("look_up"),)),
    "a function whose name cannot be one": Wrong(functions=(function("look up"),)),
    "a function without a name": Wrong(functions=({"type": "function", "function": {}},)),
    "two functions of one name": Wrong(functions=(function("a"), function("A"))),
    "too many functions": Wrong(functions=tuple(function(f"f{number}") for number in range(129))),
    "a schema that is none": Wrong(functions=(function("f", properties={"a": {"type": "nothing"}}),)),
    "a schema that lies elsewhere": Wrong(functions=(function("f", properties={"a": {"$ref": "http://x.example/"}}),)),
    "patterns that cost too much": Wrong(functions=(function("f", **COSTLY_TO_COMPILE["names"]),)),
    "a choice that is no function": Wrong(functions=(NESTED,), choice={"type": "function", "function": {"name": "g"}}),
    "a format that is no schema": Wrong(schema={"type": "object", "properties": {"a": {"type": "nothing"}}}),
    "a format that is no object": Wrong(schema={"type": "array"}),
    "a format with patterns that cost too much": Wrong(schema=COSTLY_TO_COMPILE["many large patterns"]),
    "a format that is too long": Wrong(schema={"type": "object", "description": "a" * 70_000}),
    "a picture, which the model does not take": Wrong(data=PNG),
    "a picture that is none": Wrong(data=b"\x00\x01\x02\x03"),
    "a picture that is too large": Wrong(data=PNG + bytes(1_000)),
    "a message that is too long": Wrong(message="a" * 1_001),
    "a key that no caller may have": Wrong(key="approval:1"),
}
AGUI_LACKS = frozenset(name for name, each in WRONG.items() if each.schema is not None or each.choice is not None)


def picture(data: bytes) -> str:
    """The content of a file as clients send it."""
    return f"data:image/png;base64,{base64.b64encode(data).decode()}"


def chat(wrong: Wrong, **more: Any) -> tuple[str, dict[str, Any]]:
    """A request of the Chat Completions API."""
    parts: list[dict[str, Any]] = [{"type": "text", "text": wrong.message}]
    if wrong.data is not None:
        parts.append({"type": "image_url", "image_url": {"url": picture(wrong.data)}})
    body: dict[str, Any] = {"model": "ADMIN", "messages": [*EARLIER, {"role": "user", "content": parts}], **more}
    if wrong.schema is not None:
        body["response_format"] = {"type": "json_schema", "json_schema": {"name": "f", "schema": wrong.schema}}
    return COMPLETIONS, body | ({"tools": wrong.functions} if wrong.functions else {}) | _choice(wrong)


def responses(wrong: Wrong, **more: Any) -> tuple[str, dict[str, Any]]:
    """A request of the Responses API."""
    parts: list[dict[str, Any]] = [{"type": "input_text", "text": wrong.message}]
    if wrong.data is not None:
        parts.append({"type": "input_image", "image_url": picture(wrong.data)})
    body: dict[str, Any] = {"model": "ADMIN", "input": [*EARLIER, {"role": "user", "content": parts}], **more}
    if wrong.schema is not None:
        body["text"] = {"format": {"type": "json_schema", "name": "f", "schema": wrong.schema}}
    return "/v1/responses", body | ({"tools": wrong.functions} if wrong.functions else {}) | _choice(wrong)


def agui(wrong: Wrong, **more: Any) -> tuple[str, dict[str, Any]]:
    """A run of an AG-UI front end."""
    parts: list[dict[str, Any]] = [{"type": "text", "text": wrong.message}]
    if wrong.data is not None:
        source = {"type": "data", "mimeType": "image/png", "value": base64.b64encode(wrong.data).decode()}
        parts.append({"type": "image", "source": source})
    said = [{"id": f"m{number}", **each} for number, each in enumerate((*EARLIER, {"role": "user", "content": parts}))]
    body = {"threadId": "thread", "runId": wrong.key or "run", "messages": said}
    return "/v1/agui/ADMIN", body | ({"tools": [each["function"] for each in wrong.functions]} if wrong.functions else {})


def _choice(wrong: Wrong) -> dict[str, Any]:
    return {"tool_choice": wrong.choice} if wrong.choice is not None else {}


EARLIER: tuple[dict[str, Any], ...] = ({"role": "user", "content": "one"}, {"role": "assistant", "content": "echo: one"})
DOORS: dict[str, Callable[..., tuple[str, dict[str, Any]]]] = {"chat": chat, "responses": responses, "agui": agui}
NAMES: tuple[dict[str, str], ...] = ({}, {"X-Kitchener-Session": "conversation"})


async def sent(client: Client, door: str, wrong: Wrong, headers: Mapping[str, str], **more: Any) -> Asked:
    """The answer to a request."""
    path, body = DOORS[door](wrong, **more)
    key = {"idempotency-key": wrong.key} if wrong.key is not None and door != "agui" else {}
    return await client.ask("POST", path, body, **headers, **key)


async def left(client: Client, root: Path) -> tuple[int, int, list[str]]:
    """What there is: entries, sessions, and files."""
    ledgers = client.runtime.ledgers()
    await ledgers.commit()
    sessions = await client.runtime.sessions("ADMIN")
    files = sorted(str(each.relative_to(root)) for each in root.rglob("*") if each.is_file() or each.is_symlink())
    return ledgers.ho2m.position, len(sessions), files


@pytest.mark.parametrize("door", DOORS)
async def test_a_refused_request_leaves_nothing(tmp_path: Path, door: str) -> None:
    root, keys = tmp_path / "root", tmp_path / "keys"
    ledger = LedgerConfig(**{**QUICK.model_dump(), "keyring": str(keys)})
    async with serving(root, tools=[look_up], limits=LIMITS, ledger=ledger, lane=TEXT_ONLY) as client:
        before = await left(client, tmp_path)
        for name, wrong in WRONG.items():
            if door == "agui" and name in AGUI_LACKS:
                continue
            for headers in NAMES:
                for stream in (False, True):
                    asked = await sent(client, door, wrong, headers, **({} if door == "agui" else {"stream": stream}))
                    assert (asked.status, await left(client, tmp_path)) == (400, before), (name, asked.body)
        assert client.provider.requests == []
        asked = await sent(client, door, Wrong(), {})
        entries, sessions, files = await left(client, tmp_path)
        assert (asked.status, sessions) == (200, 1)
        assert entries > before[0]
        assert {each.split("/")[0] for each in files if each not in before[2]} == {"keys"}


@pytest.mark.parametrize("door", DOORS)
async def test_a_refused_request_leaves_an_existing_conversation_as_it_was(tmp_path: Path, door: str) -> None:
    root = tmp_path / "root"
    async with serving(root, tools=[look_up], limits=LIMITS, lane=TEXT_ONLY) as client:
        first = await sent(client, door, Wrong(), NAMES[1])
        before = await left(client, root)
        for name in ("a function with the name of a tool", "a picture, which the model does not take"):
            asked = await sent(client, door, WRONG[name]._replace(message="more"), NAMES[1])
            assert (first.status, asked.status, await left(client, root)) == (200, 400, before)


async def test_a_refused_message_to_a_session_leaves_no_entry(tmp_path: Path) -> None:
    root = tmp_path / "root"
    async with serving(root, tools=[look_up], limits=LIMITS, lane=TEXT_ONLY) as client:
        session_id = (await client.ask("POST", "/v1/sessions", {})).json["session_id"]
        before = await left(client, root)
        file = {"data": base64.b64encode(PNG).decode(), "media_type": "image/png"}
        for more in ({"output_schema": {"type": "array"}}, {"files": [file]}, {"tool_choice": "none_such"}):
            asked = await client.ask("POST", f"/v1/sessions/{session_id}/messages", {"message": "hello", **more})
            assert (asked.status, await left(client, root)) == (400, before)


def too_many(session_id: str) -> dict[str, tuple[str, dict[str, Any]]]:
    """Bodies of so many items that reading them on would hold others up."""
    said, run = {"role": "user", "content": "hi"}, {"threadId": "t", "runId": "r"}
    parts = [{"type": "text", "text": ""}] * 2_001
    return {
        "messages": (COMPLETIONS, {"model": "ADMIN", "messages": [said] * 20_001}),
        "messages as items": (COMPLETIONS, {"model": "ADMIN", "input": [said] * 20_001}),
        "parts": (COMPLETIONS, {"model": "ADMIN", "messages": [{"role": "user", "content": parts}]}),
        "items": ("/v1/responses", {"input": [said] * 20_000}),
        "items of a plain call": ("/v1/responses", {"model": "ADMIN-utility", "input": [said] * 20_000, "instructions": "a"}),
        "parts of an item": ("/v1/responses", {"input": [{"role": "user", "content": parts}]}),
        "messages of a run": ("/v1/agui/ADMIN", {**run, "messages": [{"id": "1", **said}] * 20_001}),
        "parts of a run": ("/v1/agui/ADMIN", {**run, "messages": [{"id": "1", "role": "user", "content": parts}]}),
        "files": (f"/v1/sessions/{session_id}/messages", {"message": "hi", "files": [{"data": ""}] * 1_001}),
        "criteria": (f"/v1/sessions/{session_id}/messages", {"message": "hi", "acceptance": ["min_chars:1"] * 1_001}),
    }


@ON_ASYNCIO
async def test_more_items_than_can_be_are_refused_at_every_door(tmp_path: Path) -> None:
    """Regression: 20,000 items of a response were a failure of the server, with an error in its log."""
    root = tmp_path / "root"
    async with serving(root) as client:
        session_id = (await client.ask("POST", "/v1/sessions", {})).json["session_id"]
        before = await left(client, root)
        for name, (path, body) in too_many(session_id).items():
            asked = await client.ask("POST", path, body)
            assert (asked.status, asked.code, await left(client, root)) == (400, "invalid_request", before), (name, asked.body)
        assert client.provider.requests == []


@ON_TRIO
async def test_as_many_items_as_can_be_are_taken(tmp_path: Path) -> None:
    items = [{"role": "system", "content": "a"}] * 19_998
    async with serving(tmp_path / "root") as client:
        for model in ("ADMIN", "ADMIN-utility"):
            asked = await client.ask(
                "POST",
                "/v1/responses",
                {"model": model, "input": [*items, {"role": "user", "content": "hi"}], "instructions": "be brief"},
            )
            assert (asked.status, asked.json["status"]) == (200, "completed")
