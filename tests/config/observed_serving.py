"""What a user sees of the settings of `[serve]`: who is let in, as whom, how much of it, and what becomes of who goes away."""

import os
import time
from collections.abc import AsyncIterator, Hashable
from pathlib import Path
from typing import Any

import anyio
import jwt
import pytest

from kitchener.cli.serve.serve_command import wait_for_root
from kitchener.config import RuntimeConfig, ServeConfig
from kitchener.errors import ConfigError
from kitchener.records.prompt import PromptRequest, PromptResponse, TextPiece
from kitchener.runtime.root_layout import ledger_paths
from kitchener.serve.application import open_listener
from kitchener.testing import ScriptedProvider
from tests.acceptance.stack import echo
from tests.actors.time_control import settle
from tests.config.observed_turns import Gate, pass_time, until
from tests.ledger.support import open_ledger
from tests.serve.shared.requests import COMPLETIONS, Asked, Client, chat_body, run_request, serving

KEY = "a-key-of-this-test"
CLIENT = {"key": "env:SERVED_KEY", "subject": "ada"}
_LOOKS = 500
"""How often a stream is looked at before nothing more is expected of it."""


async def client_asked(root: Path, key: str, value: Any, **others: Any) -> Hashable:
    """Three requests of one configured client, and whose session it has then."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SERVED_KEY", KEY)
        patch.setenv("OTHER_KEY", f"other-{KEY}")
        settings = {"clients": {"desk": {**CLIENT, key: value, **others}}}
        async with serving(root, serve=settings, agents={"OTHER": {}}) as client:
            desk = client.with_headers(authorization=f"Bearer {KEY}", x_kitchener_subject="bob")
            found = [await desk.chat("hello", model=each) for each in ("ADMIN", "OTHER", "ADMIN")]
            sessions = await client.runtime.sessions()
    return tuple(each.status for each in found), tuple(each.subject_id for each in sessions)


async def client_crowded(root: Path, **settings: Any) -> Hashable:
    """A request of a client while another one of it runs."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SERVED_KEY", KEY)
        return await crowded(root, clients={"desk": {**CLIENT, **settings}})


async def client_schemas(root: Path, **settings: Any) -> Hashable:
    """Two requests of a client, each with a schema that is new."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SERVED_KEY", KEY)
        async with serving(root, serve={"clients": {"desk": {**CLIENT, **settings}}}) as client:
            here, found = client.with_headers(authorization=f"Bearer {KEY}"), list[int]()
            for number in range(2):
                form = {"schema": {"type": "object", "title": f"{root} {number}"}}
                wanted = {"type": "json_schema", "json_schema": form}
                found.append((await here.chat("hello", response_format=wanted)).status)
    return tuple(found)


async def client_subject(root: Path, **settings: Any) -> Hashable:
    """Requests of a front end's key for one subject."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SERVED_KEY", KEY)
        key = {"key": "env:SERVED_KEY", "rights": ("chat", "act_for"), "requests_per_minute": 40, **settings}
        async with serving(root, serve={"clients": {"desk": key}}) as client:
            here = client.with_headers(authorization=f"Bearer {KEY}", x_kitchener_subject="ada")
            return tuple([(await here.ask("GET", "/v1/me")).status for _ in range(3)])


