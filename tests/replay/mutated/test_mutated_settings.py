"""Changing any setting that decides is caught by replay; each setting there is says whether it decides."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import pytest
from pydantic import BaseModel

from kitchener.config import RuntimeConfig
from kitchener.replaying import open_replays
from kitchener.runtime.root_layout import settings_of
from tests.replay import corpus
from tests.replay.mutated.knobs import KNOBS, Policy

DECIDING = {path: row for path, row in KNOBS.items() if isinstance(row, Policy)}
FIRST_OF = {(row.entry_type, row.field): path for path, row in reversed(DECIDING.items())}
"""The first setting that is caught by each field of an entry."""


pytestmark = pytest.mark.timeout(300)  # recording the root takes some seconds of CPU, on a busy machine many


@pytest.fixture(scope="module")
def anyio_backend() -> str:
    """The sessions were recorded on asyncio; that replays are the same on both is shown in `test_replay_anywhere.py`."""
    return "trio"


def paths_of(model: type[BaseModel], at: str = "") -> Iterator[str]:
    """The dotted path of every setting; `*` stands for any name."""
    for name, field in model.model_fields.items():
        path = f"{at}{name}"
        inner = next((each for each in (field.annotation, *get_args(field.annotation)) if _is_model(each)), None)
        if inner is None:
            yield path
        else:
            yield from paths_of(inner, f"{path}.*." if inner is not field.annotation else f"{path}.")


def _is_model(annotation: Any) -> bool:
    return isinstance(annotation, type) and issubclass(annotation, BaseModel)


def changed(settings: Any, path: list[str], agent_class: str, value: Any) -> Any:
    """A copy of the settings in which one has another value; `*` in `agents` is the class, elsewhere every name there is."""
    name, *rest = path
    if not rest:
        assert getattr(settings, name) != value, "this is no change"
        return settings.model_copy(update={name: value})
    inner = getattr(settings, name)
    if rest[0] != "*":
        return settings.model_copy(update={name: changed(inner, rest, agent_class, value)})
    if isinstance(inner, tuple):
        rules = [changed(each, rest[1:], agent_class, value) if _differs(each, rest[1:], value) else each for each in inner]
        return settings.model_copy(update={name: tuple(rules)})
    chosen = [agent_class] if name == "agents" else list(inner)
    made = {
        each: changed(inner[each], rest[1:], agent_class, value) for each in chosen if _differs(inner[each], rest[1:], value)
    }
    return settings.model_copy(update={name: {**inner, **made}})


def _differs(settings: Any, path: list[str], value: Any) -> bool:
    return len(path) != 1 or getattr(settings, path[0]) != value


def test_each_setting_says_whether_it_decides() -> None:
    """A new one needs a line: either a value that replay catches, or the reason why it decides nothing."""
    assert sorted(KNOBS) == sorted(paths_of(RuntimeConfig))
    assert all(reason.strip() for reason in KNOBS.values() if isinstance(reason, str))


@pytest.fixture(scope="module")
def settings(recorded_root: Path) -> RuntimeConfig:
    """The settings of the recorded root, read once for all cases."""
    return settings_of(recorded_root / corpus.SETTINGS.name, None)


@pytest.mark.parametrize(
    "path", [pytest.param(path, marks=[] if path in FIRST_OF.values() else pytest.mark.soak) for path in DECIDING]
)
async def test_changed_setting_is_caught(settings: RuntimeConfig, path: str) -> None:
    """In a recorded session of the agent class, or in a consolidation of it, by entry and field.

    `make test` changes one setting for each field of an entry that tells, and `make soak` changes all.
    """
    row = DECIDING[path]
    other = changed(settings, path.split("."), row.agent_class, row.value)
    async with open_replays(other, row.agent_class, verify=False) as replays:
        if row.lesson is None:
            report = await replays.replay((await replays.sessions())[row.session])
        else:
            report = await replays.replay((await replays.consolidations())[row.lesson])
    assert report.divergence is not None
    assert (report.divergence.entry_type, report.divergence.field) == (row.entry_type, row.field)
