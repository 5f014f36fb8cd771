"""`kitchener ledger key`, `checkpoint` and `proof`: sign the heads of ledgers, and write the evidence of one turn as a bundle.

The commands take no lock, so they work while another process writes. Explained in `docs/proof.md`.
"""

from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, BinaryIO

import anyio
from cyclopts import Parameter

from kitchener.cli.exits import DAMAGED, OK, USAGE, CommandFailed
from kitchener.cli.options import NO_OPTIONS, OUTPUT_NAMES, JsonFlag, Options, TurnArgument, whole_number
from kitchener.cli.terminal.output import print_json, print_text
from kitchener.cli.terminal.written_files import check_output, write_output
from kitchener.clock import SystemClock
from kitchener.context import base_ref
from kitchener.errors import CallerError, ConfigError, KitchenerError, LedgerDamaged, LedgerError, LedgerPathError, SigningError
from kitchener.ids import memory_namespace, session_of_turn
from kitchener.inspection.ledger_files import LedgerPaths
from kitchener.ledger import Checkpoint, LedgerReader, StoredEntry
from kitchener.ledger.bundles.bundle import MAX_BUNDLE_BYTES, BundleSection, BundleSelection, write_bundle
from kitchener.ledger.bundles.bundle_check import ProofReport, verify_bundle
from kitchener.ledger.bundles.bundle_sections import BundleFault
from kitchener.ledger.format.imported import ImportedEntry
from kitchener.ledger.verify.checkpoint import read_checkpoint, sign_ledger
from kitchener.memory.recorded_signals import stored_signals, turn_of_signals
from kitchener.memory.signals import event_id
from kitchener.memory.subject_cache import OVERLAYS, artifact_key
from kitchener.plain_names import counted, quoted
from kitchener.records import events
from kitchener.records.entries import (
    MemoryPayload,
    ProjectionPayload,
    SignerDeclaredPayload,
    TurnStartedPayload,
    WorkOrderPlannedPayload,
    payload_as,
)
from kitchener.records.index_keys import SIGNERS_KEY
from kitchener.replaying.on_record.recorded_sources import entries_of_sources
from kitchener.runtime.root_layout import LedgerName
from kitchener.signing import Signer, is_public_key, load_signer, make_key
from kitchener.small_files import is_file
from kitchener.times import iso_of

PublicKey = Annotated[
    str | None,
    Parameter(help="Require a signature by this key: 64 hex digits, as `kitchener ledger key` prints them."),
]
_BUNDLE_BEGINS = b'{"entries":'
_MIB = 1_048_576
_ORDINALS = 64
"""Number of event ids that are tried for a sealed signal. A turn logs a signal once or twice."""
_RUNS = 20
"""Most runs of withheld entries that are printed for each ledger."""


def key(
    *,
    options: Options = NO_OPTIONS,
    new: Annotated[Path | None, Parameter(help="Create a key in this file, which must not exist.")] = None,
    json: JsonFlag = False,
) -> int:
    """Show the public half of the signing key, or create a key.

    Give the public key to everyone who checks signatures. Keep the file secret: its owner can sign. Works while a server runs,
    which signs with another key only after it is started again.

    For example:

        kitchener ledger key --new keys/signing.pem
        kitchener ledger key --json
    """
    path = new if new is not None else _key_file(options)
    signer = make_key(path) if new is not None else load_signer(path)
    facts = {"path": str(path), "signer": signer.signer, "public_key": signer.public_key}
    if json:
        print_json(facts)
        return OK
    print_text(f"{'made' if new is not None else 'key'}         {path}")
    print_text(f"signer      {signer.signer}\npublic key  {signer.public_key}")
    if new is not None:
        # A relative path in the settings starts at their own folder, which need not be this one.
        named = path if options.config is None else path.absolute()
        print_text(f'\nUse it in {options.config or "kitchener.toml"}:\n\n[ledger]\nsigning_key = "{named}"')
    return OK


