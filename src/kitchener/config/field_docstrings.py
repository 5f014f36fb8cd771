"""Finds what the source says of each field of a model: the docstring below it.

Pydantic can read them too, but parses the source whenever a class is made, so in every process that imports it.
"""

import ast
import inspect
from collections.abc import Mapping
from functools import cache
from itertools import pairwise
from textwrap import dedent

from pydantic import BaseModel


@cache
def field_docstrings(model: type[BaseModel]) -> Mapping[str, str]:
    """The docstrings of a model's own and inherited fields by the fields' names. Empty where there is no source."""
    found: dict[str, str] = {}
    for base in reversed(model.__mro__):
        if issubclass(base, BaseModel) and base is not BaseModel:
            found |= _own(base)
    return found


@cache
def _own(model: type[BaseModel]) -> Mapping[str, str]:
    try:
        source = dedent(inspect.getsource(model))
    except OSError:
        return {}
    (definition,) = ast.parse(source).body
    assert isinstance(definition, ast.ClassDef)
    found: dict[str, str] = {}
    for field, below in pairwise(definition.body):
        match field, below:
            case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(text))):
                found[name] = inspect.cleandoc(text)
    return found
