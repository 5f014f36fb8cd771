"""`kitchener gateway`: what the recorded model calls cost, and where other settings would have routed them.

Explained in `docs/gateway.md`.
"""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Final

import anyio.to_thread
from cyclopts import App, Parameter

from kitchener.cli.exits import OK
from kitchener.cli.options import NO_OPTIONS, JsonFlag, Options, SessionChoice, named_argument
from kitchener.cli.terminal.output import print_json, print_table, print_text
from kitchener.cli.terminal.progress import progress_bar
from kitchener.cli.terminal.stop_signals import run_to_end
from kitchener.config import RouterConfig
from kitchener.config.shown import described_key
from kitchener.errors import NotOnRecord
from kitchener.gateway.routing import check_router
from kitchener.inspection.ledger_files import LedgerPaths
from kitchener.inspection.shown_text import amount_of_money
from kitchener.inspection.spending import Spending, in_all
from kitchener.plain_names import counted
from kitchener.records import events
from kitchener.records.attempt_record import billed_answer
from kitchener.records.prompt import RULES_MODEL
from kitchener.runtime.loading import LoadedConfig, load_config
from kitchener.runtime.root_layout import agent_classes
from kitchener.tuning import (
    OWN_MODELS,
    RecordedCall,
    Reroute,
    Rerouted,
    RouteChoice,
    RoutePair,
    Router,
    RouteSummary,
    RouteSums,
    read_calls,
)

app = App(name="gateway", help="Show what model calls cost, and where other settings would have routed them.")

NOTE: Final = "given the same requests, and the failures on record; other models would have given other answers"


@app.command(name="what-if")
def what_if(
    session: Annotated[SessionChoice, Parameter(help="Only this session, of any agent class. `last`: the newest one.")] = None,
    *,
    options: Options = NO_OPTIONS,
    with_config: Annotated[Path, Parameter(help="Settings file with the other [router] and [agents].")],
    changed: Annotated[bool, Parameter(negative="", help="List each call that would have gone elsewhere.")] = False,
    json: JsonFlag = False,
) -> int:
    """Route recorded model calls by other settings, and show which provider would have answered and at what cost.

    Calls no model. Recorded failures happen again; a provider without a record is assumed to answer. Works while a server
    runs.

    For example:

        kitchener gateway what-if --with-config other.toml
        kitchener gateway what-if SES-0a1b2c3d --with-config other.toml --changed
        kitchener gateway what-if --with-config other.toml --json
    """

    async def work() -> int:
        loaded = await anyio.to_thread.run_sync(options.load_recorded)
        with named_argument("--with-config", with_config):
            other = await anyio.to_thread.run_sync(lambda: load_config(with_config, root=loaded.config.plane_root))
        paths = LedgerPaths(loaded.config)
        agent_class = options.agent if session is None else await _class_of(paths, session, options.first_agent)
        calls = await _read(paths, agent_class, session)
        report = RerouteReport(agent_class, session, loaded.config.router.prices != {} or other.config.router.prices != {})
        reroute = _reroute(loaded.config.router, other, agent_class, calls)
        for call in calls:
            report.add(reroute.of(call))
        if json:
            print_json(report.as_json(only_changed=changed))
        else:
            report.tell(lists_changed=changed)
        return OK

    return run_to_end(work)


@app.command
def cost(
    session: Annotated[SessionChoice, Parameter(help="Only this session, of any agent class. `last`: the newest one.")] = None,
    *,
    options: Options = NO_OPTIONS,
    json: JsonFlag = False,
) -> int:
    """Show what the recorded model calls used at each provider and model, and what they cost by `[router.prices]`.

    Sums up all agent classes, or those of --agent. A cost without a configured price is unknown. Calls no model. Works while
    a server runs.

    For example:

        kitchener gateway cost
        kitchener gateway cost last --json
    """

    async def work() -> int:
        paths = options.paths()
        if session is not None:
            classes = [await _class_of(paths, session, options.first_agent)]
        elif options.named_agent is not None:
            classes = [options.named_agent]
        else:
            classes = sorted(agent_classes(paths.config)) or [options.agent]
        found = await _spent(paths, classes, session)
        agent_class = classes[0] if len(classes) == 1 else None
        total = in_all(found.values())
        if json:
            models = [{"provider_id": who, "model_id": model, **each.as_json()} for (who, model), each in found.items()]
            print_json({"agent_class": agent_class, "session_id": session, "usage": total.as_json(), "models": models})
            return OK
        unusable = ("unusable",) if total.unusable_answers else ()
        print_table(("model", "calls", *unusable, "tokens in", "cached", "tokens out", "cost"), map(_cost_row, found.items()))
        print_text(f"in all: {total.text()}")
        return OK

    return run_to_end(work)


