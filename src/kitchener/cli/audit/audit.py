"""`kitchener audit`: finds items of one subject in a projection, prompt, signal or lesson of another.

It reads all ledgers twice: `owners.py` finds the owner of each item, then every reference and id is compared with the owner of
its entry. Words and hashes are not compared, and the report says so. Explained in `docs/commands.md` and `docs/security.md`.
"""

from collections import Counter
from collections.abc import AsyncIterator, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Final, Literal, NamedTuple

from cyclopts import App

from kitchener.cli.audit.owners import NOBODY, Owned, Owners
from kitchener.cli.exits import NEGATIVE, OK
from kitchener.cli.options import NO_OPTIONS, JsonFlag, Options
from kitchener.cli.terminal.output import print_answer
from kitchener.cli.terminal.progress import Tally, progress_bar
from kitchener.cli.terminal.stop_signals import run_to_end
from kitchener.ids import OPERATOR, split_namespace
from kitchener.inspection.ledger_files import LedgerPaths
from kitchener.ledger import LedgerReader
from kitchener.plain_names import counted
from kitchener.records import events
from kitchener.records.entries import CommonPayload, payload_as
from kitchener.records.ref import refs_in
from kitchener.runtime.root_layout import index_dir
from kitchener.sealed_values import is_sealed

app = App(name="audit", help="Look for data of one subject in the record of another.")

LeakKind = Literal["projection", "attention", "prompt", "signal", "lesson", "intent", "session", "record"]
"""Where an item of another subject was found: `projection` and `attention` are what a model may see, `prompt` is what it was
sent, `signal` what is counted, `lesson` what is learned, `record` any other reference."""
_KINDS: Final[dict[tuple[str, str], LeakKind]] = {
    (events.WO_PLANNED, "attention"): "attention",
    (events.WO_PLANNED, "input_refs"): "prompt",
    (events.LLM_CALL, "part_refs"): "prompt",
}
_SHOWN_AT_MOST: Final = 20
_RULES: Final = "RULESET"
"""The ledger id in references to standing rules, which have no owner."""
_WORDS: Final = "words: a message or a reply may quote anybody"
_HASHES: Final = "hashes of inputs and prompts: `kitchener replay` computes them again from the references"


@app.command
def leaks(*, options: Options = NO_OPTIONS, json: JsonFlag = False) -> int:
    """Look for data of one subject in the record of another, in all ledgers under the root.

    Compares the references and ids in projections, prompts, signals, lessons and all other entries. The report names what it
    cannot see. Exits with 1 if there is a leak. Works while a server runs.

    For example:

        kitchener audit leaks
        kitchener audit leaks --root /backup/plane --json
    """

    async def work() -> int:
        report = await find_leaks(options.paths())
        print_answer(report, is_json=json)
        return NEGATIVE if report.leaks else OK

    return run_to_end(work)


class Leak(NamedTuple):
    """An item of one subject in an entry of another."""

    kind: LeakKind
    ledger_id: str
    entry_id: str
    entry_type: str
    field: str
    """The field of the entry that names it."""
    owner: str
    """The namespace that owns the entry."""
    names: str
    """The kind of the named item: an entry, an event, an artifact, an intent, a session or a turn."""
    belongs_to: str
    """The namespace, or several, that own the named item."""

    def line(self) -> str:
        where = f"{self.entry_type} {self.ledger_id} {self.entry_id}"
        return f"{self.kind}: {where} of {self.owner} names {self.names} of {self.belongs_to} ({self.field})"


@dataclass(slots=True)
class LeakReport:
    """The findings of an audit."""

    ledgers: int = 0
    entries: int = 0
    subjects: int = 0
    """Subjects of an agent class; one that two classes know counts twice."""
    checked: Counter[str] = field(default_factory=Counter)
    """Number of compared references and ids, by kind."""
    leaks: list[Leak] = field(default_factory=list)
    unresolved: int = 0
    """References to entries that are not under this root."""
    sealed: int = 0
    """Signals whose turn is sealed, and whose key is missing."""
    unowned: int = 0
    """Entries that name no subject."""

    def not_checked(self) -> list[str]:
        """The limits of the audit."""
        return [
            _WORDS,
            _HASHES,
            *([f"{counted(self.unresolved, 'reference')} to entries that are not here"] if self.unresolved else []),
            *([f"the turns of {counted(self.sealed, 'signal')}, which are sealed"] if self.sealed else []),
            *([f"{counted(self.unowned, 'entry', 'entries')} without a subject"] if self.unowned else []),
        ]

    def as_json(self) -> dict[str, object]:
        return {
            "ok": not self.leaks,
            "ledgers": self.ledgers,
            "entries": self.entries,
            "subjects": self.subjects,
            "checked": dict(sorted(self.checked.items())),
            "leaks": [each._asdict() for each in self.leaks],
            "not_checked": self.not_checked(),
        }

    def lines(self) -> Iterator[str]:
        yield from (each.line() for each in self.leaks[:_SHOWN_AT_MOST])
        if len(self.leaks) > _SHOWN_AT_MOST:
            yield f"and {len(self.leaks) - _SHOWN_AT_MOST:,} more (--json has them all)"
        found = counted(len(self.leaks), "leak") if self.leaks else "no leak"
        where = f"{counted(self.entries, 'entry', 'entries')} of {counted(self.ledgers, 'ledger')}"
        compared = counted(sum(self.checked.values()), "reference")
        yield f"{found} between {counted(self.subjects, 'subject')} in {where}; {compared} compared"
        yield "not checked:"
        yield from (f"  {each}" for each in self.not_checked())


