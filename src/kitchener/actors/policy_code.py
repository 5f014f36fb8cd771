"""Which code decides: one hash over the source of all modules that a decision can come from.

It is part of the hash of a turn's policy, so a record tells under which rules it was made even where no setting was changed,
and a replay tells that a line of them is another one now. Explained in `docs/replay.md`.
"""

from collections.abc import Iterator, Mapping
from functools import cache
from importlib.resources import files
from typing import Final

from kitchener.canonical import canonical_digest, digest

PACKAGES: Final = ("kitchener.actors", "kitchener.context", "kitchener.memory")
"""All modules of these."""
MODULES: Final = ("kitchener.canonical", "kitchener.gateway.routing", "kitchener.ids", "kitchener.records.spoken")
"""And these."""


@cache
def policy_code() -> str:
    """The hash of the code at hand. Read once in a process: what is imported does not change either."""
    return code_hash(dict(_sources()))


def code_hash(sources: Mapping[str, bytes]) -> str:
    """One hash over modules, whatever their order.

    Args:
        sources: each module's source, by its name
    """
    return canonical_digest({name: digest(source) for name, source in sources.items()})


def _sources() -> Iterator[tuple[str, bytes]]:
    for package in PACKAGES:
        for file in files(package).iterdir():
            if file.name.endswith(".py"):
                yield f"{package}.{file.name[:-3]}", file.read_bytes()
    for module in MODULES:
        package, _, name = module.rpartition(".")
        yield module, files(package).joinpath(f"{name}.py").read_bytes()
