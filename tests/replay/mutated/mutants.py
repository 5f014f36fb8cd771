"""Simple mutants of Python source: a comparison, constant, condition, result or statement is another one. Pure.

Each mutant is a copy of a module's syntax tree with one change. Left out is what decides nothing: docstrings, annotations,
decorators, `raise` and `assert` with the texts of their errors, and texts outside of functions, which are names of things.
"""

import ast
import copy
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, Final

_COMPARISONS: Final[dict[type[ast.cmpop], tuple[type[ast.cmpop], ...]]] = {
    ast.Lt: (ast.LtE, ast.GtE),
    ast.LtE: (ast.Lt, ast.Gt),
    ast.Gt: (ast.GtE, ast.LtE),
    ast.GtE: (ast.Gt, ast.Lt),
    ast.Eq: (ast.NotEq,),
    ast.NotEq: (ast.Eq,),
    ast.Is: (ast.IsNot,),
    ast.IsNot: (ast.Is,),
    ast.In: (ast.NotIn,),
    ast.NotIn: (ast.In,),
}
_OPERATORS: Final[dict[type[ast.operator], type[ast.operator]]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Add,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult,
    ast.BitOr: ast.BitAnd,
    ast.BitAnd: ast.BitOr,
}
_FUNCTIONS: Final = (ast.FunctionDef, ast.AsyncFunctionDef)
_SKIPPED: Final = (ast.Raise, ast.Assert, ast.Import, ast.ImportFrom)


@dataclass(frozen=True, slots=True)
class Mutant:
    """One change of one module."""

    number: int
    """Its place among the module's mutants; the same source gives the same numbers."""
    line: int
    """Of the source, from 1."""
    kind: str
    """What is changed: `comparison`, `constant`, `condition`, `operator`, `result` or `statement`."""
    text: str
    """The change, for a reader."""
    function: int
    """First line of the outermost function around it, its decorators included; 0: it stands outside of functions."""

    def applied(self, tree: ast.Module) -> ast.Module:
        """The changed copy of the tree that the mutant was found in."""
        changed = copy.deepcopy(tree)
        for site in _sites(changed):
            if site.number == self.number:
                site.change()
                return ast.fix_missing_locations(changed)
        raise LookupError(f"no mutant {self.number} in this tree")


@dataclass(frozen=True, slots=True)
class _Site:
    number: int
    node: ast.AST
    kind: str
    text: str
    function: int
    change: Callable[[], None]


def mutants_of(tree: ast.Module) -> list[Mutant]:
    """All mutants of a module, in the order of its lines and columns."""
    return [Mutant(site.number, _line(site.node), site.kind, site.text, site.function) for site in _sites(tree)]


def _line(node: ast.AST) -> int:
    return int((node.ifs[0] if isinstance(node, ast.comprehension) else node).lineno)  # type: ignore[attr-defined]


def _sites(tree: ast.Module) -> Iterator[_Site]:
    for number, (node, function, (kind, text, change)) in enumerate(_changes_in(tree, 0)):
        yield _Site(number, node, kind, text, function, change)


_Change = tuple[str, str, Callable[[], None]]


def _changes_in(node: ast.AST, function: int) -> Iterator[tuple[ast.AST, int, _Change]]:
    """Every change below a node; each names the node it happens at."""
    for field, value in ast.iter_fields(node):
        if field in ("annotation", "returns", "decorator_list", "type_params", "bases", "keywords") and not isinstance(
            node, ast.Call
        ):
            continue
        children = list(enumerate(value)) if isinstance(value, list) else [(None, value)]
        for at, child in children:
            if not isinstance(child, ast.AST) or isinstance(child, _SKIPPED) or _is_docstring(child):
                continue
            # A default is worked out when the function is made, not when it is called.
            inside = 0 if field == "args" and isinstance(node, _FUNCTIONS) and function == _first_line(node) else function
            if isinstance(child, _FUNCTIONS) and not function:
                inside = _first_line(child)
            if isinstance(child, ast.Assign) and any(
                isinstance(each, ast.Name) and each.id.startswith("__") for each in child.targets
            ):
                continue
            for change in _changes_at(child, _setter(node, field, at), function=inside):
                yield child, inside, change
            yield from _changes_in(child, inside)


def _first_line(function: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    return min([function.lineno, *(each.lineno for each in function.decorator_list)])


def _setter(node: ast.AST, field: str, at: int | None) -> Callable[[Any], None]:
    def put(new: Any) -> None:
        if at is None:
            setattr(node, field, new)
        else:
            getattr(node, field)[at] = new

    return put


def _is_docstring(node: ast.AST) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)


def _changes_at(node: ast.AST, put: Callable[[Any], None], *, function: int) -> Iterator[_Change]:
    if isinstance(node, ast.expr):
        yield from _changes_of_expression(node, put, is_inside=bool(function))
    elif isinstance(node, ast.If):
        yield "condition", "condition negated", partial(setattr, node, "test", _not(node.test))
    elif isinstance(node, ast.Return) and node.value is not None and not _is_none(node.value):
        yield "result", "result → None", partial(setattr, node, "value", ast.copy_location(ast.Constant(None), node))
    elif isinstance(node, ast.comprehension):
        for n, test in enumerate(node.ifs):
            yield "condition", "condition negated", partial(node.ifs.__setitem__, n, _not(test))
    elif function and _is_droppable(node):
        yield "statement", "statement dropped", partial(put, ast.Pass())


def _changes_of_expression(node: ast.expr, put: Callable[[Any], None], *, is_inside: bool) -> Iterator[_Change]:
    if isinstance(node, ast.Compare):
        for n, op in enumerate(node.ops):
            for other in _COMPARISONS[type(op)]:
                yield "comparison", f"{type(op).__name__} → {other.__name__}", partial(node.ops.__setitem__, n, other())
    elif isinstance(node, ast.Constant):
        for new in _other_values(node.value) if is_inside or not isinstance(node.value, str) else ():
            changed = ast.copy_location(ast.Constant(new), node)
            yield "constant", f"{node.value!r:.40} → {new!r:.40}", partial(put, changed)
    elif isinstance(node, ast.BoolOp):
        other_op = ast.Or() if isinstance(node.op, ast.And) else ast.And()
        text = f"{type(node.op).__name__} → {type(other_op).__name__}"
        yield "condition", text, partial(setattr, node, "op", other_op)
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not | ast.USub):
        yield "condition", f"{type(node.op).__name__} dropped", partial(put, node.operand)
    elif isinstance(node, ast.BinOp) and type(node.op) in _OPERATORS:
        operator = _OPERATORS[type(node.op)]
        yield "operator", f"{type(node.op).__name__} → {operator.__name__}", partial(setattr, node, "op", operator())
    elif isinstance(node, ast.IfExp):
        yield "condition", "condition negated", partial(setattr, node, "test", _not(node.test))


def _is_droppable(node: ast.AST) -> bool:
    """A statement without which the function still makes sense."""
    is_call = isinstance(node, ast.Expr) and isinstance(node.value, ast.Call | ast.Await)
    return is_call or isinstance(node, ast.AugAssign | ast.Continue | ast.Break)


def _not(test: ast.expr) -> ast.expr:
    return ast.copy_location(ast.UnaryOp(ast.Not(), test), test)


def _is_none(value: ast.expr) -> bool:
    return isinstance(value, ast.Constant) and value.value is None


def _other_values(value: object) -> list[Any]:
    if isinstance(value, bool):
        return [not value]
    if isinstance(value, int):
        return [value + 1]
    if isinstance(value, float):
        return [value * 2 + 1]
    return [f"{value}~"] if isinstance(value, str) and value else []
