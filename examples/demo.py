"""`make demo`: an agent gets to know somebody, says who taught it, and keeps books that nobody can cook. Takes seconds.

python -m examples.demo
"""

import os
import sys
import tempfile
import textwrap
from collections.abc import Mapping
from pathlib import Path

import anyio

from examples.companion_bot.main import (
    ADA,
    CALENDAR,
    EVENINGS,
    QUESTION,
    TOMATOES,
    Overheard,
    garden_calendar,
    settings,
    shortened,
)
from kitchener import Runtime, RuntimeConfig, open_runtime
from kitchener.errors import LedgerDamaged
from kitchener.ledger import LedgerClient
from kitchener.memory import GateResult, Overlay

WATCHED = (TOMATOES, CALENDAR, "domain:roses")
BAR, INDENT, WIDTH = 20, 14, 110


class Ink:
    """Colours where a terminal shows them, blocks where the encoding has them."""

    def __init__(self) -> None:
        is_coloured = sys.stdout.isatty() and "NO_COLOR" not in os.environ and os.environ.get("TERM") != "dumb"
        codes = {"bold": 1, "dim": 2, "green": 32, "yellow": 33, "red": 31}
        self._codes = {name: f"\x1b[{code}m" for name, code in codes.items()} if is_coloured else {}
        try:
            "█░·→✓“”…".encode(sys.stdout.encoding)
        except UnicodeEncodeError:
            sys.stdout.reconfigure(errors="replace")  # type: ignore[union-attr]
            self._full, self._empty = "#", "-"
        else:
            self._full, self._empty = "█", "░"

    def __call__(self, style: str, text: str) -> str:
        """The text in a style."""
        return f"{self._codes[style]}{text}\x1b[0m" if style in self._codes else text

    def bar(self, share: float, style: str) -> str:
        """How much of something there is."""
        full = int(share * BAR)
        return self(style, self._full * full) + self("dim", self._empty * (BAR - full))


ink = Ink()


def title(text: str, aside: str) -> None:
    """A heading."""
    print(f"\n{ink('bold', text)} {ink('dim', f'· {aside}')}\n")


def row(name: str, text: str, style: str = "plain") -> None:
    """A named line, broken at the width of a page."""
    lines = textwrap.wrap(text, WIDTH - INDENT, break_on_hyphens=False)
    print(f"  {ink('bold', f'{name:<{INDENT - 2}}')}" + f"\n{' ' * INDENT}".join(ink(style, line) for line in lines))


def show_gate(gate: GateResult) -> None:
    """One signal: how much is there of what opens its gate."""
    is_open = gate.already_consolidated
    count = f"{gate.count}/{gate.count_threshold} events · {gate.session_count}/{gate.session_threshold} sessions"
    bar = ink.bar(gate.progress, "green" if is_open else "yellow")
    print(f"     {gate.signal_id:<21} {bar}  {count}" + (ink("green", "  → learned") if is_open else ""))


async def three_evenings(runtime: Runtime) -> None:
    """Part one: what recurs is counted, and the gates open."""
    supervisor, memory = runtime.supervisor(), runtime.memory()
    for evening, messages in enumerate(EVENINGS, 1):
        session_id = await supervisor.start_session(subject_id="ada")
        for message in messages:
            await supervisor.handle_turn(message, session_id=session_id)
            await runtime.drain()  # learning comes after a reply and never delays it; a demonstration waits for it
            print(f"  {ink('bold', str(evening))}  {message}")
        for signal_id in WATCHED:
            show_gate(await memory.check_gate(signal_id, namespace=ADA))
        print(end="\n" if evening < len(EVENINGS) else "")


