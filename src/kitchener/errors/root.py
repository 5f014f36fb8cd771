"""The root of the tree of errors, and its branches without many leaves: settings, running, administration, providers."""

from collections.abc import Callable, Iterator, Mapping
from typing import Final, Literal, get_args

from kitchener.model_usage import Usage
from kitchener.plain_names import shown_seconds


class KitchenerError(Exception):
    """Root of all errors of this package. They can be copied and sent to another process."""

    def __reduce__(self) -> tuple[Callable[..., "KitchenerError"], tuple[object, ...]]:
        """The default would call `__init__` with the message alone, which a pool of processes could not bear."""
        return _restored, (type(self), self.args, self.__dict__)


CONFIGURATION: Final = "configuration"
"""The source in a `ConfigError` if the code knows the settings, but not where they come from."""


class ConfigError(KitchenerError):
    """A setting is wrong.

    Attributes:
        source: the file, environment variable or argument with the setting
        key: dotted key inside the source; "": the whole source
        value: the value found, shortened; never a secret
        expected: a description of valid values
    """

    def __init__(self, source: str, key: str, value: str, expected: str) -> None:
        self.source: str = source
        self.key: str = key
        self.value: str = value
        self.expected: str = expected
        where = f"{source}: {key}" if key else source
        shown = f" = {value}" if value else ""
        super().__init__(f"{where}{shown}: {expected}")


class NotOnRecord(KitchenerError):
    """The ledgers do not contain what was asked for. The error says where to see what they contain."""


class Overloaded(KitchenerError):
    """A bounded queue stayed full until the deadline. Nothing was started, unless it is `TurnOverloaded`. Send again later."""

    def __init__(self, what: str, limit: int) -> None:
        self.what: str = what
        self.limit: int = limit
        super().__init__(self._text("nothing was started"))

    def _text(self, end: str, why: str = "") -> str:
        return f"{self.what} is full ({self.limit} waiting){why}; {end}, send again later"


class WaitedTooLong(Overloaded):
    """A call had room in a queue, but its turn did not come until the deadline; or what it waited for did not end.

    `what` says for what, and `seconds` how long. `limit` is 0, because no queue was full.
    """

    def __init__(self, what: str, seconds: float) -> None:
        super().__init__(what, 0)
        self.seconds = seconds
        self.args = (f"{what} took more than {shown_seconds(seconds)}; nothing was started, send again later",)


class TurnOverloaded(Overloaded):
    """A step of a turn waited for room in a full queue until the turn's deadline, and the turn was aborted.

    Tools may have run before. `waited_for` names the attempts at a model that failed, as in `TurnTimeout`.
    """

    def __init__(self, what: str, limit: int, turn_id: str, waited_for: str = "") -> None:
        super().__init__(what, limit)
        self.turn_id: str = turn_id
        self.waited_for: str = waited_for
        why = f" ({waited_for})" if waited_for else ""
        self.args = (self._text(f"turn {turn_id} waited for room until its deadline and was aborted", why),)


class TurnTimeout(KitchenerError):
    """The turn passed its deadline, `seconds` after its start. It was aborted and the session is usable.

    `waited_for` is what it waited for at a model, such as the attempts that failed; "": it asked none.
    """

    def __init__(self, turn_id: str, seconds: float, waited_for: str = "") -> None:
        self.turn_id: str = turn_id
        self.seconds: float = seconds
        self.waited_for: str = waited_for
        why = f" ({waited_for})" if waited_for else ""
        late = f"turn {turn_id} passed its deadline of {shown_seconds(seconds)}"
        super().__init__(f"{late}{why} and was aborted; the session is usable")


class TurnReplaced(KitchenerError):
    """A newer message of the same session replaced this one (`overlap_policy = "replace"`)."""

    def __init__(self, session_id: str) -> None:
        self.session_id = session_id
        super().__init__(f"a newer message of session {session_id!r} replaced this one")


class RuntimeClosed(KitchenerError):
    """The runtime is shutting down or has stopped. Nothing was started, unless it is `TurnShutDown`."""


class TurnShutDown(RuntimeClosed):
    """The runtime shut down while a turn ran, and the turn was aborted. Tools may have run before."""


