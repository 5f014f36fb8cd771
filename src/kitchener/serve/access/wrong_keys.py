"""Limits how often an address may send wrong keys, so that keys cannot be guessed.

A key that was good from an address before stays good there while the address is held back: behind a proxy, all clients have one
address. Explained in `docs/server.md`.
"""

import ipaddress
from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from starlette.datastructures import Headers
from starlette.types import Scope

from kitchener.logs import get_logger
from kitchener.serve.problems import RequestRefused

_log = get_logger(__name__)

_NETWORK_BITS: Final = 64
"""The part of an IPv6 address that counts: one user has all addresses below it."""
_REMEMBERED: Final = 4_096
"""Addresses with wrong keys that a server remembers; about 0.5 KiB each. An address that is forgotten may try again."""


@dataclass(slots=True)
class _Address:
    left: float
    """Wrong keys that it may still try."""
    at: float
    """When `left` was computed, on the event loop's clock."""
    good: set[str] = field(default_factory=set)
    """The names of the keys that were good from here."""
    is_held: bool = False


class WrongKeys:
    """The wrong keys of each address.

    Args:
        per_minute: how many an address may try a minute
        max_addresses: addresses that are kept in memory, those seen last
    """

    def __init__(self, per_minute: int, max_addresses: int = _REMEMBERED) -> None:
        self._per_minute, self._max_addresses = per_minute, max_addresses
        self._addresses: OrderedDict[str, _Address] = OrderedDict()

    def __len__(self) -> int:
        """How many addresses are kept."""
        return len(self._addresses)

    def note(self, address: str, good: str | None, now: float) -> None:
        """Counts a key that was sent.

        Args:
            address: where it came from
            good: the name of the key; None: there is no such key
            now: on the event loop's clock

        Raises:
            RequestRefused: too many wrong keys came from there, so even a good key is refused
        """
        found = self._addresses.get(address)
        if found is None:
            found = self._addresses[address] = _Address(self._per_minute, now)
            if len(self._addresses) > self._max_addresses:
                self._addresses.popitem(last=False)
        self._addresses.move_to_end(address)
        if good is not None and good in found.good:
            return
        found.left = min(float(self._per_minute), found.left + (now - found.at) * self._per_minute / 60)
        found.at = now
        if found.left < 1:
            if not found.is_held:
                _log.warning("too many wrong keys", address=address, per_minute=self._per_minute)
            found.is_held = True
            wait_s = (1 - found.left) * 60 / self._per_minute
            raise RequestRefused(
                429, "too_many_wrong_keys", "too many wrong keys came from this address; wait", retry_after_s=wait_s
            )
        found.is_held = False
        if good is not None:
            found.good.add(good)
        else:
            found.left -= 1


def address_of(scope: Scope, proxies: Iterable[str]) -> str:
    """Where a request comes from: an IPv4 address, or the network of an IPv6 address.

    Args:
        scope: of the request
        proxies: addresses whose X-Forwarded-For is believed
    """
    known, client = frozenset(proxies), scope.get("client")
    found = str(client[0]) if client else ""
    if found in known:
        said = ",".join(Headers(scope=scope).getlist("x-forwarded-for")).split(",")
        # Each proxy appends the address that it talks to, so the last address that is not a proxy is the last one that can be
        # trusted.
        found = next((each for each in map(str.strip, reversed(said)) if each and each not in known), found)
    try:
        address = ipaddress.ip_address(found)
    except ValueError:
        return found[:_LONGEST]
    if isinstance(address, ipaddress.IPv6Address):
        mapped = address.ipv4_mapped
        return str(mapped) if mapped else str(ipaddress.ip_network((int(address), _NETWORK_BITS), strict=False))
    return found


_LONGEST: Final = 64
