"""Writes what the server counted, and the state of the runtime and of the process, as text for Prometheus.

The metrics name agents, providers, models and servers, and never a subject, a session or anybody's words, so their number is
bounded by the settings. `docs/server.md` lists them.
"""

import os
import platform
from collections.abc import Iterable, Iterator, Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Final, Literal, NamedTuple, get_args

from kitchener.config import ModelPrice
from kitchener.config.router import price_of
from kitchener.errors import ProviderReason
from kitchener.gateway.guarded_provider import FailureCounts, ProviderUsage
from kitchener.lanes.durations import DurationCounts
from kitchener.lanes.fair_queue import LaneStatistics
from kitchener.runtime.admin.runtime_statistics import RuntimeStatistics
from kitchener.serve.metrics.server_counts import ServedEnd, ServerCounts

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"

FailuresByModel = Mapping[str, Mapping[str, Mapping[ProviderReason, FailureCounts]]]
"""By provider, model and reason."""
_PROC: Final = Path("/proc")
Labels = Mapping[str, object]
_NONE: Labels = {}


class MetricFamily(NamedTuple):
    """One metric: its values by their labels."""

    name: str
    kind: Literal["counter", "gauge"]
    meaning: str
    """One sentence, without line breaks and backslashes."""
    values: Iterable[tuple[Labels, float]]

    def lines(self) -> Iterator[str]:
        yield from _head(self.name, self.kind, self.meaning)
        for labels, value in self.values:
            yield f"{self.name}{_shown(labels)} {value}"


class HistogramFamily(NamedTuple):
    """One histogram of durations: its counts by their labels."""

    name: str
    meaning: str
    values: Iterable[tuple[Labels, DurationCounts]]

    def lines(self) -> Iterator[str]:
        yield from _head(self.name, "histogram", self.meaning)
        for labels, found in self.values:
            total = 0
            for bound, count in zip((*map(str, found.bounds), "+Inf"), found.counts, strict=True):
                total += count
                yield f"{self.name}_bucket{_shown({**labels, 'le': bound})} {total}"
            yield f"{self.name}_sum{_shown(labels)} {found.sum_s:.6f}"
            yield f"{self.name}_count{_shown(labels)} {total}"


def single(value: float) -> list[tuple[Labels, float]]:
    """The values of a metric without labels."""
    return [(_NONE, value)]


def _head(name: str, kind: str, meaning: str) -> tuple[str, str]:
    return f"# HELP {name} {meaning}", f"# TYPE {name} {kind}"


def _shown(labels: Labels) -> str:
    shown = ",".join(f'{label}="{_escaped(str(each))}"' for label, each in labels.items())
    return f"{{{shown}}}" if shown else ""


def _escaped(label: str) -> str:
    return label.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def process_families() -> Iterator[MetricFamily]:
    """The metrics of this process. Metrics that the system does not provide are left out."""
    build = {"version": version("kitchener"), "python": platform.python_version()}
    yield MetricFamily("kitchener_build_info", "gauge", "The versions that run; always 1.", [(build, 1)])
    used = os.times()
    meaning = "CPU time of this process, user and system, seconds."
    yield MetricFamily("process_cpu_seconds_total", "counter", meaning, single(used.user + used.system))
    try:
        yield from _of_linux()
    except (OSError, ValueError):  # another system, or one that hides it
        return