def checkpoint(*, options: Options = NO_OPTIONS, json: JsonFlag = False) -> int:
    """Sign the head of every ledger under the root with the configured key.

    First verifies the entries after the last signed head, and that the chain contains this head. If not, signs nothing
    for that ledger and exits with 6. The head is stored beside the ledger, in `<file>.checkpoint`; keep a copy elsewhere.
    Works while a server runs.

    For example:

        kitchener ledger checkpoint
        kitchener ledger checkpoint --json
    """
    signer = load_signer(_key_file(options))
    heads: list[tuple[Path, Checkpoint]] = []
    faults: list[LedgerError] = []
    for path in options.paths().ledgers():
        try:
            head = sign_ledger(path, signer, iso_of(SystemClock().time_us()))
        except (LedgerDamaged, LedgerPathError) as fault:
            faults.append(fault)
            continue
        if head is not None:
            heads.append((path, head))
    _print_heads(signer, heads, faults, is_json=json)
    if all(isinstance(each.__cause__, PermissionError) for each in faults):
        return USAGE if faults else OK
    return DAMAGED


def proof(
    turn: TurnArgument,
    *,
    options: Options = NO_OPTIONS,
    output: Annotated[Path | None, Parameter(name=OUTPUT_NAMES, help="File to write. Default: `./<turn>.proof.json`.")] = None,
    max_mib: Annotated[int, whole_number("Largest size of the bundle, MiB.", at_most=MAX_BUNDLE_BYTES // _MIB)] = 64,
    sources: Annotated[
        bool, Parameter(negative="", help="Also what shaped its requests: settings, prompts, tools, earlier projections.")
    ] = False,
    chain: Annotated[
        bool, Parameter(negative="", help="Link the entries to each head by all entries between, instead of by a path.")
    ] = False,
    json: JsonFlag = False,
) -> int:
    """Write the evidence of one turn as a bundle that anybody can verify without Kitchener and without the ledgers.

    The bundle contains the turn's own entries as they are stored; sealed values stay sealed. Of other entries it contains
    numbers and hashes only: of those that these refer to, and with --chain of all up to the head. --sources adds the settings,
    prompts, tools and earlier projections that the turn names by hash. If a head is not signed, the bundle proves only that it
    is consistent in itself, and says so: run `kitchener ledger checkpoint` first. Works while a server runs.

    For example:

        kitchener ledger checkpoint
        kitchener ledger proof T-0a1b2c3d-000001 -o evidence.json
        node verify/verify.mjs evidence.json
    """
    path = output if output is not None else Path(f"{turn}.proof.json")
    check_output(path)
    wanted = anyio.run(partial(evidence_of, options, turn, has_sources=sources))
    try:
        sections = _write(path, turn, wanted, max_mib * _MIB, chain=chain)
    except (BundleFault, LedgerDamaged) as fault:
        told = f"{fault!s}; `kitchener ledger verify` says more, no bundle was written"
        raise CommandFailed(DAMAGED, "LedgerDamaged", told) from fault
    _print_sections(turn, path, sections, is_chain=chain, is_json=json)
    return OK


def is_bundle(path: Path) -> bool:
    """Whether a file is a bundle, judged by its first bytes."""
    if not is_file(path):
        return False
    with path.open("rb") as file:
        return file.read(len(_BUNDLE_BEGINS)) == _BUNDLE_BEGINS


def public_key_of(text: str | None) -> str | None:
    """The key of `--public-key`; raises ConfigError if it is malformed."""
    if text is None or is_public_key(text):
        return text
    raise ConfigError("--public-key", "", quoted(text), "must be 64 lower-case hex digits; `kitchener ledger key` prints them")


def verify_proof(path: Path, public_key: str | None, *, is_json: bool) -> int:
    """Verifies a bundle, prints the findings and returns the exit code."""
    report = verify_bundle(path, public_key=public_key)
    if is_json:
        print_json(_proof_as_json(report))
    elif report.fault is not None:
        print_text(f"damaged  {path}: {report.fault!s}")
    else:
        print_text(f"ok       {path}: {counted(report.entries, 'entry', 'entries')} of turn {report.turn_id}, {report.end}")
        for line in report.heads:
            print_text(f"         vouched for: {line}")
        for ledger_id, runs in report.withheld.items():
            print_text(f"         withheld: {ledger_id}: {_runs_as_text(runs)}")
        for note in report.notes:
            print_text(f"         note: {note}")
    return OK if report.ok else DAMAGED


def _proof_as_json(report: ProofReport) -> dict[str, object]:
    fault = report.fault
    told = {"where": fault.where, "field": fault.field, "expected": fault.expected, "found": fault.found} if fault else None
    return {
        "path": report.path,
        "ok": report.ok,
        "turn_id": report.turn_id,
        "entries": report.entries,
        "end": report.end,
        "heads": report.heads,
        "withheld": report.withheld,
        "withheld_entries": report.withheld_entries,
        "notes": report.notes,
        "fault": told,
    }


def _runs_as_text(runs: Sequence[tuple[str, str]]) -> str:
    """The entry ids of the first runs of withheld entries."""
    told = ", ".join(first if first == last else f"{first} to {last}" for first, last in runs[:_RUNS])
    return told if len(runs) <= _RUNS else f"{told} and {len(runs) - _RUNS:,} more (--json lists all)"


def _key_file(options: Options) -> Path:
    path = options.load().config.ledger.signing_key
    if path is None:
        raise SigningError(
            "no key to sign with: make one with `kitchener ledger key --new PATH` and set signing_key in [ledger]"
        )
    return Path(path)


def _print_heads(signer: Signer, heads: list[tuple[Path, Checkpoint]], faults: list[LedgerError], *, is_json: bool) -> None:
    if is_json:
        signed = [{"path": str(path), **head.as_json()} for path, head in heads]
        print_json({"ok": not faults, "signer": signer.signer, "heads": signed, "faults": [str(fault) for fault in faults]})
        return
    for path, head in heads:
        print_text(f"signed   {path}: entry {head.seq:,}, head {head.chain_hash}, by {head.signer}")
    for fault in faults:
        print_text(f"{'unread ' if isinstance(fault.__cause__, PermissionError) else 'damaged'}  {fault!s}")
    if not heads and not faults:
        print_text("no entries yet, nothing to sign")


def _write(path: Path, turn_id: str, selections: list[BundleSelection], max_bytes: int, *, chain: bool) -> list[BundleSection]:
    """Writes the bundle atomically, and only if it verifies. Only its owner can read it."""
    session_id = str(session_of_turn(turn_id))

    def fill(file: BinaryIO) -> list[BundleSection]:
        sections = write_bundle(file.write, turn_id, session_id, selections, max_bytes=max_bytes, chain=chain)
        file.flush()
        report = verify_bundle(file.name)
        if report.fault is not None:
            raise report.fault
        return sections

    return write_output(path, fill)


def _print_sections(turn_id: str, path: Path, sections: list[BundleSection], *, is_chain: bool, is_json: bool) -> None:
    size, entries = path.stat().st_size, sum(section.entries for section in sections)
    is_signed = all(section.checkpoint is not None for section in sections)
    if is_json:
        facts = {"turn_id": turn_id, "path": str(path), "bytes": size, "entries": entries, "signed": is_signed}
        print_json({**facts, "ledgers": [section.as_json() for section in sections]})
        return
    held = f"{counted(entries, 'entry', 'entries')} of {counted(len(sections), 'ledger')}"
    print_text(f"{turn_id}: {held}, {size:,} bytes, in {path}")
    for section in sections:
        by = f"signed by {section.checkpoint.signer}" if section.checkpoint is not None else "NOT signed"
        held = counted(section.entries, "entry", "entries")
        print_text(f"  {section.ledger_id:<16} {held:>12} from {section.first:,} on, head {section.head_seq:,} {by}")
    if not is_chain and any(section.is_chain for section in sections):
        print_text(
            "An earlier version signed the head, so the bundle names every entry up to it. Sign it again with `kitchener"
            " ledger checkpoint`, and a new bundle does not grow with the ledger."
        )
    if not is_signed:
        print_text(
            "Without a signature the bundle proves only that it is complete. `kitchener ledger checkpoint` signs, and says how"
            " to make a key; then write the bundle again."
        )


async def evidence_of(options: Options, turn_id: str, *, has_sources: bool = False) -> list[BundleSelection]:
    """The entries of a turn's bundle, by ledger: HO2m, HO1m, context, and the memory's two ledgers if the turn used them.

    Args:
        options: where the ledgers are
        turn_id: the turn
        has_sources: whether to include the sources of the turn's requests

    Raises:
        CallerError: the id is malformed
        UnknownSession: no agent class has the turn's session
        KitchenerError: the session has no such turn
        SigningError: neither a signed head nor an entry has the public key of a projection's signer
    """
    session_id = session_of_turn(turn_id)
    if session_id is None:
        raise CallerError(f"{turn_id!r} is not a turn id: expected T-, the session's hex digits, and a number such as -000001")
    places = options.paths()
    agent_class = await options.class_of(session_id, places)
    turn = _TurnSelection(turn_id, session_id, agent_class, has_sources=has_sources)
    selected = [await _selection(places, agent_class, name, select) for name, select in turn.selections()]
    found = [each for each in selected if each is not None]
    turn.signers -= await anyio.to_thread.run_sync(_signers_of_heads, found)
    if turn.signers:
        declared = await _selection(places, agent_class, "ho2m", turn.declarations)
        seqs = {*found[0].seqs, *(declared.seqs if declared is not None else ())}
        found[0] = found[0]._replace(seqs=tuple(sorted(seqs)))
    return found


def _signers_of_heads(selections: Sequence[BundleSelection]) -> set[str]:
    """The signers of the heads in the bundle."""
    heads = [(each, read_checkpoint(each.path)) for each in selections]
    return {head.signer for each, head in heads if head is not None and head.seq >= each.seqs[-1]}


_Select = Callable[[LedgerReader], Awaitable[set[int]]]


async def _selection(places: LedgerPaths, agent_class: str, name: LedgerName, select: _Select) -> BundleSelection | None:
    async with places.reader(agent_class, name) as reader:
        if reader is None:
            return None
        seqs = await select(reader)
        return BundleSelection(reader.path, reader.ledger_id, tuple(sorted(seqs)), reader.head()) if seqs else None


class _TurnSelection:
    """Selects one turn's entries, ledger by ledger. HO2m comes first, because it names the entries of the others."""

    def __init__(self, turn_id: str, session_id: str, agent_class: str, *, has_sources: bool = False) -> None:
        self.turn_id, self.session_id, self._agent_class = turn_id, session_id, agent_class
        self.signers: set[str] = set()
        """Who signed the selected projections."""
        self._has_sources, self._config_hash = has_sources, ""
        self._artifacts: set[str] = set()
        self._namespace = ""
        self._overlays_position: int | None = None
        self._brought: list[str] = []
        """Hashes of the caller's sources: the schema of an object, and definitions of tools."""
        self._loop: frozenset[str] = frozenset()
        """The work orders of the tool loop that the turn continues."""

    def selections(self) -> tuple[tuple[LedgerName, _Select], ...]:
        """The selection of each ledger, in the order in which they must run."""
        return (
            ("ho2m", self._of_ho2m),
            ("ho1m", self._of_turn),
            ("context", self._of_context),
            ("signals", self._of_signals),
            ("overlays", self._of_overlays),
        )

    async def _of_ho2m(self, reader: LedgerReader) -> set[int]:
        seqs, is_known, has_ended = set[int](), False, False
        wanted, approvals = set[str](), dict[str, set[int]]()
        async for entry in reader.read(session_id=self.session_id):
            if isinstance(entry, ImportedEntry):
                raise KitchenerError(
                    f"session {self.session_id} was imported, so its turns refer to entries of another root's ledgers;"
                    " `kitchener session export` writes what proves them"
                )
            is_mine = events.read_common(entry).get("turn_id") == self.turn_id
            if is_mine or entry.entry_type == events.SESSION_START:
                seqs.add(entry.seq)
            if is_mine and entry.entry_type == events.TURN_STARTED:
                is_known = True
                started = payload_as(TurnStartedPayload, entry.payload)
                self._namespace = memory_namespace(self._agent_class, started["subject_id"])
                self._config_hash = started.get("config_hash", "")
                brought = (started.get("output_schema"), started.get("client_tools"))
                self._brought = [each for each in brought if each is not None]
                if (resumes := started.get("resumes")) is not None:
                    wanted.update(resumes["approval_ids"])
                    self._loop = frozenset(resumes["loop"])
                self._overlays_position = started.get("read_positions", {}).get(OVERLAYS)
            if entry.entry_type in (events.APPROVAL_REQUESTED, events.APPROVAL_RESOLVED):  # of the turn or of its loop
                approvals.setdefault(entry.entity_id, set()).add(entry.seq)
                wanted.update([entry.entity_id] if is_mine else ())
            has_ended = has_ended or (is_mine and entry.entry_type in (events.TURN_COMPLETED, events.TURN_ABORTED))
            if is_mine and entry.entry_type == events.WO_PLANNED:
                attention = payload_as(WorkOrderPlannedPayload, entry.payload).get("attention")
                self._artifacts.update(attention.get("biases", ()) if attention is not None else ())
        if not is_known:
            raise KitchenerError(
                f"session {self.session_id} has no turn {self.turn_id}; `kitchener session show` lists those it has"
            )
        if not has_ended:
            raise KitchenerError(
                f"turn {self.turn_id} has not ended, so nothing can prove it yet; one that a crash cut off is closed"
                " when its session is next used"
            )
        seqs = seqs.union(*(approvals.get(each, ()) for each in wanted))
        return seqs | await entries_of_sources(reader, self._config_hash, self._brought) if self._has_sources else seqs

    async def _of_turn(self, reader: LedgerReader) -> set[int]:
        read = reader.read(session_id=self.session_id)
        return {
            entry.seq
            async for entry in read
            if events.read_common(entry).get("turn_id") == self.turn_id or self._is_of_loop(entry)
        }

    def _is_of_loop(self, entry: StoredEntry) -> bool:
        """Whether an entry belongs to the tool loop that the turn continues."""
        return entry.entity_id in self._loop and entry.entry_type in (events.LLM_CALL, events.TOOL_CALL)

    async def _of_context(self, reader: LedgerReader) -> set[int]:
        """The turn's own entries; with sources also the earlier projections from which its lists are computed.

        These are about as many as the session has turns, so a bundle without them stays small.
        """
        seqs = await self._of_turn(reader)
        for seq in sorted(seqs):
            entry = await reader.get(seq)
            while entry is not None and entry.entry_type == events.PROJECTION_COMPUTED:
                seqs.add(entry.seq)
                signer = events.read_as(ProjectionPayload, entry)["authority"]["signer"]
                self.signers |= {signer} if signer is not None else set()
                base = base_ref(entry.payload) if self._has_sources else None
                entry = await reader.get(base.seq) if base is not None and base.seq < entry.seq else None
        return seqs

    async def declarations(self, reader: LedgerReader) -> set[int]:
        """The newest entries of HO2m that declare `signers`."""
        declared = reader.read(key=SIGNERS_KEY)
        seqs = {payload_as(SignerDeclaredPayload, entry.payload)["signer"]: entry.seq async for entry in declared}
        if unknown := self.signers - seqs.keys():
            raise SigningError(
                f"{self.turn_id} has projections signed by {', '.join(sorted(unknown))}, whose public key is not on record;"
                " `kitchener ledger checkpoint` signs the heads, which have it"
            )
        return {seqs[each] for each in self.signers}

    async def _of_signals(self, reader: LedgerReader) -> set[int]:
        return {entry.seq async for entry in reader.read(session_id=self.session_id) if self._is_my_signal(entry)}

    def _is_my_signal(self, entry: StoredEntry) -> bool:
        if (turn_id := turn_of_signals(entry)) is not None:
            return turn_id == self.turn_id
        # The metadata is sealed and the key is not available; but the event's id is derived from the turn.
        ((given, signal_id),) = stored_signals(entry).items()
        return given in (event_id(self.session_id, self.turn_id, signal_id, n) for n in range(_ORDINALS))

    async def _of_overlays(self, reader: LedgerReader) -> set[int]:
        """All entries about the learned lines that a model was shown, up to the position to which the turn read."""
        return {
            entry.seq
            for artifact_id in sorted(self._artifacts)
            async for entry in reader.read(key=artifact_key(artifact_id), up_to_seq=self._overlays_position)
            if payload_as(MemoryPayload, entry.payload).get("namespace") == self._namespace
        }
