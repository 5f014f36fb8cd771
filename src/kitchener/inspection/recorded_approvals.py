"""Requests for approval and their answers, as commands print them."""

from contextlib import AsyncExitStack
from typing import Final

import orjson

from kitchener.clock import SystemClock
from kitchener.inspection.ledger_files import LedgerPaths
from kitchener.inspection.shown_text import UNREADABLE
from kitchener.records.entries import opened
from kitchener.runtime.queries.approval_list import ApprovalInfo, list_approvals
from kitchener.runtime.queries.nested_approvals import OpenedClass, list_with_nested
from kitchener.times import iso_of

_BY_ANSWER: Final = ("override_args", "answer", "message", "answered_by", "scope")


async def read_with_nested(paths: LedgerPaths, agent_class: str, session_id: str | None = None) -> list[ApprovalInfo]:
    """The requests of one session, or of all sessions of an agent class, including requests of the agents that they asked."""
    classes = paths.agent_classes()
    async with AsyncExitStack() as readers:
        ledgers = {name: await readers.enter_async_context(paths.reader(name)) for name in {agent_class, *classes}}

        async def opened(name: str) -> OpenedClass:
            return OpenedClass(ledgers[name], classes)  # the ledgers do not say which classes a tool of the program may ask

        now = iso_of(SystemClock().time_us())
        return await list_with_nested(opened, agent_class, now, known=classes, session_id=session_id)


async def read_requests(paths: LedgerPaths, agent_class: str, session_id: str | None = None) -> list[ApprovalInfo]:
    """The requests of one session, or of all sessions of an agent class, oldest first. Takes no lock."""
    async with paths.reader(agent_class) as ho2m:
        return await list_approvals(ho2m, iso_of(SystemClock().time_us()), session_id=session_id) if ho2m is not None else []


def arguments_text(each: ApprovalInfo) -> str:
    return orjson.dumps(_shown(each.request["arguments"])).decode()


def row(each: ApprovalInfo) -> dict[str, object]:
    """The request for a list."""
    return {
        "approval_id": each.approval_id,
        "agent": each.agent_class,
        "session_id": each.session_id,
        "status": each.status,
        "tool": each.request["tool"],
        "arguments": _shown(each.request["arguments"]),
        "reason": each.request["reason"],
        "rule": each.request["rule"],
        "requested_at": each.requested_at,
        "expires_at": each.request["expires_at"],
    }


def details(each: ApprovalInfo) -> dict[str, object]:
    """All that is on record."""
    found = row(each)
    for name in ("message", "response_schema", "tool_hash", "args_hash"):
        if name in each.request:
            found[name] = _shown(each.request.get(name))
    if each.resolved is not None:
        found |= {"decision": each.resolved["decision"], "resolved_at": each.resolved_at}
        found |= {f"given_{name}": _shown(each.resolved.get(name)) for name in _BY_ANSWER if name in each.resolved}
    if each.abandoned is not None:
        found["work_order"] = each.abandoned
    return found


def _shown(value: object) -> object:
    found = opened(value)
    return UNREADABLE if found is None and value is not None else found
