"""Keeps strangers' schemas compiled, and remembers why others cannot be, so that none is compiled for each request again.

Compiling takes up to half a second, in which nothing else of the process runs. What is kept takes memory that nobody sees in
the text of a schema, so its size is estimated and bounded. Safe to use from several threads.
"""

from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from threading import Lock
from time import thread_time
from typing import Final, NamedTuple, Protocol

from kitchener.schemas.json_schema import MAX_ERROR_CHARS, JsonSchema
from kitchener.schemas.pattern_limits import compiled_bytes

MAX_KEPT_BYTES: Final = 256 * 1_048_576
"""Estimated memory of all that is kept, bytes. The schemas of one message take at most about 110 MB, ordinary ones 1 MB."""
_FAILURE_BYTES: Final = 4_096


class CompileTime(Protocol):
    """The time that schemas of one caller may take to compile."""

    def check(self) -> None:
        """Raises the caller's error if none is left."""
        ...

    def spend(self, seconds: float) -> None:
        """Books processor time that was taken."""
        ...


class _Kept(NamedTuple):
    compiled: tuple[JsonSchema, ...]
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
        compile_all: Callable[[], Sequence[JsonSchema]],
        time: CompileTime | None = None,
    ) -> tuple[JsonSchema, ...]:
        """Returns the compiled schemas of a key, which are compiled now if they are not kept.

        Args:
            key: stands for these schemas, such as a hash of their text
            schemas: the schemas, of which the memory is estimated
            compile_all: compiles them; raises ValueError if one cannot be used
            time: what compiling counts against; None: nothing

        Raises:
            ValueError: one cannot be used, now or when it was tried before
        """
        with self._lock:
            found = self._kept.get(key)
            if found is not None:
                self._kept.move_to_end(key)
        if found is None:
            if time is not None:
                time.check()
            found = _compiled(schemas, compile_all, time)
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
    schemas: Sequence[Mapping[str, object]], compile_all: Callable[[], Sequence[JsonSchema]], time: CompileTime | None
) -> _Kept:
    began = thread_time()
    try:
        return _Kept(tuple(compile_all()), None, compiled_bytes(schemas))
    except ValueError as error:
        return _Kept((), str(error)[:MAX_ERROR_CHARS], _FAILURE_BYTES)
    finally:
        if time is not None:
            time.spend(thread_time() - began)


KEPT_SCHEMAS: Final = CompiledSchemas(MAX_KEPT_BYTES)
"""Those of the process."""


def stranger_schema(schema: Mapping[str, object], schema_digest: str, time: CompileTime | None = None) -> JsonSchema:
    """Returns a stranger's schema, compiled.

    Args:
        schema: the schema
        schema_digest: of its canonical JSON
        time: as for `CompiledSchemas.of`

    Raises:
        ValueError: it cannot be used
    """
    (found,) = KEPT_SCHEMAS.of(schema_digest, [schema], lambda: [JsonSchema(schema, is_of_stranger=True)], time)
    return found
