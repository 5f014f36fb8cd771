"""One user of a front end leaves room for its other users, whose requests come with the same key (docs/server.md)."""

from itertools import count
from pathlib import Path
from typing import Any

import anyio
import pytest

from kitchener.actors.turn import context_time
from kitchener.config import ServeClientConfig
from kitchener.gateway.resilience import Rate
from kitchener.schemas import compiled_schemas
from kitchener.serve.access.allowances import MAX_SUBJECTS, RequestPlace, SubjectAllowances
from kitchener.serve.problems import RequestRefused
from kitchener.testing import ScriptedProvider
from tests.acceptance.stack import Hold, echo
from tests.serve.access.test_places import function
from tests.serve.shared.requests import Client, serving
from tests.shared.event_loops import ON_TRIO

KEY = "key-of-front-end-0123456789"
ADA, BOB = {"x_kitchener_subject": "ada"}, {"x_kitchener_subject": "bob"}


def front_end(**settings: Any) -> dict[str, Any]:
    """The settings of a server with the key of a front end, half of which one subject may use."""
    key = ServeClientConfig(key="env:DESK_KEY", rights=("chat", "read", "act_for"), subject_share=0.5, **settings)
    return {"clients": {"desk": key}}


@pytest.fixture(autouse=True)
def key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DESK_KEY", KEY)


def of(client: Client) -> Client:
    return client.with_headers(authorization=f"Bearer {KEY}")


async def test_a_subject_that_asks_too_often_leaves_requests_for_the_others(tmp_path: Path) -> None:
    """Of four requests at once, two are hers. What is refused to her takes nothing from the key."""
    async with serving(tmp_path / "root", serve=front_end(requests_per_minute=40)) as client:
        desk = of(client)
        adas = [await desk.ask("GET", "/v1/me", **ADA) for _ in range(20)]
        assert [each.status for each in adas[:3]] == [200, 200, 429]
        refused = adas[-1]
        assert (refused.status, refused.code, int(refused.headers["retry-after"]) >= 1) == (429, "rate_limited", True)
        assert (
            "requests came faster than 20 requests a minute of this subject (subject_share of requests_per_minute)"
            in refused.json["error"]["message"]
        )
        assert [(await desk.ask("GET", "/v1/me", **BOB)).status for _ in range(2)] == [200, 200]
        of_key = await desk.ask("GET", "/v1/me", x_kitchener_subject="cleo")  # the key's own limit holds for all together
        assert of_key.status == 429
        assert (
            "requests came faster than 40 requests a minute of this key (requests_per_minute)"
            in of_key.json["error"]["message"]
        )


async def test_a_subject_whose_turns_run_leaves_places_for_the_others(tmp_path: Path) -> None:
    hold = Hold("wait", wo_type="synthesize")
    settings = front_end(max_requests=2, requests_per_minute=1_000_000)
    async with serving(tmp_path / "root", ScriptedProvider(echo, gate=hold), serve=settings) as client:
        desk = of(client)
        begun = await desk.ask("POST", "/v1/responses", {"model": "ADMIN", "input": "wait", "background": True}, **ADA)
        with anyio.fail_after(20):
            await hold.arrived["wait"].wait()
        assert begun.status == 200
        refused = await desk.with_headers(**ADA).chat("hello")
        assert (refused.status, refused.code) == (429, "too_many_requests")
        assert "1 turns of this subject" in refused.json["error"]["message"]
        assert (await desk.with_headers(**BOB).chat("hello")).status == 200
        hold.released["wait"].set()


async def test_what_a_large_body_counts_is_counted_for_its_subject(tmp_path: Path) -> None:
    async with serving(tmp_path / "root", serve=front_end(requests_per_minute=200)) as client:
        desk = of(client)
        large = {"model": "ADMIN", "messages": [{"role": "user", "content": "x" * 3_145_728}], "n": 2}
        found = [await desk.ask("POST", "/v1/chat/completions", large, **ADA) for _ in range(3)]
        assert [each.status for each in found] == [400, 400, 429]
        assert "of this subject" in found[2].json["error"]["message"]
        assert (await desk.ask("POST", "/v1/chat/completions", large, **BOB)).status == 400


async def test_the_time_that_a_subjects_context_takes_counts_for_that_subject(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with serving(tmp_path / "root", serve=front_end(requests_per_minute=1_000), context_mode="enforce") as client:
        desk = of(client)
        times = (1.5 * number for number in count())  # 75 requests more, and 50 of hers may come at once
        monkeypatch.setattr(context_time, "thread_time", lambda: next(times))
        assert (await desk.with_headers(**ADA).chat("hello")).status == 200
        assert (await desk.ask("GET", "/v1/me", **ADA)).status == 429
        assert (await desk.ask("GET", "/v1/me", **BOB)).status == 200


async def test_new_schemas_of_a_subject_leave_time_for_those_of_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = front_end(schema_ms_per_minute=1_000, requests_per_minute=1_000_000)
    async with serving(tmp_path / "root", serve=settings) as client:
        desk = of(client)
        times = (0.06 * number for number in count())
        monkeypatch.setattr(compiled_schemas, "thread_time", lambda: next(times))
        tools = [[function(f"{name}_{tmp_path.name}")] for name in ("one", "two", "three")]
        assert (await desk.with_headers(**ADA).chat("hello", tools=tools[0])).status == 200
        refused = await desk.with_headers(**ADA).chat("hello", tools=tools[1])
        assert refused.status == 429
        assert "of this subject took more than 500 ms" in refused.json["error"]["message"]
        assert (await desk.with_headers(**BOB).chat("hello", tools=tools[2])).status == 200


async def test_requests_that_need_no_subject_count_for_the_key_alone(tmp_path: Path) -> None:
    async with serving(tmp_path / "root", serve=front_end(requests_per_minute=40)) as client:
        found = [(await of(client).ask("GET", "/v1/models")).status for _ in range(5)]
    assert found == [200] * 4 + [429]


async def test_with_a_share_of_one_only_the_key_has_limits(tmp_path: Path) -> None:
    key = ServeClientConfig(key="env:DESK_KEY", rights=("chat", "act_for"), subject_share=1, requests_per_minute=40)
    async with serving(tmp_path / "root", serve={"clients": {"desk": key}}) as client:
        found = [(await of(client).ask("GET", "/v1/me", **ADA)).status for _ in range(5)]
    assert found == [200] * 4 + [429]


@ON_TRIO
async def test_many_subjects_take_no_more_memory_than_the_newest_and_those_that_run() -> None:
    allowances = SubjectAllowances(0.25, 600, 64, 3_000)
    running = [RequestPlace((allowances.of(f"running {number}"),)) for number in range(16)]
    for number in range(3 * MAX_SUBJECTS):
        allowances.of(f"subject {number}")
    assert len(allowances) == MAX_SUBJECTS
    allowances.of("running 0").rate = Rate(1_000_000)
    more = [RequestPlace.enter((allowances.of("running 0"),)) for _ in range(15)]
    with pytest.raises(RequestRefused, match="16 requests of this subject run"):
        RequestPlace.enter((allowances.of("running 0"),))
    assert all(allowances.of(f"running {number}").running for number in range(16))
    for each in running + more:
        each.leave()
