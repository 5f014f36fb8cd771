"""Conversations of other programs become sessions: whole or not at all, once, with times and speakers (docs/sessions.md)."""

import json
import os
import shutil
from pathlib import Path
from typing import Any

import anyio
import pytest

from kitchener import open_runtime, replay_session
from kitchener.config import LimitsConfig
from kitchener.errors import CallerError, ConfigError, LedgerLocked
from kitchener.records import events
from kitchener.runtime import erase_subject, export_session, import_conversations, import_session
from kitchener.runtime.admin.operations import ImportConversations
from kitchener.runtime.administration import administer
from kitchener.sealed_values import is_sealed
from tests.acceptance.replies.content_kit import config, entries, model, replies, running

CHOIR: dict[str, Any] = {
    "session": "chat-1",
    "title": "The choir",
    "messages": [
        {"role": "user", "content": "The choir sings on Mondays", "speaker": "Adalbert", "time": "2024-05-08T13:56:00Z"},
        {"role": "assistant", "content": "Where does it meet?", "time": "2024-05-08T13:57:00Z"},
        {"role": "user", "content": "In the old mill", "speaker": "Bonifacio"},
        {"role": "user", "content": "Bring the flute", "speaker": "Adalbert", "time": "2024-05-10"},
    ],
}
FLAT: list[dict[str, Any]] = [
    {"session": "chat-2", "role": "user", "content": "My boat is green"},
    {"session": "chat-2", "role": "assistant", "content": "A fine colour", "speaker": "Botto"},
]


def written(path: Path, *lines: object) -> Path:
    path.write_text("".join(f"{each if isinstance(each, str) else json.dumps(each)}\n" for each in lines), encoding="utf-8")
    return path


async def test_conversations_are_sessions_with_times_and_speakers(tmp_path: Path) -> None:
    settings, steps = config(tmp_path / "root"), list[int]()
    file = written(tmp_path / "chats.jsonl", CHOIR, "", *FLAT)
    made = await import_conversations(file, subject_id="ada", config=settings, on_step=lambda: steps.append(1))
    assert [(each.external_id, each.messages, each.was_there) for each in made.conversations] == [
        ("chat-1", 4, False),
        ("chat-2", 2, False),
    ]
    assert len(steps) == 2
    async with running(settings) as runtime:
        supervisor = runtime.supervisor()
        first, second = [await supervisor.session(each.session_id) for each in made.conversations]
        told = [each async for each in first.read_history()]
        assert [(each.started_at[:16], each.speaker, each.user_message, each.response) for each in told] == [
            ("2024-05-08T13:56", "Adalbert", "The choir sings on Mondays", "Where does it meet?"),
            ("2024-05-08T13:57", "Bonifacio", "In the old mill", ""),
            ("2024-05-10T00:00", "Adalbert", "Bring the flute", ""),
        ]
        assert all(each.is_imported for each in told)
        (only,) = [each async for each in second.read_history()]
        assert (only.started_at, only.response, only.replied_by) == ("", "A fine colour", "Botto")
        assert await supervisor.find_external("chat-1", subject_id="ada") == first.session_id
        assert {each.turns for each in await runtime.sessions(subject_id="ada")} == {4, 2}
    assert not await entries(settings, events.TURN_STARTED)
    assert not await entries(settings, events.WO_PLANNED)


@pytest.mark.parametrize("mode", ["enforce", "off", "shadow"])
async def test_a_session_goes_on_where_another_program_ended_and_replays(tmp_path: Path, mode: str) -> None:
    settings, provider = config(tmp_path / "root", context_mode=mode), model()
    made = await import_conversations(written(tmp_path / "c.jsonl", CHOIR), subject_id="ada", config=settings)
    session_id = made.conversations[0].session_id
    async with running(settings, provider) as runtime:
        result = await runtime.supervisor().handle_turn("where does the choir meet?", session_id=session_id)
        await runtime.supervisor().handle_turn("thanks", session_id=session_id)
    (begun, _) = await entries(settings, events.TURN_STARTED)
    assert begun.entity_id.endswith("-000005")
    text = "\n".join(each.content for each in replies(provider)[0].messages)
    assert "Adalbert: The choir sings on Mondays\n" in text
    assert "Bonifacio: In the old mill" in text
    if mode == "enforce":
        assert "[Wed 2024-05-08]" in text
        assert "[Fri 2024-05-10]" in text
    assert result.session_id == session_id
    report = await replay_session(session_id, config=settings)
    assert report.divergence is None
    assert len(report.turns) == 2


