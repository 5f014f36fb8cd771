"""Writes answers as JSON, including values of models and tools that the fast encoder refuses: lone surrogates and large
numbers."""

import json
import math
from typing import Any

import orjson

from kitchener.plain_names import without_halves


def as_json(value: object) -> bytes:
    """A value as JSON.

    Raises:
        RecursionError: it is nested too deeply
    """
    try:
        return orjson.dumps(value)
    except TypeError:
        return json.dumps(_plain_value(value), ensure_ascii=False).encode()


def can_be_sent(value: object) -> bool:
    """Whether a value is not nested too deeply."""
    try:
        as_json(value)
    except RecursionError:
        return False
    return True


def _plain_value(value: Any) -> Any:
    if isinstance(value, str):
        return without_halves(value)
    if isinstance(value, dict):
        return {without_halves(str(name)): _plain_value(each) for name, each in value.items()}
    if isinstance(value, float) and not math.isfinite(value):
        return None  # as the fast way writes it; JSON has no such number
    return [_plain_value(each) for each in value] if isinstance(value, list | tuple) else value
