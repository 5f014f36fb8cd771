"""`kitchener doctor`: reports whether this machine, the settings and the ledgers are in order. Takes no lock."""

import fcntl
import importlib.metadata
import os
import platform
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Final

import anyio
import anyio.to_thread
from cyclopts import Parameter

from kitchener.cli.config.checked_keys import check_clients, check_prompts, check_signing_key
from kitchener.cli.config.findings import Finding, look_at_embeddings, look_at_mcp_servers, look_at_window
from kitchener.cli.config.live_queues import read_queues
from kitchener.cli.exits import NEGATIVE, OK
from kitchener.cli.options import NO_OPTIONS, JsonFlag, Options
from kitchener.cli.terminal.output import file_problem, print_json, print_text
from kitchener.clock import SystemClock
from kitchener.config import DEFAULT_AGENT, ProviderConfig, RouterConfig, RuntimeConfig
from kitchener.config.shown import described_key, shown_address, shown_reference
from kitchener.errors import ConfigError, KitchenerError, ProviderError
from kitchener.gateway import build_providers
from kitchener.gateway.providers.factory import context_window
from kitchener.inspection.ledger_files import LedgerPaths
from kitchener.ledger import StoredEntry
from kitchener.ledger.disk.file_ops import FileOps, locked_by
from kitchener.ledger.disk.manifests import folder_of
from kitchener.ledger.verify.checkpoint import read_checkpoint
from kitchener.ledger.write.stamper import check_last
from kitchener.media.content_store import FOLDER
from kitchener.plain_names import counted, cut_to, shown_path
from kitchener.records import events
from kitchener.records.entries import TurnAbortedPayload, TurnRejectedPayload, payload_as
from kitchener.records.prompt import Message, PromptRequest
from kitchener.runtime.agents.class_tools import check_tools
from kitchener.runtime.content_integrity import check_content
from kitchener.runtime.loading import DEFAULT_FILE, EMBEDDED, LoadedConfig
from kitchener.runtime.root_layout import LedgerName, index_dir, keyring_dir, supervisors_ledgers
from kitchener.runtime.sealed_root import check_keyring, check_place
from kitchener.runtime.setting_checks import check_config
from kitchener.small_files import is_directory, is_file, is_there

_SYNCS: Final = 11
"""Number of timed syncs; odd, so that the median is one of them."""
_BLOCK: Final = 4_096
_SLOW_SYNC_MS: Final = 20.0
"""A median above this is a warning: every reply waits for a sync, although many replies may share one."""
_LOOKED_AT: Final = 10_000
"""Newest entries of a supervisor's ledger that are searched for overload: some thousand turns, read quickly."""
_PACKAGES: Final = (
    "kitchener",
    "anyio",
    "pydantic",
    "orjson",
    "aiohttp",
    "structlog",
    "jsonschema-rs",
    "cyclopts",
    "rich",
    "cryptography",
)
_EXTRAS: Final = {"pydantic-ai-slim": "models"}

_LEDGERS: Final[tuple[LedgerName, ...]] = ("ho2m", "ho1m", "context", "signals", "overlays")

_ENDS: Final = {events.TURN_COMPLETED: "other", events.TURN_REJECTED: "refused", events.TURN_ABORTED: "cut off"}
"""Entries that end a message, with the word for an overload in each."""

_PROBE_S: Final = 20.0
"""Longest wait for a provider's answer and the window of its model together, seconds; or `timeout_s`, if that is less."""
_DETAIL_CHARS: Final = 200
_REFERENCES: Final = "references"
"""The check without which no provider and no server is opened."""


