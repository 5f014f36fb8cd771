"""Intents of a session: list, declare, close, abandon, reopen, keep. Explained in `docs/server.md`."""

from typing import ClassVar, Literal

from pydantic import ConfigDict, Field
from starlette.requests import Request
from starlette.responses import Response

from kitchener.actors.authority.agent_ruleset import ruleset_of
from kitchener.config.field_docstrings import DescribedModel
from kitchener.context import resolve_active
from kitchener.records.entries import IntentScope
from kitchener.serve.native.session_access import FoundSession, SessionAccess
from kitchener.serve.operations_table import read_model
from kitchener.serve.problems import json_response


class NewIntent(DescribedModel):
    """An intent to declare."""

    model_config: ClassVar[ConfigDict] = ConfigDict(extra="forbid", hide_input_in_errors=True)

    objective: str
    """The goal, in a sentence."""
    scope: IntentScope = "SESSION"
    """Its scope: the session only, or a wider one."""
    parent_intent_id: str | None = None
    """The parent. None: there is none."""
    targets: list[str] = Field(default_factory=list)
    """What it works on."""


class IntentChangeBody(DescribedModel):
    """What the user does with an intent, and why."""

    model_config: ClassVar[ConfigDict] = ConfigDict(extra="forbid", hide_input_in_errors=True)

    change: Literal["close", "abandon", "reopen", "keep"]
    """`keep`: the intent stays live and supersedes those that compete with it."""
    why: str = "by request"
    """The outcome or the reason; recorded, but not for `keep`."""


class IntentRequests:
    """Answers requests about intents.

    Args:
        access: finds sessions
    """

    def __init__(self, access: SessionAccess) -> None:
        self._access = access

    async def list_all(self, request: Request) -> Response:
        """The intents of a session, in the order of their declarations; none where the Context Authority is off."""
        return json_response({"intents": _rows(await self._access.of(request))})

    async def declare(self, request: Request) -> Response:
        """Adds a goal to a session."""
        body, found = read_model(NewIntent, await request.body()), await self._access.of(request)
        intent_id = await found.supervisor.declare_intent(
            found.session.session_id,
            body.objective,
            scope=body.scope,
            parent_intent_id=body.parent_intent_id,
            targets=body.targets,
        )
        return json_response({"intent_id": intent_id}, 201)

    async def change(self, request: Request) -> Response:
        """Changes an intent, and answers with all of them."""
        body, found = read_model(IntentChangeBody, await request.body()), await self._access.of(request)
        session_id, intent_id, supervisor = found.session.session_id, request.path_params["intent_id"], found.supervisor
        if body.change == "close":
            await supervisor.close_intent(session_id, intent_id, body.why)
        elif body.change == "abandon":
            await supervisor.abandon_intent(session_id, intent_id, body.why)
        elif body.change == "reopen":
            await supervisor.reopen_intent(session_id, intent_id, body.why)
        else:
            await supervisor.resolve_conflict(session_id, keep=intent_id)
        return json_response({"intents": _rows(found)})


def _rows(found: FoundSession) -> list[dict[str, object]]:
    thread = found.session.thread
    if thread is None:
        return []
    resolution = resolve_active(thread.state, ruleset_of(found.supervisor.config))
    return [
        {
            "intent_id": each.intent_id,
            "status": each.status,
            "is_active": each.intent_id == resolution.active,
            "is_competing": each.intent_id in resolution.competing,
            "scope": each.facts.scope,
            "parent_intent_id": each.facts.parent_id,
            "superseded_by": each.superseded_by,
            "objective": each.facts.objective,
            "declared_at": each.declared.timestamp,
        }
        for each in thread.state.intents.values()
    ]
