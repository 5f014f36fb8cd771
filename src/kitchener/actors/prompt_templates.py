"""Turns the text of a prompt pack into a function from validated variables to the text of a prompt.

A pack has two parts, divided by a marker line. The part above it holds instructions: it becomes the system message, and only
trusted variables may stand in it. The part below holds data: it becomes the user message, and every value in it is put
between delimiters that the value cannot contain. Neighbours: `prompts.py` loads packs and contracts and calls this module;
nothing here knows files, contracts or models. Explained in `docs/prompts.md`.
"""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from hashlib import sha256
from typing import Any, Final

from jinja2 import StrictUndefined, Template, TemplateError, TemplateSyntaxError, Undefined, meta, nodes, pass_context
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment

from kitchener.canonical import plain_json
from kitchener.errors import PromptError

MARKER: Final = "=== DATA ==="
"""The line between the instruction part and the data part of a pack."""

INSTRUCTION_VARIABLES: Final = frozenset(("instructions",))
"""Variables that whoever runs the agent wrote, so that they may stand among the instructions. All others are data."""

_FENCE_DIGITS: Final = 16
_NUMBERS: Final = frozenset((int, float, bool))
_EMIT: Final = "emit the value"  # not an identifier, so that no template can name it

# Not the canonical form, which some values do not have; equal values give equal text. Most values take a faster way to it.
_JSON: Final = json.JSONEncoder(
    sort_keys=True, ensure_ascii=False, allow_nan=False, check_circular=False, separators=(",", ":")
).encode

Variables = Mapping[str, Any]
Emit = Callable[[Any], str]
"""Gives the text that stands for a value: the value itself among instructions, a fenced value among data."""


def fence(turn_id: str, value: Any) -> str:
    """`value` between two lines that it cannot contain; equal arguments give equal text.

    The delimiter comes from SHA-256 of turn id and content, and is derived again while it occurs in the content. So whoever
    writes the content cannot write its end. Text stands as it is, objects and lists as JSON with sorted keys. Numbers and
    booleans need no delimiter, as they can say nothing.

    Raises:
        PromptError: the value has no JSON form
    """
    text = value if type(value) is str else plain(value)
    if type(value) in _NUMBERS:
        return text
    mark, tries = sha256(f"{turn_id}|{text}".encode()).hexdigest()[:_FENCE_DIGITS], 0
    while mark in text:
        tries += 1
        mark = sha256(f"{turn_id}|{tries}|{text}".encode()).hexdigest()[:_FENCE_DIGITS]
    return f"<data-{mark}>\n{text}\n</data-{mark}>"


def plain(value: Any) -> str:
    """`value` as text without delimiters: for instructions, which are trusted."""
    if isinstance(value, str):
        return value
    try:
        return plain_json(value) or _JSON(value)
    except (TypeError, ValueError, RecursionError) as error:
        raise PromptError(f"a value of the prompt has no JSON form: {error}") from error


@dataclass(frozen=True, slots=True)
class _Value:
    """A place where the value at `path` stands."""

    path: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Choice:
    """Either of two pieces."""

    test: "_Test"
    then: "_Pieces"
    otherwise: "_Pieces"


@dataclass(frozen=True, slots=True)
class _Given:
    """Either of two pieces, by whether the variable is there and not empty: `{% if x is defined and x %}`."""

    name: str
    then: "_Pieces"
    otherwise: "_Pieces"


_Pieces = tuple["str | _Value | _Choice | _Given", ...]
_Test = Callable[[Variables], bool]


