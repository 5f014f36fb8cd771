"""Opens a command's memory: its ledgers, its subjects, the subject that has a given artifact or signal, and what was learned.

Reading takes no lock, and works even if there is no memory yet. `changes.py` writes.
"""

from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from kitchener.cli.options import Options
from kitchener.cli.terminal.output import print_table, print_text
from kitchener.config import SIGNAL_KINDS, HO3MemoryConfig
from kitchener.config.settings_parser import toml_key
from kitchener.errors import CallerError, NotOnRecord, UnknownArtifact
from kitchener.ids import check_recorded_subject, memory_namespace, split_namespace
from kitchener.inspection.ledger_files import LedgerPaths
from kitchener.inspection.memory_views import LearnedView, SignalView, learned_views, signal_views
from kitchener.inspection.shown_text import short_time
from kitchener.memory import MemoryReader
from kitchener.memory.recorded_signals import seen_in, stored_signals
from kitchener.memory.signals import Cut, normalise
from kitchener.memory.subject_memory import SubjectMemory
from kitchener.memory.timestamps import us_of
from kitchener.records import events
from kitchener.records.entries import OverlayPayload, payload_as
from kitchener.small_files import is_there
from kitchener.times import iso_of


@dataclass(slots=True)
class SubjectCounts:
    """The number of entries about one subject."""

    subject_id: str
    signal_ids: set[str] = field(default_factory=set)
    events: int = 0
    artifact_ids: set[str] = field(default_factory=set)

    def as_json(self) -> dict[str, str | int]:
        counts = {"signals": len(self.signal_ids), "events": self.events, "learned": len(self.artifact_ids)}
        return {"subject_id": self.subject_id, **counts}


@dataclass(frozen=True, slots=True)
class AgentMemory:
    """The long-term memory as one agent class uses it."""

    paths: LedgerPaths
    agent_class: str

    @classmethod
    def of(cls, options: Options, *, may_be_new: bool = False) -> "AgentMemory":
        """The memory that a command's options choose.

        Args:
            options: the options
            may_be_new: whether `--root` may name a directory that does not exist yet

        Raises:
            ConfigError: the settings, the root or the agent class are wrong
        """
        return cls(LedgerPaths(options.load().config) if may_be_new else options.paths(), options.agent)

    @property
    def config(self) -> HO3MemoryConfig:
        """Thresholds and bounds."""
        return self.paths.memory_config(self.agent_class)

    @property
    def is_on(self) -> bool:
        """Whether the class learns."""
        return self.paths.agent(self.agent_class).ho3_enabled

    def namespace(self, subject_id: str) -> str:
        """The namespace of a subject's memory. Raises CallerError if the id cannot be a subject's."""
        check_recorded_subject(subject_id)
        return memory_namespace(self.agent_class, subject_id)

    @asynccontextmanager
    async def reader(self) -> AsyncIterator[MemoryReader | None]:
        """Opens the memory for reading; None: nothing was ever written. Takes no lock.

        Raises:
            LedgerDamaged: an entry does not verify
        """
        if not any(is_there(self.paths.ledger(self.agent_class, name)) for name in ("signals", "overlays")):
            yield None
            return
        async with MemoryReader.open(self.paths.root, self.config, sealer=self.paths.sealer()) as reader:
            yield reader

    async def subjects(self, reader: MemoryReader) -> list[SubjectCounts]:
        """Every subject of the agent class with entries in the memory, in alphabetical order. Scans both ledgers."""
        found: dict[str, SubjectCounts] = {}

        def counts(namespace: str) -> SubjectCounts | None:
            agent_class, subject_id = split_namespace(namespace)
            if agent_class != self.agent_class:
                return None
            return found.setdefault(subject_id, SubjectCounts(subject_id))

        async for entry in reader.signals.read(entry_type=events.HO3_SIGNAL):
            seen = seen_in(entry)
            if (subject := counts(seen["namespace"])) is not None:
                subject.events += len(seen["signals"])
                subject.signal_ids.update(seen["signals"].values())
        async for entry in reader.overlays.read(entry_type=events.HO3_OVERLAY):
            overlay = payload_as(OverlayPayload, entry.payload)
            if (subject := counts(overlay["namespace"])) is not None:
                subject.artifact_ids.add(overlay.get("artifact_id") or overlay["overlay_id"])
        return [found[subject_id] for subject_id in sorted(found)]

    async def owner_of(self, reader: MemoryReader | None, artifact_id: str, subject_id: str | None) -> str:
        """The subject about whom an artifact was learned.

        Args:
            reader: the memory; None: there is none yet
            artifact_id: `ART-…`, or `OVL-…` of the older shape
            subject_id: the expected subject; None: the only subject that has it

        Raises:
            UnknownArtifact: no subject has it
            NotOnRecord: another subject or another agent class has it
            CallerError: several subjects have it
        """
        namespaces = [] if reader is None else await reader.namespaces_of(artifact_id)
        owners = [split_namespace(each) for each in namespaces]
        mine = [owner for agent_class, owner in owners if agent_class == self.agent_class]
        if subject_id is not None and subject_id in mine:
            return subject_id
        if subject_id is not None and mine:
            raise NotOnRecord(f"artifact {artifact_id!r} was not learned about {subject_id!r}, but about {_named(mine)}")
        if len(mine) > 1:
            raise CallerError(f"artifact {artifact_id!r} was learned about {_named(mine)}; choose one with --subject")
        if mine:
            return mine[0]
        others = sorted({agent_class for agent_class, _ in owners if agent_class is not None})
        if others:
            raise NotOnRecord(
                f"artifact {artifact_id!r} was not learned by agent class {self.agent_class!r}; use --agent {others[0]}"
            )
        raise UnknownArtifact(artifact_id, self.agent_class if subject_id is None else self.namespace(subject_id))

    async def holder_of(self, reader: MemoryReader | None, target: str, subject_id: str | None) -> str:
        """The subject who gave a signal or an event.

        Raises:
            InvalidSignal: the target is neither a signal nor an event
            NotOnRecord: no subject of the agent class gave it, or another subject did
            CallerError: several subjects gave it
        """
        if not target.startswith("EVT-"):
            target = normalise(target, signal_kinds(self.config))
        holders: dict[str, None] = {}
        if reader is not None:
            async for entry in reader.signals.read(entry_type=events.HO3_SIGNAL):
                stored, seen = stored_signals(entry), seen_in(entry)
                if target in {*stored, *stored.values(), *seen["signals"].values()}:
                    agent_class, holder = split_namespace(seen["namespace"])
                    if agent_class == self.agent_class:
                        holders[holder] = None
        if subject_id is not None and subject_id in holders:
            return subject_id
        if len(holders) == 1 and subject_id is None:
            return next(iter(holders))
        if not holders:
            raise NotOnRecord(f"nobody of agent class {self.agent_class!r} gave {target!r}; nothing was written")
        if subject_id is not None:
            raise NotOnRecord(f"{target!r} came from {_named(holders)}; not {subject_id!r}; nothing was written")
        raise CallerError(f"{target!r} came from {_named(holders)}; choose one with --subject")

    def how_to_turn_on(self) -> str:
        """The setting that turns on learning for the class."""
        table = toml_key(("agents", self.agent_class))
        return (
            f"long-term memory of {self.agent_class} is off; `ho3_enabled = true` below [{table}] of kitchener.toml turns it"
            " on, as `kitchener init` writes it"
        )


