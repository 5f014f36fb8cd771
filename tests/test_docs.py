"""The documentation is true: its code runs, its links lead somewhere, and its table of entries is what is written."""

import dataclasses
import inspect
import json
import re
import runpy
import shlex
import subprocess
import sys
import tomllib
from collections.abc import Callable, Hashable, Iterator, Mapping
from functools import partial
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any, get_args

import anyio
import pytest

from kitchener import FilePart, HO2Supervisor, TurnResult, TurnUpdate, open_runtime, testing, tool
from kitchener.actors.tools.tool import DeclaredLimits
from kitchener.config import ProviderConfig, ServeClientConfig, ServeConfig
from kitchener.config.settings_parser import Settings
from kitchener.errors import Overloaded, ProviderError
from kitchener.records import events
from kitchener.records.entries.turns import TurnErrorKind
from kitchener.records.prompt import PromptRequest
from kitchener.runtime import export_session, import_session
from kitchener.runtime.admin.runtime_statistics import RuntimeStatistics
from kitchener.testing import FakeClock, ScriptedProvider
from tests.acceptance.approval.kit import Desk, Uses, open_desk
from tests.acceptance.approval.kit import model as asking
from tests.acceptance.stack import QUESTION, Hold, echo, open_scripted, outcome, read_all, scripted_config
from tests.cli.shared.commands import finish, start
from tests.erasure import kit as erasure
from tests.replay.corpus import START_US, BreakingClock

ROOT = Path(__file__).resolve().parent.parent
PAGES = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    *sorted((ROOT / "docs").glob("*.md")),
    *sorted((ROOT / "examples").glob("*/README.md")),
]
IN_EVERY_PAYLOAD = {"v", "session_id", "subject_id", "turn_id", "namespace"}