class Part:
    """One compiled half of a pack.

    Most parts are literal text, values and simple choices; those are rendered by joining pieces, which takes a tenth of the
    time of the template engine. A part with loops, filters or arithmetic goes through the engine. Both give the same text.
    """

    __slots__ = ("_pieces", "_template", "names")

    def __init__(self, source: str, *, file: str) -> None:
        try:
            tree = _ENGINE.parse(source)
            self.names: frozenset[str] = frozenset(meta.find_undeclared_variables(tree))
            self._pieces = _pieces(tree.body)
            self._template: Template = _ENGINE.from_string(source)
        except TemplateSyntaxError as error:
            raise PromptError(
                f"{file}: line {error.lineno} of this part: expected a valid template, found: {error.message}"
            ) from error
        _refuse_statements(tree, file)

    @property
    def is_plain(self) -> bool:
        """Whether it is rendered without the template engine."""
        return self._pieces is not None

    def render(self, variables: Variables, emit: Emit) -> str:
        """The text of this part; raises PromptError where a variable is missing."""
        if self._pieces is None:
            return self.render_with_engine(variables, emit)
        out: list[str] = []
        try:
            _join(self._pieces, variables, emit, out)
        except (LookupError, TypeError) as error:
            raise PromptError(f"the prompt pack cannot be rendered: a variable or key is missing: {error}") from error
        return "".join(out)

    def render_with_engine(self, variables: Variables, emit: Emit) -> str:
        """The same text, through the template engine."""
        try:
            return self._template.render({**variables, _EMIT: emit})
        except (TemplateError, ArithmeticError, LookupError, TypeError, ValueError) as error:
            raise PromptError(f"the prompt pack cannot be rendered: {error}") from error


@dataclass(frozen=True, slots=True)
class PackTemplate:
    """Both compiled halves of a pack."""

    instruction: Part
    data: Part


def compile_pack(text: str, *, file: str) -> PackTemplate:
    """The two halves of a pack's text, compiled.

    Args:
        text: the pack
        file: how errors call it

    Raises:
        PromptError: the marker is missing or repeated, a half is empty or not a valid template, or a variable that is data
            stands among the instructions
    """
    lines = text.splitlines()
    if lines.count(MARKER) != 1:
        raise PromptError(
            f"{file}: expected exactly one line {MARKER!r} between instructions and data, found {lines.count(MARKER)}"
        )
    at = lines.index(MARKER)
    halves = ["\n".join(lines[:at]).strip(), "\n".join(lines[at + 1 :]).strip()]
    for name, half in zip(("above", "below"), halves, strict=True):
        if not half:
            raise PromptError(f"{file}: expected text {name} the line {MARKER!r}, found none")
    instruction, data = (Part(half, file=file) for half in halves)
    if misplaced := sorted(instruction.names - INSTRUCTION_VARIABLES):
        raise PromptError(
            f"{file}: expected only {sorted(INSTRUCTION_VARIABLES)} among the instructions, found {misplaced};"
            f" move data below the line {MARKER!r}"
        )
    return PackTemplate(instruction, data)


@pass_context
def _emit(context: Context, value: Any) -> str:
    """What the engine calls for each value that it puts out."""
    if isinstance(value, Undefined):
        return str(value)  # raises, and names the variable
    emit: Emit = context[_EMIT]
    return emit(value)


def _engine() -> ImmutableSandboxedEnvironment:
    engine = ImmutableSandboxedEnvironment(
        autoescape=False, undefined=StrictUndefined, finalize=_emit, trim_blocks=True, lstrip_blocks=True
    )
    # What is left cannot draw a random number, so that equal variables give equal text.
    engine.globals.clear()
    del engine.filters["random"]
    return engine


_ENGINE: Final = _engine()
# A filter block, a macro call or an include could change or forge delimiters after values were put between them.
_STATEMENTS: Final = (nodes.Output, nodes.If, nodes.For, nodes.Assign)


def _refuse_statements(tree: nodes.Template, file: str) -> None:
    for statement in tree.find_all(nodes.Stmt):
        if not isinstance(statement, _STATEMENTS):
            raise PromptError(
                f"{file}: line {statement.lineno} of this part: expected only if, for and set blocks,"
                f" found {type(statement).__name__}"
            )


def _pieces(body: Sequence[nodes.Node]) -> _Pieces | None:
    """The body as pieces, or None if it needs the engine."""
    pieces: list[str | _Value | _Choice | _Given] = []
    for node in body:
        if isinstance(node, nodes.Output):
            for child in node.nodes:
                if isinstance(child, nodes.TemplateData):
                    pieces.append(child.data)
                elif (path := _path(child)) is not None:
                    pieces.append(_Value(path))
                else:
                    return None
        elif isinstance(node, nodes.If) and (choice := _choice(node)) is not None:
            pieces.append(choice)
        else:
            return None
    return tuple(pieces)