async def guessed(root: Path, **serve: Any) -> Hashable:
    """Wrong keys from what is, or is said to be, two addresses."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SERVED_KEY", KEY)
        settings = {"wrong_keys_per_minute": 1, "clients": {"desk": CLIENT}, **serve}
        async with serving(root, serve=settings) as client:
            guess = {"authorization": f"Bearer wrong-{KEY}"}
            asked = [await client.ask("GET", "/v1/models", **guess, x_forwarded_for=f"192.0.2.{each}") for each in (1, 2, 1)]
    return tuple(each.status for each in asked)


async def crowded(root: Path, **serve: Any) -> Hashable:
    """A request while another one runs."""
    gate = Gate("synthesize")
    async with serving(root, ScriptedProvider(echo, gate=gate), serve=serve) as client, anyio.create_task_group() as tasks:
        here = client.with_headers(authorization=f"Bearer {KEY}")
        tasks.start_soon(here.chat, "wait")
        await until(lambda: gate.arrived == 1)
        status = (await here.ask("GET", "/v1/models")).status
        gate.opened.set()
    return status


async def paged(root: Path, **serve: Any) -> Hashable:
    """What is at `/`."""
    async with serving(root, serve=serve) as client:
        return (await client.ask("GET", "/")).status


async def named(root: Path, **serve: Any) -> Hashable:
    """Two messages that name the conversation and the host in ways that the settings may know."""
    async with serving(root, serve=serve) as client:
        headers = {"x_room": "r", "host": "chat.example"}
        for messages in (("one",), ("one", "echo: one", "two")):
            status = (await client.ask("POST", COMPLETIONS, chat_body(*messages, prompt_cache_key="k"), **headers)).status
            if status != 200:
                return status
        found = await client.runtime.sessions()
    return tuple((each.subject_id, each.turns) for each in found)


async def named_here(root: Path, **serve: Any) -> Hashable:
    """As `named`, by a name of this machine."""
    return await named(root, allowed_hosts=("chat.example",), **serve)


async def acted_for(root: Path, **serve: Any) -> Hashable:
    """A message of a client that names the subject in one of two headers."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SERVED_KEY", KEY)
        clients = {"desk": {"key": "env:SERVED_KEY", "rights": ("chat", "act_for")}}
        async with serving(root, serve={"clients": clients, **serve}) as client:
            here = client.with_headers(authorization=f"Bearer {KEY}", x_kitchener_subject="ada", x_person="bob")
            await here.chat("hello")
            return tuple(each.subject_id for each in await client.runtime.sessions())


async def signed_for(root: Path, **serve: Any) -> Hashable:
    """A message of a client that signs whom it is for, in one of two headers."""
    return await _signed(root, "env:SERVED_SECRET", **serve)


async def signed_with(root: Path, subject_secret: str) -> Hashable:
    """A message of a client that signs whom it is for, with one of two secrets."""
    return await _signed(root, subject_secret)


async def _signed(root: Path, secret: str, **serve: Any) -> Hashable:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SERVED_KEY", KEY)
        patch.setenv("SERVED_SECRET", "a" * 32)
        patch.setenv("OTHER_SECRET", "b" * 32)
        clients = {"desk": {"key": "env:SERVED_KEY", "rights": ("chat", "act_for"), "subject_secret": secret}}
        ada, bob = (jwt.encode({"sub": name, "exp": 2**40}, "a" * 32, "HS256") for name in ("ada", "bob"))
        async with serving(root, serve={"clients": clients, **serve}) as client:
            await client.with_headers(authorization=f"Bearer {KEY}", x_openwebui_user_jwt=ada, x_signed=bob).chat("hello")
            return tuple(each.subject_id for each in await client.runtime.sessions())


async def titled(root: Path, **serve: Any) -> Hashable:
    """A first message that may be a client's prompt for a title."""
    async with serving(root, serve=serve) as client:
        await client.chat("A title for: hello")
        return len(await client.runtime.sessions())


async def summed_up(root: Path, **serve: Any) -> Hashable:
    """A later message that may be a client's prompt for a summary."""
    async with serving(root, serve=serve) as client:
        await client.chat("one", "echo: one", "Sum up: all of it")
        return len(await client.runtime.sessions())


async def plain_models(root: Path, **serve: Any) -> Hashable:
    """The answer of the model for titles."""
    async with serving(root, serve=serve) as client:
        return (await client.chat("A title for: hello", model="ADMIN-utility")).status