def signal_kinds(config: HO3MemoryConfig) -> frozenset[str]:
    """The kinds that a signal id may begin with: the built-in ones and `custom_kinds` of the settings."""
    return frozenset((*SIGNAL_KINDS, *config.custom_kinds))


_NAMED_AT_MOST = 8


def _named(subjects: Iterable[str]) -> str:
    names = [repr(each) for each in sorted(subjects)]
    rest = f" and {len(names) - _NAMED_AT_MOST} more" if len(names) > _NAMED_AT_MOST else ""
    return ", ".join(names[:_NAMED_AT_MOST]) + rest


@dataclass(frozen=True, slots=True)
class MemoryView:
    """The memory that a reading command shows."""

    place: AgentMemory
    subject_id: str | None = None
    """The chosen subject; None: the memory is empty, or the user has to choose one."""
    subjects: list[SubjectCounts] = field(default_factory=list)
    """The subjects to choose from, if none was named."""
    memory: tuple[SubjectMemory, Cut] | None = None
    """The subject's memory, and the time for which it is shown; None: there is none, or no subject was chosen."""

    def signals(self) -> Iterator[SignalView]:
        """Every signal of the subject, in alphabetical order."""
        return iter(()) if self.memory is None else signal_views(*self.memory, self.place.config)

    def learned(self) -> Iterator[LearnedView]:
        """Everything learned about the subject, in the order in which it was learned."""
        return iter(()) if self.memory is None else learned_views(*self.memory, self.place.config)

    def as_json(self) -> dict[str, object]:
        """The subject and the time, to which a command adds its result."""
        return {
            "agent_class": self.place.agent_class,
            "enabled": self.place.is_on,
            "subject_id": self.subject_id,
            "as_of": None if self.memory is None else iso_of(self.memory[1].as_of_us),
            "subjects": [each.as_json() for each in self.subjects],
        }

    def says_whose(self) -> bool:
        """Prints the subject, or the subjects to choose from. False: there is nothing more to show."""
        agent_class = self.place.agent_class
        if self.memory is not None:
            as_of = short_time(iso_of(self.memory[1].as_of_us))
            print_text(f"{self.subject_id!s} ({agent_class}), as of {as_of}")
            return True
        if self.subject_id is None and len(self.subjects) > 1:
            print_table(("subject_id", "signals", "events", "learned"), (each.as_json() for each in self.subjects))
            print_text("choose one with --subject")
        elif self.subject_id is None:
            print_text(f"nothing learned yet by {agent_class}")
        else:
            print_text(f"nothing learned yet about {self.subject_id!r} by {agent_class}")
        if not self.place.is_on:
            print_text(self.place.how_to_turn_on())
        return False


@asynccontextmanager
async def open_view(options: Options, subject_id: str | None, as_of: str | None) -> AsyncIterator[MemoryView]:
    """The memory that a command's options choose. Takes no lock, and works even if there is no memory yet.

    Raises:
        ConfigError: the settings are wrong
        InvalidTimestamp: the time has no zone
        LedgerDamaged: an entry does not verify
    """
    place = AgentMemory.of(options)
    if as_of is not None:
        us_of(as_of, "--as-of")
    async with place.reader() as reader:
        if reader is None:
            yield MemoryView(place, subject_id)
            return
        subjects = await place.subjects(reader) if subject_id is None else []
        if subject_id is None and len(subjects) == 1:
            subject_id = subjects[0].subject_id
        if subject_id is None:
            yield MemoryView(place, None, subjects)
            return
        subject, cut = await reader.snapshot(as_of, namespace=place.namespace(subject_id))
        is_known = subject.last_us > 0
        yield MemoryView(place, subject_id, subjects, (subject, cut) if is_known else None)
