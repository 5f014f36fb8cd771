"""Bounds what the regular expressions in a stranger's schemas cost, before they are compiled and while they are matched. Pure.

A pattern of 30 characters can compile to megabytes, and one with look-around can try exponentially many ways to match.
`json_schema.py` uses the limits, `schema_steps.py` counts the matches.
"""

from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from typing import Final

import jsonschema_rs
import orjson

from kitchener.plain_names import quoted

MAX_PATTERNS: Final = 1_024
"""Most patterns of the schemas of one message; one that is several times in a schema counts once. Each takes up to 0.5 ms."""
MAX_LARGE_PATTERNS: Final = 4
"""Most patterns among them that compile to more than `SMALL_BYTES`. One takes up to 60 ms."""
SMALL_BYTES: Final = 32_768
LARGE_BYTES: Final = 4 * 1_048_576
"""Compiled bytes above which a pattern is refused."""
MAX_BACKTRACKS: Final = 1_000
"""Most ways that a match tries where a pattern needs that; after them it does not match."""

MATCH_OPTIONS: Final = jsonschema_rs.FancyRegexOptions(backtrack_limit=MAX_BACKTRACKS, size_limit=LARGE_BYTES)
_SCHEMA_BYTES: Final = 96
"""Compiled bytes of a schema for each character of it, without its patterns: measured with a list of empty schemas, 94."""
_EACH_SCHEMA_BYTES: Final = 2_048
"""Bytes that a schema takes beside those for its characters; measured with the smallest ones, 1,800 in all."""
_SMALL_MEMORY: Final = 65_536
"""Bytes that a small pattern takes with what it needs while it is matched."""
_LARGE_MEMORY: Final = 8 * 1_048_576
_SMALL: Final = jsonschema_rs.FancyRegexOptions(size_limit=SMALL_BYTES)
_LINEAR: Final = jsonschema_rs.RegexOptions(size_limit=LARGE_BYTES)
_LINEAR_STEPS: Final = 8
"""Steps of a match for each character of the text."""
_BACKTRACKING_STEPS: Final = 4_000
"""Steps of a match that tries as many ways as it may."""


def pattern_problem(schemas: Iterable[object]) -> str | None:
    """Returns why the patterns of these schemas cost too much to compile, or None."""
    found = [pattern for schema in schemas for pattern in dict.fromkeys(_patterns(schema))]  # each schema compiles its own
    if len(found) > MAX_PATTERNS:
        return f"{len(found):,} patterns; expected at most {MAX_PATTERNS:,}"
    large = 0
    for each in found:
        large += not _is_small(each)
        if large > MAX_LARGE_PATTERNS:
            return f"more than {MAX_LARGE_PATTERNS} patterns that take much memory or are none, such as {quoted(each)}"
    return None


def compiled_bytes(schemas: Iterable[object]) -> int:
    """Returns about how much memory these schemas take when they are compiled, bytes; rather too much than too little."""
    total = 0
    for schema in schemas:
        found = dict.fromkeys(_patterns(schema))
        large = sum(not _is_small(each) for each in found)
        total += _EACH_SCHEMA_BYTES + _SCHEMA_BYTES * len(orjson.dumps(schema))
        total += _SMALL_MEMORY * (len(found) - large) + _LARGE_MEMORY * large
    return total


def match_steps(pattern: str, text: str) -> int:
    """Returns about how many steps a match of a pattern takes at most."""
    if _is_linear(pattern):
        return _LINEAR_STEPS * (1 + len(text))
    return _BACKTRACKING_STEPS + len(text) * min(len(text), MAX_BACKTRACKS)


def _patterns(schema: object) -> Iterator[str]:
    """The patterns of a schema, whose depth has been checked. What only looks like one counts too."""
    if isinstance(schema, Mapping):
        if isinstance(pattern := schema.get("pattern"), str):
            yield pattern
        if isinstance(named := schema.get("patternProperties"), Mapping):
            yield from named
        for each in schema.values():
            yield from _patterns(each)
    elif isinstance(schema, list):
        for each in schema:
            yield from _patterns(each)


@lru_cache(maxsize=4_096)
def _is_linear(pattern: str) -> bool:
    """Whether matching takes linear time, because the pattern neither looks around nor refers back."""
    return _compiles(pattern, _LINEAR)


@lru_cache(maxsize=4_096)
def _is_small(pattern: str) -> bool:
    return _compiles(pattern, _SMALL)


def _compiles(pattern: str, options: "jsonschema_rs.FancyRegexOptions | jsonschema_rs.RegexOptions") -> bool:
    try:
        jsonschema_rs.validator_for({"pattern": pattern}, pattern_options=options)
    except ValueError:
        return False
    return True
