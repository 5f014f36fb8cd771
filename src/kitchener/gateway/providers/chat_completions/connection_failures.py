"""Turns a failure of a connection of aiohttp into a sentence for a person.

aiohttp's own texts name its classes and TLS settings, and omit the operating system's description. Used by `chat_endpoint.py`.
"""

from typing import Final

import aiohttp

from kitchener.connection_problems import problem_of_socket, told_of_connect
from kitchener.gateway.providers.failures import (
    CUT_OFF,
    LOST,
    NO_CONNECTION_IN_TIME,
    NOT_ANSWERED,
    told_of_protocol,
    told_of_proxy,
)

_IS_CUT: Final = "payload is not completed"
"""aiohttp's words for a body whose connection ended. It has one class for all that is wrong with a body."""


def failure_text(error: Exception) -> str:
    """What happened to a request that got no answer, or lost the rest of one, in one sentence without a full stop."""
    match error:
        case aiohttp.ClientConnectorCertificateError() if isinstance(error.certificate_error, OSError):
            return told_of_connect(error.host, error.port, error.certificate_error)
        case aiohttp.ClientConnectorError():
            is_proxy = isinstance(error, aiohttp.ClientProxyConnectionError)
            return told_of_connect(error.host, error.port, error.os_error, is_proxy=is_proxy)
        case aiohttp.ConnectionTimeoutError():
            return NO_CONNECTION_IN_TIME
        case aiohttp.ServerDisconnectedError():
            return NOT_ANSWERED
        case aiohttp.ClientPayloadError() if _IS_CUT in str(error):
            return CUT_OFF
        case aiohttp.ClientOSError():
            return f"{LOST}: {problem_of_socket(error)}"
        case aiohttp.ClientHttpProxyError():
            return told_of_proxy(error.status, error.message)
        case aiohttp.ClientResponseError():
            return told_of_protocol(error.message.partition("\n")[0].rstrip(":"))
    return f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
