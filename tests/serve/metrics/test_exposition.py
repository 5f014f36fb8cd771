"""The metrics that an operator reads of a server (docs/server.md)."""

import re
from pathlib import Path
from typing import Any

import pytest

from kitchener.config import McpServerConfig, ModelPrice, ServeClientConfig
from kitchener.errors import ProviderError
from kitchener.gateway.guarded_provider import ProviderUsage
from kitchener.gateway.traits import ProviderTraits
from kitchener.model_usage import Usage
from kitchener.records.prompt import PromptRequest, PromptResponse
from kitchener.runtime import open_runtime
from kitchener.serve.metrics.exposition import MetricFamily, exposition, runtime_families
from kitchener.testing import ScriptedProvider
from tests.acceptance.stack import Hold, echo
from tests.mcp.shared.servers import by_message, settings_of
from tests.serve.metrics.metrics_text import read_metrics
from tests.serve.native.test_sessions import asking_model, send_letter
from tests.serve.shared.requests import Client, serving

OPERATORS = "key-of-operator-0123456789"


async def metrics(client: Client) -> dict[str, float]:
    """The values by their names with labels."""
    found = await client.ask("GET", "/metrics")
    assert (found.status, found.headers["content-type"].startswith("text/plain")) == (200, True)
    return values(found.body.decode())


def values(text: str) -> dict[str, float]:
    """The values of a text by their names with labels."""
    return {key: value for family in read_metrics(text).values() for key, value in family.samples.items()}


async def test_turns_answers_durations_and_queues_are_counted(tmp_path: Path) -> None:
    async with serving(tmp_path / "root") as client:
        before = await metrics(client)
        await client.chat("hello")
        await client.chat("hello", stream=True)
        await client.chat("hello", model="NOBODY")
        now = await metrics(client)
        assert now['kitchener_served_turns_total{agent="ADMIN",end="completed"}'] == 2
        assert now['kitchener_answers_total{status="200"}'] == before.get('kitchener_answers_total{status="200"}', 0) + 3
        assert now['kitchener_answers_total{status="404"}'] == 1
        assert now['kitchener_turn_seconds_count{agent="ADMIN"}'] == 2
        assert now['kitchener_turn_seconds_bucket{agent="ADMIN",le="+Inf"}'] == 2
        assert now['kitchener_first_text_seconds_count{agent="ADMIN"}'] == 1
        assert now["kitchener_requests_running"] == 1
        assert now['kitchener_lane_running{mailbox="ADMIN",lane="interactive"}'] == 0


async def test_calls_tokens_and_cost_are_told_by_model(tmp_path: Path) -> None:
    """Models of the tests charge nothing and are not counted, so what a provider counted is put in their place."""
    used = ProviderUsage(calls=1, input_tokens=1_000, output_tokens=100, cached_tokens=400, cache_write_tokens=200)
    prices = {"near/m": ModelPrice(input_per_million=10.0, output_per_million=100.0, cached_per_million=1.0)}
    async with serving(tmp_path / "root") as client:
        told = client.runtime.statistics()
        told["usage_by_model"] = {"near": {"m": used}, "far": {"m": used}}
        now = values(exposition(runtime_families(told, waiting_approvals={}, prices=prices)))
        near = 'provider="near",model="m"'
        assert now[f"kitchener_model_calls_total{{{near}}}"] == 1
        kinds = ("input", "output", "cached", "cache_write")
        found = [now[f'kitchener_model_tokens_total{{{near},kind="{each}"}}'] for each in kinds]
        assert found == [1_000, 100, 400, 200]
        costs = {name: value for name, value in now.items() if name.startswith("kitchener_model_cost_total")}
        assert costs == {f"kitchener_model_cost_total{{{near}}}": pytest.approx((600 * 10 + 400 * 1 + 100 * 100) / 1e6)}


async def test_what_served_turns_use_is_counted_by_model(tmp_path: Path) -> None:
    def answer(_: PromptRequest) -> PromptResponse:
        usage = Usage(100, 7, cached_tokens=80)
        return PromptResponse(provider_id="scripted", model_id="scripted-1", text="Hello!", usage=usage)

    provider = ScriptedProvider(answer)
    provider.traits = ProviderTraits(model_id="scripted-1")  # one that is not built in, which could charge for its calls
    async with serving(tmp_path / "root", provider) as client:
        for stream in (False, True):
            assert (await client.chat("hello", stream=stream)).text == "Hello!"
        now, model = await metrics(client), 'provider="scripted",model="scripted-1"'
        assert now[f"kitchener_model_calls_total{{{model}}}"] == 2
        found = [now[f'kitchener_model_tokens_total{{{model},kind="{each}"}}'] for each in ("input", "output", "cached")]
        assert found == [200, 14, 160]


