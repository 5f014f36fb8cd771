"""Somebody attacks by way of commands and files while a runtime serves a second subject from the very same root.

Each command runs in a process of its own as turns go on. What takes the ledgers' place cannot happen under a running writer:
there the attack comes between two runtimes, and the second subject is served by both. The runtime stands on asyncio alone:
a command's process knows nothing of its event loop.
"""

import hashlib
import os
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Final

import anyio
import anyio.to_thread
import pytest

from kitchener.config import LedgerConfig
from kitchener.errors import LedgerDamaged
from kitchener.ledger import LedgerReader
from kitchener.ledger.format.lines import split_line
from kitchener.ledger.verify.checkpoint import sign_ledger
from kitchener.records.prompt import PromptRequest
from kitchener.records.turn import TurnResult
from kitchener.runtime import Runtime
from kitchener.signing import make_key
from kitchener.testing import ScriptedProvider
from tests.acceptance.stack import QUICK, echo, open_scripted, read_all
from tests.cli.shared.commands import Outcome, finish, start, write_messages
from tests.hostile.files.test_edited_ledgers import MOMENT, in_one_commit
from tests.hostile.files.test_written_files import mode
from tests.hostile.kit import BYSTANDER, bystander, unless_bystander
from tests.hostile.test_hostile_settings import FILES
from tests.hostile.texts.test_secrets_are_not_shown import KEY, MISPLACED
from tests.hostile.texts.test_terminal import EVERYTHING, check_harmless
from tests.ledger.support import forget_index
from tests.verifier.proofs import strip


@pytest.fixture(scope="module")
def anyio_backend() -> str:
    """One event loop is enough: the commands run in processes of their own."""
    return "trio"


DAMAGED: Final = 6
IN_USE: Final = 7


@asynccontextmanager
async def in_use(
    root: Path, model: Callable[[PromptRequest], Any] = echo, ledger: LedgerConfig = QUICK
) -> AsyncIterator[Runtime]:
    """A runtime whose bystander is served for as long as the block runs."""
    provider = ScriptedProvider(unless_bystander(model))
    opening = open_scripted(root, provider, context_mode="enforce", ledger=ledger)
    async with opening as runtime, bystander(runtime, pause_s=0.05):
        yield runtime


async def command(cwd: Path, *arguments: str | Path) -> Outcome:
    """What a command says that runs in a process of its own while turns go on."""
    outcome = await anyio.to_thread.run_sync(lambda: finish(start(*arguments, cwd=cwd), "hello\n"))
    assert "Traceback" not in outcome.out + outcome.err
    return outcome


async def attack(runtime: Runtime, message: str = "attack") -> TurnResult:
    return await runtime.supervisor().handle_turn(message, subject_id="mallory")


@pytest.mark.parametrize("where", ["the key itself", "as the address's password"])
async def test_a_misplaced_key_is_shown_by_no_command_beside_a_runtime(tmp_path: Path, where: str) -> None:
    (tmp_path / "kitchener.toml").write_text(f'plane_root = "plane"\n{MISPLACED[where]}', encoding="utf-8")
    async with in_use(tmp_path / "plane"):
        for arguments in (("doctor", "--json"), ("chat",)):
            outcome = await command(tmp_path, *arguments)
            assert KEY[:12] not in outcome.out + outcome.err
            assert outcome.code in (1, 2)


async def test_an_endpoint_that_a_vendor_would_ignore_is_refused_beside_a_runtime(tmp_path: Path) -> None:
    proxy = '[router.providers.it]\nkind = "model"\nmodel = "deepseek:m"\nbase_url = "http://127.0.0.1:1/v1"\n'
    (tmp_path / "kitchener.toml").write_text(f'plane_root = "plane"\n{proxy}', encoding="utf-8")
    async with in_use(tmp_path / "plane"):
        for arguments in (("config", "check"), ("chat",)):
            outcome = await command(tmp_path, *arguments)
            assert outcome.code == 2
            assert "router.providers.it.base_url" in outcome.out + outcome.err


async def test_what_one_subject_and_their_model_said_is_text_in_commands_beside_a_runtime(tmp_path: Path) -> None:
    def says(request: PromptRequest) -> Mapping[str, Any]:
        return {"response_text": EVERYTHING} if request.wo_type == "synthesize" else echo(request)

    async with in_use(tmp_path / "plane", says) as runtime:
        turn = await attack(runtime, EVERYTHING)
        for arguments in (
            ("session", "show", turn.session_id),
            ("session", "list", "--json"),
            ("ledger", "tail", "--ledger", "ho1m"),
            ("context", "explain", "--turn", turn.turn_id),
        ):
            outcome = await command(tmp_path, *arguments, "--root", "plane")
            assert outcome.code == 0
            check_harmless(outcome, arguments)


