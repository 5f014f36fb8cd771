"""Turns the text of a prompt pack into a function from validated variables to the text of a prompt.

A pack has two parts, divided by a marker line. The part above the marker holds instructions. It becomes the system message
and may use only trusted variables. The part below holds data. It becomes the user message, and every value in it stands
between delimiters that the value cannot contain. What this one reply must be stands above it, without delimiters. `prompts.py`
loads packs and calls this module. This module knows no files, contracts or models. Explained in `docs/prompts.md`.
"""

import ast
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import sha256
from typing import Final

from jinja2 import StrictUndefined, Template, TemplateError, TemplateSyntaxError, Undefined, meta, nodes, pass_context
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment

from kitchener.canonical import plain_json
from kitchener.errors import PromptError

MARKER: Final = "=== DATA ==="
"""The line between the instruction part and the data part of a pack."""
STABLE_MARKER: Final = "=== CONTEXT ==="
"""The line above the data that seldom changes, at the end of the system message. Chat messages of earlier turns follow."""
MESSAGE_MARKER: Final = "=== MESSAGE ==="
"""The line above the user's message, which ends the prompt as it was written."""
MESSAGE_VARIABLES: Final = frozenset(("user_message",))
"""Variables that the message part may use."""

REQUIREMENTS: Final = "requirements"
"""The variable with what this one reply must be. It stands above the data of every pack; none has a place for it."""

INSTRUCTION_VARIABLES: Final = frozenset(("instructions", "has_tools"))
"""Variables that the agent's operator sets. Only these may be used in the instruction part; all others are data."""

_FENCE_DIGITS: Final = 16
_NUMBERS: Final = frozenset((int, float, bool))
_EMIT: Final = "emit the value"  # not an identifier, so that no template can name it

# Not the canonical form, because some values have none. Equal values give equal text. `plain_json` encodes most values first.
_JSON: Final = json.JSONEncoder(
    sort_keys=True, ensure_ascii=False, allow_nan=False, check_circular=False, separators=(",", ":")
).encode

Variables = Mapping[str, object]
Emit = Callable[[object], str]
"""Returns the prompt text for a value: the plain value in instructions, a fenced value in data."""


class RawText(str):
    """The text of a tool, which a prompt shows unchanged, not as a part of JSON."""

    __slots__ = ()


class StepResults(list[Mapping[str, object]]):
    """Results of earlier steps. Each `RawText` among them, or in one of their pages, gets its own block below the list."""

    __slots__ = ()


def fence(turn_id: str, value: object) -> str:
    """Returns `value` between two delimiter lines that it cannot contain. Equal arguments give equal text.

    The delimiter is derived from the SHA-256 of turn id and content, again and again while it occurs in the content. So the
    author of the content cannot forge the end of the block. Text stays unchanged; objects and lists become JSON with sorted
    keys. Numbers and booleans get no delimiter, because they cannot carry instructions. In `StepResults`, the delimiter of a
    text's own block replaces the text.

    Raises:
        PromptError: the value has no JSON form
    """
    if type(value) is str:
        text = value
    elif type(value) is StepResults:
        return _fenced_steps(turn_id, value)
    else:
        text = plain(value)
        if type(value) in _NUMBERS:
            return text
    mark, tries = sha256(f"{turn_id}|{text}".encode()).hexdigest()[:_FENCE_DIGITS], 0
    while mark in text:
        tries += 1
        mark = sha256(f"{turn_id}|{tries}|{text}".encode()).hexdigest()[:_FENCE_DIGITS]
    return f"<data-{mark}>\n{text}\n</data-{mark}>"


def _fenced_steps(turn_id: str, steps: StepResults) -> str:
    blocks = list[str]()

    def named(value: object) -> object:
        if type(value) is not RawText:
            return value
        blocks.append(fence(turn_id, str(value)))
        return blocks[-1].partition("\n")[0]

    listed = list[Mapping[str, object]]()
    for each in steps:
        result = each.get("result")
        if isinstance(result, Mapping):
            listed.append({**each, "result": {key: named(part) for key, part in result.items()}})
        else:
            listed.append({**each, "result": named(result)} if type(result) is RawText else each)
    return "\n".join([fence(turn_id, listed), *blocks])


