"""A path that leads to somebody else's file by mistake tells how many bytes are there, and none of them (docs/ledger.md)."""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import pytest

from kitchener.config import LedgerConfig
from kitchener.errors import KitchenerError
from kitchener.ledger import LedgerClient, LedgerEntry, LedgerReader, verify_file, verify_ledger
from kitchener.ledger.bundles.bundle_check import verify_bundle
from tests.cli.conftest import Cli, cli  # noqa: F401  the fixture
from tests.ledger.support import segments_of
from tests.shared.sampled_tables import sampled
from tests.verifier.kit import needs_node, node


@pytest.fixture(scope="module")
def anyio_backend() -> str:
    """One event loop is enough: a verdict about files does not depend on it."""
    return "trio"


KEY: Final = "sk-proj-T3BlbkFJ0123456789abcdef"
FOREIGN: Final = {
    "a key": f"{KEY}\n",
    "a key without LF": KEY,
    "settings of an environment": f"OPENAI_API_KEY={KEY}\nDEBUG=1\n",
    "a key in PEM": f"-----BEGIN PRIVATE KEY-----\n{KEY}\n-----END PRIVATE KEY-----\n",
    "an object": json.dumps({"api_key": KEY}) + "\n",
    "a text": json.dumps(KEY) + "\n",
    "a list": json.dumps([KEY]) + "\n",
    "an object with the key for a name": json.dumps({KEY: 1}) + "\n",
    "an object that says whose it is": json.dumps({"subject_id": "ada", "token": KEY}) + "\n",
    "the beginning of a line": '{"ledger_id":"' + KEY + "\n",
    "the beginning of a bundle": '{"entries":"' + KEY + "\n",
    "a bundle of something else": json.dumps({"entries": KEY}, separators=(",", ":")) + "\n",
    "a bundle's fields": json.dumps(
        {"entries": 1, "format": "kitchener-proof/1", "ledgers": [{"k": KEY}], "session_id": "S", "turn_id": "T"},
        separators=(",", ":"),
    )
    + "\n",
}
each_foreign = pytest.mark.parametrize("text", [pytest.param(text, id=name) for name, text in FOREIGN.items()])


def tells(text: str) -> bool:
    return any(KEY[at : at + 6] in text for at in range(len(KEY) - 5))


def whole(error: BaseException | None) -> str:
    """An error and all that led to it, as a traceback shows them."""
    return "" if error is None else f"{error} {error!r}\n{whole(error.__cause__ or error.__context__)}"


@contextmanager
def told() -> Iterator[list[KitchenerError]]:
    """What is raised within, which must tell nothing."""
    raised: list[KitchenerError] = []
    try:
        yield raised
    except KitchenerError as error:
        raised.append(error)
    assert not any(tells(whole(each)) for each in raised)


async def write_one(path: Path, config: LedgerConfig | None = None) -> None:
    async with LedgerClient.open(path, ledger_id="NOTES", config=config) as ledger:
        for number in range(4):
            await ledger.write(LedgerEntry("NOTE", f"N-{number}", {"n": number, "text": KEY}))
            await ledger.commit()


@each_foreign
async def test_a_file_in_the_place_of_a_ledger_is_refused_without_a_byte_of_it(tmp_path: Path, text: str) -> None:
    path = tmp_path / "key"
    path.write_text(text, encoding="utf-8")
    with told() as refused:
        async with LedgerReader.open(path, ledger_id="NOTES"):
            pass
    with told():
        async with LedgerReader.open(path):
            pass
    with told():
        async with LedgerClient.open(path, ledger_id="NOTES"):
            pass
    assert refused
    assert path.read_text(encoding="utf-8") == text
    for report in (verify_file(path), await verify_ledger(path, jobs=1)):
        assert not tells(f"{report} {report.fault} {whole(report.fault)}")