async def test_no_output_of_a_command_beside_a_runtime_is_for_others_or_follows_a_link(tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    messages = write_messages(tmp_path / "in", ("a", "hello"))
    before = os.umask(0)
    try:
        async with in_use(tmp_path / "plane") as runtime:
            turn = await attack(runtime)
            for name, arguments in {
                "bundle": ("ledger", "proof", turn.turn_id, "--root", "plane"),
                "results": ("run", messages, "--root", "other"),
            }.items():
                victim.write_text("mine", encoding="utf-8")
                (tmp_path / name).symlink_to(victim)
                outcome = await command(tmp_path, *arguments, "-o", name)
                assert outcome.code == 0, outcome.err
                assert mode(tmp_path / name) == 0o600
                assert not (tmp_path / name).is_symlink()
                assert victim.read_text(encoding="utf-8") == "mine"
    finally:
        os.umask(before)


@pytest.mark.parametrize("what", ["a whole number of 5,000 digits", "a key with 20,000 dots"])
async def test_settings_that_make_no_sense_are_named_beside_a_runtime(tmp_path: Path, what: str) -> None:
    suffix, content, expected = FILES[what]
    (tmp_path / f"bad.{suffix}").write_bytes(content)
    async with in_use(tmp_path / "plane"):
        outcome = await command(tmp_path, "chat", "--config", f"bad.{suffix}", "--root", "plane")
        assert outcome.code == 2
        assert expected in outcome.err
        assert (await command(tmp_path, "chat", "--root", "plane")).code == IN_USE


async def test_a_stripped_bundle_is_refused_beside_a_runtime(tmp_path: Path) -> None:
    async with in_use(tmp_path / "plane") as runtime:
        turn = await attack(runtime)
        assert (await command(tmp_path, "ledger", "proof", turn.turn_id, "--root", "plane", "-o", "good")).code == 0
        assert (await command(tmp_path, "ledger", "verify", "good")).code == 0
        strip(tmp_path / "good", tmp_path / "stripped", "TURN_COMPLETED")
        assert (await command(tmp_path, "ledger", "verify", "stripped")).code == DAMAGED


async def test_what_is_no_ledger_beside_those_in_use_is_named_and_holds_up_nothing(tmp_path: Path) -> None:
    async with in_use(tmp_path / "plane") as runtime:
        os.mkfifo(runtime.ledgers().ho2m.path.with_name("a-pipe.jsonl"), mode=0o600)
        outcome = await command(tmp_path, "ledger", "verify", "--root", "plane")
        assert outcome.code != 0
        assert "a-pipe.jsonl" in outcome.out + outcome.err
        assert "ho2m.jsonl: " in outcome.out


def edit_in_place(path: Path, old: bytes, new: bytes) -> None:
    """Changes the first line that holds some bytes, and its own hash with it, under a writer who goes on at the end."""
    data = path.read_bytes()
    start_at = data.rfind(b"\n", 0, data.index(old)) + 1
    line = data[start_at : data.index(b"\n", start_at)]
    parts = split_line(line)
    assert parts is not None
    body = parts.body.replace(old, new)
    edited = line.replace(parts.body, body).replace(parts.entry_hash.encode(), hashlib.sha256(body).hexdigest().encode())
    assert len(edited) == len(line)
    with path.open("r+b") as file:
        file.seek(start_at)
        file.write(edited)


async def test_a_line_of_one_subject_that_is_edited_under_a_runtime_is_refused_and_the_others_are_served(
    tmp_path: Path,
) -> None:
    plain = LedgerConfig(durability="os", linger_ms=0, seal=False)  # what was said stands in the line that is edited
    async with in_use(tmp_path / "plane", ledger=plain) as runtime:
        turn = await attack(runtime, "what I said")
        await attack(runtime, "and more")  # the last commit of a file may be what a crash left
        ho2m = runtime.ledgers().ho2m
        await anyio.to_thread.run_sync(edit_in_place, ho2m.path, b"what I said", b"what I hide")
        with pytest.raises(LedgerDamaged):
            await read_all(ho2m, session_id=turn.session_id)
        with pytest.raises(LedgerDamaged):
            async with LedgerReader.open(ho2m.path) as reader:
                await reader.last(session_id=turn.session_id, limit=100)
        assert (await command(tmp_path, "session", "show", turn.session_id, "--root", "plane")).code == DAMAGED
        await anyio.to_thread.run_sync(edit_in_place, ho2m.path, b"what I hide", b"what I said")
        assert await read_all(ho2m, session_id=turn.session_id)


async def test_a_root_whose_commits_were_joined_is_refused_and_serves_again_as_it_was(tmp_path: Path) -> None:
    async with in_use(tmp_path / "plane") as runtime:
        await attack(runtime)
        path = runtime.ledgers().ho2m.path
    sign_ledger(path, make_key(tmp_path / "key.pem"), MOMENT)
    right = path.read_bytes()
    path.write_bytes(b"".join(line + b"\n" for line in in_one_commit(right.splitlines(), 3)))
    forget_index(path)
    assert (await command(tmp_path, "ledger", "verify", "--root", "plane")).code == DAMAGED
    with pytest.raises(LedgerDamaged):
        async with open_scripted(tmp_path / "plane"):
            pytest.fail("it was opened")
    path.write_bytes(right)
    async with in_use(tmp_path / "plane") as runtime:
        result = await runtime.supervisor().handle_turn("again", subject_id=BYSTANDER)
        assert result.response == "echo: again"
