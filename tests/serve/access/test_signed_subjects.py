"""A front end that signs the subject that it acts for, as Open WebUI does (docs/server.md)."""

from pathlib import Path
from typing import Any

import jwt
import pytest

from kitchener.config import ServeClientConfig
from kitchener.errors import ConfigError
from kitchener.testing import FakeClock
from tests.serve.shared.requests import Client, serving

KEY, SECRET = "the-key-of-the-desk", "a-secret-that-is-as-long-as-the-longest-of-the-hashes-of-a-token-at-least"
NOW_S = 1_800_000_000
TOKEN = "x-openwebui-user-jwt"


@pytest.fixture
def desk(monkeypatch: pytest.MonkeyPatch) -> dict[str, object]:
    """Settings with the key of a front end that signs."""
    monkeypatch.setenv("DESK_KEY", KEY)
    monkeypatch.setenv("DESK_SECRET", SECRET)
    client = ServeClientConfig(key="env:DESK_KEY", rights=("chat", "read", "act_for"), subject_secret="env:DESK_SECRET")
    return {"clients": {"desk": client}}


def signed(sub: object = "ada", secret: str = SECRET, algorithm: str = "HS256", **claims: object) -> str:
    """A token as Open WebUI sends it."""
    found = {"sub": sub, "iss": "open-webui", "iat": NOW_S, "exp": NOW_S + 300, **claims}
    return jwt.encode({name: each for name, each in found.items() if each is not None}, secret, algorithm)


async def subjects(client: Client) -> list[str]:
    return [each.subject_id for each in await client.runtime.sessions()]


async def test_the_token_names_the_subject_at_every_door(tmp_path: Path, desk: dict[str, object]) -> None:
    async with serving(tmp_path / "root", serve=desk, clock=FakeClock(NOW_S * 1_000_000)) as client:
        here = client.with_headers(authorization=f"Bearer {KEY}", **{TOKEN: signed()})
        assert (await here.chat("hello")).status == 200
        assert (await here.ask("POST", "/v1/responses", {"input": "hello"})).status == 200
        run = {"threadId": "t", "runId": "r", "messages": [{"id": "1", "role": "user", "content": "hello"}]}
        assert (await here.ask("POST", "/v1/agui/ADMIN", run)).status == 200
        assert (await here.ask("POST", "/v1/sessions", {})).status == 201
        assert await subjects(client) == ["ada"] * 4
        assert len((await here.ask("GET", "/v1/sessions")).json["sessions"]) == 4


REFUSED: dict[str, Any] = {
    "another secret": lambda: signed(secret="x" * 40),
    "no signature": lambda: jwt.encode({"sub": "ada", "exp": NOW_S + 300}, "", "none"),
    "another algorithm": lambda: signed(algorithm="HS512"),
    "expired": lambda: signed(exp=NOW_S - 31),
    "not yet": lambda: signed(nbf=NOW_S + 31),
    "no end": lambda: signed(exp=None),
    "an end that is a text": lambda: signed(exp="soon"),
    "an end that is no number": lambda: signed(exp=float("nan")),
    "an end that is true": lambda: signed(exp=True),
    "no subject": lambda: signed(sub=None),
    "a subject that is no text": lambda: signed(sub=17),
    "no token": lambda: "hello",
    "three points": lambda: "a.b.c.d",
    "nothing between": lambda: "..",
    "no object": lambda: "e30.W10." + "A" * 43,
    "a long one": lambda: "a" * 60_000,
}


@pytest.mark.parametrize("anyio_backend", ["asyncio"])  # tokens are checked without waiting
@pytest.mark.parametrize("token", REFUSED.values(), ids=REFUSED)
async def test_a_token_that_proves_nothing_is_refused(tmp_path: Path, desk: dict[str, object], token: Any) -> None:
    made = token()
    async with serving(tmp_path / "root", serve=desk, clock=FakeClock(NOW_S * 1_000_000)) as client:
        here = client.with_headers(authorization=f"Bearer {KEY}", x_kitchener_subject="ada")
        refused = await here.with_headers(**{TOKEN: made}).chat("hello")
        assert (refused.status, refused.code) == (401, "subject_token_invalid")
        assert made[:50] not in refused.body.decode() or len(made) < 6
        assert SECRET not in refused.body.decode()
        missing = await here.chat("hello")
        assert (missing.status, missing.code) == (400, "subject_missing"), "a plain header proves nothing"
        assert await subjects(client) == []


async def test_clocks_may_differ_a_little_and_an_impossible_subject_is_refused(tmp_path: Path, desk: dict[str, object]) -> None:
    async with serving(tmp_path / "root", serve=desk, clock=FakeClock(NOW_S * 1_000_000)) as client:
        here = client.with_headers(authorization=f"Bearer {KEY}")
        for token in (signed(exp=NOW_S - 29), signed(nbf=NOW_S + 29), signed(aud="somebody", iss="another")):
            assert (await here.with_headers(**{TOKEN: token}).chat("hello")).status == 200
        wrong = await here.with_headers(**{TOKEN: signed("kitchener-operator")}).chat("hello")
        assert (wrong.status, wrong.code) == (400, "subject_invalid")


async def test_the_secret_must_be_long_and_its_key_act_for_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DESK_KEY", KEY)
    monkeypatch.setenv("DESK_SECRET", "short")
    client = ServeClientConfig(key="env:DESK_KEY", rights=("act_for",), subject_secret="env:DESK_SECRET")
    with pytest.raises(ConfigError, match=r"serve\.clients\.desk\.subject_secret.*fewer than 32 bytes"):
        async with serving(tmp_path / "root", serve={"clients": {"desk": client}}):
            pass
    with pytest.raises(ConfigError, match="`subject_secret` needs `act_for`"):
        ServeClientConfig(key="env:K", subject="ada", subject_secret="env:S")
    with pytest.raises(ConfigError, match="`subject_secret`"):
        ServeClientConfig(key="env:K", rights=("act_for",), subject_secret="the secret itself")
