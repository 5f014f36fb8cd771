"""Lays the settings of one agent class over those that it inherits from `[agents.default]`."""

from typing import Any, TypeVar

from pydantic import ValidationError

from kitchener.config.settings import Settings

_Table = TypeVar("_Table", bound=Settings)


def inheriting(own: _Table, inherited: _Table, agent_class: str) -> _Table:
    """Returns the settings of a class, with what it leaves out taken from the inherited ones. Tables inside are merged by key.

    Args:
        own: the settings of the class
        inherited: the settings of `[agents.default]`
        agent_class: the name of the class

    Raises:
        ValueError: the settings do not fit each other; names the class
    """
    values = _laid_over(own, inherited, except_for="agent_class")
    try:
        return type(own)(**{"agent_class": agent_class, **values})
    except ValidationError as error:
        problem = error.errors(include_url=False)[0]["msg"]
        raise ValueError(f"agent class {agent_class!r}, with what it inherits: {problem}") from None


def _laid_over(own: Settings, inherited: Settings, *, except_for: str = "") -> dict[str, Any]:
    """The values that either table sets. A value that neither sets keeps its default, which `memory_config` can tell."""
    values = {key: getattr(inherited, key) for key in inherited.model_fields_set if key != except_for}
    for key in own.model_fields_set:
        values[key] = _merged(getattr(own, key), values.get(key))
    return values


def _merged(own: Any, inherited: Any) -> Any:
    if isinstance(own, dict) and isinstance(inherited, dict):
        return {**inherited, **{key: _merged(value, inherited.get(key)) for key, value in own.items()}}
    if isinstance(own, Settings) and isinstance(inherited, type(own)):
        return type(own)(**_laid_over(own, inherited))
    return own