class ActorStopped(KitchenerError):
    """An actor ended before it could reply."""


class AdminUnavailable(KitchenerError):
    """The process that has the root open takes no administration, or not this request. Nothing was done."""


class AdminRefused(KitchenerError):
    """The process that has the root open could not do what was asked.

    Attributes:
        kind: name of the class of the error there
    """

    def __init__(self, kind: str, message: str) -> None:
        self.kind: str = kind
        self.message: str = message
        super().__init__(message)

    @property
    def error_class(self) -> type[KitchenerError]:
        """The class of the error there; `KitchenerError` if this version has no such class."""
        known = {each.__name__: each for each in _tree(KitchenerError) if each.__module__ == __package__}
        return known.get(self.kind, KitchenerError)


class AdminUnanswered(KitchenerError):
    """The process that has the root open did not answer in time. The change may have been made."""


class FolderDamaged(KitchenerError):
    """A file of an exported session is missing, or `field` of it is not what the export wrote. Nothing was imported."""

    def __init__(self, path: str, field: str, expected: str, found: str) -> None:
        self.path: str = path
        self.field: str = field
        self.expected: str = expected
        self.found: str = found
        super().__init__(f"{path}: {field}: expected {expected}, found {found}; nothing was imported: export the session again")


class SealingError(KitchenerError):
    """A value cannot be sealed or opened."""


class SigningError(KitchenerError):
    """A key to sign or to check signatures with is missing or invalid. The error never shows a key."""


class PromptError(KitchenerError):
    """A contract or prompt pack is missing, does not match its hash in the manifest, or lacks a variable."""


class ToolError(KitchenerError):
    """A tool is unknown, not allowed here, or was declared wrongly."""


_Passing = Literal["rate_limited", "out_of_credit", "server_error", "connection", "timeout", "malformed", "empty"]
_Lasting = Literal[
    "refused",
    "authentication",
    "bad_request",
    "context_length",
    "breaker_open",
    "forbidden",
    "exhausted",
    "not_recorded",
    "spending_limit",
]
ProviderReason = Literal[_Passing, _Lasting]
"""Why a model call failed. Another attempt may help with the first seven only; `out_of_credit` at another provider only."""

RETRYABLE_REASONS: frozenset[ProviderReason] = frozenset(get_args(_Passing))


class ProviderError(KitchenerError):
    """A model call failed.

    Attributes:
        provider_id: the provider
        reason: a `ProviderReason`
        status: HTTP status, if there was one
        retry_after_s: the pause that the provider asked for, seconds; None: it asked for none
        output_begun: whether text had already been streamed
        only_thoughts: whether the answer reached `max_tokens` before its text began, as that of a model that thinks can
        usage: the tokens of an answer that came but cannot be used; None: none came, or they are not known. A call that is
            given up has none: each of its attempts told its own
    """

    def __init__(
        self,
        provider_id: str,
        reason: ProviderReason,
        detail: str,
        *,
        status: int | None = None,
        retry_after_s: float | None = None,
        output_begun: bool = False,
        only_thoughts: bool = False,
        usage: Usage | None = None,
    ) -> None:
        self.provider_id: str = provider_id
        self.detail: str = detail
        self.reason = reason
        self.status: int | None = status
        self.retry_after_s: float | None = retry_after_s
        self.output_begun: bool = output_begun
        self.only_thoughts: bool = only_thoughts
        self.usage: Usage | None = usage
        super().__init__(f"provider {provider_id!r}: {reason}: {detail}")

    @property
    def is_retryable(self) -> bool:
        """Whether the same request may succeed later."""
        return self.reason in RETRYABLE_REASONS


class ExecutorError(KitchenerError):
    """The executor itself failed (a bug, not a model or tool failure). The cause is chained."""


def _restored(kind: type[KitchenerError], args: tuple[object, ...], fields: Mapping[str, object]) -> KitchenerError:
    """An error with the message and the attributes that it had elsewhere."""
    error = kind.__new__(kind, *args)
    error.__dict__.update(fields)
    return error


def _tree(root: type[KitchenerError]) -> Iterator[type[KitchenerError]]:
    """The class and all classes below it."""
    yield root
    for each in root.__subclasses__():
        yield from _tree(each)