def _of_linux() -> Iterator[MetricFamily]:
    # The name of the process is in brackets and may have spaces, so the fields begin after the last bracket.
    fields = (_PROC / "self/stat").read_text().rpartition(")")[2].split()
    ticks, page = os.sysconf("SC_CLK_TCK"), os.sysconf("SC_PAGE_SIZE")
    booted = next(line for line in (_PROC / "stat").read_text().splitlines() if line.startswith("btime "))
    limits = (line.split() for line in (_PROC / "self/limits").read_text().splitlines() if line.startswith("Max open files"))
    resident, virtual, started = int(fields[21]) * page, int(fields[20]), int(booted.split()[1]) + int(fields[19]) / ticks
    open_files = len(os.listdir(_PROC / "self/fd")) - 1  # without the one that reads the list
    yield MetricFamily("process_resident_memory_bytes", "gauge", "Resident memory, bytes.", single(resident))
    yield MetricFamily("process_virtual_memory_bytes", "gauge", "Virtual memory, bytes.", single(virtual))
    yield MetricFamily("process_start_time_seconds", "gauge", "When the process began, Unix time.", single(started))
    yield MetricFamily("process_open_fds", "gauge", "Open files and sockets.", single(open_files))
    for limit in limits:
        if limit[3] != "unlimited":
            yield MetricFamily("process_max_fds", "gauge", "Most open files and sockets.", single(int(limit[3])))


Family = MetricFamily | HistogramFamily


def exposition(families: Iterable[Family]) -> str:
    """Metrics as one text."""
    return "".join(f"{line}\n" for family in families for line in family.lines())


def server_families(counts: ServerCounts, *, running_requests: int, loop_lag_s: float) -> Iterator[Family]:
    """The counts of the server as metrics.

    Args:
        counts: its counts
        running_requests: requests that run now
        loop_lag_s: how long the event loop took for one round of its ready tasks, seconds
    """
    answers = [({"status": status}, each) for status, each in sorted(counts.answers.items())]
    turns = [({"agent": name}, each) for name, each in counts.turns.items()]
    ends = [({**agent, "end": end}, each.ends[end]) for agent, each in turns for end in get_args(ServedEnd)]
    yield MetricFamily("kitchener_requests_running", "gauge", "Requests that run now.", single(running_requests))
    yield MetricFamily("kitchener_answers_total", "counter", "Answers by status.", answers)
    yield MetricFamily("kitchener_served_turns_total", "counter", "Turns that requests began, by how they ended.", ends)
    meaning = "Duration of turns that requests began, with their waits."
    yield HistogramFamily("kitchener_turn_seconds", meaning, [(agent, each.turn_s.statistics()) for agent, each in turns])
    meaning = "Time until the first text of a streamed reply."
    first_texts = [(agent, each.first_text_s.statistics()) for agent, each in turns]
    yield HistogramFamily("kitchener_first_text_seconds", meaning, first_texts)
    meaning = "How long the event loop took for one round of its ready tasks, just now."
    yield MetricFamily("kitchener_event_loop_lag_seconds", "gauge", meaning, single(loop_lag_s))


def runtime_families(
    found: RuntimeStatistics, *, waiting_approvals: Mapping[str, int], prices: Mapping[str, ModelPrice]
) -> Iterator[Family]:
    """The state of a runtime.

    Args:
        found: its state, as `Runtime.statistics` returns it
        waiting_approvals: requests for approval that wait for a person, by agent class
        prices: `[router.prices]`
    """
    turns = found["turns"]
    yield MetricFamily("kitchener_running_turns", "gauge", "Turns that run now.", single(found["running_turns"]))
    yield MetricFamily("kitchener_waiting_turns", "gauge", "Turns that wait for a slot.", single(found["waiting_turns"]))
    yield MetricFamily("kitchener_refused_turns_total", "counter", "Turns that found no slot in time.", single(turns.given_up))
    backlog = single(found["pending_consolidations"])
    yield MetricFamily("kitchener_pending_consolidations", "gauge", "Consolidations that run or wait.", backlog)
    waiting = [({"agent": name}, each) for name, each in waiting_approvals.items()]
    yield MetricFamily("kitchener_pending_approvals", "gauge", "Tool calls that wait for a person.", waiting)
    commits = [({"agent": name}, each) for name, each in found["commits"].items()]
    yield HistogramFamily("kitchener_commit_seconds", "Time to write and sync one commit round of the ledgers.", commits)
    yield from _of_lanes(found["mailboxes"])
    yield from _of_models(found["usage_by_model"], found["failures_by_model"], prices)
    yield from _of_failures(found["failures_by_model"])
    circuits = [({"provider": name}, int(is_open)) for name, is_open in found["open_circuits"].items()]
    meaning = "Whether a provider failed so often that it is not called."
    yield MetricFamily("kitchener_circuit_open", "gauge", meaning, circuits)
    used = [(label, each) for label, each in found["mcp_servers"].items() if each["starts"] or each["problem"]]
    servers = [({"server": label}, int(each["state"] == "connected")) for label, each in used]
    meaning = "Whether an MCP server is connected and answers."
    yield MetricFamily("kitchener_mcp_server_connected", "gauge", meaning, servers)


