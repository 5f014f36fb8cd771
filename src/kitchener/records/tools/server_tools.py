"""A tool that another program runs, known by its definition: how arguments are checked, and how it is called.

The same definition checks arguments in a running turn and in a replay, which calls nothing. Explained in `docs/mcp.md`.
"""

from collections.abc import Awaitable, Callable, Mapping
from functools import partial

from kitchener.records.entries.sources import ToolDefinition
from kitchener.records.prompt import ToolSpec
from kitchener.records.tools.runnable_tool import ToolIdentity, copied_arguments
from kitchener.records.tools.tool_context import ToolContext
from kitchener.schemas.json_schema import JsonSchema

CallTool = Callable[[Mapping[str, object], ToolContext], Awaitable[object]]
"""Calls a tool with checked arguments and the facts of the call."""


async def _not_called(arguments: Mapping[str, object], context: ToolContext) -> object:
    raise RuntimeError("a tool that is known by its definition only cannot be called")


def _itself(schema: JsonSchema) -> JsonSchema:
    return schema


class ServerTool:
    """A `RunnableTool` of another program.

    Args:
        definition: its definition, present or on record
        call: calls it; None: it cannot be called, as in a replay
        timeout_s: longest call, seconds; None: the registry's limit
        schema: gives the compiled schema of its parameters; None: it is compiled here

    Raises:
        ValueError: the schema of its parameters is invalid; the error's text is one line
    """

    is_async, closes_intent = True, False
    acceptance: tuple[str, ...] = ()

    def __init__(
        self,
        definition: ToolDefinition,
        call: CallTool | None = None,
        timeout_s: float | None = None,
        *,
        schema: Callable[[], JsonSchema] | None = None,
    ) -> None:
        self.identity = identity = ToolIdentity.of(definition)
        self.tool_id, self.policy_name, self.source, self.traits = (
            identity.tool_id,
            identity.policy_name,
            identity.source,
            identity.traits,
        )
        self.requires_approval = identity.requires_approval
        self.is_read_only, self.timeout_s = definition["read_only"], timeout_s
        self.description, self.parameters = definition["description"], definition["parameters"]
        self.spec = ToolSpec(self.tool_id, self.description, self.parameters)
        self._call, self._schema = call or _not_called, schema or partial(_itself, JsonSchema(self.parameters))

    def bind(self, arguments: Mapping[str, object]) -> dict[str, object] | str:
        """Returns a copy of the arguments, or one line of text that says what is wrong with them."""
        problem = self._schema().problem(dict(arguments))
        if problem is not None:
            return f"tool {self.tool_id!r} cannot take these arguments: {problem}"
        return copied_arguments(arguments)

    def prepared(self, bound: Mapping[str, object], context: ToolContext) -> Callable[[], object]:
        """Returns the call, ready to run."""
        return partial(self._call, bound, context)