def doctor(
    *,
    options: Options = NO_OPTIONS,
    probe: Annotated[
        bool,
        Parameter(
            negative="",
            help="Ask each provider for a short answer, at most 20 seconds, which costs a few tokens, and for the size of its"
            " context window; start the MCP servers.",
        ),
    ] = False,
    json: JsonFlag = False,
) -> int:
    """Check this machine, the settings and the ledgers.

    Looks at versions, settings, the modules of tools, API keys, the subjects' keys, the file system under the root (locks, and
    how long a sync takes), at each ledger's head and holder, and at how many of the newest turns found a full queue. Where a
    process has the root open and listens, also at its queues. Changes nothing but a temporary file, and calls providers and
    MCP servers only with `--probe`. Exits with 1 where something fails. Works while a server runs.

    For example:

        kitchener doctor
        kitchener doctor --probe
        kitchener doctor --root ./ledgers --json
    """
    findings, queues = list(_versions()), None
    try:
        loaded = options.load_importing()
    except ConfigError as error:
        findings.append(Finding("settings", "fail", str(error)))
    else:
        config = loaded.config
        findings += [*_settings(loaded), *_root(Path(config.plane_root))]
        is_checked = all(each.state == "ok" for each in findings if each.what == _REFERENCES)
        findings += _providers(config, is_checked=is_checked)
        findings += _findings("keys", _keys, config) + _findings("ledgers", _ledgers, config)
        findings += _findings("content", _content, config)
        queues, shown = anyio.run(read_queues, config)
        findings += shown
        findings += _findings("embeddings", look_at_embeddings, config, probe and is_checked)
        findings += anyio.run(look_at_mcp_servers, config, probe and is_checked)
        if probe and is_checked:
            findings += anyio.run(_probe_providers, config)
    is_fine = all(each.state != "fail" for each in findings)
    if json:
        print_json({"ok": is_fine, "findings": [each._asdict() for each in findings], "queues": queues})
    else:
        width = max(len(each.what) for each in findings)
        for each in findings:
            print_text(f"{each.state:<4}  {each.what:<{width}}  {each.detail}")
    return OK if is_fine else NEGATIVE


def _findings(what: str, look: Callable[..., Awaitable[list[Finding]]], *args: object) -> list[Finding]:
    """Returns the findings of one check. A file that cannot be opened is a finding, so that the other checks still run."""
    try:
        return anyio.run(look, *args)
    except OSError as error:
        return [Finding(what, "fail", file_problem(error))]


def _versions() -> Iterator[Finding]:
    yield Finding("python", "ok", f"{platform.python_implementation()} {platform.python_version()} ({sys.executable})")
    yield Finding("system", "ok", f"{platform.system()} {platform.release()} {platform.machine()}")
    found = [f"{name} {importlib.metadata.version(name)}" for name in _PACKAGES]
    for name, extra in _EXTRAS.items():
        try:
            found.append(f"{name} {importlib.metadata.version(name)}")
        except importlib.metadata.PackageNotFoundError:
            found.append(f"{name} not installed (extra {extra!r})")
    yield Finding("packages", "ok", ", ".join(found))


def _settings(loaded: LoadedConfig) -> Iterator[Finding]:
    missing = f"{EMBEDDED} (no {DEFAULT_FILE} in {loaded.base_dir}; `kitchener init` writes one)"
    source = f"{loaded.source} (in {loaded.base_dir})" if loaded.source != EMBEDDED else missing
    yield Finding("settings", "ok", source)
    yield _references(loaded)
    if loaded.config.serve.clients:
        fine = f"{counted(len(loaded.config.serve.clients), 'key')} of [serve.clients]"
        yield _checked("clients", check_clients, loaded, fine)
    if loaded.config.ledger.signing_key is not None:
        yield _checked("signing key", check_signing_key, loaded, shown_path(loaded.config.ledger.signing_key))


def _references(loaded: LoadedConfig) -> Finding:
    def check(checked: LoadedConfig) -> None:
        check_config(checked.config, source=checked.source)
        check_tools(checked.config, checked.source)
        check_prompts(checked)

    return _checked(_REFERENCES, check, loaded, "routes, agent classes, tools, prompts and keys exist")


def _checked(what: str, check: Callable[[LoadedConfig], None], loaded: LoadedConfig, fine: str) -> Finding:
    """A part of the settings, which is `fine` unless its check fails."""
    try:
        check(loaded)
    except ConfigError as error:
        return Finding(what, "fail", str(error))
    return Finding(what, "ok", fine)


def _root(root: Path) -> Iterator[Finding]:
    there = root
    while not is_there(there):
        there = there.parent
    note = "" if there == root else f" (will be created under {there})"
    if not is_directory(there) or not os.access(there, os.W_OK | os.X_OK):
        found = "cannot be written to by this user" if is_directory(there) else "is a file, not a directory"
        yield Finding("root", "fail", f"{there} {found}; choose another place, with `plane_root` or --root")
        return
    yield Finding("root", "ok", f"{shown_path(str(root))}{note}")
    yield from _file_system(there)


