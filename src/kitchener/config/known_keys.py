"""Says of an unknown key which setting is meant: one of another name or table, or the one with the closest name."""

import difflib
from collections.abc import Iterator, Mapping
from typing import Final, get_args, get_origin

from pydantic import BaseModel

_SHOWN_KEY_CHARS: Final = 64
"""Characters of a key that are compared: the time grows with the product of the lengths, and no key is longer."""
_SYNONYMS: Final[Mapping[str, str]] = {
    "api_base": "base_url",
    "context_window": "context_budget",
    "endpoint": "base_url",
    "functions": "tools",
    "llm": "model",
    "max_completion_tokens": "max_tokens",
    "max_output_tokens": "max_tokens",
    "memory": "ho3_enabled",
    "model_id": "model",
    "model_name": "model",
    "persona": "instructions",
    "prompt": "instructions",
    "role": "instructions",
    "system": "instructions",
    "system_message": "instructions",
    "system_prompt": "instructions",
    "token": "api_key",
    "url": "base_url",
}
"""What other programs call a setting, and its name here."""


def meant_key(key: str, table: type[BaseModel] | None, whole: type[BaseModel]) -> str:
    """What an error says about an unknown key.

    Args:
        key: the key, which stands in the wrong place or does not exist
        table: the settings of its table; None: no table is there
        whole: all settings, of which the table is a part
    """
    known = list(table.model_fields) if table is not None else []
    folded = key[:_SHOWN_KEY_CHARS].lower().replace("-", "_")
    name = _SYNONYMS.get(folded, folded)
    if name in known:
        return f"unknown key; it is called {name!r} here"
    if (place := next((where for where, each in _tables(whole) if name in each.model_fields), None)) is not None:
        return f"unknown key; {name!r} is a setting of {place}"
    closest = difflib.get_close_matches(folded, known, n=1, cutoff=0.0)
    return f"unknown key; the closest known one is {closest[0]!r}" if closest else "unknown key"


def _tables(model: type[BaseModel], name: str = "") -> Iterator[tuple[str, type[BaseModel]]]:
    """Every table of the settings with its place, as one writes it; agent classes first, because most are about them."""
    fields = sorted(model.model_fields.items(), key=lambda field: field[0] != "agents")
    for key, field in fields:
        is_named = get_origin(field.annotation) is dict
        for each in get_args(field.annotation) if is_named else (field.annotation,):
            if isinstance(each, type) and issubclass(each, BaseModel):
                place = f"{name}.{key}".lstrip(".") + (".<name>" if is_named else "")
                yield f"[{place}]", each
                yield from _tables(each, place)