def relative(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


# --- code ---------------------------------------------------------------------------------------------------------------


def blocks() -> Iterator[Any]:
    """Every block of Python in the pages, named by page and line, with each event loop on which it runs something."""
    for page in PAGES:
        lines = page.read_text(encoding="utf-8").splitlines()
        begin = None
        for number, line in enumerate(lines, 1):
            if line.strip() == "```python":
                begin = number
            elif line.strip() == "```" and begin is not None:
                code = "\n" * begin + "\n".join(lines[begin : number - 1])
                for backend in ("asyncio", "trio") if "anyio.run(" in code else ("asyncio",):
                    yield pytest.param(code, backend, id=f"{relative(page)}:{begin}-{backend}")
                begin = None


@pytest.mark.parametrize(("code", "anyio_backend"), list(blocks()))
def test_a_block_of_code_is_a_whole_program_that_runs(
    code: str, anyio_backend: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run: Callable[..., Any] = anyio.run
    monkeypatch.setattr(anyio, "run", partial(run, backend=anyio_backend))
    monkeypatch.chdir(tmp_path)
    program = tmp_path / "program.py"
    program.write_text(code, encoding="utf-8")
    runpy.run_path(str(program), run_name="__main__")


def test_the_programs_of_the_pages_have_the_types_that_the_library_declares(tmp_path: Path) -> None:
    """Who copies one into a project with strict types gets no errors."""
    given = dict[str, str]()
    for each in blocks():
        code, backend = each.values
        if backend == "asyncio":
            given[re.sub(r"\W", "_", str(each.id)).lower()] = code
    for name, code in given.items():
        (tmp_path / f"{name}.py").write_text(code, encoding="utf-8")
    command = [sys.executable, "-m", "mypy", "--config-file", str(ROOT / "pyproject.toml"), "--no-error-summary", str(tmp_path)]
    found = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, check=False)
    assert (found.stdout.replace(f"{tmp_path}/", ""), found.stderr, found.returncode) == ("", "", 0)


def shown_outputs() -> list[tuple[str, str]]:
    """Each program of the tutorial, and the block of text after it, which is its output."""
    blocks = re.findall(
        r"^```(\w*)\n(.*?)^```$", (ROOT / "docs" / "tutorial.md").read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL
    )
    return [(code, text) for (kind, code), (after, text) in pairwise(blocks) if (kind, after) == ("python", "text")]


@pytest.mark.parametrize(("code", "output"), shown_outputs())
def test_a_block_of_the_tutorial_prints_what_the_page_shows(
    code: str, output: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """But for ids and numbers."""
    monkeypatch.chdir(tmp_path)
    exec(compile(code, "tutorial.md", "exec"), {"__name__": "__main__"})
    assert without_numbers(capsys.readouterr().out) == without_numbers(output)


def without_numbers(text: str) -> str:
    return re.sub(r"\d+", "0", re.sub(r"\b([A-Z]+)-[0-9a-f]{6,}", r"\1-0", text))


def settings_lines() -> list[list[str]]:
    """The commands in the README that write the settings of a model, without what the shell does with them."""
    lines = (ROOT / "README.md").read_text(encoding="utf-8").splitlines()
    return [shlex.split(each.partition(" && ")[0], comments=True)[1:] for each in lines if each.startswith("kitchener init ")]


def test_the_readme_names_a_model_of_each_of_the_big_three_in_two_lines() -> None:
    lines = (ROOT / "README.md").read_text(encoding="utf-8").splitlines()
    for provider in ("openai", "anthropic", "google"):
        (number,) = [
            at for at, each in enumerate(lines) if each.startswith("kitchener init") and f"--provider {provider} " in each
        ]
        assert lines[number + 1].endswith("_API_KEY=… kitchener chat")


@pytest.mark.parametrize("arguments", settings_lines(), ids=" ".join)
def test_each_line_of_the_readme_that_names_a_model_writes_settings_that_are_right(
    arguments: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for vendor in ("OPENAI", "ANTHROPIC", "GOOGLE"):
        monkeypatch.setenv(f"{vendor}_API_KEY", "a key")
    assert finish(start(*arguments, cwd=tmp_path)).code == 0
    made = tmp_path / arguments[1] if not arguments[1].startswith("-") else tmp_path
    checked = finish(start("config", "check", cwd=made))
    assert checked.code == 0, checked.err


def test_the_four_names_of_the_first_page_are_explained_in_two_sentences_each() -> None:
    text = (ROOT / "docs" / "coming-from.md").read_text(encoding="utf-8")
    explained = dict(re.findall(r"^- \*\*`(\w+)`\*\* (.*?)(?=\n- |\n\n|\Z)", text, re.MULTILINE | re.DOTALL))
    assert explained.keys() == {"HO2Supervisor", "handle_turn", "HO2Config", "HO3Memory"}
    for name, sentences in explained.items():
        assert len(re.findall(r"[.!?](?=\s|$)", sentences)) <= 2, name


# --- tables of names ----------------------------------------------------------------------------------------------------


def table_names(page: str, head: str) -> list[str]:
    """The names in backticks in the first column of the table with this head; of a call, the name of the function."""
    text = (ROOT / "docs" / page).read_text(encoding="utf-8").partition(f"\n| {head} |")[2]
    cells = [row.split("|")[1] for row in text.partition("\n\n")[0].splitlines()[2:]]
    return [name for cell in cells for name in re.findall(r"`(\w+)", cell)]


DECLARED = [each.name for each in inspect.signature(tool).parameters.values() if each.kind is each.KEYWORD_ONLY]


@pytest.mark.parametrize(
    ("page", "head", "named"),
    [
        ("turn.md", "argument", [each for each in inspect.signature(HO2Supervisor.handle_turn).parameters if each != "self"]),
        ("turn.md", "field of `TurnResult`", [each.name for each in dataclasses.fields(TurnResult)]),
        ("turn.md", "`error.kind`", list(get_args(TurnErrorKind))),
        ("turn.md", "update", [each.__name__ for each in get_args(TurnUpdate)]),
        (
            "approval.md",
            "argument of `approve`",
            [each for each in inspect.signature(HO2Supervisor.approve).parameters if each != "self"],
        ),
        ("gateway.md", "setting of `[router.providers.<id>]`", list(ProviderConfig.model_fields)),
        ("server.md", "setting of `[serve]`", list(ServeConfig.model_fields)),
        ("server.md", "setting of `[serve.clients.<name>]`", list(ServeClientConfig.model_fields)),
        ("tools.md", "`@tool(…)`", [*DECLARED, *DeclaredLimits.__annotations__]),
        ("runtime.md", "argument", list(inspect.signature(open_runtime).parameters)),
        ("runtime.md", "key of `runtime.statistics()`", list(RuntimeStatistics.__annotations__)),
        (
            "testing.md",
            "name",
            [each for each in testing.__all__ if each[0].islower() or each in ("ScriptedProvider", "FakeClock")],
        ),
    ],
)
def test_a_table_of_names_has_each_name_of_the_code_once(page: str, head: str, named: list[str]) -> None:
    assert sorted(table_names(page, head)) == sorted(named)


# --- defaults -----------------------------------------------------------------------------------------------------------


def defaults() -> dict[str, set[object]]:
    """The defaults of each setting, of all tables that have one of this name."""
    found: dict[str, set[object]] = {}
    models = list(Settings.__subclasses__())
    for model in models:
        models += model.__subclasses__()
        for name, field in model.model_fields.items():
            if not field.is_required() and isinstance(field.default, Hashable):
                found.setdefault(name, set()).add(field.default)
    return found


def named_defaults(text: str) -> Iterator[tuple[str, object]]:
    """Each setting with the default that a page names: `setting` (5 s), or in a table with a column for it."""
    for name, number, unit in re.findall(r"`(?:\[\w+\] )?(\w+)` \((\d[\d,.]*)(?: ([MG])iB)?", text):
        yield name, float(number.replace(",", "")) * {"": 1, "M": 2**20, "G": 2**30}[unit]
    for table in re.findall(r"^\| setting[^|]* \|.*\n(?:\|.*\n)+", text, re.MULTILINE):
        head, _, *rows = (line.strip("| ").split(" | ") for line in table.splitlines())
        for row in rows if "default" in head else ():
            names, default = re.findall(r"`(\w+)`", row[0]), row[head.index("default")]
            if re.fullmatch(r"[\d,.]+", default):
                yield names[0], float(default.replace(",", ""))
            elif quoted := re.fullmatch(r'`"?(\w+)"?`', default):
                yield names[0], quoted[1]


@pytest.mark.parametrize("page", PAGES, ids=relative)
def test_a_default_that_a_page_names_is_that_of_the_setting(page: Path) -> None:
    known = defaults()
    named = [each for each in named_defaults(page.read_text(encoding="utf-8")) if each[0] in known]
    assert page.name != "turn.md" or len(named) > 8
    assert [each for each in named if each[1] not in known[each[0]]] == []


# --- links --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("page", PAGES, ids=relative)
def test_the_links_of_a_page_lead_to_files_and_headings_that_are_there(page: Path) -> None:
    lost = []
    for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text(encoding="utf-8")):
        if re.match(r"[a-z]+:", target):
            continue
        name, _, anchor = target.partition("#")
        file = page.parent / name if name else page
        if not file.exists() or (anchor and anchor not in anchors(file)):
            lost.append(target)
    assert lost == []


def test_the_readme_says_what_each_extra_is_for() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
    table = (
        (ROOT / "README.md").read_text(encoding="utf-8").partition('| `pip install "kitchener[…]"` |')[2].partition("\n\n")[0]
    )
    assert re.findall(r"^\| `(\w+)` \|", table, re.MULTILINE) == ["serve", "models", "mcp", "embeddings", "otel"]
    assert {name for name, packages in extras.items() if packages} == {"serve", "models", "mcp", "embeddings", "otel"}


def test_the_readme_lists_every_page() -> None:
    """In the tables at its end, each page once."""
    listed = re.findall(
        r"\]\((docs/[\w-]+\.md)\)", (ROOT / "README.md").read_text(encoding="utf-8").partition("## Documentation")[2]
    )
    assert sorted(listed) == [relative(page) for page in PAGES if page.parent == ROOT / "docs"]


@pytest.mark.parametrize("page", PAGES, ids=relative)
def test_every_table_of_a_page_has_a_head(page: Path) -> None:
    """An empty line cuts a table in two, and the second half is shown as lines of text."""
    code = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
    tables = re.findall(r"(?:^\|.*\n)+", code.sub("", page.read_text(encoding="utf-8")), re.MULTILINE)
    headless = [each.splitlines()[0] for each in tables if not re.match(r".*\n\|[-:| ]+\|\n", each)]
    assert headless == []


def anchors(page: Path) -> set[str]:
    """The names of a page's headings, as links spell them."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_every_page_that_the_code_points_to_is_there() -> None:
    sources = [*(ROOT / "src").rglob("*.py"), *(ROOT / "tests").rglob("*.py"), *(ROOT / "examples").rglob("*.py")]
    named = {name for path in sources for name in re.findall(r"\bdocs/[\w-]+\.md\b", path.read_text(encoding="utf-8"))}
    assert "docs/actors.md" in named
    assert {name for name in named if not (ROOT / name).is_file()} == set()


# --- the table of entries -----------------------------------------------------------------------------------------------


def listed() -> dict[tuple[str, str], tuple[set[str], set[str]]]:
    """For each ledger and entry type of the page: the fields that are always there, and those that may be."""
    text = (ROOT / "docs" / "ledger-entries.md").read_text(encoding="utf-8")
    table: dict[tuple[str, str], tuple[set[str], set[str]]] = {}
    ledger = ""
    for line in text.splitlines():
        if line.startswith("## "):
            ledger = line.removeprefix("## ").removeprefix("The ").split(maxsplit=1)[0].rstrip(",")
        row = re.fullmatch(r"\| `([A-Z0-9_]+)` \| [\w ]+ \| (.*) \|", line)
        if row is not None:
            plain = re.sub(r"\([^)]*\)", "", row[2])
            fields = re.findall(r"`([a-z_]+)`ˢ?\s*(\??)", plain)
            always = {field for field, mark in fields if not mark} - IN_EVERY_PAYLOAD
            table[ledger, row[1]] = always, {field for field, mark in fields if mark}
    return table


@tool
async def send(to: str) -> str:
    """Sends something."""
    return f"sent to {to}"


@tool(read_only=True)
def broken() -> str:
    """Always fails."""
    raise RuntimeError("out of order")


def answer(request: PromptRequest) -> Any:
    """A model that brings about whatever the message names."""
    message = str(request.variables.get("user_message"))
    if request.wo_type == "classify":
        if message in ("send", "broken"):
            arguments = {"to": "ada"} if message == "send" else {}
            asks = {"tool_request": {"tool_id": message, "arguments": arguments}}
            return {"speech_act": "command", "ambiguity": "low", **asks}
        return QUESTION
    if request.wo_type == "synthesize":
        if message == "outage":
            return ProviderError("scripted", "refused", "down")
        if message == "escalate" or (message == "retry" and request.temperature > 0):
            return {"response_text": " "}
    return echo(request)


async def test_the_page_of_entries_lists_what_is_written(tmp_path: Path) -> None:
    """Turns of every kind; then each entry has the fields of its row, and each row was written."""
    hold = Hold("held", wo_type="synthesize")
    provider = ScriptedProvider(answer, gate=hold)
    config: dict[str, Any] = {"session_queue": 1, "max_retries": 1, "verify_with_model": True, "instructions": "Be brief."}
    with anyio.fail_after(30):
        clock = BreakingClock(START_US)
        async with open_scripted(tmp_path, provider, tools=[send, broken], clock=clock, **config) as runtime:
            supervisor, ledgers = runtime.supervisor(), runtime.ledgers()
            session_id = await supervisor.start_session(subject_id="ada", external_id="chat-1")
            for message in ("hello", "send", "broken", "retry", "escalate", "outage", "bug", "hello again"):
                clock.breaks = "synthesize" if message == "bug" else None
                await supervisor.handle_turn(message, session_id=session_id, idempotency_key=f"key of {message}")
            async with anyio.create_task_group() as tasks:

                async def send_message(message: str) -> None:
                    result = await outcome(supervisor.handle_turn(message, session_id=session_id, idempotency_key=message))
                    assert isinstance(result, Overloaded)

                tasks.start_soon(send_message, "held")
                await hold.arrived["held"].wait()
                tasks.start_soon(send_message, "in line")
                await anyio.wait_all_tasks_blocked()
                await send_message("turned away")
                tasks.cancel_scope.cancel()
            await supervisor.end_session(session_id)
            entries = {"HO1m": await read_all(ledgers.ho1m), "HO2m": await read_all(ledgers.ho2m)}
            assert await read_all(ledgers.context) == []
            own = (events.SOURCE_RECORDED, events.SEALING_CHANGED)
            sources = [each async for each in ledgers.ho2m.read(entry_type=own)]
    written = checked(entries) | checked({"HO2m": sources})
    assert all((each.payload["session_id"], each.payload["subject_id"]) == (session_id, "ada") for each in entries["HO2m"])
    later = {
        each for each in listed() if each[0] in ("SIGNALS", "context") or each[1].startswith(("INTENT", "LIFECYCLE", "SUBJECT"))
    }
    elsewhere = (
        events.PART_ATTACHED,
        events.WO_RETIRED,
        events.WO_DEFERRED,
        events.APPROVAL_REQUESTED,
        events.APPROVAL_RESOLVED,
        events.WO_REOPENED,
        events.SESSION_IMPORTED,
        events.CONVERSATION_IMPORTED,
        events.MESSAGE_IMPORTED,
        *events.IMPORTED_TYPES,
    )
    foreign = {("HO2m", each) for each in elsewhere}
    of_consolidations = {("HO1m", each) for each in (events.WO_EXECUTING, events.WO_COMPLETED)}
    assert set(listed()) - written - later == {("HO1m", events.WO_DEFERRED)} | of_consolidations | foreign


async def test_the_page_of_entries_lists_what_a_message_with_a_file_writes(tmp_path: Path) -> None:
    async with open_scripted(tmp_path, ScriptedProvider(echo)) as runtime:
        await runtime.supervisor().handle_turn("look", parts=[FilePart(b"notes")])
        own = (events.PART_ATTACHED, events.TURN_STARTED)
        found = [each async for each in runtime.ledgers().ho2m.read(entry_type=own)]
    assert [each.entry_type for each in found] == [events.TURN_STARTED, events.PART_ATTACHED]
    assert checked({"HO2m": found}) == {("HO2m", each) for each in own}


async def test_the_page_of_entries_lists_what_requests_for_approval_write(tmp_path: Path) -> None:
    """Of a policy and of a tool; approved, denied, edited, and expired; after text of an untrusted source too."""
    desk, clock = Desk(), FakeClock()
    asked: Uses = [("fetch", {"url": "x"}), ("delete", {"path": "a"}), ("delete", {"path": "b"}), ("pay", {"amount": 5})]
    settings: dict[str, Any] = {"approval": {"after_untrusted": "ask", "expires_s": 60}}
    async with open_desk(tmp_path, desk, asking(asked, [("write", {"path": "c"})]), clock, **settings) as runtime:
        supervisor, ledgers = runtime.supervisor(), runtime.ledgers()
        waiting = await supervisor.handle_turn("tidy up", subject_id="ada")
        edited, refused = waiting.pending_approval
        await supervisor.approve(edited, arguments={"path": "c"}, answered_by="bo", message="that one")
        more = await supervisor.deny(refused, "no")
        assert more is not None
        paying = await supervisor.approve(more.pending_approval[0], scope="session")
        assert paying is not None
        done = await supervisor.approve(paying.pending_approval[0], answer={"pin": 1})
        assert done is not None
        assert len(done.pending_approval) == 1
        clock.advance(61)
        await supervisor.handle_turn("chat", session_id=waiting.session_id)
        entries = {"HO1m": await read_all(ledgers.ho1m), "HO2m": await read_all(ledgers.ho2m)}
    approvals = {("HO2m", each) for each in (events.APPROVAL_REQUESTED, events.APPROVAL_RESOLVED, events.WO_DEFERRED)}
    assert approvals | {("HO1m", events.WO_DEFERRED)} <= checked(entries)
    decisions = [each.payload["decision"] for each in entries["HO2m"] if each.entry_type == events.APPROVAL_RESOLVED]
    assert decisions == ["approved", "denied", "approved", "approved", "expired"]


async def test_the_page_of_entries_lists_what_an_import_writes(tmp_path: Path) -> None:
    config: dict[str, Any] = {"context_mode": "enforce", "intent_mode": "classified", "recall_scope": "subject"}
    first, second = tmp_path / "first", tmp_path / "second"
    async with open_scripted(first, ScriptedProvider(echo), **config) as runtime:
        supervisor = runtime.supervisor()
        sessions = [await supervisor.start_session(subject_id="ada") for _ in range(2)]
        for session_id in sessions:
            await supervisor.handle_turn("hello", session_id=session_id)
        await supervisor.declare_intent(sessions[0], "the house", scope="PROJECT")
    for session_id in reversed(sessions):
        await export_session(session_id, tmp_path / session_id, config=scripted_config(first, **config))
        await import_session(tmp_path / session_id, config=scripted_config(second, **config))
    lines = (second / "HO2" / "ADMIN" / "ho2m.jsonl").read_text(encoding="utf-8").splitlines()
    written = checked({"HO2m": [SimpleNamespace(**json.loads(line)["entry"]) for line in lines]})
    assert written == {("HO2m", each) for each in (events.SEALING_CHANGED, events.SESSION_IMPORTED, *events.IMPORTED_TYPES)}


async def test_the_page_of_entries_lists_what_memory_and_intents_write(tmp_path: Path) -> None:
    """The same for a class that learns and decides by intents, and for one whose intents are a shadow."""
    config: dict[str, Any] = {"ho3_enabled": True, "intent_mode": "classified", "ho3_gate_count_threshold": 2}
    config |= {"ho3_gate_session_threshold": 1, "intent_max_failures": 1, "repeated_failure_policy": "defer"}
    entries: dict[str, list[Any]] = {"HO1m": [], "HO2m": [], "context": [], "SIGNALS": []}
    with anyio.fail_after(30):
        for mode in ("enforce", "shadow"):
            async with open_scripted(tmp_path / mode, ScriptedProvider(learning), context_mode=mode, **config) as runtime:
                supervisor, ledgers, memory = runtime.supervisor(), runtime.ledgers(), runtime.memory()
                session_id = await supervisor.start_session(subject_id="ada")
                for message in ("one", "two", "three"):
                    await supervisor.handle_turn(message, session_id=session_id)
                    await runtime.drain()
                if mode == "enforce":
                    await have_a_say(supervisor, session_id)
                    await supervisor.handle_turn("fails", session_id=session_id)
                    learned = (await memory.read_overlays(namespace="ADMIN/ada"))[0]
                    assert learned.artifact_id is not None
                    at = "2026-01-01T00:00:00+00:00"
                    await memory.deactivate_overlay(learned.artifact_id, "wrong", at, namespace="ADMIN/ada")
                    await memory.update_overlay_weight(learned.artifact_id, 0.5, "right", at, namespace="ADMIN/ada")
                    await memory.quarantine(learned.signal_id, "planted", namespace="ADMIN/ada")
                entries["HO1m"] += await read_all(ledgers.ho1m)
                entries["HO2m"] += await read_all(ledgers.ho2m)
                entries["context"] += await read_all(ledgers.context)
                entries["SIGNALS"] += [*await read_all(memory.signals), *await read_all(memory.overlays)]
    missing = {each for each in listed() if each[0] in ("SIGNALS", "context") or each[1].startswith("INTENT")}
    assert missing - checked(entries) == {("SIGNALS", events.SUBJECT_ERASED), ("HO2m", events.INTENT_RETIRED)}


async def test_the_page_of_entries_lists_what_an_erasure_writes(tmp_path: Path) -> None:
    """In the supervisor's ledger and in the memory's."""
    with anyio.fail_after(30):
        await erasure.fill(tmp_path)
        async with erasure.running(tmp_path) as runtime:
            await runtime.erase_subject(erasure.ADA)
            memory = runtime.memory()
            entries = {
                "HO2m": await read_all(runtime.ledgers().ho2m),
                "SIGNALS": [*await read_all(memory.signals), *await read_all(memory.overlays)],
            }
    written = {("HO2m", events.SUBJECT_ERASED), ("SIGNALS", events.SUBJECT_ERASED), ("HO2m", events.SESSION_END)}
    assert written - checked(entries) == set()


def checked(entries: Mapping[str, list[Any]]) -> set[tuple[str, str]]:
    """What was written, each of it with the fields of its row."""
    table, written = listed(), set()
    for ledger, found in entries.items():
        for entry in found:
            always, sometimes = table[ledger, entry.entry_type]
            fields = set(entry.payload) - IN_EVERY_PAYLOAD
            assert always <= fields <= always | sometimes, f"{ledger} {entry.entry_type}"
            assert entry.payload["v"] == events.VERSIONS.get(entry.entry_type, events.VERSION)
            written.add((ledger, entry.entry_type))
    return written


def learning(request: PromptRequest) -> Any:
    """A model whose classification is unclear once, and that consolidates."""
    if request.wo_type == "consolidate":
        note = {"bias": "Asks a lot.", "category": "topic_affinity", "salience_weight": 0.8, "decay_modifier": 0.5}
        return note | {"labels": {"domain": [], "task": []}, "context_line": "Asks a lot."}
    if request.wo_type == "classify":
        relation = {"one": "continue", "two": "switch", "three": "unclear", "fails": "continue"}[
            str(request.variables["user_message"])
        ]
        return {**QUESTION, "intent_relation": relation}
    return ProviderError("scripted", "refused", "no") if request.variables["user_message"] == "fails" else echo(request)


async def have_a_say(supervisor: HO2Supervisor, session_id: str) -> None:
    """Everything that users can say about intents."""
    intent = await supervisor.declare_intent(session_id, "another matter", targets=["a.txt"])
    await supervisor.resolve_conflict(session_id, keep=intent)
    first, second = await supervisor.fork_intent(session_id, intent, ["this", "that"], active=0)
    await supervisor.abandon_intent(session_id, second, "not needed")
    await supervisor.close_intent(session_id, first, "done")
    await supervisor.reopen_intent(session_id, first, "not quite")