async def what_was_learned(runtime: Runtime) -> list[Overlay]:
    """Part two: each line, and the turns that taught it."""
    memory, ho2m = runtime.memory(), runtime.ledgers().ho2m
    started = [entry.payload async for entry in ho2m.read(entry_type="TURN_STARTED")]
    said: Mapping[str, str] = {str(each["turn_id"]): str(each["user_message"]) for each in started}
    learned = await memory.read_overlays(namespace=ADA)
    for overlay in learned:
        about = ", ".join(label for labels in (overlay.labels or {}).values() for label in labels)
        scope = f"speaks where it is about {about}" if about else "speaks in every turn"
        facts = ink("dim", f"weight {overlay.weight} · {scope} · {overlay.artifact_id}")
        print(f"  {ink('green', f'“{overlay.line}”')}  {facts}")
        for event in await memory.read_events(overlay.source_event_ids, namespace=ADA):
            turn_id = event.turn_id or ""
            print(f"     {ink('dim', turn_id)}  {said[turn_id]}")
    return learned


async def fourth_evening(runtime: Runtime, overheard: Overheard, learned: list[Overlay]) -> None:
    """Part three: the same question from her and from somebody else."""
    for subject_id, expected in (("ada", {overlay.line for overlay in learned}), ("grace", set[str]())):
        result = await runtime.supervisor().handle_turn(QUESTION, subject_id=subject_id)
        row(subject_id, QUESTION)
        row("model sees", " ".join(overheard.lines) or "nothing", "green" if overheard.lines else "dim")
        row("bot", shortened(result.response))
        print(end="\n" if subject_id == "ada" else "")
        if set(overheard.lines) != expected:
            raise SystemExit(f"{subject_id} was shown {overheard.lines}, expected {sorted(expected)}")


async def verify(ledgers: tuple[LedgerClient, ...]) -> None:
    """Part four: every hash of every ledger, recomputed."""
    for ledger in ledgers:
        report = await ledger.verify()
        if not report.ok:
            raise SystemExit(f"{ledger.ledger_id} does not verify: {report.fault}")
        print(f"  {ink('green', '✓')} {ledger.ledger_id:<14} {report.entries:>4} entries  {ink('dim', report.head[:23] + '…')}")


async def tamper(config: RuntimeConfig, path: Path) -> None:
    """Part five: somebody edits one word of the past: whose session it was. What was said is sealed."""
    ledger = anyio.Path(path)
    await ledger.write_bytes((await ledger.read_bytes()).replace(b'"ada"', b'"eva"', 1))
    strict = config.model_copy(update={"ledger": config.ledger.model_copy(update={"verify_on_open": "full"})})
    try:
        async with open_runtime(strict, tools=[garden_calendar], providers={"overheard": Overheard()}):
            raise SystemExit("the change was not noticed")
    except LedgerDamaged as damage:
        row("refused", str(damage).replace(str(path), path.name), "red")
        print()


async def main(folder: str) -> None:
    """All parts."""
    config, overheard = settings(folder), Overheard()
    async with open_runtime(config, tools=[garden_calendar], providers={"overheard": overheard}) as runtime:
        title("Three evenings with Ada", "what recurs is counted; a gate opens at enough events in enough sessions")
        await three_evenings(runtime)
        title("What was learned, and from what", "one line per gate, written after the reply, each with its turns")
        learned = await what_was_learned(runtime)
        if sorted(overlay.signal_id for overlay in learned) != [TOMATOES, CALENDAR]:
            raise SystemExit(f"expected one line for {TOMATOES} and one for {CALENDAR}, found {learned}")
        title("The fourth evening", "a new session; and the same question from Grace, of whom nothing is known")
        await fourth_evening(runtime, overheard, learned)
        title("The books", "every call and decision of it, each entry chained to the one before")
        ledgers = runtime.ledgers()
        await verify((ledgers.ho1m, ledgers.ho2m, *runtime.memory().ledgers))
        path = Path(ledgers.ho2m.path)
    title("One word of the past is changed on disk", "tomatoes become potatoes, and the agent does not start")
    await tamper(config, path)


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as name:
        anyio.run(main, name)
