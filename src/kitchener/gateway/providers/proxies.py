"""Finds the proxy that the environment names for an address, as other programs read it."""

import os
from ipaddress import ip_address, ip_network
from typing import Final
from urllib.parse import SplitResult, urlsplit
from urllib.request import getproxies_environment

from kitchener.errors import ConfigError
from kitchener.gateway.providers.redaction import Redaction

_PORTS: Final = {"http": 80, "https": 443}


def proxy_for(base_url: str, redaction: Redaction) -> str | None:
    """Returns the address of the proxy, with its password if it has one; None: the endpoint is called directly.

    Args:
        base_url: the address that is called
        redaction: the proxy's password is added to it

    Raises:
        ConfigError: the environment names something that is not a proxy, or a proxy of another protocol than HTTP
    """
    named, parts = getproxies_environment(), urlsplit(base_url)
    name = parts.scheme if named.get(parts.scheme) else "all"
    address = named.get(name)
    if not address or _is_excluded(parts, named.get("no", "")):
        return None
    address = address if "://" in address else f"http://{address}"
    redaction.note_login(address)
    if not _is_http(address):
        raise _refused(name, address, parts.hostname or "")
    return address


def _refused(name: str, address: str, host: str) -> ConfigError:
    """The error about a proxy that cannot be used. It does not quote the address, which may contain a password."""
    variable = f"{name}_proxy" if os.environ.get(f"{name}_proxy") else f"{name.upper()}_PROXY"
    problem = (
        "is a SOCKS proxy, which cannot be used" if address.lower().startswith("socks") else "is not the address of a proxy"
    )
    remedy = f"set it to an HTTP proxy, such as `http://proxy.example:3128`, or list {host} in NO_PROXY to call it without one"
    return ConfigError("environment", variable, "", f"{problem}: {remedy}")


def _is_http(address: str) -> bool:
    try:
        parts = urlsplit(address)
        return parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:  # the port is not a number
        return False


def _is_excluded(address: SplitResult, excluded: str) -> bool:
    """Whether a list such as `localhost:8080, .example.com, 10.0.0.0/8` names a host, a domain above it, or its network.

    An entry with a port excludes that port alone.
    """
    host, port = address.hostname or "", str(address.port or _PORTS.get(address.scheme))
    for each in map(str.strip, excluded.lower().split(",")):
        entry, only = _without_port(each)
        if only not in ("", port):
            continue
        name = entry.lstrip("*").lstrip(".")
        if entry == "*" or (name and (host == name or host.endswith(f".{name}"))):
            return True
        try:
            if ip_address(host) in ip_network(entry, strict=False):
                return True
        except ValueError:  # names, not addresses
            continue
    return False


def _without_port(entry: str) -> tuple[str, str]:
    """An entry of the list and its port; "": it has none. An IPv6 address has brackets where a port follows."""
    if entry.startswith("["):
        name, _, rest = entry[1:].partition("]")
        return name, rest.removeprefix(":")
    name, _, port = entry.partition(":")
    return (name, port) if entry.count(":") == 1 else (entry, "")
