"""Turns a function's signature and docstring into a JSON schema for the model and a validator of arguments.

`registry.py` calls it once for each tool, when the tool is declared. Explained in `docs/tools.md`.
"""

import inspect
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, cast, get_type_hints

from pydantic import PydanticSchemaGenerationError, PydanticUserError, TypeAdapter, ValidationError
from pydantic.json_schema import GenerateJsonSchema
from pydantic_core import ArgsKwargs, ErrorDetails

from kitchener.errors import ToolError
from kitchener.plain_names import error_text, first_chars
from kitchener.records.tools.runnable_tool import copied_arguments

_MAX_SHOWN: Final = 120
_PARAMETER: Final = re.compile(r"\s*+\*{0,2}(\w++)\s*+(?:\([^)]*\)\s*+)?:\s*+(.*)")
_SECTION: Final = re.compile(r"(Args|Arguments|Parameters|Returns?|Yields?|Raises|Examples?|Notes?|Attributes)\s*:\s*")


@dataclass(frozen=True, slots=True)
class Signature:
    """The parameters of a tool's function."""

    parameters: Mapping[str, Any]
    """JSON schema of the arguments that the model gives."""
    injected: str | None
    """Name of the parameter that the runtime fills; None: there is none."""
    _adapter: TypeAdapter[dict[str, object]]

    def bind(self, tool_id: str, arguments: Mapping[str, object]) -> dict[str, object] | str:
        """The arguments converted and completed by defaults, or what is wrong with them, as one line of text."""
        try:
            bound = self._adapter.validate_python(ArgsKwargs((), copied_arguments(arguments)))
        except ValidationError as error:
            problems = "; ".join(_problem(detail) for detail in error.errors(include_url=False)[:5])
            return f"tool {tool_id!r} cannot take these arguments: {problems}"
        except Exception as error:  # noqa: BLE001  a type that the tool defines may check its values by any code
            return f"tool {tool_id!r} cannot take these arguments: {error_text(error):.{_MAX_SHOWN}}"
        return bound


def read_signature(function: Callable[..., object], tool_id: str, inject: type) -> Signature:
    """Reads the signature of a function as a schema and a validator.

    Args:
        function: the tool's function
        tool_id: the tool's name in errors
        inject: the runtime fills a parameter of this type, and the model does not see it

    Raises:
        ToolError: a parameter has no type, a type without a JSON schema, or a kind that JSON arguments cannot fill
    """
    try:
        signature = inspect.signature(function)
        hints = get_type_hints(inspect.unwrap(code_of(function)), include_extras=True)
    except (TypeError, ValueError, NameError) as error:
        raise ToolError(f"tool {tool_id!r}: its signature cannot be read: {error}") from error
    injected = [name for name in signature.parameters if hints.get(name) is inject]
    if len(injected) > 1:
        raise ToolError(f"tool {tool_id!r}: only one parameter may be a {inject.__name__}, found {injected}")
    shown = {name: found for name, found in signature.parameters.items() if name not in injected}
    for name, parameter in shown.items():
        _check_parameter(tool_id, name, parameter, hints)
    adapter = _adapter(tool_id, shown, hints)
    schema = adapter.json_schema(schema_generator=_Untitled)
    for name, text in parameter_docs(inspect.getdoc(function) or "").items():
        if name in schema["properties"]:
            schema["properties"][name].setdefault("description", text)
    return Signature(schema, injected[0] if injected else None, adapter)


def code_of(function: Callable[..., object]) -> Callable[..., object]:
    """Returns the function that a call of `function` runs: itself, the function of a partial, or an object's `__call__`."""
    while isinstance(function, partial):
        function = function.func
    return function if inspect.isroutine(function) else type(function).__call__


def summary(docstring: str) -> str:
    """Returns the docstring's text before its first section."""
    lines: list[str] = []
    for line in inspect.cleandoc(docstring).splitlines():
        if _SECTION.fullmatch(line):
            break
        lines.append(line)
    return "\n".join(lines).strip()


def parameter_docs(docstring: str) -> dict[str, str]:
    """Returns the descriptions in a Google-style `Args:` section, one line for each parameter."""
    docs: dict[str, list[str]] = {}
    inside, indent, current = False, 0, ""
    for line in inspect.cleandoc(docstring).splitlines():
        if _SECTION.fullmatch(line):
            inside, indent = line.startswith(("Args", "Arguments", "Parameters")), 0
            continue
        if not inside or not line.strip():
            continue
        margin = len(line) - len(line.lstrip())
        if margin == 0:
            inside = False
            continue
        indent = indent or margin
        found = _PARAMETER.fullmatch(line) if margin == indent else None
        if found:
            current = found[1]
            docs[current] = [found[2].strip()]
        elif current:
            docs[current].append(line.strip())
    return {name: text for name, parts in docs.items() if (text := " ".join(filter(None, parts)))}


class _Untitled(GenerateJsonSchema):
    """Omits titles made from parameter names, because they cost tokens and add nothing."""

    def field_title_should_be_set(self, schema: object) -> bool:
        return False


def _check_parameter(tool_id: str, name: str, parameter: inspect.Parameter, hints: Mapping[str, object]) -> None:
    if parameter.kind not in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY):
        raise ToolError(
            f"tool {tool_id!r}: parameter {name!r} is {parameter.kind.description};"
            " a model gives arguments by name, so use ordinary or keyword-only parameters"
        )
    if name not in hints and name in ("self", "cls"):
        raise ToolError(f"tool {tool_id!r}: is a method without its object; give that of an object, such as `garden.water`")
    if name not in hints:
        raise ToolError(f"tool {tool_id!r}: parameter {name!r} has no type; annotate it, so that arguments can be checked")


def _adapter(
    tool_id: str, shown: Mapping[str, inspect.Parameter], hints: Mapping[str, object]
) -> TypeAdapter[dict[str, object]]:
    # The stand-in has the same parameters except the injected one. Validation calls it and gets the arguments back.
    def stand_in(**arguments: object) -> dict[str, object]:
        return arguments

    stand_in.__signature__ = inspect.Signature(  # type: ignore[attr-defined] # pydantic reads it like inspect does
        [parameter.replace(kind=parameter.KEYWORD_ONLY) for parameter in shown.values()]
    )
    stand_in.__annotations__ = {name: hints[name] for name in shown}
    try:
        adapter: TypeAdapter[dict[str, object]] = TypeAdapter(cast(Any, stand_in))
        adapter.json_schema(schema_generator=_Untitled)
    except (PydanticSchemaGenerationError, PydanticUserError) as error:
        problem = str(error).partition("\n")[0]
        raise ToolError(f"tool {tool_id!r}: a parameter has a type that JSON cannot give: {problem}") from error
    return adapter


def _problem(detail: ErrorDetails) -> str:
    where = ".".join(str(part) for part in detail["loc"]) or "arguments"
    if detail["type"] == "missing_argument" or detail["type"] == "missing_keyword_only_argument":
        return f"{where}: is required, but missing"
    if detail["type"] == "unexpected_keyword_argument":
        return f"{where}: there is no such argument"
    shown = repr(detail["input"])
    shown = first_chars(shown, _MAX_SHOWN)
    return f"{where}: {detail['msg']}, found {shown}"
