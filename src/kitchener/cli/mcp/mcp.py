"""`kitchener mcp`: the configured MCP servers, their tools, and what changed since the last recorded turn.

`list` reads settings and ledgers. `check` starts or reaches the servers. Explained in `docs/mcp.md`.
"""

from collections.abc import Iterable, Sequence
from typing import Annotated, Final

import anyio.to_thread
from cyclopts import App, Parameter

from kitchener.actors.sources import SourcesSealed
from kitchener.cli.exits import NEGATIVE, OK
from kitchener.cli.options import NO_OPTIONS, JsonFlag, Options
from kitchener.cli.terminal.output import print_json, print_table, print_text
from kitchener.cli.terminal.stop_signals import run_to_end
from kitchener.config import McpServerConfig, RuntimeConfig
from kitchener.config.shown import described_key, described_names, shown_address
from kitchener.errors import NotOnRecord
from kitchener.inspection.ledger_files import LedgerPaths
from kitchener.mcp.definitions import source_of
from kitchener.mcp.server import ServerReport
from kitchener.plain_names import shown_path
from kitchener.records import events
from kitchener.records.entries import SourceRecordedPayload, payload_as
from kitchener.records.tools.runnable_tool import ToolIdentity
from kitchener.replaying.on_record.recorded_sources import read_sources
from kitchener.runtime.tools.connected_servers import look_at_servers

app = App(name="mcp", help="List MCP servers and their tools, and check what changed.")
_HASH_CHARS: Final = 19

ServerChoice = Annotated[str | None, Parameter(help="Only this server.")]


@app.command(name="list")
def list_servers(server: ServerChoice = None, *, options: Options = NO_OPTIONS, json: JsonFlag = False) -> int:
    """List the configured servers, and the tools of the newest recorded turn.

    Starts no MCP server and reaches none. Works while `kitchener serve` runs.

    For example:

        kitchener mcp list
        kitchener mcp list files --json
    """

    async def work() -> int:
        loaded = await anyio.to_thread.run_sync(options.load)
        servers = _chosen(loaded.config, server)
        recorded = await _recorded(LedgerPaths(loaded.config))
        found = {label: [each for each in recorded if each.source == source_of(label)] for label in servers}
        if json:
            print_json({"servers": [_settings_of(label, servers[label], tools) for label, tools in found.items()]})
            return OK
        for label, tools in found.items():
            print_text(f"{label}: {_address(servers[label])}")
            _print_tools(tools, "no recorded turn had its tools; `kitchener mcp check` asks the server")
        if not servers:
            print_text("no server is configured; docs/mcp.md says how")
        return OK

    return run_to_end(work)


@app.command
def check(server: ServerChoice = None, *, options: Options = NO_OPTIONS, json: JsonFlag = False) -> int:
    """Start or reach the servers, and show their tools and what changed since the newest recorded turn.

    Calls no tool. Exits with 1 if a server does not answer, or a tool cannot be offered. Works while
    `kitchener serve` runs.

    For example:

        kitchener mcp check
        kitchener mcp check files --json
    """

    async def work() -> int:
        loaded = await anyio.to_thread.run_sync(options.load_checked)
        recorded = await _recorded(LedgerPaths(loaded.config))
        reports = await look_at_servers(_chosen(loaded.config, server))
        is_fine = all(each.state == "connected" and not each.refused for each in reports)
        checked = [(each, _changes(recorded, each)) for each in reports]
        if json:
            print_json({"ok": is_fine, "servers": [_report_of(each, changes) for each, changes in checked]})
        else:
            for each, changes in checked:
                _tell(each, changes)
        return OK if is_fine else NEGATIVE

    return run_to_end(work)


def _chosen(config: RuntimeConfig, label: str | None) -> dict[str, McpServerConfig]:
    """The chosen servers.

    Raises:
        NotOnRecord: no server has this name
    """
    if label is not None and label not in config.mcp:
        others = f"it has: {described_names(config.mcp)}" if config.mcp else "it has none"
        raise NotOnRecord(f"there is no server {described_key(label)!r} in [mcp]; {others}")
    return {name: each for name, each in config.mcp.items() if label in (None, name)}