def _choice(node: nodes.If) -> _Choice | _Given | None:
    otherwise: _Pieces | None = _pieces(node.else_)
    for other in reversed(node.elif_):
        choice = _either(other, otherwise)
        otherwise = None if choice is None else (choice,)
    return _either(node, otherwise)


def _either(node: nodes.If, otherwise: _Pieces | None) -> _Choice | _Given | None:
    test, then = _test(node.test), _pieces(node.body)
    if test is None or then is None or otherwise is None:
        return None
    if isinstance(test, partial) and test.func is _is_given and len(test.args[0]) == 1:
        return _Given(test.args[0][0], then, otherwise)
    return _Choice(test, then, otherwise)


def _path(node: nodes.Node) -> tuple[str, ...] | None:
    """The keys of `a.b.c`, or None if it is anything else."""
    if isinstance(node, nodes.Name):
        return (node.name,)
    # `x.items` is a method of a dict, not its key; the engine knows what to do with it.
    if isinstance(node, nodes.Getattr) and not hasattr(dict, node.attr) and (parent := _path(node.node)) is not None:
        return (*parent, node.attr)
    return None


def _test(node: nodes.Node) -> _Test | None:
    """The condition as a function, or None if it needs the engine."""
    if (path := _path(node)) is not None:
        return partial(_is_true, path)
    if (known := _known(node)) is not None:
        return partial(_is_there, known)
    if isinstance(node, nodes.Not):
        return _not(_test(node.node))
    if isinstance(node, nodes.And):
        known = _known(node.left)
        if known is not None and known == _path(node.right):
            return partial(_is_given, known)  # `x is defined and x`, the usual way to say that x is optional
        return _both(all, _test(node.left), _test(node.right))
    if isinstance(node, nodes.Or):
        return _both(any, _test(node.left), _test(node.right))
    return None


def _not(test: _Test | None) -> _Test | None:
    return None if test is None else lambda variables: not test(variables)


def _both(combine: Callable[[Iterable[bool]], bool], left: _Test | None, right: _Test | None) -> _Test | None:
    if left is None or right is None:
        return None
    return lambda variables: combine(test(variables) for test in (left, right))


def _known(node: nodes.Node) -> tuple[str, ...] | None:
    """The path of `a.b is defined`, or None if it is anything else."""
    return _path(node.node) if isinstance(node, nodes.Test) and node.name == "defined" else None


def _has(value: Any, key: str) -> bool:
    return (type(value) is dict or isinstance(value, Mapping)) and key in value


def _look_up(path: Sequence[str], variables: Variables) -> Any:
    value: Any = variables
    for key in path:
        value = value[key]
    return value


def _is_true(path: Sequence[str], variables: Variables) -> bool:
    return bool(_look_up(path, variables))


def _is_there(path: Sequence[str], variables: Variables) -> bool:
    return _has(_look_up(path[:-1], variables), path[-1])


def _is_given(path: Sequence[str], variables: Variables) -> bool:
    """Whether the value at `path` is there and not empty."""
    value = _look_up(path[:-1], variables) if len(path) > 1 else variables
    return _has(value, path[-1]) and bool(value[path[-1]])


def _join(pieces: _Pieces, variables: Variables, emit: Emit, out: list[str]) -> None:
    for piece in pieces:
        if type(piece) is str:
            out.append(piece)
        elif type(piece) is _Value:
            value: Any = variables
            for key in piece.path:
                value = value[key]
            out.append(emit(value))
        elif type(piece) is _Given:
            chosen = piece.then if variables.get(piece.name) else piece.otherwise
            if chosen:
                _join(chosen, variables, emit, out)
        elif type(piece) is _Choice:
            _join(piece.then if piece.test(variables) else piece.otherwise, variables, emit, out)
