"""A client of the administration socket misbehaves while a second subject is served (docs/security.md)."""

import errno
import struct
from contextlib import suppress
from pathlib import Path
from typing import Any

import anyio
import anyio.lowlevel
import orjson
import pytest
from anyio.abc import SocketListener

from kitchener.errors import AdminRefused, AdminUnanswered, AdminUnavailable, CallerError
from kitchener.runtime.admin import listener, socket_place
from kitchener.runtime.admin.admin_client import ask
from kitchener.runtime.admin.operations import (
    OPERATIONS,
    EndSession,
    EraseSubject,
    ImportOverlays,
    ImportSession,
    ReadStatistics,
)
from kitchener.runtime.admin.wire import encoded_refusal
from tests.acceptance.stack import read_all
from tests.actors.time_control import settle
from tests.hostile.kit import bystander
from tests.runtime.admin.admin_kit import framed, listening, listening_config, raw, request, socket_of
from tests.shared.logs import captured_logs

WRONG: list[tuple[Any, str]] = [
    (b"", "not JSON"),
    (b"\xff\xfe", "not JSON"),
    (b"[" * 100_000, "not JSON"),
    ([1], "no version"),
    ({}, "no version"),
    (request(v=2), "version 2"),
    (request(v="1"), "no version"),
    ({**request(), "op": 7}, "right type"),
    (request(args=[]), "right type"),
    (request(deadline_s=0), "right type"),
    (request(deadline_s="soon"), "right type"),
    (request("erase everything"), "knows no operation 'erase everything'"),
    (request("x" * 100_000), "knows no operation"),
    (request("session.end"), "agent_class: Field required"),
    (request("session.end", args={"agent_class": "ADMIN", "session_id": "SES-1", "and": 1}), "and: Extra inputs"),
    (request("subject.erase", args={"subject_id": 7}), "subject_id: Input should be a valid string"),
]


async def test_a_request_that_is_wrong_is_told_so_and_does_nothing(tmp_path: Path) -> None:
    async with listening(tmp_path) as runtime, bystander(runtime):
        for message, expected in WRONG:
            answered = await raw(tmp_path, framed(message))
            assert answered["v"] == 1
            assert answered["error"]["kind"] == "AdminUnavailable"
            assert expected in answered["error"]["message"]
            assert len(answered["error"]["message"]) < 1_000
        written = await read_all(runtime.ledgers().ho2m)
        assert {each.payload["subject_id"] for each in written} == {"bo"}


@pytest.mark.parametrize("anyio_backend", ["asyncio"])  # arguments are checked without waiting
@pytest.mark.parametrize("one_in", [3, pytest.param(1, marks=pytest.mark.soak)])
async def test_arguments_of_any_value_are_refused_by_every_operation(tmp_path: Path, one_in: int) -> None:
    """Each operation is given a third of the values, which take turns, or all of them."""
    strange: list[Any] = [None, True, -1, 1e308, "", "\0", "../../etc", "x" * 5_000, [], [[]], {}, {"a": {"b": []}}]
    async with listening(tmp_path) as runtime, bystander(runtime):
        for at, (op, kind) in enumerate(OPERATIONS.items()):
            for value in strange[at % one_in :: one_in] if kind.model_fields else ():
                args = dict.fromkeys(kind.model_fields, value)
                answered = await raw(tmp_path, framed(request(op, args=args)))
                assert set(answered) == {"v", "error"}, (op, value, answered)
                assert "inside the running process" not in answered["error"]["message"], (op, value)
        written = await read_all(runtime.ledgers().ho2m)
        assert {each.payload["subject_id"] for each in written} == {"bo"}


async def test_a_text_that_is_no_unicode_is_refused_before_it_is_sent_and_told_where_it_is_in_an_error() -> None:
    with pytest.raises(CallerError, match=r"session_id = '.udcff': is not Unicode text"):
        EndSession(agent_class="ADMIN", session_id="\udcff")
    told = orjson.loads(encoded_refusal("KitchenerError", "the file \udcff is missing")[4:])
    assert told["error"]["message"] == "the file ? is missing"


async def test_a_path_that_is_no_unicode_is_refused_before_it_is_sent(tmp_path: Path) -> None:
    async with listening(tmp_path) as runtime, bystander(runtime):
        with pytest.raises(AdminUnavailable, match=r"session.import: a path is not Unicode text.*nothing was done"):
            await ask(listening_config(tmp_path), ImportSession(folder=tmp_path / "\udcff"))


