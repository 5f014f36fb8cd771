"""The subject, agents and rights that a key is shown (docs/server.md)."""

from pathlib import Path

import pytest

from tests.serve.shared.requests import serving
from tests.shared.event_loops import ON_TRIO


async def test_a_key_learns_what_it_reaches_and_allows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("ADA", "DESK"):
        monkeypatch.setenv(f"{name}_KEY", f"key-of-{name}-0123456789")
    clients = {
        "ada": {"key": "env:ADA_KEY", "rights": ("chat", "read"), "subject": "ada", "agents": ("OTHER",)},
        "desk": {"key": "env:DESK_KEY", "rights": ("chat", "act_for")},
    }
    async with serving(tmp_path / "root", serve={"clients": clients}, agents={"OTHER": {}}) as client:
        ada = client.with_headers(authorization="Bearer key-of-ADA-0123456789", x_kitchener_subject="bob")
        told = (await ada.ask("GET", "/v1/me")).json
        assert (told["subject_id"], told["agents"], told["default_agent"]) == ("ada", ["OTHER"], "OTHER")
        assert (told["rights"], told["needs_key"]) == (["chat", "read"], True)
        desk = client.with_headers(authorization="Bearer key-of-DESK-0123456789")
        assert (await desk.ask("GET", "/v1/me")).code == "subject_missing"
        told = (await desk.ask("GET", "/v1/me", x_kitchener_subject="bob")).json
        assert (told["subject_id"], told["agents"], told["default_agent"]) == ("bob", ["ADMIN", "OTHER"], "ADMIN")
        assert (await client.ask("GET", "/v1/me")).code == "invalid_api_key"


async def test_without_keys_everybody_is_told_that_none_is_needed(tmp_path: Path) -> None:
    async with serving(tmp_path / "root") as client:
        told = (await client.ask("GET", "/v1/me")).json
        assert (told["subject_id"], told["needs_key"], "erase" in told["rights"]) == ("local", False, True)


@ON_TRIO
async def test_a_key_of_several_agents_without_admin_is_asked_to_name_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each request that leaves out the agent was told that there is no agent 'ADMIN', of which it had not spoken."""
    monkeypatch.setenv("ADA_KEY", "key-of-ADA-0123456789")
    rights = ("chat", "read", "approve")
    clients = {"ada": {"key": "env:ADA_KEY", "rights": rights, "subject": "ada", "agents": ("DESK", "PRICES")}}
    async with serving(tmp_path / "root", serve={"clients": clients}, agents={"DESK": {}, "PRICES": {}}) as client:
        ada = client.with_headers(authorization="Bearer key-of-ADA-0123456789")
        for method, path in (
            ("GET", "/v1/sessions"),
            ("GET", "/v1/approvals"),
            ("POST", "/v1/sessions"),
            ("POST", "/v1/responses"),
        ):
            body = None if method == "GET" else {"input": "hello"} if path == "/v1/responses" else {}
            refused = await ada.ask(method, path, body)
            assert (refused.status, refused.code) == (400, "invalid_request"), path
            assert "name one, such as 'DESK'" in refused.json["error"]["message"]
        assert (await ada.ask("GET", "/v1/sessions?agent=PRICES")).status == 200
        unknown = await ada.ask("GET", "/v1/sessions?agent=ADMIN")
        assert (unknown.status, unknown.code) == (404, "model_not_found")
