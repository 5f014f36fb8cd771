"""Reads the functions that a client of an OpenAI API runs itself: their definitions, the choice among them, and their outputs.

Both APIs write a function in a form of their own, and some clients mix them up, so either form is read on either path. The turn
checks names, schemas and the set of functions. This module knows no session. Explained in `docs/server.md`.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple

from kitchener.errors import CallerError
from kitchener.ids import split_approval_id
from kitchener.plain_names import quoted
from kitchener.records.tools.client_tools import ClientOutput, ClientTool
from kitchener.serve.problems import RequestRefused

FUNCTION: Final = "function"
OUTPUT: Final = "function_call_output"
"""The type of an item with the output of a function."""
_NO_PARAMETERS: Final[Mapping[str, object]] = {"type": "object", "properties": {}}
_TEXTS: Final = ("text", "input_text", "output_text")


class ClientFunctions(NamedTuple):
    """The functions of a request."""

    tools: tuple[ClientTool, ...] = ()
    choice: str = "auto"
    """`auto`, `none`, `required` or the name of a function."""


class GivenOutputs(NamedTuple):
    """Outputs of calls of one work order."""

    session_id: str
    wo_id: str
    outputs: Mapping[str, ClientOutput]
    """The outputs of the client's functions, by the id of their call."""


def read_functions(
    tools: Sequence[Mapping[str, object]] | None, choice: str | Mapping[str, object] | None, *, allowed: bool
) -> ClientFunctions:
    """The functions of a request, and which of them the model must call.

    Args:
        tools: as the request has them; those of other types are ignored
        choice: `tool_choice` of the request; None: the model chooses
        allowed: whether the agent takes functions of clients; otherwise they are ignored, because some clients send them always

    Raises:
        RequestRefused: a function is none, or the choice is not one of them
    """
    found = tuple([_function(number, each) for number, each in enumerate(tools or (), 1) if _is_function(each)])
    functions = found if allowed else ()
    if choice in (None, "auto", "none"):
        return ClientFunctions(functions, "none" if choice == "none" else "auto")
    name = "required" if choice == "required" else _named(choice)
    if functions and (name == "required" or name in [each.name for each in functions]):
        return ClientFunctions(functions, name)
    raise RequestRefused(
        400,
        "unsupported",
        "tool_choice: expected auto, none, required, or one of the request's functions that this agent takes; among its own"
        " tools the agent chooses itself",
    )


def read_outputs(found: Iterable[tuple[object, object]]) -> GivenOutputs:
    """The outputs that a request brings for the work order of the last one. Others are history.

    Args:
        found: the ids of calls and what they put out, as text, parts or a `ClientOutput`, oldest first; at least one

    Raises:
        RequestRefused: there is no such call, an output is none, or a call has two
    """
    named = [(call_id, output, _work_order(call_id)) for call_id, output in found]
    session_id, wo_id = named[-1][2] or ("", "")
    if not wo_id:
        raise unknown_call(named[-1][0])
    outputs = dict[str, ClientOutput]()
    for call_id, output, of in named:
        if of != (session_id, wo_id) or not isinstance(call_id, str):
            continue
        read = output if isinstance(output, ClientOutput) else ClientOutput(_output_text(output))
        if outputs.setdefault(call_id, read) != read:
            raise RequestRefused(400, "invalid_request", f"the call {quoted(call_id)} has two outputs in this request")
    return GivenOutputs(session_id, wo_id, outputs)


def late_outputs(found: Sequence[tuple[object, object]]) -> GivenOutputs | None:
    """Outputs that precede a message, as `read_outputs`; None: there are none that this server has asked for."""
    try:
        return read_outputs(found) if found else None
    except RequestRefused:
        return None


def unknown_call(call_id: object) -> RequestRefused:
    """The error for a call that does not exist, or not for this key."""
    return RequestRefused(404, "call_not_found", f"there is no call {quoted(str(call_id))} of a function for this key")


def _is_function(tool: Mapping[str, object]) -> bool:
    return tool.get("type", FUNCTION) == FUNCTION


def _function(number: int, tool: Mapping[str, object]) -> ClientTool:
    inner = tool.get(FUNCTION)
    told = inner if isinstance(inner, dict) else tool
    name, description, parameters = told.get("name"), told.get("description"), told.get("parameters")
    if not isinstance(name, str) or not isinstance(description, str | None) or not isinstance(parameters, dict | None):
        raise RequestRefused(
            400,
            "invalid_request",
            f"tool {number}: a function has a `name`, and optionally a `description`, and a schema as `parameters`",
        )
    return ClientTool(name, description or "", parameters or _NO_PARAMETERS)


def _named(choice: str | Mapping[str, object] | None) -> str:
    """The function that a choice names; "": it names none."""
    if not isinstance(choice, Mapping) or choice.get("type") != FUNCTION:
        return ""
    inner = choice.get(FUNCTION)
    name = (inner if isinstance(inner, dict) else choice).get("name")
    return name if isinstance(name, str) else ""


def _work_order(call_id: object) -> tuple[str, str] | None:
    """The session and the work order of a call; None: no call has this id."""
    try:
        session_id, wo_id, one = split_approval_id(call_id) if isinstance(call_id, str) else ("", "", None)
    except CallerError:
        return None
    return (session_id, wo_id) if one is not None else None


def _output_text(output: object) -> str:
    """An output as text: the whole, or its parts joined."""
    if isinstance(output, str) or output is None:
        return output or ""
    texts = list[str]()
    for number, part in enumerate(output if isinstance(output, list) else (None,), 1):
        text = part.get("text") if isinstance(part, dict) and part.get("type") in _TEXTS else None
        if not isinstance(text, str):
            raise RequestRefused(400, "unsupported", f"part {number} of the output of a function: expected text")
        texts.append(text)
    return "\n".join(texts)