def _cost_row(found: tuple[tuple[str, str], Spending]) -> dict[str, object]:
    (provider_id, model_id), spent = found
    return {
        "model": f"{provider_id}/{model_id}",
        "calls": spent.llm_calls,
        "unusable": spent.unusable_answers,
        "tokens in": spent.input_tokens,
        "cached": f"{100 * spent.cached_tokens / max(1, spent.input_tokens):.0f} %",
        "tokens out": spent.output_tokens,
        "cost": "unknown" if spent.cost is None else amount_of_money(spent.cost),
    }


async def _spent(paths: LedgerPaths, classes: Sequence[str], session_id: str | None) -> dict[tuple[str, str], Spending]:
    """The tokens of answers, by provider and model, the most input first. The built-in rules are not a model.

    Raises:
        NotOnRecord: there are none
    """
    found = defaultdict[tuple[str, str], Spending](Spending)
    for agent_class in classes:
        async with paths.reader(agent_class, "ho1m") as ho1m:
            if ho1m is not None:
                async for entry in ho1m.read(session_id=session_id, entry_type=events.WITH_USAGE):
                    answer = billed_answer(entry.entry_type, entry.payload)
                    if answer is not None and answer.model_id != RULES_MODEL:
                        found[answer.provider_id, answer.model_id].add(answer, paths.config.router.prices)
    if not found:
        raise _no_calls(classes[0] if len(classes) == 1 else None, session_id)
    return dict(sorted(found.items(), key=lambda each: (-each[1].input_tokens, each[0])))


def _no_calls(agent_class: str | None, session_id: str | None) -> NotOnRecord:
    whose = "any agent class" if agent_class is None else f"agent class {described_key(agent_class)}"
    whose = whose if session_id is None else f"session {session_id!r}"
    return NotOnRecord(f"no model call of {whose} is on record; `kitchener session list` lists the sessions")


async def _class_of(paths: LedgerPaths, session_id: str, preferred: str) -> str:
    """The agent class of a session. A consolidation's pseudo-session counts as one of the preferred class."""
    return preferred if session_id.startswith("CONS-") else await paths.class_of(session_id, preferred)


async def _read(paths: LedgerPaths, agent_class: str, session_id: str | None) -> list[RecordedCall]:
    """The recorded calls.

    Raises:
        NotOnRecord: there are none
    """
    found: list[RecordedCall] = []
    async with AsyncExitStack() as stack:
        ho1m = await stack.enter_async_context(paths.reader(agent_class, "ho1m"))
        ho2m = await stack.enter_async_context(paths.reader(agent_class))
        if ho1m is not None:
            total = ho1m.position if session_id is None else None
            async with progress_bar("entries of model calls", total) as seen:
                found = [call async for call in read_calls(ho1m, ho2m, session_id, seen=seen.add)]
    if not found:
        raise _no_calls(agent_class, session_id)
    return found


def _reroute(recorded: RouterConfig, other: LoadedConfig, agent_class: str, calls: list[RecordedCall]) -> Reroute:
    """Compares calls with the other router. Providers that a program passed as objects may be named in both settings.

    Raises:
        ConfigError: a route of the other router leads nowhere
    """
    models: dict[str, str] = {}
    for call in calls:
        for each in call.tries:
            models.setdefault(each.provider_id, each.model_id)
    given = [each for each in models if each not in recorded.providers and each not in OWN_MODELS]
    theirs = [each for each in given if each not in other.config.router.providers]
    check_router(other.config.router, given=theirs, source=other.source)
    own = {**{each: models[each] for each in given}, **OWN_MODELS}
    agent = other.config.agents.get(agent_class)  # settings without the class change the router only
    return Reroute(Router(recorded, given, own), Router(other.config.router, theirs, own, agent))


