"""The requests and turns that count for `max_requests` and `schema_ms_per_minute` of a key (docs/server.md)."""

from collections.abc import Mapping
from itertools import count
from pathlib import Path
from typing import Any

import anyio
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kitchener.config import ServeClientConfig
from kitchener.schemas import compiled_schemas
from kitchener.serve.access.allowances import Allowance, RequestPlace
from kitchener.serve.problems import RequestRefused
from kitchener.testing import ScriptedProvider
from tests.acceptance.stack import Hold, echo
from tests.serve.shared.functions import NESTED
from tests.serve.shared.requests import COMPLETIONS, Asked, Client, chat_body, serving
from tests.shared.event_loops import ON_TRIO

KEYS = {"ada": "key-of-ada-0123456789", "bob": "key-of-bob-0123456789"}
RESPONSES = "/v1/responses"


@pytest.fixture(autouse=True)
def keys(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, key in KEYS.items():
        monkeypatch.setenv(f"{name.upper()}_KEY", key)


def clients(**of_ada: Any) -> dict[str, Any]:
    """The settings of a server with two keys."""
    found = {name: ServeClientConfig(key=f"env:{name.upper()}_KEY", subject=name, **of_ada) for name in KEYS}
    return {"clients": {**found, "bob": ServeClientConfig(key="env:BOB_KEY", subject="bob")}}


def of(client: Client, name: str) -> Client:
    return client.with_headers(authorization=f"Bearer {KEYS[name]}")


async def ended(ada: Client, path: str) -> None:
    """Waits for the end of a response."""
    with anyio.fail_after(20):
        while (await ada.ask("GET", path)).json["status"] == "in_progress":
            await anyio.lowlevel.checkpoint()


@ON_TRIO
async def test_a_turn_in_the_background_keeps_its_place_until_it_ends(tmp_path: Path) -> None:
    hold = Hold("wait", wo_type="synthesize")
    settings = clients(max_requests=2, requests_per_minute=1_000_000)
    async with serving(tmp_path / "root", ScriptedProvider(echo, gate=hold), serve=settings) as client:
        ada, in_background = of(client, "ada"), {"model": "ADMIN", "input": "wait", "background": True}
        begun = [await ada.ask("POST", RESPONSES, in_background) for _ in range(2)]
        sessions = await client.runtime.sessions("ADMIN")
        for door, body in ((RESPONSES, in_background), (COMPLETIONS, chat_body("hello")), ("/v1/agui/ADMIN", run("hello"))):
            refused = await ada.ask("POST", door, body)
            assert (refused.status, refused.code, refused.headers["retry-after"]) == (429, "too_many_requests", "1")
        assert await client.runtime.sessions("ADMIN") == sessions  # what is refused leaves no session
        assert (await of(client, "bob").chat("hello")).status == 200
        paths = [f"{RESPONSES}/{each.json['id']}" for each in begun]
        assert [(await ada.ask("GET", each)).json["status"] for each in paths] == ["in_progress"] * 2  # it still may look
        assert (await ada.ask("POST", f"{paths[0]}/cancel")).json["status"] == "cancelled"  # and stop them
        assert (await ada.chat("hello")).status == 200
        hold.released["wait"].set()
        await ended(ada, paths[1])
        assert (await ada.ask("POST", RESPONSES, {"model": "ADMIN", "input": "hello"})).status == 200


@pytest.mark.parametrize("stream", [False, True])
async def test_a_turn_whose_client_went_away_keeps_its_place_until_it_ends(tmp_path: Path, stream: bool) -> None:
    hold = Hold("wait", wo_type="synthesize")
    settings = clients(max_requests=1, requests_per_minute=1_000_000)
    async with serving(tmp_path / "root", ScriptedProvider(echo, gate=hold), serve=settings) as client:
        ada, asked = of(client, "ada"), Asked()
        asked.taking.set()
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(ada.run, asked, "POST", COMPLETIONS, chat_body("wait", stream=stream))
            await hold.arrived["wait"].wait()
            asked.gone.set()
            await asked.done.wait()
        assert ((await ada.chat("hello")).code, (await ada.ask("GET", "/v1/models")).status) == ("too_many_requests", 200)
        hold.released["wait"].set()
        with anyio.fail_after(20):
            while (await ada.chat("hello")).status == 429:
                await anyio.lowlevel.checkpoint()


async def test_turns_that_fail_give_their_places_back(tmp_path: Path) -> None:
    """Also those that are refused after they have begun."""
    settings = clients(max_requests=1, requests_per_minute=1_000_000)
    async with serving(tmp_path / "root", serve=settings) as client:
        ada = of(client, "ada")
        session_id = (await ada.ask("POST", "/v1/sessions", {})).json["session_id"]
        for _ in range(3):
            asked = await ada.ask("POST", f"/v1/sessions/{session_id}/messages", {"message": "hello", "speaker": " "})
            assert asked.status == 400
        assert (await ada.chat("hello")).status == 200


@given(st.lists(st.sampled_from(["request", "turn", "leave", "end"]), max_size=60))
def test_places_are_those_of_requests_and_of_turns_that_outlive_them(steps: list[str]) -> None:
    allowance = Allowance(1, 3, 1)
    places, turns = dict[RequestPlace, bool](), list[RequestPlace]()  # whether the request runs
    for step in steps:
        running = [each for each, runs in places.items() if runs]
        if step == "request":
            places[RequestPlace((allowance,))] = True
        elif step == "turn" and running:
            running[0].begin_turn()
            turns.append(running[0])
        elif step == "leave" and running:
            running[0].leave()
            places[running[0]] = False
        elif step == "end" and turns:
            turns.pop().end_turn()
        here, gone = sum(places.values()), {each for each in turns if not places[each]}
        assert (allowance.running, allowance.left_behind) == (here, len(gone))
        if places and here + len(gone) > 3:
            with pytest.raises(RequestRefused):
                next(iter(places)).check_turn()


def run(text: str) -> Mapping[str, Any]:
    """The input of a run of an AG-UI front end."""
    return {"threadId": "thread", "runId": "run", "messages": [{"id": "1", "role": "user", "content": text}]}


def function(name: str) -> dict[str, Any]:
    """A function that the server has not seen."""
    return {"type": "function", "function": {**NESTED["function"], "name": name}}


class TestSchemas:
    @pytest.fixture(autouse=True)
    def moving_clock(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """A clock of processor time that moves on by 0.01 s each time it is read: all that may be used at once, and more."""
        times = (0.01 * number for number in count())
        monkeypatch.setattr(compiled_schemas, "thread_time", lambda: next(times))

    async def test_new_schemas_count_and_known_ones_do_not(self, tmp_path: Path) -> None:
        settings = clients(schema_ms_per_minute=10, requests_per_minute=1_000_000)
        root = tmp_path / "root"
        names = [f"{each}_of_{tmp_path.name}" for each in ("first", "second")]
        async with serving(root, serve=settings) as client:
            ada, bob = of(client, "ada"), of(client, "bob")
            assert (await ada.chat("one", tools=[function(names[0])])).status == 200
            sessions = await client.runtime.sessions("ADMIN")
            refused = await ada.chat("two", tools=[function(names[1])])
            assert (refused.status, refused.code, int(refused.headers["retry-after"]) >= 1) == (429, "rate_limited", True)
            assert await client.runtime.sessions("ADMIN") == sessions
            assert (await ada.chat("two", tools=[function(names[0])])).status == 200
            assert (await bob.chat("two", tools=[function(names[1])])).status == 200
            assert (await ada.chat("two", tools=[function(names[1])])).status == 200  # somebody else has had it compiled

    async def test_what_is_refused_counts_once_too(self, tmp_path: Path) -> None:
        settings = clients(schema_ms_per_minute=10, requests_per_minute=1_000_000)
        async with serving(tmp_path / "root", serve=settings) as client:
            ada, wrong = of(client, "ada"), {"type": "object", "title": tmp_path.name, "properties": {"a": {"type": "x"}}}
            form = {"type": "json_schema", "json_schema": {"name": "f", "schema": wrong}}
            found = [await ada.chat("hello", response_format=form) for _ in range(3)]
            assert [each.status for each in found] == [400] * 3
            other = {"type": "json_schema", "json_schema": {"schema": {**wrong, "title": "other"}}}
            assert (await ada.chat("hello", response_format=other)).status == 429
