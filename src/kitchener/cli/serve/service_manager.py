"""Tells systemd what this process does, by the protocol of `sd_notify`."""

import socket
from collections.abc import Mapping
from contextlib import suppress
from typing import Literal


def notify(state: Literal["READY=1", "STOPPING=1"], environ: Mapping[str, str]) -> None:
    """Tells the service manager, if it listens, what this process does. Never fails."""
    place = environ.get("NOTIFY_SOCKET", "")
    if place[:1] not in ("/", "@"):
        return
    address = f"\0{place[1:]}" if place.startswith("@") else place
    with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
        sender.setblocking(False)
        sender.sendto(state.encode(), address)
