"""Makes an agent class a tool of another class. A call runs a turn in a session that belongs to the caller's session.

The runtime binds these tools to its supervisors. Explained in `docs/tools.md`.
"""

import re
from collections.abc import Callable
from functools import partial
from typing import Final

import anyio

from kitchener.actors.supervisor import HO2Supervisor
from kitchener.actors.tools.tool import Tool
from kitchener.errors import ToolError
from kitchener.ids import AGENT_CLASS_FORM, SessionId, is_agent_class
from kitchener.plain_names import quoted
from kitchener.records.tools.tool_context import ToolContext
from kitchener.records.turn import ToolProgress, ToolStarted, TurnResult, TurnUpdate

AGENT_PREFIX: Final = "agent:"
"""Prefix in the setting `tools`; an agent class follows."""
_ASKED_BY: Final = "asked by "
"""Begins the external id of a session of an asked agent; the id of the session that asks follows."""
_NOT_IN_NAMES: Final = re.compile(r"[^A-Za-z0-9_-]")
_LONGEST_S: Final = 86_400.0
"""Time limit of the tool, long because the deadlines of the two turns bound a call."""

SupervisorOf = Callable[[str], HO2Supervisor]


class AgentTool(Tool[..., object]):
    """A tool that asks an agent class, made by `agent_tool`. Cannot run before a runtime has bound it."""

    def __init__(
        self, agent_class: str, name: str, description: str, *, read_only: bool, supervisor_of: SupervisorOf | None = None
    ) -> None:
        self.agent_class, self._supervisor_of = agent_class, supervisor_of
        self._finding = anyio.Lock()
        super().__init__(self._ask, name=name, description=description, read_only=read_only, timeout_s=_LONGEST_S)

    def bound(self, supervisor_of: SupervisorOf) -> "AgentTool":
        """A copy of the tool that asks these supervisors."""
        return AgentTool(
            self.agent_class, self.tool_id, self.description, read_only=self.is_read_only, supervisor_of=supervisor_of
        )

    async def _ask(self, message: str, context: ToolContext) -> str:
        """Asks the agent.

        Args:
            message: what it is asked or told to do, in full
        """
        if self._supervisor_of is None:
            raise ToolError(f"tool {self.tool_id!r} belongs to no runtime; pass it to open_runtime(tools=…)")
        supervisor = self._supervisor_of(self.agent_class)
        left_s = min(context.deadline - anyio.current_time(), supervisor.config.turn_deadline_s)
        result: TurnResult = await supervisor.handle_turn(
            message,
            session_id=await self._session(supervisor, context),
            idempotency_key=context.idempotency_key,
            deadline=max(left_s, 0.001),
            # With a listener, models are asked to stream.
            listener=partial(_report, context) if context.report is not None else None,
        )
        if result.error is not None:
            raise ToolError(f"{self.agent_class} could not answer ({result.error.kind}): {result.response}")
        return result.response

    async def _session(self, supervisor: HO2Supervisor, context: ToolContext) -> SessionId:
        """The session of the asked class that belongs to the caller's session; a new one if that was ended."""
        name = f"{_ASKED_BY}{context.session_id}"
        async with self._finding:  # so that two calls of one round use the same session
            found = await supervisor.find_external(name, subject_id=context.subject_id)
            if found is not None and not (await supervisor.session(found)).state.is_ended:
                return found
            return await supervisor.start_session(subject_id=context.subject_id, external_id=name)


async def _report(context: ToolContext, update: TurnUpdate) -> None:
    """Tells those who watch the calling turn of the tools that the asked agent's turn runs, and of their progress."""
    if isinstance(update, ToolStarted):
        await context.progress(message=update.tool_id)
    elif isinstance(update, ToolProgress):
        said = update.tool_id if update.message is None else f"{update.tool_id}: {update.message}"
        await context.progress(update.value, update.total, said)


def agent_tool(
    agent_class: str, *, name: str | None = None, description: str | None = None, read_only: bool = False
) -> AgentTool:
    """Returns a tool with which an agent asks another agent class of its runtime. Pass it to `open_runtime(tools=…)`.

    Each call is a turn of that class. Each calling session has its own session of that class, for the same subject, so the
    asked agent remembers earlier calls. A call counts in `limits.max_nesting`, ends with the calling turn, and is recorded in
    both sessions.

    Args:
        agent_class: the class that is asked
        name: the tool's name for the model; default: `ask_` and the class in lower case
        description: what the agent can do; default: a text that only says that the agent is asked
        read_only: True: its turns have no effects, so several such tools of one round can run in parallel

    Raises:
        ToolError: the class or the name is invalid
    """
    if not isinstance(agent_class, str) or not is_agent_class(agent_class):
        raise ToolError(f"agent_tool: agent class {quoted(agent_class)}: expected {AGENT_CLASS_FORM}")
    chosen = name if name is not None else f"ask_{_NOT_IN_NAMES.sub('_', agent_class).lower()}"[:64]
    return AgentTool(agent_class, chosen, description or _described(agent_class), read_only=read_only)


def asking_session(external_id: str) -> str | None:
    """The session for which the session of an asked agent was started, by its external id; None: it was started otherwise."""
    return external_id.removeprefix(_ASKED_BY) if external_id.startswith(_ASKED_BY) else None


def _described(agent_class: str) -> str:
    return (
        f"Asks the agent {agent_class}. It talks with you in a conversation of its own, remembers what you asked before, and"
        " sees nothing of this conversation: say all that it has to know."
    )