def _file_system(directory: Path) -> Iterator[Finding]:
    try:
        with tempfile.TemporaryFile(dir=directory) as file:
            descriptor = file.fileno()
            kind = FileOps().file_system(descriptor) or "unknown type"
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            took = statistics.median(_sync_times_ms(descriptor))
    except OSError as error:
        problem = f"cannot make, lock and sync a file: {error.strerror or error}"
        remedy = "choose another place for the ledgers, with `plane_root` or --root"
        yield Finding("file system", "fail", f"{directory}: {problem}; {remedy}")
        return
    yield Finding("file system", "ok", f"{kind}, with locks")
    yield Finding("sync", "ok" if took <= _SLOW_SYNC_MS else "warn", f"{took:.2f} ms for {_BLOCK} bytes, median of {_SYNCS}")


def _sync_times_ms(descriptor: int) -> list[float]:
    ops, times = FileOps(), []
    for _ in range(_SYNCS):
        began = time.perf_counter()
        ops.write(descriptor, bytes(_BLOCK))
        ops.sync(descriptor)
        times.append(1_000 * (time.perf_counter() - began))
    return times


def _providers(config: RuntimeConfig, *, is_checked: bool) -> Iterator[Finding]:
    """The configured providers. Shows addresses, model names and references only if all of them are valid."""
    router = config.router
    for provider_id, provider in sorted(router.providers.items()):
        facts: list[str | None] = [provider.kind]
        if is_checked:
            facts.append(provider.base_url and shown_address(provider.base_url))
            facts.append(provider.model and f"model {provider.model}")
            facts.append(provider.api_key and shown_reference(provider.api_key))
        if provider.request_fields:
            facts.append(f"adds {', '.join(map(described_key, provider.request_fields))}")
        if provider.headers:
            facts.append(f"headers {', '.join(map(described_key, provider.headers))}")
        facts.append(f"{counted(provider.max_concurrency, 'call')} at once, {config.limits.gateway_queue} may wait")
        if provider_id == router.default_provider:
            facts.append("default")
        problem = anyio.run(_opening_problem, router, provider_id) if is_checked else None
        detail = ", ".join(fact for fact in (problem, *facts) if fact)
        yield Finding(f"provider {described_key(provider_id)}", "ok" if problem is None else "fail", detail)


async def _opening_problem(router: RouterConfig, provider_id: str) -> str | None:
    """Why a runtime cannot open a provider, such as a missing library; None: it can. Calls no provider."""
    try:
        async with build_providers(router, given={*router.providers, "offline"} - {provider_id}):
            return None
    except ConfigError as error:
        return str(error) if error.source == "environment" else error.expected


async def _keys(config: RuntimeConfig) -> list[Finding]:
    """Where the subjects' keys are, and whether they belong to this root."""
    places, directory = LedgerPaths(config), keyring_dir(config)
    where, sealer = shown_path(str(directory)), places.sealer()
    if sealer is None:
        return [Finding("keys", "warn", "none: seal is off, so everything is stored in plain text and nobody can be erased")]
    try:
        await anyio.to_thread.run_sync(check_place, config)
        for agent_class in supervisors_ledgers(config):
            async with places.reader(agent_class) as reader:
                if reader is not None:
                    await check_keyring(reader, sealer.keyring)
    except KitchenerError as error:
        return [Finding("keys", "fail", str(error))]
    if not is_directory(directory):
        return [Finding("keys", "ok", f"will be created in {where}; back them up, apart from the ledgers")]
    for each in (directory, directory / "batches"):
        if sealer.seals and is_directory(each) and not os.access(each, os.W_OK | os.X_OK):
            problem = "cannot be written, so no new subject gets a key; give this user the right to write it"
            return [Finding("keys", "fail", f"{shown_path(str(each))} {problem}")]
    detail = f"{len(list(directory.glob('*.key'))):,} in {where}; back them up, apart from the ledgers"
    if directory.stat().st_mode & 0o077:
        return [Finding("keys", "warn", f"{detail}; others may enter the directory: chmod 700 {where}")]
    return [Finding("keys", "ok", f"{detail}{'' if sealer.seals else '; seal is off, so new content is stored in plain text'}")]


