"""The dashboard and the alerts use metrics and labels that a server has (docs/operations.md).

`promtool check rules operations/alerts.yaml` checks the same file with the real parser, by hand.
"""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped]  # its types are a package of their own, for this one file

from kitchener.config import ModelPrice
from kitchener.gateway.guarded_provider import FailureCounts, ProviderUsage
from kitchener.mcp.server import ServerStatistics
from kitchener.serve.metrics.exposition import exposition, runtime_families
from tests.serve.metrics.metrics_text import ReadFamily, read_metrics
from tests.serve.shared.requests import serving

OPERATIONS = Path(__file__).parents[2] / "operations"
FUNCTIONS = {"sum", "min", "max", "rate", "histogram_quantile", "avg_over_time", "min_over_time"}
WORDS = {"by", "and", "or", "unless"}
OF_PROMETHEUS = {"instance", "job"}
"""Labels that Prometheus adds."""
TOKEN = re.compile(
    r'\s+|(?P<name>[a-zA-Z_:][a-zA-Z0-9_:]*)|(?P<text>"(?:[^"\\]|\\.)*")|(?P<number>\d+(?:\.\d+)?)'
    r"|(?P<range>\[(?:\d+[smhd]|\$__rate_interval)\])|(?P<sign>=~|!=|!~|==|>=|<=|[-+*/<>(){},=])"
)


def alerts() -> list[dict[str, Any]]:
    (group,) = yaml.safe_load((OPERATIONS / "alerts.yaml").read_text())["groups"]
    rules: list[dict[str, Any]] = group["rules"]
    return rules


def panels() -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = json.loads((OPERATIONS / "grafana.json").read_text())["panels"]
    return found


def expressions() -> Iterator[tuple[str, str]]:
    """Every query, by where it stands."""
    for rule in alerts():
        yield rule["alert"], rule["expr"]
    for panel in panels():
        for target in panel.get("targets", ()):
            yield panel["title"], target["expr"]


FAILED: ServerStatistics = {
    "state": "failed",
    "problem": "gone",
    "running": 0,
    "waiting": 0,
    "starts": 1,
    "tools": 0,
    "refused": 0,
}


async def families(root: Path) -> dict[str, ReadFamily]:
    """All metrics of a server that has served a turn, with a model that has a price and fails at times, and an MCP server."""
    used = ProviderUsage(calls=1, input_tokens=1, output_tokens=1, cached_tokens=0, cache_write_tokens=0)
    async with serving(root) as client:
        await client.chat("hello", stream=True)
        read = read_metrics((await client.ask("GET", "/metrics")).body.decode())
        found = client.runtime.statistics()
        found["usage_by_model"] = {"p": {"m": used}}
        found["failures_by_model"] = {"p": {"m": {"timeout": FailureCounts(calls=1, retries=2)}}}
        found["mcp_servers"] = {"s": FAILED}
        told = runtime_families(
            found, waiting_approvals={"ADMIN": 0}, prices={"p/m": ModelPrice(input_per_million=1.0, output_per_million=1.0)}
        )
        return read | read_metrics(exposition(told))


def problems_of(query: str, known: dict[str, ReadFamily]) -> list[str]:
    """What is wrong with a query: an unknown name, or what cannot be read."""
    samples = {name.partition("{")[0] for family in known.values() for name in family.samples}
    labels = OF_PROMETHEUS.union(*(family.labels for family in known.values()))
    found, at, depth, is_list = list[str](), 0, list[str](), False
    while at < len(query):
        token = TOKEN.match(query, at)
        if token is None:
            return [*found, f"cannot be read: {query[at:]!r}"]
        at, sign, name = token.end(), token["sign"], token["name"]
        if sign in ("(", "{"):
            depth.append(sign)
        elif sign in (")", "}"):
            if not depth or depth.pop() != {")": "(", "}": "{"}[sign]:
                return [*found, "brackets do not fit"]
            is_list = False
        elif name == "by":
            is_list = True
        elif name and name not in FUNCTIONS | WORDS:
            of_labels = is_list or (depth and depth[-1] == "{")
            found += [] if name in (labels if of_labels else samples | {"up"}) else [f"unknown: {name}"]
    return found + (["brackets stay open"] if depth else [])


async def test_every_query_asks_for_metrics_and_labels_that_there_are(tmp_path: Path) -> None:
    known = await families(tmp_path / "root")
    assert {where: problems for where, query in expressions() if (problems := problems_of(query, known))} == {}


async def test_every_metric_of_kitchener_is_on_the_dashboard(tmp_path: Path) -> None:
    """So whoever adds one shows it."""
    shown = " ".join(target["expr"] for panel in panels() for target in panel.get("targets", ()))
    missing = {name for name in await families(tmp_path / "root") if not re.search(rf"\b{name}(_bucket|_count)?\b", shown)}
    assert missing == {"process_virtual_memory_bytes"}


@pytest.mark.parametrize(
    "query", ["sum(rate(kitchener_gone_total[5m])", "kitchener_gone", 'up{who="a"}', "sum by (who) (up)", "up >>> 'a'", "(up}"]
)
def test_a_query_with_a_mistake_is_found(query: str) -> None:
    assert problems_of(query, {"up": ReadFamily("up", "gauge", "It.", {"up": 1.0})})


def test_each_alert_says_what_to_do() -> None:
    assert len({rule["alert"] for rule in alerts()}) == len(alerts())
    for rule in alerts():
        assert rule["labels"]["severity"] in ("page", "ticket")
        assert set(rule["annotations"]) == {"summary", "action"}


def test_panels_stand_beside_each_other_and_explain_themselves() -> None:
    taken = set[tuple[int, int]]()
    for panel in panels():
        at = panel["gridPos"]
        cells = {(x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])}
        assert not cells & taken, panel["title"]
        assert at["x"] + at["w"] <= 24
        assert panel["type"] == "row" or panel["description"]
        taken |= cells
    assert len({panel["id"] for panel in panels()}) == len(panels())