def _of_lanes(mailboxes: Mapping[str, Mapping[str, LaneStatistics]]) -> Iterator[MetricFamily]:
    """The queues of the gateway and of the executors."""
    lanes = [
        ({"mailbox": mailbox, "lane": lane}, each) for mailbox, all_of in mailboxes.items() for lane, each in all_of.items()
    ]

    def of(field: str) -> list[tuple[Labels, float]]:
        return [(labels, getattr(each, field)) for labels, each in lanes]

    yield MetricFamily("kitchener_lane_running", "gauge", "Places of a lane that are taken.", of("running"))
    yield MetricFamily("kitchener_lane_places", "gauge", "Places of a lane.", of("places"))
    yield MetricFamily("kitchener_lane_waiting", "gauge", "Messages in the queue of a lane.", of("waiting"))
    yield MetricFamily("kitchener_lane_capacity", "gauge", "Messages for which the queue of a lane has room.", of("capacity"))
    meaning = "Messages that found no room in a lane."
    yield MetricFamily("kitchener_lane_given_up_total", "counter", meaning, of("given_up"))


def _of_models(
    usage: Mapping[str, Mapping[str, ProviderUsage]], failures: FailuresByModel, prices: Mapping[str, ModelPrice]
) -> Iterator[MetricFamily]:
    """The calls of models, and their cost if the price is known. One that only failed has a count of 0 answers, so that the
    share of failed calls has a value."""
    asked = {provider: dict.fromkeys(models, ProviderUsage()) for provider, models in failures.items()}
    for provider, models in usage.items():
        asked[provider] = {**asked.get(provider, {}), **models}
    known = [(provider, model, each) for provider, models in asked.items() for model, each in models.items()]
    calls = [({"provider": provider, "model": model}, each.calls) for provider, model, each in known]
    yield MetricFamily("kitchener_model_calls_total", "counter", "Model calls that were answered.", calls)
    tokens = [
        ({"provider": provider, "model": model, "kind": kind}, getattr(each, f"{kind}_tokens"))
        for provider, model, each in known
        for kind in ("input", "output", "cached", "cache_write")
    ]
    meaning = "Tokens of model calls. Input tokens include those of the cache."
    yield MetricFamily("kitchener_model_tokens_total", "counter", meaning, tokens)
    costs: list[tuple[Labels, float]] = []
    for provider, model, each in known:
        price = price_of(prices, provider, model)
        if price is not None:
            cost = price.cost(each.input_tokens, each.output_tokens, each.cached_tokens, each.cache_write_tokens)
            costs.append(({"provider": provider, "model": model}, cost))
    yield MetricFamily("kitchener_model_cost_total", "counter", "Cost of model calls by `[router.prices]`.", costs)


def _of_failures(failures: FailuresByModel) -> Iterator[MetricFamily]:
    """Model calls without an answer, and the reasons for retries."""
    counts = [
        ({"provider": provider, "model": model, "error_type": reason}, each)
        for provider, models in failures.items()
        for model, reasons in models.items()
        for reason, each in reasons.items()
    ]
    meaning = "Model calls that were not answered, retries and fallbacks included, by their last error."
    yield MetricFamily("kitchener_model_calls_failed_total", "counter", meaning, [(of, each.calls) for of, each in counts])
    meaning = "Attempts of model calls that failed and were followed by another one, there or at a fallback."
    yield MetricFamily("kitchener_model_retries_total", "counter", meaning, [(of, each.retries) for of, each in counts])