async def test_a_request_that_is_too_large_is_refused_before_it_is_read(tmp_path: Path) -> None:
    async with listening(tmp_path) as runtime, bystander(runtime):
        for size in (4_194_305, 2**31, 2**32 - 1):
            answered = await raw(tmp_path, struct.pack(">I", size))
            assert "more than 4,194,304; nothing was done" in answered["error"]["message"]
        large = ImportOverlays(agent_class="ADMIN", overlays={"ada": [{"text": "x" * 4_194_304}]})
        with pytest.raises(AdminUnavailable, match=r"more than 4,194,304, .* in smaller parts"):
            await ask(listening_config(tmp_path), large)


async def test_clients_that_stay_silent_or_go_keep_nobody_out_for_long(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One sends a byte and waits, one goes in the middle of its request, one before it reads the answer. How long a request may
    run does not matter to that."""
    monkeypatch.setattr(listener, "TRANSFER_S", 0.2)
    async with listening(tmp_path, admin={"deadline_s": 1_000.0}) as runtime, bystander(runtime):
        for cut in (1, 4, 20):
            async with await anyio.connect_unix(socket_of(tmp_path)) as stream:
                await stream.send(framed(request())[:cut])
        async with await anyio.connect_unix(socket_of(tmp_path)) as stream:
            await stream.send(framed(request()))
        silent = [await anyio.connect_unix(socket_of(tmp_path)) for _ in range(12)]
        for stream in silent:
            with suppress(anyio.BrokenResourceError):  # refused already
                await stream.send(b"\0")
        refusals, is_answered = list[str](), False
        with anyio.fail_after(20):
            while not is_answered:
                try:
                    await ask(listening_config(tmp_path), ReadStatistics())
                    is_answered = True
                except AdminUnavailable as refused:
                    refusals.append(str(refused))
        assert all("8 administration connections are open" in each for each in refusals)
        for stream in silent:
            await stream.aclose()


async def test_an_operation_goes_on_when_its_client_has_gone(tmp_path: Path) -> None:
    async with listening(tmp_path) as runtime, bystander(runtime):
        supervisor = runtime.supervisor()
        session_id = await supervisor.start_session(subject_id="ada")
        async with await anyio.connect_unix(socket_of(tmp_path)) as stream:
            args = {"agent_class": "ADMIN", "session_id": session_id}
            await stream.send(framed(request("session.end", args=args)))
        with anyio.fail_after(20):
            while not (await supervisor.session(session_id)).state.is_ended:
                await anyio.lowlevel.checkpoint()


async def test_a_flood_of_clients_delays_nobody(tmp_path: Path) -> None:
    async with listening(tmp_path) as runtime, bystander(runtime), anyio.create_task_group() as tasks:

        async def flood() -> None:
            for _ in range(5):
                with suppress(AdminRefused, AdminUnavailable):
                    await ask(listening_config(tmp_path), EndSession(agent_class="ADMIN", session_id="SES-00000000"))

        for _ in range(16):
            tasks.start_soon(flood)


@pytest.mark.parametrize(
    "given",
    [
        b"",
        b"\0\0",
        framed(b"{"),
        framed(b"[" * 9_000),
        framed([1]),
        framed({"v": 1}),
        framed({"v": 2, "result": {}}),
        framed({"v": 1, "result": [7]}),
        struct.pack(">I", 2**32 - 1),
    ],
    ids=["nothing", "half", "text", "deep", "list", "empty", "version", "shape", "huge"],
)
async def test_an_answer_that_is_none_is_told_as_a_change_that_may_have_been_made(tmp_path: Path, given: bytes) -> None:
    claimed = socket_place.claim(tmp_path)
    accepting = await SocketListener.from_socket(claimed.sock)

    async def answer() -> None:
        async with accepting, await accepting.accept() as stream:
            await stream.receive()
            await stream.send(given) if given else None

    async with anyio.create_task_group() as tasks:
        tasks.start_soon(answer)
        with pytest.raises(AdminUnanswered, match="the change may have been made"):
            await ask(listening_config(tmp_path), EraseSubject(subject_id="ada"))
    socket_place.release(tmp_path, claimed)


async def test_a_socket_that_the_system_takes_away_costs_the_commands_and_no_turn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Regression: it ended the runtime."""

    class Gone:
        async def __aenter__(self) -> None:
            return None

        async def __aexit__(self, *_: object) -> None:
            return None

        async def accept(self) -> None:
            await anyio.lowlevel.checkpoint()
            raise OSError(errno.EBADF, "Bad file descriptor")

    async def from_socket(_: object) -> Gone:
        return Gone()

    monkeypatch.setattr(SocketListener, "from_socket", from_socket)
    with captured_logs() as logs:
        async with listening(tmp_path) as runtime, bystander(runtime):
            await settle()
    assert [each["event"] for each in logs if each["log_level"] == "error"] == ["administration socket given up"]