async def test_a_provider_that_is_not_called_is_told(tmp_path: Path) -> None:
    def answer(request: PromptRequest) -> Any:
        raise ProviderError("scripted", "server_error", "down")

    lane, circuit = {"breaker_failures": 1, "max_retries": 0}, 'kitchener_circuit_open{provider="scripted"}'
    async with serving(tmp_path / "root", ScriptedProvider(answer), lane=lane) as client:
        assert (await metrics(client))[circuit] == 0
        await client.chat("hello")
        assert (await metrics(client))[circuit] == 1


async def test_an_mcp_server_that_nobody_has_used_yet_is_not_told_to_be_gone(tmp_path: Path) -> None:
    """Regression: with `start = "first_use"` it had the value 0, for which an alert is shipped."""
    servers = {"lazy": McpServerConfig(command="no-such-program", start="first_use")}
    config = settings_of(tmp_path, servers)
    async with open_runtime(config, providers={"scripted": ScriptedProvider(by_message)}) as runtime:
        unused = values(exposition(runtime_families(runtime.statistics(), waiting_approvals={}, prices={})))
        await runtime.supervisor().handle_turn("hello")
        used = values(exposition(runtime_families(runtime.statistics(), waiting_approvals={}, prices={})))
    name = 'kitchener_mcp_server_connected{server="lazy"}'
    assert name not in unused
    assert used[name] == 0


async def test_turns_that_came_to_nothing_are_told_apart(tmp_path: Path) -> None:
    async with serving(tmp_path / "root", ScriptedProvider([RuntimeError("broken")] * 9)) as client:
        path = f"/v1/sessions/{(await client.ask('POST', '/v1/sessions', {})).json['session_id']}/messages"
        assert (await client.ask("POST", path, {"message": "hello"}, idempotency_key="k")).status == 200
        now = await metrics(client)
        assert ends_of(now, "ADMIN") == {"completed": 0, "degraded": 1, "failed": 0, "stopped": 0}
    hold = Hold("wait", wo_type="synthesize")
    async with serving(tmp_path / "other", ScriptedProvider(echo, gate=hold)) as client:
        path = f"/v1/sessions/{(await client.ask('POST', '/v1/sessions', {})).json['session_id']}/messages"
        assert (await client.ask("POST", path, {"message": "wait", "deadline_s": 0.05})).status == 504
        assert ends_of(await metrics(client), "ADMIN") == {"completed": 0, "degraded": 0, "failed": 1, "stopped": 0}


async def test_a_request_that_is_refused_for_what_it_says_is_no_turn(tmp_path: Path) -> None:
    """Regression: it counted as a turn that failed, so that clients' mistakes set off the operators' alert."""
    async with serving(tmp_path / "root", ScriptedProvider(echo)) as client:
        session = f"/v1/sessions/{(await client.ask('POST', '/v1/sessions', {})).json['session_id']}"
        for message, status in (("hello", 200), ("another", 409)):
            answer = await client.ask("POST", f"{session}/messages", {"message": message}, idempotency_key="k")
            assert answer.status == status
        await client.ask("POST", f"{session}/end")
        assert (await client.ask("POST", f"{session}/messages", {"message": "late"})).status == 410
        now = await metrics(client)
        assert ends_of(now, "ADMIN") == {"completed": 1, "degraded": 0, "failed": 0, "stopped": 0}
        assert now['kitchener_turn_seconds_count{agent="ADMIN"}'] == 1