async def _ledgers(config: RuntimeConfig) -> list[Finding]:
    places = LedgerPaths(config)
    found: dict[Path, tuple[str, LedgerName]] = {}
    # Classes may share a memory. It is checked once, under the name of the first class.
    for agent_class in (DEFAULT_AGENT, *places.agent_classes()):
        for name in _LEDGERS:
            found.setdefault(places.ledger(agent_class, name), (agent_class, name))
    existing = [found[path] for path in found if is_there(path)]
    findings = [await _ledger(places, *each) for each in existing]
    lost = "its file is gone, although other files show that it was there; restore it from a backup"
    findings += [
        Finding(" ".join(reversed(found[path])) if path in found else str(path), "fail", lost) for path in places.lost()
    ]
    findings += [await _load(places, agent_class) for agent_class, name in existing if name == "ho2m"]
    if not findings:
        return [Finding("ledgers", "ok", f"none under {shown_path(str(places.root))} yet")]
    index = [path for path in index_dir(places.config).glob("*.sqlite") if is_file(path)]
    size = _bytes_of(index_dir(places.config).glob("*.sqlite*"))  # with what SQLite has not merged yet
    detail = f"{counted(len(index), 'file')}, {size:,} bytes; derived from the ledgers, rebuilt where one is missing"
    return [*findings, Finding("indexes", "ok", detail)]


async def _content(config: RuntimeConfig) -> list[Finding]:
    """Whether the images and files of messages are intact, and whether a crash left files that no entry names."""
    if not is_directory(Path(config.plane_root) / FOLDER):
        return []
    try:
        report = await check_content(config)
    except KitchenerError as error:
        return [Finding("content", "fail", str(error))]
    detail = f"{report.parts:,} images and files of messages"
    if report.faults:
        first = report.faults[0]
        return [Finding("content", "fail", f"{detail}, {len(report.faults):,} damaged: {first.path}: {first.problem}")]
    if report.orphans:
        unused = f"{counted(len(report.orphans), 'file')} that no entry names; `kitchener content clean` removes such files"
        return [Finding("content", "warn", f"{detail}; {unused}")]
    return [Finding("content", "ok", detail)]


async def _ledger(places: LedgerPaths, agent_class: str, name: LedgerName) -> Finding:
    """One ledger's length, head and writer. Opening it finds damage near its end; `ledger verify` finds all damage."""
    what, path = f"{name} {agent_class}", places.ledger(agent_class, name)
    try:
        async with places.reader(agent_class, name) as reader:
            seq, chain_hash = reader.head() if reader is not None else (0, "")
            for newest in await reader.last() if reader is not None else ():
                check_last(newest.ledger_id, newest.timestamp, SystemClock().time_us(), places.config.ledger)
        signed = await anyio.to_thread.run_sync(read_checkpoint, path)
    except KitchenerError as error:
        return Finding(what, "fail", str(error))
    held = _holder(path)
    head = f"head {chain_hash[:19]}…"
    if signed is not None:
        head += f", entry {signed.seq:,} signed by {signed.signer}"
    use = f"in use by {held}" if held else "not in use"
    size = _bytes_of([path, *folder_of(path).glob("*")])
    return Finding(what, "ok", f"{counted(seq, 'entry', 'entries')}, {size:,} bytes, {head}, {use}")


def _bytes_of(paths: Iterable[Path]) -> int:
    """How many bytes files have together. A process that writes may remove one meanwhile."""
    size = 0
    for path in paths:
        with suppress(FileNotFoundError):
            size += path.stat().st_size
    return size


async def _load(places: LedgerPaths, agent_class: str) -> Finding:
    """How many of an agent class's newest turns a full queue refused, or waited in it until their deadline."""
    what, ends = f"load {agent_class}", Counter[str]()
    try:
        async with places.reader(agent_class, "ho2m") as reader:
            if reader is not None:
                after = max(0, reader.head()[0] - _LOOKED_AT)
                async for entry in reader.read(entry_type=tuple(_ENDS), after_seq=after):
                    ends[_ENDS[entry.entry_type] if _met_full_queue(entry) else "other"] += 1
    except KitchenerError as error:
        return Finding(what, "fail", str(error))
    overloaded = ends.total() - ends["other"]
    detail = f"{overloaded:,} of the newest {counted(ends.total(), 'turn')} found a full queue"
    if not overloaded:
        return Finding(what, "ok", detail)
    return Finding(what, "warn", f"{detail}: {ends['refused']:,} refused, {ends['cut off']:,} cut off at their deadline")


