"""An address that tries keys is slowed down, and clients with a good key are not (docs/server.md)."""

from pathlib import Path
from typing import Any

import pytest
from structlog.types import EventDict

from kitchener.config import ServeConfig
from kitchener.errors import ConfigError
from kitchener.serve.access.wrong_keys import WrongKeys, address_of
from kitchener.serve.problems import RequestRefused
from tests.serve.shared.requests import Client, serving
from tests.shared.logs import captured_logs

ADA, BOB = "the-key-of-ada-0001", "the-key-of-bob-0002"


@pytest.fixture(autouse=True)
def keys(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ADA_KEY", ADA)
    monkeypatch.setenv("BOB_KEY", BOB)


CLIENTS = {name: {"key": f"env:{name.upper()}_KEY", "subject": name} for name in ("ada", "bob")}


async def statuses(client: Client, *keys: str) -> list[int]:
    return [(await client.ask("GET", "/v1/models", authorization=f"Bearer {key}")).status for key in keys]


async def test_after_so_many_wrong_keys_no_new_key_counts_and_the_log_has_none_of_them(tmp_path: Path) -> None:
    guesses = [f"guess-{number:012}" for number in range(5)]
    with captured_logs() as logged:
        async with serving(tmp_path / "root", serve={"clients": CLIENTS, "wrong_keys_per_minute": 3}) as client:
            assert await statuses(client, ADA) == [200]
            assert await statuses(client, *guesses) == [401, 401, 401, 429, 429]
            # Ada has used her key from here before. Bob's might be a guess that happens to be right.
            assert await statuses(client, ADA, BOB, ADA) == [200, 429, 200]
            held = await client.ask("GET", "/v1/models", authorization=f"Bearer {BOB}")
            assert (held.code, int(held.headers["retry-after"]) > 0) == ("too_many_wrong_keys", True)
            # No key is no guess.
            assert [(await client.ask("GET", "/v1/models")).status for _ in range(5)] == [401] * 5
    warned: list[EventDict] = [each for each in logged if each["event"] == "too many wrong keys"]
    assert [each["address"] for each in warned] == ["127.0.0.1"]
    assert not [each for each in logged if any(key in str(each) for key in (*guesses, ADA, BOB))]


def refused(keys: WrongKeys, address: str, good: str | None, now: float) -> bool:
    try:
        keys.note(address, good, now)
    except RequestRefused:
        return True
    return False


def test_an_address_comes_free_with_time_and_others_are_never_held() -> None:
    keys = WrongKeys(6, 4_096)
    assert [refused(keys, "192.0.2.1", None, 0.0) for _ in range(8)] == [False] * 6 + [True] * 2
    assert not refused(keys, "192.0.2.2", None, 0.0)
    assert refused(keys, "192.0.2.1", "ada", 9.0)
    assert not refused(keys, "192.0.2.1", "ada", 11.0)
    assert not refused(keys, "192.0.2.1", None, 11.0)
    assert refused(keys, "192.0.2.1", None, 11.0)
    assert not refused(keys, "192.0.2.1", "ada", 11.0)


def test_many_addresses_take_bounded_memory() -> None:
    keys = WrongKeys(1, 100)
    for number in range(10_000):
        keys.note(f"192.0.{number // 256}.{number % 256}", None, 0.0)
        keys.note("192.0.2.1", "ada", 0.0)
    assert len(keys) == 100


def scope_of(client: str, *forwarded: str) -> dict[str, Any]:
    return {"type": "http", "client": (client, 1), "headers": [(b"x-forwarded-for", each.encode()) for each in forwarded]}


def test_an_address_that_goes_on_is_not_forgotten_for_those_that_have_stopped() -> None:
    keys = WrongKeys(2, 2)
    assert not any(refused(keys, each, None, 0.0) for each in ("192.0.2.1", "192.0.2.2", "192.0.2.1", "192.0.2.3"))
    assert refused(keys, "192.0.2.1", None, 0.0)


@pytest.mark.parametrize(
    ("scope", "proxies", "address"),
    [
        (scope_of("192.0.2.7", "198.51.100.1"), (), "192.0.2.7"),
        (scope_of("192.0.2.7", "198.51.100.1"), ("192.0.2.7",), "198.51.100.1"),
        (scope_of("192.0.2.7", "203.0.113.9, 198.51.100.1"), ("192.0.2.7",), "198.51.100.1"),
        (scope_of("192.0.2.7", "203.0.113.9", "198.51.100.1, 192.0.2.8"), ("192.0.2.7", "192.0.2.8"), "198.51.100.1"),
        (scope_of("192.0.2.7", " , ,"), ("192.0.2.7",), "192.0.2.7"),
        (scope_of("2001:db8:1:2:3:4:5:6"), (), "2001:db8:1:2::/64"),
        (scope_of("::ffff:192.0.2.7"), (), "192.0.2.7"),
        (scope_of("192.0.2.7", "x" * 60_000), ("192.0.2.7",), "x" * 64),
        ({"type": "http", "client": None, "headers": []}, (), ""),
    ],
)
def test_only_a_trusted_proxy_says_where_a_request_comes_from(
    scope: dict[str, Any], proxies: tuple[str, ...], address: str
) -> None:
    assert address_of(scope, proxies) == address


@pytest.mark.parametrize("name", ["proxy.internal", "10.0.0.0/8", "127.0.0.1:443", "*"])
def test_a_trusted_proxy_that_no_request_could_come_from_is_refused(name: str) -> None:
    with pytest.raises(ConfigError, match="must be one IP address"):
        ServeConfig(trusted_proxies=(name,))
