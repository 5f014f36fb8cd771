"""Counts what the server does, and writes it with the state of the runtime as text for Prometheus.

The counts are of this process, since it began. They name agents, providers and servers, and nobody's words. Explained in
`docs/server.md`.
"""

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final, Literal, NamedTuple

from kitchener.config import ModelPrice
from kitchener.config.router import price_of
from kitchener.gateway.attempts import ProviderUsage
from kitchener.lanes.fair_queue import LaneStatistics

BOUNDS: Final = (0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.56, 5.12, 10.24, 20.48, 40.96, 81.92)
"""Upper bounds of the buckets of durations, seconds, as the conventions of OpenTelemetry for generative AI have them."""
CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"

ServedEnd = Literal["completed", "degraded", "failed", "stopped"]


class Durations:
    """How often something took how long."""

    __slots__ = ("_counts", "_sum")

    def __init__(self) -> None:
        self._counts, self._sum = [0] * (len(BOUNDS) + 1), 0.0

    def add(self, seconds: float) -> None:
        """Adds one."""
        self._counts[bisect_left(BOUNDS, seconds)] += 1
        self._sum += seconds

    def lines(self, name: str) -> Iterator[str]:
        """The histogram as text."""
        total = 0
        for bound, count in zip((*map(str, BOUNDS), "+Inf"), self._counts, strict=True):
            total += count
            yield f'{name}_bucket{{le="{bound}"}} {total}'
        yield f"{name}_sum {self._sum:.6f}"
        yield f"{name}_count {total}"


class ServerCounts:
    """What the server has done since it began."""

    def __init__(self) -> None:
        self.answers: Counter[int] = Counter()
        """Answers by their status."""
        self.turns: Counter[ServedEnd] = Counter()
        """Turns of requests by how they ended."""
        self.turn_s, self.first_text_s = Durations(), Durations()
        """How long turns took with their waits, and how long until the first text of a stream."""


class _Sample(NamedTuple):
    name: str
    kind: Literal["counter", "gauge"]
    meaning: str
    values: Iterable[tuple[Mapping[str, object], float]]

    def lines(self) -> Iterator[str]:
        yield f"# HELP {self.name} {self.meaning}"
        yield f"# TYPE {self.name} {self.kind}"
        for labels, value in self.values:
            shown = ",".join(f'{label}="{_escaped(str(each))}"' for label, each in labels.items())
            yield f"{self.name}{{{shown}}} {value}" if shown else f"{self.name} {value}"


def exposition(
    counts: ServerCounts, statistics: Mapping[str, Any], running_requests: int, prices: Mapping[str, ModelPrice]
) -> str:
    """All metrics as text.

    Args:
        counts: of the server
        statistics: of the runtime, as `Runtime.statistics` returns them
        running_requests: requests that run now
        prices: `[router.prices]`
    """
    lines = [line for sample in _samples(counts, statistics, running_requests, prices) for line in sample.lines()]
    for name, meaning, durations in (
        ("kitchener_turn_seconds", "Duration of turns that requests began, with their waits.", counts.turn_s),
        ("kitchener_first_text_seconds", "Time until the first text of a streamed reply.", counts.first_text_s),
    ):
        lines += [f"# HELP {name} {meaning}", f"# TYPE {name} histogram", *durations.lines(name)]
    return "\n".join([*lines, ""])


def _samples(
    counts: ServerCounts, found: Mapping[str, Any], running_requests: int, prices: Mapping[str, ModelPrice]
) -> Iterator[_Sample]:
    lanes = [
        ({"mailbox": mailbox, "lane": lane}, each)
        for mailbox, all_of in found["mailboxes"].items()
        for lane, each in all_of.items()
    ]
    yield _Sample("kitchener_requests_running", "gauge", "Requests that run now.", [({}, running_requests)])
    answers = [({"status": status}, each) for status, each in sorted(counts.answers.items())]
    yield _Sample("kitchener_answers_total", "counter", "Answers by status.", answers)
    ends = [({"end": end}, counts.turns[end]) for end in ("completed", "degraded", "failed", "stopped")]
    yield _Sample("kitchener_served_turns_total", "counter", "Turns that requests began, by how they ended.", ends)
    yield _Sample("kitchener_running_turns", "gauge", "Turns that run now.", [({}, found["running_turns"])])
    yield _Sample("kitchener_waiting_turns", "gauge", "Turns that wait for a slot.", [({}, found["waiting_turns"])])
    backlog: list[tuple[Mapping[str, object], float]] = [({}, found["pending_consolidations"])]
    yield _Sample("kitchener_pending_consolidations", "gauge", "Consolidations that run or wait.", backlog)
    yield _Sample("kitchener_lane_running", "gauge", "Places of a lane that are taken.", _of(lanes, "running"))
    yield _Sample("kitchener_lane_waiting", "gauge", "Messages in the queue of a lane.", _of(lanes, "waiting"))
    yield _Sample("kitchener_lane_given_up_total", "counter", "Messages that found no room in a lane.", _of(lanes, "given_up"))
    yield from _of_models(found["usage_by_model"], prices)
    circuits = [({"provider": name}, int(is_open)) for name, is_open in found["open_circuits"].items()]
    yield _Sample("kitchener_circuit_open", "gauge", "Whether a provider failed so often that it is not called.", circuits)
    servers = [({"server": label}, int(each["state"] == "connected")) for label, each in found["mcp_servers"].items()]
    yield _Sample("kitchener_mcp_server_connected", "gauge", "Whether an MCP server is connected.", servers)


def _of_models(usage: Mapping[str, Mapping[str, ProviderUsage]], prices: Mapping[str, ModelPrice]) -> Iterator[_Sample]:
    """What models were asked, and what that cost where their price is known."""
    known = [(provider, model, each) for provider, models in usage.items() for model, each in models.items()]
    calls = [({"provider": provider, "model": model}, each.calls) for provider, model, each in known]
    yield _Sample("kitchener_model_calls_total", "counter", "Model calls that were answered.", calls)
    tokens = [
        ({"provider": provider, "model": model, "kind": kind}, getattr(each, f"{kind}_tokens"))
        for provider, model, each in known
        for kind in ("input", "output", "cached", "cache_write")
    ]
    meaning = "Tokens of model calls. Input tokens include those of the cache."
    yield _Sample("kitchener_model_tokens_total", "counter", meaning, tokens)
    costs: list[tuple[Mapping[str, object], float]] = []
    for provider, model, each in known:
        price = price_of(prices, provider, model)
        if price is not None:
            cost = price.cost(each.input_tokens, each.output_tokens, each.cached_tokens, each.cache_write_tokens)
            costs.append(({"provider": provider, "model": model}, cost))
    yield _Sample("kitchener_model_cost_total", "counter", "Cost of model calls by `[router.prices]`.", costs)


def _of(lanes: Iterable[tuple[dict[str, str], LaneStatistics]], field: str) -> list[tuple[Mapping[str, object], float]]:
    return [(labels, getattr(each, field)) for labels, each in lanes]


def _escaped(label: str) -> str:
    return label.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