def plain(value: object) -> str:
    """Returns `value` as text without delimiters, for trusted instructions.

    Raises:
        PromptError: the value has no JSON form
    """
    if isinstance(value, str):
        return value
    try:
        return plain_json(value) or _JSON(value)
    except (TypeError, ValueError, RecursionError) as error:
        raise PromptError(f"a value of the prompt has no JSON form: {error}") from error


class PromptPart:
    """One compiled part of a pack.

    A part of literal text, values and simple conditions is compiled to one Python expression. The engine renders a part with
    loops, filters or arithmetic, which takes longer. Both give the same text.
    """

    __slots__ = ("_expression", "_template", "names")

    def __init__(self, source: str, *, file: str) -> None:
        try:
            tree = _ENGINE.parse(source)
            self.names: frozenset[str] = frozenset(meta.find_undeclared_variables(tree))
            self._expression = _compiled(tree.body)
            self._template: Template = _ENGINE.from_string(source)
        except TemplateSyntaxError as error:
            raise PromptError(
                f"{file}: line {error.lineno} of this part: expected a valid template, found: {error.message}"
            ) from error
        _refuse_statements(tree, file)

    @property
    def is_plain(self) -> bool:
        """Whether the part is rendered without the template engine."""
        return self._expression is not None

    def render(self, variables: Variables, emit: Emit) -> str:
        """Returns the text of this part. Raises PromptError if a variable is missing."""
        if self._expression is None:
            return self.render_with_engine(variables, emit)
        try:
            return self._expression(variables, emit)
        except (LookupError, TypeError) as error:
            raise PromptError(f"the prompt pack cannot be rendered: a variable or key is missing: {error}") from error

    def render_with_engine(self, variables: Variables, emit: Emit) -> str:
        """Renders the part with the template engine. The text equals what `render` returns."""
        try:
            return self._template.render({**variables, _EMIT: emit})
        except (TemplateError, ArithmeticError, LookupError, TypeError, ValueError) as error:
            raise PromptError(f"the prompt pack cannot be rendered: {error}") from error


@dataclass(frozen=True, slots=True)
class PackTemplate:
    """The compiled parts of a pack."""

    instruction: PromptPart
    data: PromptPart
    stable: PromptPart | None = None
    """The data that seldom changes, at the end of the system message; None: the pack has no place for chat messages."""
    message: PromptPart | None = None
    """The user's message, at the end of the prompt; None: it is part of the data."""

    @property
    def names(self) -> frozenset[str]:
        """The variables that the pack uses."""
        parts = (self.instruction, self.data, self.stable, self.message)
        return frozenset().union(*[part.names for part in parts if part is not None])

    def fence_seed(self, turn_id: str, session_id: str) -> str:
        """The id from which delimiters are derived: with chat messages the session's, so that equal data gives equal text in
        every turn."""
        return turn_id if self.stable is None else session_id

    def render_system(self, variables: Variables, emit: Emit) -> str:
        """Returns the data part of the system message; "": there is none. Raises PromptError if a variable is missing."""
        return self.stable.render(variables, emit).strip() if self.stable is not None else ""

    def render_user(self, variables: Variables, emit: Emit, emit_message: Emit) -> str:
        """Returns the last user message, with the requirements above it. Raises PromptError if a variable is missing.

        Args:
            variables: the values
            emit: gives the text of a value of the data
            emit_message: gives the text of the user's message, and of the requirements
        """
        required = emit_message(variables[REQUIREMENTS]) + "\n\n" if REQUIREMENTS in variables else ""
        data = self.data.render(variables, emit)
        if self.message is None:
            return required + data
        data, message = data.strip(), self.message.render(variables, emit_message)
        return required + (f"{data}\n\n{message}" if data else message)


def shows_history(text: str) -> bool:
    """Whether a pack has a place for chat messages of earlier turns."""
    return STABLE_MARKER in text.splitlines()


