"""Shows a subject's memory: how close each gate is, and which learned lines are in use."""

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

from kitchener.cli.memory.agent_memory import AgentMemory, SubjectCounts
from kitchener.cli.options import Options
from kitchener.cli.terminal.output import print_table, print_text
from kitchener.inspection.memory_views import LearnedView, SignalView, learned_views, signal_views
from kitchener.inspection.shown_text import short_time
from kitchener.memory.signals import Cut
from kitchener.memory.subject import SubjectMemory
from kitchener.memory.timestamps import iso_of, us_of


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
