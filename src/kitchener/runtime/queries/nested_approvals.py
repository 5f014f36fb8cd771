"""Finds the tool calls that wait for a person in an agent class, and in the agents that its sessions asked.

The session of an asked agent has the name of the session that asked it (`agent_tools.py`). So each request leads back to the
conversation with a person, however many agents asked each other in between.
"""

from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from typing import NamedTuple

from kitchener.ledger import ReadableLedger
from kitchener.records import events
from kitchener.records.entries import SessionStartPayload
from kitchener.runtime.queries.approval_list import ApprovalInfo, list_approvals
from kitchener.runtime.tools.agent_tools import asking_session


class OpenedClass(NamedTuple):
    """An agent class as its requests are read."""

    ledger: ReadableLedger | None
    """The supervisor's ledger; None: there is none yet."""
    asks: Iterable[str]
    """The agent classes that its tools may ask."""


OpenClass = Callable[[str], Awaitable[OpenedClass]]
"""Opens an agent class by its name."""
_LedgersByClass = Mapping[str, ReadableLedger]
"""The supervisors' ledgers by agent class."""


async def list_with_nested(
    open_class: OpenClass, agent_class: str, now: str, *, known: Collection[str], session_id: str | None = None
) -> list[ApprovalInfo]:
    """Returns the requests of an agent class, and those that wait in agents that it asked, oldest first.

    Args:
        open_class: opens the class, and those that it may ask
        agent_class: the class that a person talks with
        now: ISO time
        known: the classes that can be opened; a tool may name others, which were never asked
        session_id: only the requests of this session and of the agents that it asked; None: of all sessions
    """
    ledgers = await _reachable(open_class, agent_class, known)
    own = ledgers.get(agent_class)
    found = await list_approvals(own, now, session_id=session_id) if own is not None else []
    seen = {each.approval_id for each in found}
    for name, ledger in ledgers.items() if len(ledgers) > 1 else ():
        if name != agent_class or session_id is not None:  # a session may have asked, in the end, another one of its class
            waiting = [each for each in await list_approvals(ledger, now) if each.is_pending and each.approval_id not in seen]
            found += [each for each in waiting if await _is_asked_by(agent_class, session_id, each, ledgers)]
    return sorted(found, key=lambda each: (each.requested_at, each.approval_id))


async def _reachable(open_class: OpenClass, agent_class: str, known: Collection[str]) -> dict[str, ReadableLedger]:
    """The ledgers of a class, of those that it may ask, of those that these may ask, and so on."""
    found, names = dict[str, ReadableLedger](), [agent_class]
    for name in names:
        opened = await open_class(name)
        if opened.ledger is not None:
            found[name] = opened.ledger
        names += [each for each in opened.asks if each in known and each not in names]
    return found


async def _is_asked_by(agent_class: str, session_id: str | None, request: ApprovalInfo, ledgers: _LedgersByClass) -> bool:
    """Whether a request belongs to an agent that this session asked; None: that any session of the class asked."""
    askers = await _askers(request.session_id, ledgers)
    return any(name == agent_class and session_id in (None, asker) for asker, name in askers.items())


async def _askers(session_id: str, ledgers: _LedgersByClass) -> dict[str, str]:
    """The session that asked a session's agent, the one that asked that one, and so on, with their agent classes.

    Each has the subject of the one that it asked. Otherwise another subject took the name of a session for its own.
    """
    found, start = dict[str, str](), await _start_of(session_id, ledgers)
    while start is not None:
        asker = asking_session(start.get("external_id", ""))
        earlier = await _start_of(asker, ledgers) if asker is not None and asker not in found else None
        if asker is None or earlier is None or earlier.get("subject_id") != start.get("subject_id"):
            break
        found[asker], start = earlier["agent_class"], earlier
    return found


async def _start_of(session_id: str, ledgers: _LedgersByClass) -> SessionStartPayload | None:
    """How a session began; None: none of these classes has it."""
    for ledger in ledgers.values():
        for entry in [each async for each in ledger.read(session_id=session_id, entry_type=events.SESSION_START)]:
            return events.read_as(SessionStartPayload, entry)
    return None


__all__ = ["OpenedClass", "list_with_nested"]
