"""Turns a failure of a connection into a sentence for a person.

aiohttp's own texts name its classes and TLS settings, and omit the operating system's description. An address appears as host
and port only, because the rest may be long. Used by `chat_endpoint.py`.
"""

import os
import socket
import ssl
from typing import Final

import aiohttp

from kitchener.gateway.providers.failures import CUT_OFF, LOST, NOT_ANSWERED

_IS_CUT: Final = "payload is not completed"
"""aiohttp's words for a body whose connection ended. It has one class for all that is wrong with a body."""


def told_of(error: Exception) -> str:
    """What happened to a request that got no answer, or lost the rest of one, in one sentence without a full stop."""
    match error:
        case aiohttp.ClientConnectorError():
            return _told_of_connect(error, f"{error.host}:{error.port}")
        case aiohttp.ServerDisconnectedError():
            return NOT_ANSWERED
        case aiohttp.ClientPayloadError() if _IS_CUT in str(error):
            return CUT_OFF
        case aiohttp.ClientOSError():
            return f"{LOST}: {_problem_of_socket(error)}"
        case aiohttp.ClientHttpProxyError():
            return f"the proxy refused a connection to the endpoint: HTTP {error.status}: {error.message}"
        case aiohttp.ClientResponseError():
            problem = error.message.partition("\n")[0].rstrip(":")
            return f"the answer is not valid HTTP ({problem}); check `base_url`"
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__


def _told_of_connect(error: aiohttp.ClientConnectorError, place: str) -> str:
    match error:
        case aiohttp.ClientConnectorCertificateError():
            return f"the certificate of {place} is not trusted: {_problem_of_certificate(error.certificate_error)}"
        case aiohttp.ClientConnectorSSLError():
            reason = getattr(error.os_error, "reason", None)
            if reason in ("WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE", "HTTP_REQUEST"):
                return f"no TLS connection to {place}: what listens there does not speak TLS; try http:// in place of https://"
            return f"no TLS connection to {place}: {reason or error.os_error}"
        case aiohttp.ClientConnectorDNSError():
            return f"the host {error.host!r} cannot be found: {error.os_error.strerror or error.os_error}"
    what = "the proxy " if isinstance(error, aiohttp.ClientProxyConnectionError) else ""
    return f"cannot connect to {what}{place}: {_problem_of_socket(error.os_error)}"


def _problem_of_certificate(error: Exception) -> str:
    return error.verify_message if isinstance(error, ssl.SSLCertVerificationError) else str(error)


def _problem_of_socket(error: OSError) -> str:
    """The operating system's description of the error. asyncio replaces it with the address, and joins the errors of several
    attempts."""
    if error.errno is None or isinstance(error, socket.gaierror):
        return error.strerror or str(error) or type(error).__name__
    return os.strerror(error.errno).lower()