@each_foreign
async def test_a_file_beside_a_ledger_is_refused_without_a_byte_of_it(tmp_path: Path, text: str) -> None:
    path = tmp_path / "notes.jsonl"
    await write_one(path, segments_of(300))
    head, manifest = path.with_name(f"{path.name}.checkpoint"), tmp_path / "notes.jsonl.segments" / "000001.seal"
    stored = manifest.read_bytes()
    for file in (head, manifest):
        file.unlink(missing_ok=True)
        file.write_text(text, encoding="utf-8")
        with told() as refused:
            async with LedgerClient.open(path, ledger_id="NOTES"):
                pass
        assert refused
        report = verify_file(path)
        assert not report.ok
        assert not tells(f"{report} {whole(report.fault)}")
        if file == head:
            head.unlink()
    manifest.chmod(0o600)
    manifest.write_bytes(stored)


@each_foreign
def test_a_file_in_the_place_of_a_bundle_is_refused_without_a_byte_of_it(tmp_path: Path, text: str) -> None:
    path = tmp_path / "bundle.json"
    path.write_text(text, encoding="utf-8")
    report = verify_bundle(path)
    assert not report.ok
    assert not tells(f"{report} {whole(report.fault)}")


@needs_node
def test_the_other_verifier_tells_nothing_of_foreign_files_either(tmp_path: Path) -> None:
    paths = []
    for number, text in enumerate(FOREIGN.values()):
        paths.append(tmp_path / f"{number}.jsonl")
        paths[-1].write_text(text, encoding="utf-8")
        empty = tmp_path / f"{number}.beside.jsonl"
        empty.write_bytes(b"")
        empty.with_name(f"{empty.name}.checkpoint").write_text(text, encoding="utf-8")
        paths.append(empty)
    lines = node(paths)
    assert all(line.startswith("damaged") for line in lines)
    assert not any(map(tells, lines))


@pytest.mark.parametrize("change", [b"ledger_id", b'"batch"', b'"payload"', b"}\n"])
@needs_node
async def test_of_a_damaged_line_only_its_envelope_is_told(tmp_path: Path, change: bytes) -> None:
    """What somebody said stands in the body of a line, and an error may go into a log that others read."""
    path = tmp_path / "notes.jsonl"
    await write_one(path)
    data = path.read_bytes()
    path.write_bytes(data.replace(change, b"\x00" * len(change), 1))
    report = verify_file(path)
    assert not report.ok
    assert not tells(f"{report} {whole(report.fault)} {node([path])}")


COMMANDS: Final[tuple[tuple[str, ...], ...]] = (
    ("ledger", "verify", "key"),
    ("ledger", "verify", "key", "--json"),
    ("run", "key"),
    ("memory", "import", "key"),
    ("memory", "import", "key", "--subject", "ada"),
    ("config", "check", "--config", "key"),
    ("gateway", "what-if", "--with-config", "key"),
)
AS_LEDGER: Final[tuple[tuple[str, ...], ...]] = (
    ("ledger", "verify"),
    ("ledger", "tail"),
    ("doctor",),
    ("session", "list"),
    ("chat",),
    ("replay",),
)


@pytest.mark.parametrize(("name", "command"), sampled(FOREIGN, COMMANDS))
def test_no_command_tells_what_stands_in_a_file_that_it_cannot_use(
    cli: Cli,  # noqa: F811
    name: str,
    command: tuple[str, ...],
) -> None:
    Path("key").write_text(FOREIGN[name], encoding="utf-8")
    outcome = cli(*command)
    assert outcome.code != 0
    assert not tells(outcome.out + outcome.err), outcome
    assert Path("key").read_text(encoding="utf-8") == FOREIGN[name]


@pytest.mark.parametrize(("name", "command"), sampled(FOREIGN, AS_LEDGER))
def test_nor_does_one_to_whom_the_settings_name_it_as_a_ledger(
    cli: Cli,  # noqa: F811
    name: str,
    command: tuple[str, ...],
) -> None:
    Path("key").write_text(FOREIGN[name], encoding="utf-8")
    Path("kitchener.toml").write_text('[agents.ADMIN]\nho2m_path = "key"\nho1m_path = "key"\n', encoding="utf-8")
    outcome = cli(*command)
    assert not tells(outcome.out + outcome.err), outcome
    assert Path("key").read_text(encoding="utf-8") == FOREIGN[name]