async def _recorded(paths: LedgerPaths) -> list[ToolIdentity]:
    """The servers' tools in the newest recorded configuration of each class, without sealed ones."""
    found: dict[str, ToolIdentity] = {}
    for agent_class in paths.agent_classes():
        async with paths.reader(agent_class) as ho2m:
            newest = ""
            if ho2m is not None:
                async for entry in ho2m.read(entry_type=events.SOURCE_RECORDED):
                    payload = payload_as(SourceRecordedPayload, entry.payload)
                    newest = payload["hash"] if payload["kind"] == "configuration" else newest
            try:
                sources = await read_sources(ho2m, newest) if newest else None
            except SourcesSealed:
                continue
            for each in sources.tool_definitions() if sources is not None else ():
                found[each["tool_id"]] = ToolIdentity.of(each)
    return list(found.values())


def _changes(recorded: Iterable[ToolIdentity], report: ServerReport) -> dict[str, list[str]]:
    """The differences between a server's tools and the recorded ones; empty if none are recorded."""
    before = {each.tool_id: each.definition_hash for each in recorded if each.source == source_of(report.label)}
    now = {each.tool_id: each.definition_hash for each in report.tools}
    if not before or report.state != "connected":
        return {"added": [], "removed": [], "changed": []}
    return {
        "added": sorted(now.keys() - before.keys()),
        "removed": sorted(before.keys() - now.keys()),
        "changed": sorted(each for each in now.keys() & before.keys() if now[each] != before[each]),
    }


def _tell(report: ServerReport, changes: dict[str, list[str]]) -> None:
    said = f" ({report.server}, protocol {report.protocol})" if report.server else ""
    print_text(f"{report.label}: {report.state}{said}{f': {report.problem}' if report.problem else ''}")
    if report.state == "connected":
        _print_tools(report.tools, "it has no tools that `allow` permits")
    for each in report.refused:
        print_text(f"  left out: {each.name}: {each.reason}")
    for what, names in changes.items():
        if names:
            print_text(f"  {what} since the newest recorded turn: {', '.join(names)}")


def _print_tools(tools: Sequence[ToolIdentity], otherwise: str) -> None:
    if not tools:
        print_text(f"  {otherwise}")
        return
    print_table(("  tool", "effects", "results", "definition"), map(_row, tools))


def _row(tool: ToolIdentity) -> dict[str, object]:
    traits = tool.traits
    effects = "none" if traits.read_only else "may destroy" if traits.destructive else "adds only"
    return {
        "  tool": f"  {tool.tool_id}",
        "effects": f"{effects}{', may be repeated' if traits.idempotent and not traits.read_only else ''}",
        "results": "trusted" if traits.is_trusted else "not trusted",
        "definition": tool.definition_hash[:_HASH_CHARS],
    }


def _tool(tool: ToolIdentity) -> dict[str, object]:
    return {
        "tool_id": tool.tool_id,
        "policy_name": tool.policy_name,
        "source": tool.source,
        "traits": tool.traits.as_mapping(),
        "definition_hash": tool.definition_hash,
    }


def _settings_of(label: str, settings: McpServerConfig, tools: Sequence[ToolIdentity]) -> dict[str, object]:
    return {
        "label": label,
        "address": _address(settings),
        "start": settings.start,
        "trusted": settings.trusted,
        "trust_annotations": settings.trust_annotations,
        "allow": list(settings.allow),
        "tools": [_tool(each) for each in tools],
    }


def _report_of(report: ServerReport, changes: dict[str, list[str]]) -> dict[str, object]:
    return {
        "label": report.label,
        "state": report.state,
        "problem": report.problem,
        "server": report.server,
        "protocol": report.protocol,
        "tools": [_tool(each) for each in report.tools],
        "refused": [{"name": each.name, "reason": each.reason} for each in report.refused],
        "changes": changes,
    }


def _address(settings: McpServerConfig) -> str:
    return shown_address(settings.url) if settings.url is not None else f"command {shown_path(settings.command or '')}"
