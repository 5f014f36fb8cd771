"""Walks through the types of a payload's fields, down into the objects that they hold."""

import types
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, ForwardRef, NotRequired, Union, get_args, get_origin, get_type_hints, is_typeddict

from kitchener.records.entries import Sealed


def fields_of(shape: type[Any]) -> dict[str, Any]:
    """The types of a shape's fields by name."""
    return get_type_hints(shape)


def parts_of(kind: Any) -> Iterator[Any]:
    """The types of which a type consists: the members of a union, the items of a list, the keys and values of an object.

    An object with named fields is one part: what its fields hold is not among the parts.
    """
    if get_origin(kind) in (NotRequired, Union, types.UnionType, list, Sequence, dict, Mapping):
        for each in get_args(kind):
            yield from parts_of(each)
    else:
        yield kind


def objects_in(kind: Any) -> Iterator[type[Any]]:
    """The `TypedDict`s in a type, and those inside them."""
    for each in parts_of(kind):
        if is_typeddict(each):
            yield each
            for inner in fields_of(each).values():
                yield from objects_in(inner)


def holds_text(kind: Any) -> bool:
    """Whether a value of a type may be or contain any text, outside of objects with named fields."""
    return any(each in (str, object) or isinstance(each, ForwardRef) for each in parts_of(kind))


def texts_in(shape: type[Any], sealed: Collection[str] = ()) -> Iterator[tuple[str, str]]:
    """Class and name of each field that may hold text, in a shape and in the objects inside it.

    Args:
        shape: the `TypedDict`
        sealed: its fields that are left out, with what they hold
    """
    for name, kind in fields_of(shape).items():
        if name in sealed:
            continue
        if holds_text(kind):
            yield shape.__name__, name
        for inner in parts_of(kind):
            if is_typeddict(inner) and inner is not Sealed:
                yield from texts_in(inner)