def _met_full_queue(ended: StoredEntry) -> bool:
    """Whether a turn was refused by a full queue, or waited in it until its deadline."""
    if ended.entry_type == events.TURN_REJECTED:
        return payload_as(TurnRejectedPayload, ended.payload).get("reason") == "overloaded"
    is_aborted = ended.entry_type == events.TURN_ABORTED
    return is_aborted and payload_as(TurnAbortedPayload, ended.payload).get("reason") == "overloaded"


def _holder(path: Path) -> str | None:
    """The process that writes a ledger; None: there is none, or the system does not tell."""
    holder = locked_by(path, path.stat()).holder
    return holder if "process" in holder else None


async def _probe_providers(config: RuntimeConfig) -> list[Finding]:
    """Asks all configured providers in parallel for a short answer, each within its deadline. Findings are ordered by name."""
    found: dict[str, list[Finding]] = {}
    asked = dict(_model_providers(config))

    async def ask(provider_id: str, provider: ProviderConfig) -> None:
        found[provider_id] = await _probe(config, provider_id, provider)

    async with anyio.create_task_group() as tasks:
        for provider_id, provider in asked.items():
            tasks.start_soon(ask, provider_id, provider)
    return [finding for provider_id in asked for finding in found[provider_id]]


def _model_providers(config: RuntimeConfig) -> Iterator[tuple[str, ProviderConfig]]:
    for provider_id, provider in sorted(config.router.providers.items()):
        if not provider.is_built_in:
            yield provider_id, provider


async def _probe(config: RuntimeConfig, provider_id: str, provider: ProviderConfig) -> list[Finding]:
    what, limit_s = f"probe {described_key(provider_id)}", min(_PROBE_S, provider.timeout_s)
    began, window = anyio.current_time(), None
    request = _request(config, provider_id, provider, began + limit_s)
    try:
        alone = config.router.model_copy(update={"providers": {provider_id: provider}})
        with anyio.fail_after(limit_s):
            async with build_providers(alone) as providers:
                response = await providers[provider_id].complete(request)
    except TimeoutError:
        return [
            Finding(
                what, "fail", f"no answer within {limit_s:g} s; a server that is loading its model may answer the next time"
            )
        ]
    except ProviderError as error:
        if not error.only_thoughts:
            return [Finding(what, "fail", f"{error.reason}: {cut_to(error.detail, _DETAIL_CHARS)}")]
        tokens = f"thoughts for all of {request.max_tokens:,} tokens; in turns it gets `thinking_tokens` for them"
    except KitchenerError as error:
        return [Finding(what, "fail", cut_to(str(error), _DETAIL_CHARS))]
    else:
        tokens = f"{response.usage.input_tokens:,} tokens in, {response.usage.output_tokens:,} out"
    taken_ms, model = 1_000 * (anyio.current_time() - began), request.model_id or ""
    answers = Finding(what, "ok", f"answers as {model}, {taken_ms:,.0f} ms, {tokens}")
    with anyio.CancelScope(deadline=began + limit_s), suppress(KitchenerError):  # no answer is no failure
        # After the call, because Ollama knows the windows of loaded models only.
        window = await context_window(provider_id, provider, model)
    if window is None:
        return [answers]
    return [answers, look_at_window(config, provider_id, model, window)]


def _request(config: RuntimeConfig, provider_id: str, provider: ProviderConfig, deadline: float) -> PromptRequest:
    router = config.router
    routed = (route.model_id for route in router.domain_tag_routes.values() if route.provider_id == provider_id)
    default = router.default_model if provider_id == router.default_provider else None
    return PromptRequest(
        contract_id="PRC-PROBE-001",
        wo_type="synthesize",
        prompt_pack_version="PRM-PROBE-001@00000000",
        messages=(Message("user", "Answer with the word: ok"),),
        variables={"user_message": "Answer with the word: ok"},
        call=1,
        session_id="SES-00000000",
        wo_id="WO-SES-00000000-001",
        subject_id="doctor",
        deadline=deadline,
        max_tokens=2_048,  # a model that thinks needs some hundred
        temperature=0.0,
        model_id=provider.model or default or next(filter(None, routed), None),
    )