async def find_leaks(paths: LedgerPaths) -> LeakReport:
    """Compares the owner of each entry with the owners of the items that it names, in all ledgers under a root. Takes no lock.

    Raises:
        LedgerDamaged: a ledger does not verify
        EventVersionError: a newer version of Kitchener wrote an entry
    """
    owners, report = Owners(), LeakReport()
    ends = await _ends(paths)
    total = sum(ends.values())
    async with progress_bar("entries read", 2 * total) as tally:
        async for owned in _all(paths, owners, ends, tally):
            owners.note(owned)
            report.unowned += owned.owner == NOBODY and payload_as(CommonPayload, owned.payload).get("subject_id") != OPERATOR
        async for owned in _all(paths, owners, ends, tally):
            for leak in _leaks_of(owned, owners, report):
                report.leaks.append(leak)
    report.ledgers, report.entries, report.subjects = len(ends), total, len(owners.names) - 1
    return report


async def _ends(paths: LedgerPaths) -> dict[str, int]:
    """The number of each ledger's last entry, by path. The audit ends there, even if another process writes more."""
    found = {}
    for path in paths.ledgers():
        async with LedgerReader.open(path, index_dir=index_dir(paths.config)) as reader:
            found[str(path)] = reader.position
    return found


async def _all(paths: LedgerPaths, owners: Owners, ends: dict[str, int], tally: Tally) -> AsyncIterator[Owned]:
    for path, end in ends.items():
        async with LedgerReader.open(path, index_dir=index_dir(paths.config), sealer=paths.sealer()) as reader:
            async for entry in reader.read(up_to_seq=end):
                tally.add()
                yield owners.owned(entry)


def _leaks_of(owned: Owned, owners: Owners, report: LeakReport) -> Iterator[Leak]:
    """The items that an entry names and does not own."""
    if owned.owner == NOBODY:
        return
    for kind, name, what, holders in _named(owned, owners, report):
        report.checked[kind] += 1
        if holders - {NOBODY} and owned.owner not in holders:
            belongs_to = ", ".join(owners.names[each] for each in sorted(holders))
            entry = owned.entry
            where = (entry.ledger_id, entry.entry_id, entry.entry_type, name)
            yield Leak(kind, *where, owners.names[owned.owner], what, belongs_to)


_Named = tuple[LeakKind, str, str, set[int]]
"""A named item: the kind of leak it may be, the field, the kind of the item, and its owners."""


def _named(owned: Owned, owners: Owners, report: LeakReport) -> Iterator[_Named]:
    entry, payload, agent_class, _ = owned
    yield from _refs(owned, owners, report)
    kind: LeakKind = "signal" if entry.entry_type == events.HO3_SIGNAL else "session"
    for name, found in (("session_id", owners.of_session), ("turn_id", owners.of_turn)):
        if name in payload:
            yield kind, name, str(payload[name]), found(agent_class, payload[name])
    if (intent_id := payload.get("intent_id")) is not None:
        yield "intent", "intent_id", str(intent_id), owners.of_intent(agent_class, intent_id)
    if "namespace" in payload and "subject_id" in payload:
        yield "record", "subject_id", str(payload["subject_id"]), {owners.number(agent_class, str(payload["subject_id"]))}
    if entry.entry_type == events.HO3_SIGNAL:
        report.sealed += is_sealed(payload.get("metadata"))
    elif entry.entry_type == events.HO3_OVERLAY:
        for event_id in _texts(payload.get("source_event_ids")):
            yield "lesson", "source_event_ids", event_id, owners.of_event(event_id)
    elif entry.entry_type == events.WO_PLANNED:
        yield from _of_plan(owned, owners)


def _of_plan(owned: Owned, owners: Owners) -> Iterator[_Named]:
    attention, consolidates = owned.payload.get("attention"), owned.payload.get("consolidates")
    if isinstance(attention, dict):
        for artifact_id in _texts(attention.get("biases")):
            yield "attention", "attention.biases", artifact_id, owners.of_artifact(artifact_id)
    if isinstance(consolidates, dict) and isinstance(namespace := consolidates.get("namespace"), str):
        learns_about = owners.number(*split_namespace(namespace))
        yield "lesson", "consolidates.namespace", namespace, {learns_about}


def _refs(owned: Owned, owners: Owners, report: LeakReport) -> Iterator[_Named]:
    entry_type = owned.entry.entry_type
    for name in events.REF_FIELDS.get(entry_type, ()):
        is_shown = entry_type in (events.PROJECTION_COMPUTED, events.CONFLICT_FLAG)
        kind = "projection" if is_shown else _KINDS.get((entry_type, name), "record")
        for nested, ref in refs_in(owned.payload.get(name), name):
            holders = owners.of_ref(ref)
            report.unresolved += not holders and ref.ledger_id != _RULES
            yield kind, name if nested in (name, "ref") else f"{name}.{nested}", f"{ref.ledger_id} {ref.entry_id}", holders


def _texts(value: object) -> Iterable[str]:
    return [each for each in value if isinstance(each, str)] if isinstance(value, list | tuple) else ()
