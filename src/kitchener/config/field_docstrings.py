"""Puts the docstrings below the fields of a model into its JSON Schema.

Pydantic can do that too (`use_attribute_docstrings`), but then it parses the source whenever a class is made, so in every
process that imports it. Here the source of a module is parsed when somebody first asks for the schema of one of its models.
"""

import ast
import inspect
import sys
from collections.abc import Iterator, Mapping
from functools import cache
from itertools import pairwise

from pydantic import BaseModel, GetJsonSchemaHandler
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema


class DescribedModel(BaseModel):
    """A model whose JSON Schema has the docstrings of its fields as their descriptions."""

    @classmethod
    def __get_pydantic_json_schema__(cls, core_schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        """The JSON Schema, with the descriptions."""
        schema = handler(core_schema)
        shown = handler.resolve_ref_schema(schema).get("properties", {})
        for name, text in field_docstrings(cls).items():
            field = cls.model_fields.get(name)
            if field is not None and (found := shown.get(field.alias or name)) is not None:
                found.setdefault("description", text)
        return schema


@cache
def field_docstrings(model: type[BaseModel]) -> Mapping[str, str]:
    """The docstrings of a model's own and inherited fields by the fields' names. Empty where there is no source."""
    found: dict[str, str] = {}
    for base in reversed(model.__mro__):
        if issubclass(base, BaseModel) and base is not BaseModel:
            found |= _of_module(base.__module__).get(base.__qualname__, {})
    return found


@cache
def _of_module(name: str) -> Mapping[str, Mapping[str, str]]:
    """The docstrings of the fields of all classes of a module, by the qualified names of the classes."""
    try:
        source = inspect.getsource(sys.modules[name])
    except (OSError, TypeError):  # no file, such as in an interactive session
        return {}
    return dict(_of_classes(ast.parse(source), ""))


def _of_classes(node: ast.AST, prefix: str) -> Iterator[tuple[str, Mapping[str, str]]]:
    for each in ast.iter_child_nodes(node):
        if isinstance(each, ast.ClassDef):
            yield f"{prefix}{each.name}", _of_class(each)
            yield from _of_classes(each, f"{prefix}{each.name}.")
        elif isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef):
            yield from _of_classes(each, f"{prefix}{each.name}.<locals>.")


def _of_class(definition: ast.ClassDef) -> Mapping[str, str]:
    found: dict[str, str] = {}
    for field, below in pairwise(definition.body):
        match field, below:
            case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(text))):
                found[name] = inspect.cleandoc(text)
    return found
