"""How connections to MCP servers fail: the errors of `connection.py`, and their causes in plain words."""

from typing import Final

from kitchener.config.mcp_servers import McpServerConfig
from kitchener.errors.nested import first_error
from kitchener.plain_names import error_text, quoted

LAST_WORDS_CHARS: Final = 500
"""Most characters of what a server said last, and of what is wrong with its answer."""


class ConnectionLost(Exception):
    """The connection ended, or never came about, or a request got no answer; the text says what is known of the cause."""


class ConnectionEnded(ConnectionLost):
    """The connection as a whole has ended: nothing can be sent over it now."""


class RequestNotTaken(ConnectionEnded):
    """The connection ended before the server took the request, so that it had no effect."""


class AnswerTooLarge(Exception):
    """The server answered a request with more than is read."""


class ServerRefused(Exception):
    """The server answered a request with an error of the protocol."""


class RequestRejected(ServerRefused):
    """Whatever is at the address refused the request unread, such as for its token, and may refuse all others too."""


def first_error_text(error: BaseException) -> str:
    """The first error of nested groups, in words; what this package says in its own words comes without the class."""
    first = first_error(error)
    is_own = isinstance(first, AnswerTooLarge | ConnectionLost | ServerRefused)
    return (str(first) if is_own else error_text(first))[: 2 * LAST_WORDS_CHARS]


def told_of_command(error: OSError, settings: McpServerConfig) -> str:
    """Why the command of a server cannot be started."""
    command = quoted(settings.command)
    if settings.cwd is not None and str(error.filename) == settings.cwd:
        return f"its `cwd` {quoted(settings.cwd)} cannot be entered: {error.strerror}"
    if isinstance(error, FileNotFoundError):
        return f"the command {command} cannot be found: install it, or set `command` to its whole path"
    return f"the command {command} cannot be started: {error.strerror or error}"
