"""Counts the steps of checking a value against a JSON schema, without taking them. Pure.

A checker tries each alternative of `anyOf`, and where alternatives refer to each other it checks one value again for each of
them: a value of 60 levels can take 2^60 steps. This module counts in linear time, because it visits each pair of a schema and a
value once. It does not know whether the value fits (`json_schema.py`).
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import product
from typing import Final

from kitchener.schemas.pattern_limits import match_steps

_REFERENCES: Final = ("$ref", "$dynamicRef", "$recursiveRef")
_SAME_VALUE: Final = ("not", "if", "then", "else", "allOf", "anyOf", "oneOf")
_NAMED_FOR_SAME_VALUE: Final = ("dependentSchemas", "dependencies")
_EACH_MEMBER: Final = ("additionalProperties", "unevaluatedProperties")
_EACH_ITEM: Final = ("items", "prefixItems", "additionalItems", "unevaluatedItems", "contains")

UNCOUNTED: Final = 2**63
"""Stands for a number of steps that takes too long to count."""
_LONGER: Final = 4
"""How many times longer than an object the names of a schema have to be before they are not gone through."""
_MAX_MATCHES: Final = 100_000
"""Matches of patterns with the names of one object whose steps are counted one by one."""

Pair = tuple[object, object]
"""A schema and a value that is checked against it."""
_PlaceInValue = str | int | tuple[str]
"""Where a value stands in the one that holds it: a name, a position, or a name that is itself checked, in a tuple."""
_Below = tuple[object, object, _PlaceInValue | None]
"""A schema, a value, and the value's place in the value of the pair above; None: both pairs have the same value."""


def refers(schema: object) -> bool:
    """Whether a part of the schema refers to another. Without that, no value is checked twice by one part."""
    if isinstance(schema, Mapping):
        return any(key in schema for key in _REFERENCES) or any(map(refers, schema.values()))
    return isinstance(schema, list) and any(map(refers, schema))


def steps(
    schema: Mapping[str, object],
    value: object,
    *,
    own_steps: Callable[[object, object], int] | None = None,
    most_pairs: int | None = None,
) -> int:
    """Returns about how many steps a checker takes that tries every alternative. It may be a very large number.

    A reference that is no path within the schema counts as one to the whole schema. Values count by where they stand, since
    equal ones may be one object in the process that got them, and several in one that reads them from a record.

    Args:
        schema: the schema, which stands by itself
        value: a JSON value
        own_steps: further steps of a pair itself, without what is below it; None: there are none
        most_pairs: pairs, each entered and left, after which counting ends with `UNCOUNTED`; None: it never ends
    """
    known: dict[tuple[int, int], int] = {}
    positions: dict[int, dict[str, int]] = {}
    places: dict[tuple[int, _PlaceInValue], int] = {}
    open_pairs: list[tuple[tuple[int, int], Iterator[_Below], list[int]]] = []
    total = [0]

    def enter(pair: Pair, place: int, into: list[int]) -> None:
        key = (id(pair[0]), place)
        if key in known:
            into[0] += known[key]
            return
        known[key] = 0  # a pair within itself is checked once
        open_pairs.append(
            (
                key,
                _below(schema, *pair, positions, counts_names=own_steps is not None),
                [1 if own_steps is None else 1 + own_steps(*pair)],
            )
        )

    # Pairs that are open are kept in a list, since a chain of references may be longer than the stack.
    enter((schema, value), 0, total)
    visits = 0
    while open_pairs:
        visits += 1  # a pair that is known already takes time too
        if most_pairs is not None and visits > 2 * most_pairs:
            return UNCOUNTED
        key, below, count = open_pairs[-1]
        following = next(below, None)
        if following is not None:
            of, found, at = following
            enter((of, found), key[1] if at is None else places.setdefault((key[1], at), len(places) + 1), count)
            continue
        open_pairs.pop()
        known[key] = count[0]
        (open_pairs[-1][2] if open_pairs else total)[0] += count[0]
    return total[0]


def steps_of_strangers(schema: object, value: object) -> int:
    """Returns the further steps of a pair that only a hostile schema makes many: matches of patterns, and long lists of values.

    An error among the values of an `enum` is described with all of them, so each counts in full.
    """
    if not isinstance(schema, Mapping):
        return 0
    found = 0
    if isinstance(value, str):
        if isinstance(pattern := schema.get("pattern"), str):
            found += match_steps(pattern, value)
    elif isinstance(value, Mapping):
        patterns = _by_name(schema, "patternProperties")
        if len(patterns) * len(value) > _MAX_MATCHES:
            return UNCOUNTED
        found += sum(match_steps(*each) for each in product(patterns, value))
    lists = (schema.get("enum"), schema.get("required"))
    return found + sum(len(each) for each in lists if isinstance(each, list))


def _below(
    root: Mapping[str, object], schema: object, value: object, positions: dict[int, dict[str, int]], *, counts_names: bool
) -> Iterator[_Below]:
    """The pairs that are checked in order to check a pair; those of names only where they may be costly.

    `positions` keeps the order of the names in large schemas.
    """
    if not isinstance(schema, Mapping):
        return
    for key in _REFERENCES:
        if isinstance(found := schema.get(key), str):
            yield _target(root, found), value, None
    for one in _listed(schema, _SAME_VALUE):
        yield one, value, None
    if isinstance(value, Mapping):
        named = _by_name(schema, "properties")
        yield from ((named[name], value[name], name) for name in _shared(named, value, positions))
        for one in (*_by_name(schema, "patternProperties").values(), *_listed(schema, _EACH_MEMBER)):
            yield from ((one, member, name) for name, member in value.items())
        if counts_names:
            yield from ((one, name, (name,)) for one in _listed(schema, ("propertyNames",)) for name in value)
        yield from ((one, value, None) for key in _NAMED_FOR_SAME_VALUE for one in _by_name(schema, key).values())
    elif isinstance(value, list):
        yield from ((one, item, number) for one in _listed(schema, _EACH_ITEM) for number, item in enumerate(value))


def _shared(named: Mapping[str, object], value: Mapping[str, object], positions: dict[int, dict[str, int]]) -> Iterable[str]:
    """The names that a schema and an object share, in the schema's order. Takes time for the shorter one only."""
    if len(named) <= _LONGER * len(value):
        return (name for name in named if name in value)
    found = [name for name in value if name in named]
    if len(found) > 1:
        order = positions.get(id(named))
        if order is None:
            order = positions[id(named)] = {name: number for number, name in enumerate(named)}
        found.sort(key=order.__getitem__)
    return found


def _listed(schema: Mapping[str, object], keys: Iterable[str]) -> Iterator[object]:
    """The schemas at these keys. A key has one schema or a list of schemas."""
    for key in keys:
        found = schema.get(key)
        if isinstance(found, list):
            yield from found
        elif found is not None:
            yield found


def _by_name(schema: Mapping[str, object], key: str) -> Mapping[str, object]:
    found = schema.get(key)
    return found if isinstance(found, Mapping) else {}


def _target(root: Mapping[str, object], reference: str) -> object:
    """The schema that a reference such as `#/$defs/Node` names."""
    found: object = root
    for part in reference.removeprefix("#").split("/")[1:]:
        name = part.replace("~1", "/").replace("~0", "~")
        if isinstance(found, Mapping) and name in found:
            found = found[name]
        elif isinstance(found, list) and name.isdecimal() and int(name) < len(found):
            found = found[int(name)]
        else:
            return root
    return found