async def test_other_sessions_of_the_subject_recall_it_and_other_subjects_do_not(tmp_path: Path) -> None:
    settings, provider = config(tmp_path / "root", recall_scope="subject"), model()
    file = written(tmp_path / "c.jsonl", CHOIR)
    await import_conversations(file, subject_id="ada", config=settings)
    async with running(settings, provider) as runtime:
        mine = await runtime.supervisor().handle_turn("when does the choir sing?", subject_id="ada")
        await runtime.supervisor().handle_turn("when does the choir sing?", subject_id="bo")
    hers, his = ("\n".join(each.content for each in request.messages) for request in replies(provider))
    assert "Adalbert: The choir sings on Mondays" in hers
    assert "[Wed 2024-05-08]" in hers
    assert "Mondays" not in his
    report = await replay_session(mine.session_id, config=settings)
    assert report.divergence is None


async def test_a_second_import_adds_nothing_and_a_dry_run_writes_nothing(tmp_path: Path) -> None:
    settings, file = config(tmp_path / "root"), written(tmp_path / "c.jsonl", CHOIR)
    looked = await import_conversations(file, subject_id="ada", config=settings, dry_run=True)
    assert looked.is_dry_run
    assert not (tmp_path / "root").exists()
    first = await import_conversations(file, subject_id="ada", config=settings)
    written(tmp_path / "c.jsonl", *FLAT, CHOIR)
    for _ in range(2):
        again = await import_conversations(file, subject_id="ada", config=settings, dry_run=True)
        assert [each.was_there for each in again.conversations] == [False, True]
    assert again.conversations[1].session_id == first.conversations[0].session_id
    done = await import_conversations(file, subject_id="ada", config=settings)
    assert [each.was_there for each in done.conversations] == [False, True]
    assert [each.was_there for each in (await import_conversations(file, subject_id="bo", config=settings)).conversations] == [
        False,
        False,
    ]


def message(**changes: object) -> dict[str, object]:
    return {"role": "user", "content": "hello", **changes}


@pytest.mark.parametrize("anyio_backend", ["asyncio"])  # lines are checked without waiting
@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("{", ": expected one JSON object"),
        ([1], ": expected one JSON object"),
        ({"messages": []}, ": messages = "),
        ({"messages": [1]}, r": messages\[0\] = "),
        ({"messages": [message(role="system")]}, r": messages\[0\].role = 'system': expected user or assistant"),
        ({"messages": [message(), message(content=" ")]}, r": messages\[1\].content = "),
        ({"messages": [message(content="x" * 200)]}, r": messages\[0\].content: has 200 characters"),
        ({"messages": [message(speaker="a\nb")]}, r": messages\[0\].speaker: expected a name"),
        ({"messages": [message(time="yesterday")]}, r": messages\[0\].time = 'yesterday': expected ISO time"),
        ({"messages": [message(time="0001-01-01T00:00:00+23:00")]}, r": messages\[0\].time = "),
        ({"messages": [message(time="2999-01-01")]}, r": messages\[0\].time = .* in the future"),
        (
            {"messages": [message(time="2024-01-02"), message(time="2024-01-01")]},
            r": messages\[1\].time = .* before the message",
        ),
        ({"messages": [message(mood="good")]}, r": messages\[0\].'?mood'?: expected only"),
        ({"messages": [message()], "session": ""}, ": session = '': expected 1 to 256"),
        ({"messages": [message()], "role": "user"}, ": .role.: expected only the fields session, title, messages"),
        (message(), ": session: expected the session of a message"),
        (message(session="chat-1"), ": session = 'chat-1': names a session of earlier lines"),
    ],
)
async def test_a_wrong_line_is_named_and_nothing_is_imported(tmp_path: Path, line: object, problem: str) -> None:
    settings = config(tmp_path / "root", limits=LimitsConfig(max_message_chars=100))
    file = written(tmp_path / "c.jsonl", CHOIR, *FLAT, line)
    with pytest.raises(ConfigError, match=rf"c\.jsonl:4{problem}"):
        await import_conversations(file, subject_id="ada", config=settings)
    assert not (tmp_path / "root").exists()


async def test_what_is_no_file_no_subject_or_no_class_is_refused(tmp_path: Path) -> None:
    settings = config(tmp_path / "root")
    with pytest.raises(ConfigError, match="cannot be read"):
        await import_conversations(tmp_path / "none.jsonl", subject_id="ada", config=settings)
    os.mkfifo(tmp_path / "pipe.jsonl")  # nobody writes into it, so opening it would wait for ever
    with pytest.raises(ConfigError, match="is not a regular file: expected one"), anyio.fail_after(10):
        await import_conversations(tmp_path / "pipe.jsonl", subject_id="ada", config=settings)
    file = written(tmp_path / "c.jsonl", CHOIR)
    with pytest.raises(CallerError):
        await import_conversations(file, subject_id="anon-SES-00000001", config=settings)
    with pytest.raises(CallerError, match="NOBODY"):
        await import_conversations(file, subject_id="ada", agent_class="NOBODY", config=settings)


