"""Which proxy an endpoint is called through: what the environment names, as other programs read it (docs/gateway.md)."""

import pytest

from kitchener.errors import ConfigError
from kitchener.gateway.providers.proxies import proxy_for
from kitchener.gateway.providers.redaction import Redaction

PROXY = "http://proxy.example:3128"


@pytest.fixture(autouse=True)
def bare_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for scheme in ("http", "https", "all", "no"):
        monkeypatch.delenv(f"{scheme}_proxy", raising=False)
        monkeypatch.delenv(f"{scheme}_proxy".upper(), raising=False)
    monkeypatch.delenv("REQUEST_METHOD", raising=False)


@pytest.mark.parametrize(
    ("name", "url", "expected"),
    [
        ("HTTP_PROXY", "http://model.example/v1", PROXY),
        ("http_proxy", "http://model.example/v1", PROXY),
        ("HTTPS_PROXY", "http://model.example/v1", None),
        ("HTTPS_PROXY", "https://model.example/v1", PROXY),
        ("ALL_PROXY", "https://model.example/v1", PROXY),
    ],
)
def test_the_scheme_chooses_the_proxy(monkeypatch: pytest.MonkeyPatch, name: str, url: str, expected: str | None) -> None:
    monkeypatch.setenv(name, PROXY)
    assert proxy_for(url, Redaction()) == expected


@pytest.mark.parametrize(
    ("excluded", "host", "is_excluded"),
    [
        ("*", "model.example", True),
        ("other.example, model.example", "model.example", True),
        ("example", "model.example", True),
        (".example", "model.example", True),
        ("*.example", "model.example", True),
        ("del.example", "model.example", False),
        ("Model.Example", "model.example", True),
        ("10.0.0.0/8", "10.1.2.3", True),
        ("10.0.0.0/8", "11.1.2.3", False),
        ("10.0.0.0/8", "model.example", False),
        ("127.0.0.1", "127.0.0.1", True),
        ("fd00::/8", "[fd00::1]", True),
        ("[fd00::1]", "[fd00::1]", True),
        ("model.example:8000", "model.example", True),
        ("model.example:443", "model.example", False),
        (".example:8000", "model.example", True),
        ("127.0.0.1:8000", "127.0.0.1", True),
        ("127.0.0.1:443", "127.0.0.1", False),
        ("[fd00::1]:8000", "[fd00::1]", True),
        ("[fd00::1]:443", "[fd00::1]", False),
        (",, ", "model.example", False),
    ],
)
def test_hosts_domains_and_networks_are_excluded(
    monkeypatch: pytest.MonkeyPatch, excluded: str, host: str, is_excluded: bool
) -> None:
    monkeypatch.setenv("ALL_PROXY", PROXY)
    monkeypatch.setenv("NO_PROXY", excluded)
    assert (proxy_for(f"http://{host}:8000/v1", Redaction()) is None) == is_excluded


@pytest.mark.parametrize(("url", "is_excluded"), [("https://model.example/v1", True), ("http://model.example/v1", False)])
def test_an_address_without_a_port_has_that_of_its_scheme(monkeypatch: pytest.MonkeyPatch, url: str, is_excluded: bool) -> None:
    monkeypatch.setenv("ALL_PROXY", PROXY)
    monkeypatch.setenv("NO_PROXY", "model.example:443")
    assert (proxy_for(url, Redaction()) is None) == is_excluded


@pytest.mark.parametrize("address", ["socks5://me:secret-word@proxy.example:1080", "http://me:secret-word@:x", "http://"])
def test_what_is_no_proxy_of_http_is_a_wrong_setting_that_shows_no_password(
    monkeypatch: pytest.MonkeyPatch, address: str
) -> None:
    monkeypatch.setenv("ALL_PROXY", address)
    with pytest.raises(ConfigError, match="ALL_PROXY") as caught:
        proxy_for("http://model.example/v1", Redaction())
    assert "secret-word" not in f"{caught.value!r}{caught.value}"
    assert ("SOCKS" in str(caught.value)) == address.startswith("socks")


def test_the_error_names_the_variable_as_it_is_spelled_and_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("all_proxy", "socks5h://127.0.0.1:1080")
    with pytest.raises(
        ConfigError, match=r"environment: all_proxy: is a SOCKS proxy.* HTTP proxy.* model\.example in NO_PROXY"
    ):
        proxy_for("http://model.example/v1", Redaction())
    monkeypatch.setenv("NO_PROXY", "model.example")
    assert proxy_for("http://model.example/v1", Redaction()) is None


def test_the_password_of_a_proxy_is_taken_out_of_answers_however_it_is_written(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HTTP_PROXY", "me:secret%2Dword@proxy.example:3128")
    redaction = Redaction()
    assert proxy_for("http://model.example/v1", redaction) == "http://me:secret%2Dword@proxy.example:3128"
    assert redaction.text("secret-word secret%2Dword") == "*** ***"
