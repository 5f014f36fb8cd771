"""The operations of each right: every operation with every right, compared with the table in docs/server.md."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final, get_args

import pytest

from kitchener.config import ServeRight
from tests.serve.shared.requests import Asked, Client, serving
from tests.shared.event_loops import ON_TRIO

RIGHTS: Final[tuple[ServeRight, ...]] = get_args(ServeRight)
FILLED: Final = {
    "model": "ADMIN",
    "agent": "ADMIN",
    "session_id": "SES-00000000",
    "response_id": "resp_none",
    "turn_id": "TURN-SES-00000000-001",
    "approval_id": "WO-SES-00000000-001.1",
    "artifact_id": "ART-0",
    "intent_id": "INT-0",
}
"""What stands in a path in place of each parameter. Nothing of it is there, so hardly any operation does anything."""
RUN: Final = {"threadId": "t", "runId": "r", "state": {}, "tools": [], "context": [], "forwardedProps": {}, "messages": []}


def key_of(right: str) -> str:
    return f"key-with-{right}-0123456789"


@pytest.fixture
def keys(monkeypatch: pytest.MonkeyPatch) -> Mapping[str, Any]:
    """A key with each right and no other, but that one that acts for others may also talk; and two with two rights."""
    clients = dict[str, Any]()
    for rights in (*[(each,) for each in RIGHTS], ("chat", "read"), ("chat", "approve")):
        name = "_and_".join(rights)
        monkeypatch.setenv(f"{name.upper()}_KEY", key_of(name))
        subject = {} if rights in (("act_for",), ("operate",)) else {"subject": "ada"}
        clients[name] = {"key": f"env:{name.upper()}_KEY", "rights": rights, "requests_per_minute": 10_000, **subject}
    return {"clients": clients}


def with_key(client: Client, name: str) -> Client:
    """The client with a key; one that acts for others names somebody."""
    named = {"x_kitchener_subject": "ada"} if "act_for" in name else {}
    return client.with_headers(authorization=f"Bearer {key_of(name)}", **named)


def operations(client: Client) -> dict[tuple[str, str], ServeRight | None]:
    """The right that each operation needs, by its method and path."""
    found: dict[tuple[str, str], ServeRight | None] = {
        (each.method, each.path): each.right for each in client.server.operations
    }
    return found | {("GET", "/metrics"): "operate", ("GET", "/openapi.json"): None}


def is_refused(asked: Asked) -> bool:
    """Whether a request failed for want of a right."""
    return asked.status == 403 and asked.code == "right_missing"


@ON_TRIO
async def test_each_operation_is_for_its_right_alone(tmp_path: Path, keys: Mapping[str, Any]) -> None:
    async with serving(tmp_path / "root", serve=keys) as client:
        wrong = list[tuple[str, str, str]]()
        for (method, path), needed in operations(client).items():
            filled = path.format(**FILLED)
            body: dict[str, object] | None = None if method == "GET" else {}
            for right in RIGHTS:
                refused = is_refused(await with_key(client, right).ask(method, filled, body))
                # Whoever has a subject is told so; a key that only operates has none.
                may = right == needed if needed is not None else (path, right) != ("/v1/me", "operate")
                wrong += [(method, path, right)] if refused == may else []
        assert wrong == []
        assert len(await client.runtime.sessions()) == 1, "one was begun, by the key that may"


async def test_a_request_that_does_two_things_needs_both_rights(tmp_path: Path, keys: Mapping[str, Any]) -> None:
    """Answers about tool calls in what is said, and the history of a thread."""
    said = {"model": "ADMIN", "messages": [{"role": "user", "content": "approve WO-SES-00000000-001.1"}]}
    item = {"type": "mcp_approval_response", "approval_request_id": "WO-SES-00000000-001.1", "approve": True}
    answer = {"interruptId": "WO-SES-00000000-001.1", "status": "resolved", "payload": {"approved": True}}
    both: dict[str, list[tuple[str, Any]]] = {
        "approve": [
            ("/v1/chat/completions", said),
            ("/v1/responses", {"model": "ADMIN", "input": [item]}),
            ("/v1/agui/ADMIN", {**RUN, "resume": [answer]}),
        ],
        "read": [("/v1/agui/ADMIN", RUN)],
    }
    async with serving(tmp_path / "root", serve=keys) as client:
        for right, requests in both.items():
            for path, body in requests:
                found = [
                    is_refused(await with_key(client, each).ask("POST", path, body))
                    for each in ("chat", right, f"chat_and_{right}")
                ]
                assert found == [True, True, False], (right, path)


async def test_the_table_of_the_page_has_each_operation_once_and_by_its_right(tmp_path: Path) -> None:
    page = (Path(__file__).parents[3] / "docs/server.md").read_text().partition("## Keys")[2].partition("\n## ")[0]
    told = list[tuple[str, str, str]]()
    for line in page.splitlines():
        cells = line.strip("| ").split(" | ")
        if len(cells) == 3 and cells[0].strip("`") in (*RIGHTS, "any"):
            of_right = cells[2].partition("; with `chat`")[0]
            told += [(cells[0].strip("`"), *each) for each in re.findall(r"`([A-Z]+) (/[^`]+)`", of_right)]
    async with serving(tmp_path / "root") as client:
        served = [(right or "any", method, path) for (method, path), right in operations(client).items()]
    assert sorted((right, method, _plain(path)) for right, method, path in told) == sorted(
        (right, method, _plain(path)) for right, method, path in served
    )


def _plain(path: str) -> str:
    """A path without the names of its parameters, which the page shortens."""
    return re.sub(r"{\w+}", "{}", path)