async def test_turns_are_told_apart_by_agent_class_at_every_door(tmp_path: Path) -> None:
    """The classes are those of the settings: an agent that nobody asked has counts of 0, and a made-up name has none."""
    async with serving(tmp_path / "root", ScriptedProvider(echo), agents={"SALES": {}, "IDLE": {}}) as client:
        await client.chat("hello", model="ADMIN")
        for stream in (False, True):
            await client.chat("hello", model="SALES", stream=stream)
            await client.ask("POST", "/v1/responses", {"model": "SALES", "input": "hello", "stream": stream})
            session = (await client.ask("POST", "/v1/sessions", {"agent": "SALES"})).json["session_id"]
            await client.ask("POST", f"/v1/sessions/{session}/messages", {"message": "hello", "stream": stream})
        run = {"threadId": "t", "runId": "r", "messages": [{"id": "1", "role": "user", "content": "hello"}]}
        body = {"state": {}, "tools": [], "context": [], "forwardedProps": {}, **run}
        assert (await client.ask("POST", "/v1/agui/SALES", body)).status == 200
        assert (await client.chat("hello", model="MADE_UP")).status == 404
        now = await metrics(client)
        completed = {agent: ends_of(now, agent)["completed"] for agent in ("ADMIN", "SALES", "IDLE")}
        assert completed == {"ADMIN": 1, "SALES": 7, "IDLE": 0}
        durations = {agent: now[f'kitchener_turn_seconds_count{{agent="{agent}"}}'] for agent in completed}
        assert durations == completed
        assert "MADE_UP" not in " ".join(now)


def ends_of(now: dict[str, float], agent: str) -> dict[str, float]:
    """The turns of an agent class, by how they ended."""
    return {
        end: now[f'kitchener_served_turns_total{{agent="{agent}",end="{end}"}}']
        for end in ("completed", "degraded", "failed", "stopped")
    }


def failures_of(now: dict[str, float], name: str) -> dict[tuple[str, str], float]:
    """The counts of a metric of failures, by model and kind of error."""
    found = re.compile(rf'{name}{{provider="scripted",model="([^"]+)",error_type="([^"]+)"}}')
    return {(matched[1], matched[2]): value for key, value in now.items() if (matched := found.fullmatch(key)) and value}


async def test_failed_model_calls_are_counted_by_error_and_retries_apart(tmp_path: Path) -> None:
    """A call that is answered in the end has not failed; one that is not has failed once, however often it was tried."""
    down, slow = ProviderError("scripted", "server_error", "down"), ProviderError("scripted", "timeout", "slow")
    provider = ScriptedProvider([down, slow, "Hello!", down, down, down, ProviderError("scripted", "authentication", "no")])
    provider.traits = ProviderTraits(model_id="scripted-1")  # one that is not built in
    lane = {"max_retries": 2, "backoff_initial_s": 0.001, "backoff_max_s": 0.001, "breaker_failures": 50}
    async with serving(tmp_path / "root", provider, lane=lane) as client:
        texts = [(await client.chat("hello")).text for _ in range(3)]
        now, model = await metrics(client), "scripted-1"
        assert texts[0] == "Hello!"
        assert now[f'kitchener_model_calls_total{{provider="scripted",model="{model}"}}'] == 1
        failed = failures_of(now, "kitchener_model_calls_failed_total")
        assert failed == {(model, "server_error"): 1, (model, "authentication"): 1}
        retries = failures_of(now, "kitchener_model_retries_total")
        assert retries == {(model, "server_error"): 3, (model, "timeout"): 1}


async def test_calls_that_an_open_circuit_kept_back_have_failed_and_were_no_retries(tmp_path: Path) -> None:
    provider = ScriptedProvider([ProviderError("scripted", "server_error", "down")])
    provider.traits = ProviderTraits(model_id="scripted-1")
    async with serving(tmp_path / "root", provider, lane={"breaker_failures": 1, "max_retries": 0}) as client:
        for _ in range(3):
            await client.chat("hello")
        now = await metrics(client)
        failed = failures_of(now, "kitchener_model_calls_failed_total")
        assert failed == {("scripted-1", "server_error"): 1, ("scripted-1", "breaker_open"): 2}
        assert failures_of(now, "kitchener_model_retries_total") == {}
        assert now['kitchener_model_calls_total{provider="scripted",model="scripted-1"}'] == 0, "a share needs both counts"


