"""Defines what a check of `kitchener doctor` reports."""

from typing import Literal, NamedTuple

FindingState = Literal["ok", "warn", "fail"]
"""Whether something is in order; a command with a `fail` exits with 1."""


class Finding(NamedTuple):
    """The result of one check."""

    what: str
    state: FindingState
    detail: str