def compile_pack(text: str, *, file: str) -> PackTemplate:
    """Compiles the parts of a pack's text.

    Args:
        text: the pack
        file: the pack's name in errors

    Raises:
        PromptError: the marker is missing or repeated, a part is empty or not a valid template, or the instruction part uses a
            data variable
    """
    found = _parts(text.splitlines(), file)
    parts = {name: PromptPart(part, file=file) for name, part in found.items()}
    instruction, message = parts[_INSTRUCTIONS], parts.get(MESSAGE_MARKER)
    if misplaced := sorted(instruction.names - INSTRUCTION_VARIABLES):
        raise PromptError(
            f"{file}: expected only {sorted(INSTRUCTION_VARIABLES)} among the instructions, found {misplaced};"
            f" move data below the line {MARKER!r}"
        )
    if message is not None and message.names != MESSAGE_VARIABLES:
        raise PromptError(
            f"{file}: expected {sorted(MESSAGE_VARIABLES)} and nothing else below the line {MESSAGE_MARKER!r},"
            f" found {sorted(message.names)}; move data below the line {MARKER!r}"
        )
    return PackTemplate(instruction, parts[MARKER], parts.get(STABLE_MARKER), message)


_INSTRUCTIONS: Final = ""


def _parts(lines: Sequence[str], file: str) -> dict[str, str]:
    """The text of each part, by the line above it."""
    for marker in (MARKER, STABLE_MARKER, MESSAGE_MARKER):
        if lines.count(marker) != 1 and (marker == MARKER or marker in lines):
            raise PromptError(
                f"{file}: expected exactly one line {marker!r} between instructions and data, found {lines.count(marker)}"
            )
    if (STABLE_MARKER in lines) != (MESSAGE_MARKER in lines):
        raise PromptError(f"{file}: expected both lines {STABLE_MARKER!r} and {MESSAGE_MARKER!r} or none, found one of them")
    order = [STABLE_MARKER, MARKER, MESSAGE_MARKER] if STABLE_MARKER in lines else [MARKER]
    places = [lines.index(marker) for marker in order]
    if places != sorted(places):
        raise PromptError(f"{file}: expected the lines {order} in this order")
    ends = [*places, len(lines)]
    found = {_INSTRUCTIONS: "\n".join(lines[: places[0]]).strip()}
    found |= {name: "\n".join(lines[at + 1 : end]).strip() for name, at, end in zip(order, places, ends[1:], strict=True)}
    for name, part in found.items():
        if not part:
            where = f"below the line {name!r}" if name else f"above the line {order[0]!r}"
            raise PromptError(f"{file}: expected text {where}, found none")
    return found


@pass_context
def _emit(context: Context, value: object) -> str:
    """Converts each value that the engine outputs into prompt text."""
    if isinstance(value, Undefined):
        return str(value)  # raises an error that names the variable
    emit: Emit = context[_EMIT]
    return emit(value)


def _engine() -> ImmutableSandboxedEnvironment:
    engine = ImmutableSandboxedEnvironment(
        autoescape=False, undefined=StrictUndefined, finalize=_emit, trim_blocks=True, lstrip_blocks=True
    )
    # Without these, no template can draw a random number, so equal variables give equal text.
    engine.globals.clear()
    del engine.filters["random"]
    return engine


_ENGINE: Final = _engine()
# A filter block, a macro call or an include could change or forge the delimiters around values.
_STATEMENTS: Final = (nodes.Output, nodes.If, nodes.For, nodes.Assign)


def _refuse_statements(tree: nodes.Template, file: str) -> None:
    for statement in tree.find_all(nodes.Stmt):
        if not isinstance(statement, _STATEMENTS):
            raise PromptError(
                f"{file}: line {statement.lineno} of this part: expected only if, for and set blocks,"
                f" found {type(statement).__name__}"
            )


