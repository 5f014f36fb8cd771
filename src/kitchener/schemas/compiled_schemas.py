"""Keeps strangers' schemas compiled, and remembers why others cannot be, so that none is compiled for each request again.

Compiling takes up to half a second, in which nothing else of the process runs. What is kept takes memory that nobody sees in
the text of a schema, so its size is estimated and bounded. The time of checks is booked where `CHECK_TIME` says. Safe to use
from several threads.
"""

from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from contextvars import ContextVar
from threading import Lock
from time import thread_time
from typing import Final, NamedTuple, Protocol

from kitchener.schemas.json_schema import MAX_ERROR_CHARS, JsonSchema
from kitchener.schemas.pattern_limits import compiled_bytes

MAX_KEPT_BYTES: Final = 256 * 1_048_576
"""Estimated memory of all that is kept, bytes. The schemas of one message take at most about 130 MB, ordinary ones 1 MB."""
_FAILURE_BYTES: Final = 4_096
BookTime = Callable[[float], None]
"""Books seconds of processor time. Called in the thread that took them."""

CHECK_TIME: ContextVar[BookTime | None] = ContextVar("CHECK_TIME", default=None)
"""Where the code that runs here books its checks; None: nowhere. The code that runs a turn for a client sets it, so that a
server can bound the time of each client. A worker has it from its asker (`lanes/askers.py`). A check never depends on the sum:
a running turn is decided the same way whether or not anybody counts, and a replay counts nothing."""


class SchemaBudget(Protocol):
    """The processor time that schemas of one caller may take."""

    def check(self, *, is_new: bool) -> None:
        """Raises the caller's error if none is left.

        Args:
            is_new: whether the schemas have to be compiled first
        """
        ...

    def book_compiling(self, seconds: float) -> None:
        """Books processor time that compiling took."""
        ...


class StrangerSchema(JsonSchema):
    """A compiled schema of somebody who may want the process to stand still. Its checks are bounded, and their time is booked.

    Args:
        schema: the schema

    Raises:
        ValueError: as of `JsonSchema`
    """

    __slots__ = ()

    def __init__(self, schema: Mapping[str, object]) -> None:
        super().__init__(schema, is_of_stranger=True)

    def problem(self, value: object) -> str | None:
        """Returns how a value violates the schema, or None; see `JsonSchema.problem`. Books the time at `CHECK_TIME`."""
        book = CHECK_TIME.get()
        if book is None:
            return super().problem(value)
        began = thread_time()
        try:
            return super().problem(value)
        finally:
            book(thread_time() - began)


class _Kept(NamedTuple):
    compiled: tuple[StrangerSchema, ...]
    problem: str | None
    """Why the schemas cannot be used; None: they can."""
    size: int


class CompiledSchemas:
    """Sets of compiled schemas by a key. What was used longest ago is dropped first.

    Args:
        max_bytes: estimated memory of all that is kept, bytes
    """

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes, self._bytes = max_bytes, 0
        self._kept: OrderedDict[str, _Kept] = OrderedDict()
        self._lock = Lock()

    def __len__(self) -> int:
        return len(self._kept)

    def of(
        self,
        key: str,
        schemas: Sequence[Mapping[str, object]],
        compile_all: Callable[[], Sequence[StrangerSchema]],
        budget: SchemaBudget | None = None,
    ) -> tuple[StrangerSchema, ...]:
        """Returns the compiled schemas of a key, which are compiled now if they are not kept.

        A turn that runs has no budget, since it must not be refused. What it compiles again counts as its checks do.

        Args:
            key: stands for these schemas, such as a hash of their text
            schemas: the schemas, of which the memory is estimated
            compile_all: compiles them; raises ValueError if one cannot be used
            budget: what using the schemas counts against, and compiling them; None: nothing is refused

        Raises:
            ValueError: one cannot be used, now or when it was tried before
        """
        with self._lock:
            found = self._kept.get(key)
            if found is not None:
                self._kept.move_to_end(key)
        if budget is not None:
            budget.check(is_new=found is None)
        if found is None:
            found = _compiled(schemas, compile_all, CHECK_TIME.get() if budget is None else budget.book_compiling)
            self._keep(key, found)
        if found.problem is not None:
            raise ValueError(found.problem)
        return found.compiled

    def _keep(self, key: str, made: _Kept) -> None:
        with self._lock:
            if key in self._kept:  # by another thread
                return
            self._kept[key] = made
            self._bytes += made.size
            while self._bytes > self._max_bytes and len(self._kept) > 1:
                _, dropped = self._kept.popitem(last=False)
                self._bytes -= dropped.size


def _compiled(
    schemas: Sequence[Mapping[str, object]], compile_all: Callable[[], Sequence[StrangerSchema]], book: BookTime | None
) -> _Kept:
    began = thread_time()
    try:
        return _Kept(tuple(compile_all()), None, compiled_bytes(schemas))
    except ValueError as error:
        return _Kept((), str(error)[:MAX_ERROR_CHARS], _FAILURE_BYTES)
    finally:
        if book is not None:
            book(thread_time() - began)


KEPT_SCHEMAS: Final = CompiledSchemas(MAX_KEPT_BYTES)
"""The compiled schemas that this process keeps."""


def stranger_schema(schema: Mapping[str, object], schema_digest: str, budget: SchemaBudget | None = None) -> StrangerSchema:
    """Returns a stranger's schema, compiled.

    Args:
        schema: the schema
        schema_digest: of its canonical JSON
        budget: as for `CompiledSchemas.of`

    Raises:
        ValueError: it cannot be used
    """
    (found,) = KEPT_SCHEMAS.of(schema_digest, [schema], lambda: [StrangerSchema(schema)], budget)
    return found