@pytest.mark.parametrize("seal", [True, False])
async def test_names_titles_and_texts_are_sealed_and_erased_with_their_subject(tmp_path: Path, seal: bool) -> None:
    settings = config(tmp_path / "root", seal=seal)
    file = written(tmp_path / "c.jsonl", CHOIR)
    made = await import_conversations(file, subject_id="ada", config=settings)
    stored = b"".join(each.read_bytes() for each in (tmp_path / "root").rglob("*.jsonl"))
    assert [word in stored for word in (b"Adalbert", b"The choir", b"old mill")] == [not seal] * 3
    (told,) = await entries(settings, events.CONVERSATION_IMPORTED)
    assert str(told.payload["content_hash"]).startswith("hmac-sha256:" if seal else "sha256:")
    if not seal:
        return
    report = await erase_subject("ada", config=settings)
    assert report.sessions == 1
    assert all(is_sealed(each.payload["text"]) for each in await entries(settings, events.MESSAGE_IMPORTED))
    again = await import_conversations(file, subject_id="ada", config=settings)
    assert again.conversations[0].session_id != made.conversations[0].session_id


async def test_an_imported_conversation_moves_to_another_root(tmp_path: Path) -> None:
    here, there, provider = config(tmp_path / "here"), config(tmp_path / "there"), model()
    made = await import_conversations(written(tmp_path / "c.jsonl", CHOIR), subject_id="ada", config=here)
    session_id = made.conversations[0].session_id
    await export_session(session_id, tmp_path / "folder", config=here, with_key=True)
    await import_session(tmp_path / "folder", config=there)
    async with running(there, provider) as runtime:
        await runtime.supervisor().handle_turn("where does the choir meet?", session_id=session_id)
    assert "Bonifacio: In the old mill" in "\n".join(each.content for each in replies(provider)[0].messages)


async def test_a_running_process_imports_and_its_next_turn_recalls(tmp_path: Path) -> None:
    settings, provider = config(tmp_path / "root", recall_scope="subject"), model()
    file = written(tmp_path / "c.jsonl", CHOIR)
    asked = ImportConversations(file=file, subject_id="ada", agent_class="ADMIN")
    async with open_runtime(settings, providers={"scripted": provider}, admin_socket=True) as runtime:
        await runtime.supervisor().handle_turn("hello", subject_id="ada")
        with pytest.raises(LedgerLocked):
            await import_conversations(file, subject_id="ada", config=settings)
        assert not (await administer(settings, asked)).conversations[0].was_there
        assert (await administer(settings, asked)).conversations[0].was_there
        looked = await administer(settings, asked.model_copy(update={"dry_run": True}))
        assert looked.conversations[0].was_there
        await runtime.supervisor().handle_turn("when does the choir sing?", subject_id="ada")
    assert "Adalbert: The choir sings on Mondays" in "\n".join(each.content for each in replies(provider)[-1].messages)


@pytest.mark.parametrize("lines", [0, 1, 3, 5])
async def test_after_a_crash_a_conversation_is_not_there_and_can_be_imported(tmp_path: Path, lines: int) -> None:
    """The process ended while the entries of the conversation were written."""
    settings, file = config(tmp_path / "root", seal=False), written(tmp_path / "c.jsonl", *FLAT)
    await import_conversations(file, subject_id="ada", config=settings)
    (ledger,) = (tmp_path / "root").rglob("*ho2m*.jsonl")
    before = len(ledger.read_bytes().splitlines())
    shutil.copytree(tmp_path / "root", tmp_path / "before", symlinks=True)
    file = written(tmp_path / "c.jsonl", CHOIR)
    await import_conversations(file, subject_id="ada", config=settings)
    kept = ledger.read_bytes().splitlines(keepends=True)[: before + lines]
    shutil.rmtree(tmp_path / "root")
    shutil.copytree(tmp_path / "before", tmp_path / "root", symlinks=True)
    ledger.write_bytes(b"".join(kept)[:-7] if lines else b"".join(kept))
    async with running(settings) as runtime:
        assert [each.external_id for each in await runtime.sessions(subject_id="ada")] == ["chat-2"]
    again = await import_conversations(file, subject_id="ada", config=settings)
    assert not again.conversations[0].was_there
    assert len(await entries(settings, events.MESSAGE_IMPORTED)) == 6