def _compiled(body: Sequence[nodes.Node]) -> Callable[[Variables, Emit], str] | None:
    """Compiles the body to a function. Returns None if the body needs the engine."""
    text = _text(body)
    if text is None:
        return None
    tree = ast.Expression(ast.Lambda(_ARGUMENTS, text))
    try:
        code = compile(ast.fix_missing_locations(tree), "<prompt pack>", "eval")
    except RecursionError:  # hundreds of nested conditions
        return None
    # No text of a pack is parsed as Python: a pack's texts and names are constants in the tree that this module builds.
    function: Callable[[Variables, Emit], str] = eval(code, {"has": _has})
    return function


_ARGUMENTS: Final = ast.arguments(
    posonlyargs=[], args=[ast.arg("variables"), ast.arg("emit")], kwonlyargs=[], kw_defaults=[], defaults=[]
)


def _text(body: Sequence[nodes.Node]) -> ast.expr | None:
    """The expression for the text of the body, or None if it needs the engine."""
    pieces: list[ast.expr] = []
    for node in body:
        if isinstance(node, nodes.Output):
            for child in node.nodes:
                if isinstance(child, nodes.TemplateData):
                    pieces.append(ast.Constant(child.data))
                elif (path := _path(child)) is not None:
                    pieces.append(ast.FormattedValue(_call("emit", _value(path)), -1))
                else:
                    return None
        elif isinstance(node, nodes.If) and (choice := _choice(node)) is not None:
            pieces.append(ast.FormattedValue(choice, -1))
        else:
            return None
    return ast.JoinedStr(pieces)


def _choice(node: nodes.If) -> ast.expr | None:
    otherwise = _text(node.else_)
    for branch in (*reversed(node.elif_), node):
        test, then = _test(branch.test), _text(branch.body)
        if test is None or then is None or otherwise is None:
            return None
        otherwise = ast.IfExp(test, then, otherwise)
    return otherwise


def _path(node: nodes.Node) -> tuple[str, ...] | None:
    """The keys of a path such as `a.b.c`; None for any other node."""
    if isinstance(node, nodes.Name):
        return (node.name,)
    # `x.items` is a method of a dict, not a key, so the engine handles it.
    if isinstance(node, nodes.Getattr) and not hasattr(dict, node.attr) and (parent := _path(node.node)) is not None:
        return (*parent, node.attr)
    return None


def _test(node: nodes.Node) -> ast.expr | None:
    """The expression for a condition, or None if it needs the engine."""
    if (path := _path(node)) is not None:
        return _value(path)
    if (known := _known(node)) is not None:
        return _call("has", _value(known[:-1]), ast.Constant(known[-1]))
    if isinstance(node, nodes.Not):
        negated = _test(node.node)
        return None if negated is None else ast.UnaryOp(ast.Not(), negated)
    if not isinstance(node, nodes.And | nodes.Or):
        return None
    known = _known(node.left) if isinstance(node, nodes.And) else None
    if known is not None and len(known) == 1 and known == _path(node.right):
        # `x is defined and x`, the usual way to use an optional x
        return ast.Call(ast.Attribute(_value(()), "get", ast.Load()), [ast.Constant(known[0])], [])
    left, right = _test(node.left), _test(node.right)
    if left is None or right is None:
        return None
    return ast.BoolOp(ast.And() if isinstance(node, nodes.And) else ast.Or(), [left, right])


def _known(node: nodes.Node) -> tuple[str, ...] | None:
    """The path of a test such as `a.b is defined`; None for any other node."""
    return _path(node.node) if isinstance(node, nodes.Test) and node.name == "defined" else None


def _value(path: Sequence[str]) -> ast.expr:
    """The expression for the value at a path."""
    value: ast.expr = ast.Name("variables", ast.Load())
    for key in path:
        value = ast.Subscript(value, ast.Constant(key), ast.Load())
    return value


def _call(name: str, *arguments: ast.expr) -> ast.expr:
    return ast.Call(ast.Name(name, ast.Load()), list(arguments), [])


def _has(value: object, key: str) -> bool:
    return (type(value) is dict or isinstance(value, Mapping)) and key in value
