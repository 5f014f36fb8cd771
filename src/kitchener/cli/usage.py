"""Turns a usage error into one line: the error, the likely correction, and the help text to read.

`app.py` prints the line. A value that a running command refuses is an error of that command, not a usage error.
"""

import difflib
import inspect
from collections.abc import Sequence
from typing import Final

from cyclopts import CycloptsError, MissingArgumentError, UnknownCommandError, UnusedCliTokensError

from kitchener.plain_names import cut_to, quoted

_LIKE_ENOUGH: Final = 0.65
"""Least similarity of two words, 0 to 1, for one to be suggested instead of the other. "list" and "bisect" have 0.6."""
_COMPARED_CHARS: Final = 80
_SHOWN_CHARS: Final = 80


def usage_line(error: CycloptsError) -> str:
    """The error in a command line, and the command that prints the help text."""
    match error:
        case MissingArgumentError():
            text = _missing(error)
        case UnusedCliTokensError():
            text = _unexpected(error)
        case UnknownCommandError():
            text = _unknown_command(error)
        case _:
            text = " ".join(cut_to(each, _SHOWN_CHARS) for each in str(error).split())
    return f"{text} (kitchener {''.join(f'{each} ' for each in error.command_chain or ())}--help)"


def _missing(error: MissingArgumentError) -> str:
    argument = error.argument
    if argument is None:
        return " ".join(str(error).split())
    if given := _given_names(error, argument.names):
        return f"{given[0]} needs a value"
    if argument.field_info.is_positional:
        return f"the argument {_label(argument.name, argument.field_info.name)} is missing"
    return f"the option {argument.name} is missing; it is required"


def _unexpected(error: UnusedCliTokensError) -> str:
    words = " ".join(quoted(each) for each in error.unused_tokens or ())
    for each in error.app.assemble_argument_collection() if error.app is not None else ():
        given = _given_names(error, each.names)
        if given and each.field_info.kind is inspect.Parameter.POSITIONAL_OR_KEYWORD:
            return f"{_label(each.name, each.field_info.name)} is given twice: by {given[0]} and as {words}"
    return f"unexpected: {words}"


def _given_names(error: CycloptsError, names: Sequence[str]) -> list[str]:
    """The names of an option that occur in the command line."""
    return sorted({each.partition("=")[0] for each in error.root_input_tokens or ()}.intersection(names))


def _unknown_command(error: UnknownCommandError) -> str:
    name = next(iter(error.unused_tokens or ()), "")
    names = sorted(error.app) if error.app is not None else []
    by_word = {each.lstrip("-"): each for each in names}  # `help` and `--hepl` both mean `--help`
    closest = difflib.get_close_matches(name[:_COMPARED_CHARS].casefold().lstrip("-"), by_word, n=1, cutoff=_LIKE_ENOUGH)
    meant = f"; did you mean {by_word[closest[0]]}?" if closest else "."
    commands = ", ".join(each for each in names if not each.startswith("-"))
    return f"Unknown {'option' if name.startswith('-') else 'command'} {quoted(name)}{meant} Commands: {commands}"


def _label(option: str, name: str) -> str:
    """The name in a help text of an argument that may also be given as an option, e.g. `SESSION` for `--session`."""
    return name.upper() if option.startswith("-") else option