async def test_only_a_key_with_the_right_reads_them_and_it_needs_no_subject(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPERATOR_KEY", OPERATORS)
    monkeypatch.setenv("ADA_KEY", "key-of-ada-0123456789")
    clients = {
        "prometheus": ServeClientConfig(key="env:OPERATOR_KEY", rights=("operate",)),
        "ada": ServeClientConfig(key="env:ADA_KEY", subject="ada"),
    }
    async with serving(tmp_path / "root", ScriptedProvider(echo), serve={"clients": clients}) as client:
        operator = client.with_headers(authorization=f"Bearer {OPERATORS}")
        assert await metrics(operator)
        refused = await operator.with_headers(x_kitchener_subject="ada").chat("hello")
        assert refused.code == "right_missing"
        assert (await client.ask("GET", "/metrics", authorization="Bearer key-of-ada-0123456789")).code == "right_missing"


async def test_every_metric_is_documented_and_names_nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The labels are those of a short list, so the number of lines is bounded by the settings and not by who talks."""
    monkeypatch.setenv("OPERATOR_KEY", OPERATORS)
    clients = {"front_end": ServeClientConfig(key="env:OPERATOR_KEY", rights=("chat", "act_for", "operate"))}
    async with serving(tmp_path / "root", serve={"clients": clients}) as anybody:
        client = anybody.with_headers(authorization=f"Bearer {OPERATORS}")
        for subject in ("ada_l", "bo_k"):
            assert (await client.with_headers(x_kitchener_subject=subject).chat("hello")).status == 200
        text = (await client.ask("GET", "/metrics")).body.decode()
        told = read_metrics(text)
        assert set(told) == documented_metrics()
        assert {label for family in told.values() for label in family.labels} <= set(LABELS)
        sessions = await client.runtime.sessions()
        assert {each.subject_id for each in sessions} == {"ada_l", "bo_k"}
        assert [each for each in sessions if each.session_id in text or each.subject_id in text] == []


def documented_metrics() -> set[str]:
    """The names in the table of `docs/server.md`."""
    section = (Path(__file__).parents[3] / "docs/server.md").read_text().partition("## Metrics")[2].partition("\n## ")[0]
    return {
        name
        for line in section.splitlines()
        if line.startswith("| `")
        for name in re.findall(r"`([a-z_]+)`", line.split("|")[1])
    }


LABELS = (
    "agent",
    "end",
    "error_type",
    "kind",
    "lane",
    "le",
    "mailbox",
    "model",
    "provider",
    "python",
    "server",
    "status",
    "version",
)


async def test_commits_and_requests_for_approval_are_counted(tmp_path: Path) -> None:
    async with serving(tmp_path / "root", asking_model(), tools=[send_letter]) as client:
        before = await metrics(client)
        assert before['kitchener_pending_approvals{agent="ADMIN"}'] == 0
        path = (await client.ask("POST", "/v1/sessions", {})).json["session_id"]
        asked = list[str]()
        for _ in range(2):
            asked += (await client.ask("POST", f"/v1/sessions/{path}/messages", {"message": "go"})).json["pending_approval"]
        now = await metrics(client)
        assert now['kitchener_pending_approvals{agent="ADMIN"}'] == 2
        rounds = 'kitchener_commit_seconds_count{agent="ADMIN"}'
        assert now[rounds] > before[rounds]
        await client.ask("POST", f"/v1/sessions/{path}/approvals/{asked[0]}/deny")
        for _ in range(2):  # the second reading begins where the first one ended
            assert (await metrics(client))['kitchener_pending_approvals{agent="ADMIN"}'] == 1
        await client.ask("POST", f"/v1/sessions/{path}/end")
        assert (await metrics(client))['kitchener_pending_approvals{agent="ADMIN"}'] == 0


@pytest.mark.parametrize(
    "text",
    [
        "a 1\n",
        "# HELP a_total It.\n# TYPE a_total counter\na_total 1",
        "# HELP a_total It.\n# TYPE a_total counter\na_total -1\n",
        "# HELP a It.\n# TYPE a counter\na 1\n",
        "# HELP a It.\n# TYPE a gauge\na 1\na 1\n",
        "# HELP a It.\n# TYPE a gauge\nb 1\n",
        '# HELP a It.\n# TYPE a gauge\na{b="c"d="e"} 1\n',
        '# HELP a It.\n# TYPE a gauge\na{b="c\\d"} 1\n',
        '# HELP a It.\n# TYPE a histogram\na_bucket{le="1"} 2\na_bucket{le="+Inf"} 1\na_sum 1\na_count 1\n',
        '# HELP a It.\n# TYPE a histogram\na_bucket{le="1"} 1\na_sum 1\na_count 1\n',
    ],
)
def test_the_reader_of_these_tests_is_strict(text: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        read_metrics(text)


def test_labels_are_escaped() -> None:
    text = exposition([MetricFamily("a", "gauge", "It.", [({"b": 'c"d\\e\nf'}, 1)])])
    assert list(read_metrics(text)["a"].samples) == ['a{b="c\\"d\\\\e\\nf"}']
