"""Caddy and nginx with the files of `operations`, on loopback and without TLS, in front of a server that a test runs."""

import re
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final, Literal

from tests.cli.serve.rollout import LIMIT_S
from tests.cli.shared.commands import environment

Kind = Literal["caddy", "nginx"]
OPERATIONS: Final = Path(__file__).parents[3] / "operations"
PUBLIC: Final = "chat.example"
_SERVER: Final = "127.0.0.1:8321"
_NGINX: Final = """
daemon off;
pid {folder}/nginx.pid;
error_log {folder}/error.log;
worker_processes 1;
events {{ worker_connections 1024; }}
http {{
    access_log off;
    client_body_temp_path {folder}/body;
    proxy_temp_path {folder}/proxy;
    fastcgi_temp_path {folder}/fastcgi;
    uwsgi_temp_path {folder}/uwsgi;
    scgi_temp_path {folder}/scgi;
    include {folder}/conf.d/*.conf;
}}
"""


def is_there(kind: Kind) -> bool:
    """Whether the program is on this machine."""
    return shutil.which(kind) is not None


def caddy(folder: Path, *arguments: str) -> list[str]:
    """A command of Caddy with the file that `configured` wrote."""
    return ["caddy", *arguments, "--config", f"{folder}/Caddyfile", "--adapter", "caddyfile"]


def nginx(folder: Path, *arguments: str) -> list[str]:
    """A command of nginx with the file that `configured` wrote."""
    return ["nginx", *arguments, "-p", str(folder), "-c", f"{folder}/nginx.conf", "-e", f"{folder}/error.log"]


def told(command: list[str], folder: Path) -> "subprocess.CompletedProcess[str]":
    """What a command that ends says."""
    return subprocess.run(command, capture_output=True, text=True, check=False, env=_environment(folder), timeout=LIMIT_S)


def write_nginx(folder: Path, block: str) -> None:
    """Writes a configuration of nginx that includes this server block, as the packages' own does."""
    (folder / "conf.d").mkdir()
    (folder / "conf.d/kitchener.conf").write_text(block)
    (folder / "nginx.conf").write_text(_NGINX.format(folder=folder))


@contextmanager
def in_front(kind: Kind, folder: Path, upstream: tuple[str, int]) -> Iterator[tuple[str, int]]:
    """Where a proxy of this address listens, until the block ends."""
    folder.mkdir()
    with socket.create_server(("127.0.0.1", 0)) as found:
        address: tuple[str, int] = ("127.0.0.1", found.getsockname()[1])
    server, public = f"{upstream[0]}:{upstream[1]}", f"{address[0]}:{address[1]}"
    if kind == "caddy":
        text = (OPERATIONS / "Caddyfile").read_text().replace(f"{PUBLIC} {{", f"http://:{address[1]} {{\n\tbind 127.0.0.1")
        (folder / "Caddyfile").write_text("{\n\tadmin off\n}\n" + text.replace(_SERVER, server))
        command = caddy(folder, "run")
    else:
        text = (OPERATIONS / "nginx.conf").read_text().replace("443 ssl", public).replace(_SERVER, server)
        write_nginx(folder, re.sub(r"^\s*ssl_.*\n", "", text, flags=re.MULTILINE))
        command = nginx(folder)
    with (folder / "said.txt").open("w") as said:
        process = subprocess.Popen(command, stdout=said, stderr=said, env=_environment(folder))
    try:
        _wait_until_it_listens(process, address, folder)
        yield address
    finally:
        process.terminate()
        process.wait(LIMIT_S)


def _wait_until_it_listens(process: "subprocess.Popen[bytes]", address: tuple[str, int], folder: Path) -> None:
    ends = time.monotonic() + LIMIT_S
    while True:
        try:
            socket.create_connection(address, 1.0).close()
        except OSError:
            assert process.poll() is None, (folder / "said.txt").read_text()
            assert time.monotonic() < ends
            time.sleep(0.02)
        else:
            return


def _environment(folder: Path) -> dict[str, str]:
    """Caddy keeps certificates and settings below its home."""
    return environment(HOME=str(folder), XDG_DATA_HOME=str(folder), XDG_CONFIG_HOME=str(folder))
