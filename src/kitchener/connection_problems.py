"""Says in a sentence why there is no connection to an address, for model providers and MCP servers alike.

The texts of HTTP clients name their classes, and most omit what the operating system says. This module knows no HTTP client.
"""

import os
import socket
import ssl
from urllib.parse import urlsplit

from kitchener.errors.nested import with_causes


def told_of_connect(host: str, port: object, error: OSError, *, is_proxy: bool = False) -> str:
    """Returns why there is no connection to an address. Shows only its host and port, because the rest may be long."""
    place = f"{host}:{port}"
    match error:
        case ssl.SSLCertVerificationError():
            return f"the certificate of {place} is not trusted: {error.verify_message}"
        case ssl.SSLError():
            if error.reason in ("WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE", "HTTP_REQUEST"):
                return f"no TLS connection to {place}: what listens there does not speak TLS; try http:// in place of https://"
            return f"no TLS connection to {place}: {error.reason or error}"
        case socket.gaierror():
            return f"the host {host!r} cannot be found: {error.strerror or error}"
    return f"cannot connect to {'the proxy ' if is_proxy else ''}{place}: {problem_of_socket(error)}"


def told_of_connect_to(url: str, error: OSError, *, is_proxy: bool = False) -> str:
    """Returns why there is no connection to the host and port of a URL."""
    parts = urlsplit(url)
    port = parts.port or (443 if parts.scheme == "https" else 80)
    return told_of_connect(parts.hostname or "", port, error, is_proxy=is_proxy)


def problem_of_socket(error: OSError) -> str:
    """Returns the operating system's description of an error. asyncio replaces it with the address, and joins those of several
    attempts."""
    if error.errno is None or isinstance(error, socket.gaierror):
        return error.strerror or str(error) or type(error).__name__
    return os.strerror(error.errno).lower()


def problem_of_system(error: BaseException) -> OSError | None:
    """Returns the operating system's error under one of a library, which may say only that all attempts failed; None: there is
    none."""
    for each in with_causes(error):
        for inner in each.exceptions if isinstance(each, ExceptionGroup) else (each,):
            if isinstance(inner, OSError) and inner.errno is not None:
                return inner
    return None