@dataclass(slots=True)
class RerouteReport:
    """The comparison of all calls with the other router."""

    agent_class: str
    session_id: str | None
    knows_prices: bool
    """Whether any price is configured; otherwise the table has no costs."""
    summary: RouteSummary = field(default_factory=RouteSummary)
    calls: list[Rerouted] = field(default_factory=list)

    def add(self, found: Rerouted) -> None:
        """Adds the next call."""
        self.summary.add(found)
        self.calls.append(found)

    def as_json(self, *, only_changed: bool) -> dict[str, object]:
        return {
            "agent_class": self.agent_class,
            "session_id": self.session_id,
            "given": "the same requests",
            "summary": self.summary.sums(),
            "routes": [pair.as_json() for pair in self.summary.pairs],
            "calls": [each.as_json() for each in self.calls if each.is_changed or not only_changed],
        }

    def tell(self, *, lists_changed: bool) -> None:
        """Prints the report as text."""
        found = self.summary.sums()
        print_text(
            f"{self.agent_class}: {found['changed']:,} of {found['calls']:,} recorded model calls would have gone elsewhere"
        )
        columns = ("·", "recorded", "other", "calls", "input tokens", "output tokens")
        print_table(columns + (("cost", "would cost") if self.knows_prices else ()), map(_row, self.summary.pairs))
        for line in self._sums(found):
            print_text(line)
        if lists_changed:
            for each in self.calls:
                if each.is_changed:
                    print_text(_changed_route(each))
        print_text(NOTE)

    def _sums(self, found: RouteSums) -> Iterator[str]:
        falls, failed, cost = found["fallbacks"], found["failed"], found["cost"]
        yield (
            f"fallbacks {falls['recorded']:,} → {falls['other']:,} ({falls['gained']:,} more, {falls['lost']:,} fewer);"
            f" failed calls {failed['recorded']:,} → {failed['other']:,}"
        )
        if found["assumed_to_answer"]:
            goes = "goes" if found["assumed_to_answer"] == 1 else "go"
            assumed = f"{counted(found['assumed_to_answer'], 'call')} {goes} to a provider without a recorded attempt"
            yield f"{assumed}, which is assumed to answer"
        if self.knows_prices:
            before, after = amount_of_money(cost["recorded"]), amount_of_money(cost["other"])
            sums = f"{before} → {after} ({amount_of_money(cost['difference'], signed=True)})"
            yield f"cost {'unknown' if cost['unpriced_calls'] == found['calls'] else sums}"
        if cost["unpriced_calls"] and self.knows_prices:
            unpriced = counted(int(cost["unpriced_calls"]), "call")
            are = "is" if cost["unpriced_calls"] == 1 else "are"
            yield f'{unpriced} without a known price {are} in neither sum; see [router.prices."<model>"]'


def _row(pair: RoutePair) -> dict[str, object]:
    is_priced = pair.unpriced < pair.calls
    return {
        "·": ">" if pair.is_changed else "",
        "recorded": _name(pair.recorded),
        "other": _name(pair.other) if pair.other != pair.recorded else "same",
        "calls": pair.calls,
        "input tokens": pair.input_tokens,
        "output tokens": pair.output_tokens,
        "cost": amount_of_money(pair.recorded_cost) if is_priced else None,
        "would cost": amount_of_money(pair.other_cost) if is_priced else None,
    }


def _name(choice: RouteChoice) -> str:
    """A choice as text."""
    end = "" if choice.state == "answered" else f": {choice.state}"
    return f"{choice.provider_id}/{choice.model_id} ({choice.route_reason}){end}"


def _changed_route(found: Rerouted) -> str:
    call = found.call
    why = "".join(f" ({each.failure})" for each in (found.other,) if each.failure is not None)
    where = call.turn_id or call.session_id
    return f"  {where}  {call.wo_id} {call.wo_type} {call.call}: {_name(found.recorded)} → {_name(found.other)}{why}"