async def left(root: Path, **serve: Any) -> Hashable:
    """The turn of a client that goes away."""
    gate = Gate("synthesize")
    async with serving(root, ScriptedProvider(echo, gate=gate), serve=serve) as client:
        await _ask_and_leave(client, gate)
        gate.opened.set()
        await client.runtime.drain()
        return (
            await client.runtime.supervisor().session((await client.runtime.sessions())[0].session_id)
        ).state.completed_turns


async def _ask_and_leave(client: Client, gate: Gate) -> None:
    asked = Asked()
    asked.taking.set()
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(client.run, asked, "POST", COMPLETIONS, chat_body("wait"))
        await until(lambda: gate.arrived == 1)
        asked.gone.set()
        await asked.done.wait()


async def long_body(root: Path, **serve: Any) -> Hashable:
    """A request of some two thousand bytes."""
    async with serving(root, serve=serve) as client:
        return (await client.chat("x" * 2_000)).status


async def client_long_body(root: Path, max_request_bytes: int | None) -> Hashable:
    """A request of some two thousand bytes, of a configured client."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("SERVED_KEY", KEY)
        clients = {"desk": {**CLIENT, "max_request_bytes": max_request_bytes}}
        async with serving(root, serve={"clients": clients}) as client:
            return (await client.with_headers(authorization=f"Bearer {KEY}").chat("x" * 2_000)).status


async def slow_body(root: Path, **serve: Any) -> Hashable:
    """A client that sends nothing of its body for a while, and then goes away."""
    async with serving(root, serve=serve) as client, anyio.create_task_group() as tasks:
        asked = Asked()
        asked.taking.set()
        tasks.start_soon(run_request, client.server.app, asked, "POST", COMPLETIONS, [], {})
        await settle()
        await pass_time()
        status = asked.status
        asked.gone.set()
    return status


class _Halting(ScriptedProvider):
    """A model that says two words, and a third one when its gate opens."""

    def __init__(self) -> None:
        super().__init__(echo)
        self.opened = anyio.Event()

    async def stream(self, request: PromptRequest) -> AsyncIterator[TextPiece | PromptResponse]:
        """The answer in three pieces."""
        response = await self.complete(request)
        *_, last = words = response.text.split(" ")
        for word in words[:-1]:
            yield TextPiece(1, f"{word} ")
            await settle()
        await self.opened.wait()
        yield TextPiece(1, last)
        yield response


async def streamed(root: Path, **serve: Any) -> Hashable:
    """How much of a reply a client has, of which the model has said all words but one, while no time passes."""
    model = _Halting()
    async with serving(root, model, serve=serve) as client, anyio.create_task_group() as tasks:
        asked = Asked()
        asked.taking.set()
        tasks.start_soon(client.run, asked, "POST", COMPLETIONS, chat_body("one two", stream=True))
        await asked.arrived.wait()
        for _ in range(_LOOKS):
            if "one" in asked.text:
                break
            await anyio.to_thread.run_sync(time.sleep, 0.001)
        found = asked.text
        model.opened.set()
    return found


async def listened(root: Path, key: str, value: Any) -> Hashable:
    """Where a server listens, or why it does not."""
    try:
        with open_listener(ServeConfig(**{"port": 0, key: value})) as listener:
            host, port = listener.getsockname()[:2]
    except ConfigError as error:
        return error.key
    return str(host), port == value


async def waited_for(root: Path, **serve: Any) -> Hashable:
    """Whether a server still waits for the root after a while in which another process has it."""
    config = RuntimeConfig(plane_root=str(root), serve=ServeConfig(**serve))
    waiting = list[bool]([True])

    async def wait() -> None:
        await wait_for_root(config)
        waiting[0] = False

    async with open_ledger(ledger_paths(config, "ADMIN")["ho2m"]), anyio.create_task_group() as tasks:
        tasks.start_soon(wait)
        await settle()
        await pass_time()
        tasks.cancel_scope.cancel()
    return waiting[0]


FREE_PORT = 20_000 + os.getpid() % 20_000
