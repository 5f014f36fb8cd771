"""The official Python client of the OpenAI API against a server on this machine, over real connections.

The server's own library runs on asyncio only, and so do these tests.
"""

import signal
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import anyio
import pytest
from openai import APIStatusError, AsyncOpenAI

from kitchener.config import ServeConfig
from kitchener.serve.application import open_listener
from kitchener.serve.listening import listen
from kitchener.testing import ScriptedProvider
from tests.acceptance.stack import Hold, echo
from tests.serve.requests import Client, serving


@pytest.fixture(scope="module")
def anyio_backend() -> str:
    """uvicorn runs on asyncio."""
    return "asyncio"


@dataclass
class Real:
    """A server that listens, and its client."""

    openai: AsyncOpenAI
    inside: Client
    drain: Callable[[], object]
    ended: list[bool]


@asynccontextmanager
async def listening(root: Path, provider: ScriptedProvider | None = None) -> AsyncIterator[Real]:
    """A server on a free port until the block ends, which drains it."""
    told: list[Callable[[signal.Signals], bool | None]] = []
    ready, ended = anyio.Event(), list[bool]()

    @asynccontextmanager
    async def on_signal(first: Callable[[signal.Signals], bool | None]) -> AsyncIterator[None]:
        told.append(first)
        yield

    async with serving(root, provider) as inside, anyio.create_task_group() as tasks:
        listener = open_listener(ServeConfig(port=0))

        async def run() -> None:
            ended.append(
                await listen(inside.server, listener, config=inside.runtime.config, on_signal=on_signal, ready=ready.set)
            )

        tasks.start_soon(run)
        await ready.wait()
        url = f"http://127.0.0.1:{listener.getsockname()[1]}/v1"
        async with AsyncOpenAI(base_url=url, api_key="any", max_retries=0, timeout=20) as client:
            yield Real(client, inside, lambda: told[0](signal.SIGTERM), ended)
            told[0](signal.SIGTERM)


async def test_models_replies_streams_and_errors_are_what_it_expects(tmp_path: Path) -> None:
    async with listening(tmp_path / "root") as real:
        models = await real.openai.models.list()
        assert [each.id for each in models.data] == ["ADMIN", "ADMIN-utility"]
        assert (await real.openai.models.retrieve("ADMIN")).owned_by == "kitchener"
        whole = await real.openai.chat.completions.create(model="ADMIN", messages=[{"role": "user", "content": "hello"}])
        assert whole.choices[0].message.content == "echo: hello"
        assert whole.usage is not None
        stream = await real.openai.chat.completions.create(
            model="ADMIN",
            messages=[{"role": "user", "content": "one two"}],
            stream=True,
            stream_options={"include_usage": True},
        )
        chunks = [each async for each in stream]
        text = "".join(each.choices[0].delta.content or "" for each in chunks if each.choices)
        assert (text, chunks[-1].usage is not None) == ("echo: one two", True)
        with pytest.raises(APIStatusError) as caught:
            await real.openai.chat.completions.create(model="NOBODY", messages=[{"role": "user", "content": "hello"}])
        assert (caught.value.status_code, caught.value.code) == (404, "model_not_found")


async def test_a_client_that_closes_its_stream_leaves_the_turn_to_the_session(tmp_path: Path) -> None:
    hold = Hold("wait", wo_type="synthesize")
    async with listening(tmp_path / "root", ScriptedProvider(echo, gate=hold)) as real:
        headers = {"X-Chat-Id": "c"}

        async def ask() -> None:
            await real.openai.chat.completions.create(
                model="ADMIN", messages=[{"role": "user", "content": "wait"}], stream=True, extra_headers=headers
            )

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(ask)
            await hold.arrived["wait"].wait()
            tasks.cancel_scope.cancel()
        hold.released["wait"].set()
        said = await real.openai.chat.completions.create(
            model="ADMIN",
            messages=[
                {"role": "user", "content": "wait"},
                {"role": "assistant", "content": "echo:"},
                {"role": "user", "content": "and?"},
            ],
            extra_headers=headers,
        )
        (session,) = await real.inside.runtime.sessions()
        assert (said.choices[0].message.content, session.turns) == ("echo: and?", 2)


async def test_a_signal_lets_the_running_reply_finish(tmp_path: Path) -> None:
    hold = Hold("wait", wo_type="synthesize")
    async with listening(tmp_path / "root", ScriptedProvider(echo, gate=hold)) as real:
        replies: list[str | None] = []

        async def ask() -> None:
            found = await real.openai.chat.completions.create(model="ADMIN", messages=[{"role": "user", "content": "wait"}])
            replies.append(found.choices[0].message.content)

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(ask)
            await hold.arrived["wait"].wait()
            real.drain()
            hold.released["wait"].set()
        assert replies == ["echo: wait"]
    assert real.ended == [True]
