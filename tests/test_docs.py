"""The documentation is true: its code runs, its links lead somewhere, and its table of entries is what is written."""

import re
import runpy
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import anyio
import pytest

from kitchener import tool
from kitchener.errors import Overloaded, ProviderError
from kitchener.records import events
from kitchener.records.prompt import PromptRequest
from kitchener.testing import ScriptedProvider
from tests.acceptance.stack import QUESTION, Hold, echo, open_scripted, outcome, read_all

ROOT = Path(__file__).resolve().parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
IN_EVERY_PAYLOAD = {"v", "session_id", "subject_id", "turn_id"}


def relative(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


# --- code ---------------------------------------------------------------------------------------------------------------


def blocks() -> Iterator[Any]:
    """Every block of Python in the pages, named by page and line."""
    for page in PAGES:
        lines = page.read_text(encoding="utf-8").splitlines()
        begin = None
        for number, line in enumerate(lines, 1):
            if line.strip() == "```python":
                begin = number
            elif line.strip() == "```" and begin is not None:
                yield pytest.param("\n" * begin + "\n".join(lines[begin : number - 1]), id=f"{relative(page)}:{begin}")
                begin = None


@pytest.mark.parametrize("backend", ["asyncio", "trio"])
@pytest.mark.parametrize("code", list(blocks()))
def test_a_block_of_code_is_a_whole_program_that_runs(
    code: str, backend: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run: Callable[..., Any] = anyio.run
    monkeypatch.setattr(anyio, "run", partial(run, backend=backend))
    monkeypatch.chdir(tmp_path)
    program = tmp_path / "program.py"
    program.write_text(code, encoding="utf-8")
    runpy.run_path(str(program), run_name="__main__")


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
            ledger = line.removeprefix("## ")[:4]
        row = re.fullmatch(r"\| `([A-Z_]+)` \| [\w ]+ \| (.*) \|", line)
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
        if message == "bug":
            return ZeroDivisionError("in the executor's way")
        if message == "escalate" or (message == "retry" and request.temperature > 0):
            return {"response_text": " "}
    return echo(request)


async def test_the_page_of_entries_lists_what_is_written(tmp_path: Path) -> None:
    """Turns of every kind; then each entry has the fields of its row, and each row was written."""
    hold = Hold("held", wo_type="synthesize")
    provider = ScriptedProvider(answer, gate=hold)
    config: dict[str, Any] = {"session_queue": 1, "max_retries": 1, "verify_with_model": True, "instructions": "Be brief."}
    with anyio.fail_after(30):
        async with open_scripted(tmp_path, provider, tools=[send, broken], **config) as runtime:
            supervisor, ledgers = runtime.supervisor(), runtime.ledgers()
            session_id = await supervisor.start_session(subject_id="ada", external_id="chat-1")
            for message in ("hello", "send", "broken", "retry", "escalate", "outage", "bug", "hello again"):
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
    table = listed()
    written = set()
    for ledger, found in entries.items():
        for entry in found:
            always, sometimes = table[ledger, entry.entry_type]
            fields = set(entry.payload) - IN_EVERY_PAYLOAD
            assert always <= fields <= always | sometimes, f"{ledger} {entry.entry_type}"
            assert entry.payload["v"] == events.VERSION
            assert (entry.payload["session_id"], entry.payload["subject_id"]) == (session_id, "ada")
            written.add((ledger, entry.entry_type))
    assert set(table) - written == {("HO1m", events.WO_DEFERRED)}
