"""Explains what a turn was shown and why, and what two turns were shown differently, as `kitchener context` does.

Explained in `docs/server.md`.
"""

from collections.abc import Awaitable, Callable
from functools import partial
from typing import Final, TypeVar

import anyio
import anyio.to_thread
from starlette.requests import Request
from starlette.types import ASGIApp

from kitchener.errors import NotOnRecord
from kitchener.ids import session_of_turn
from kitchener.inspection.ledger_files import LedgerPaths
from kitchener.inspection.turn_views.recorded_turn import TurnView, read_turn
from kitchener.inspection.turn_views.turn_reasons import diff_json, view_json
from kitchener.serve.access.counted_work import EXPLAINED_TURNS, length_of
from kitchener.serve.access.guard import place_of
from kitchener.serve.native.session_access import FoundSession, SessionAccess
from kitchener.serve.problems import RequestRefused, json_response

R = TypeVar("R")

_AT_ONCE: Final = 2
"""Explanations at the same time. Each reads the decisions about a session and computes for a while; more would delay turns."""


class ExplanationCalls:
    """Answers requests about why turns were shown what they were.

    Args:
        access: finds sessions
    """

    def __init__(self, access: SessionAccess) -> None:
        self._access, self._paths = access, LedgerPaths(access.runtime.config)
        self._places = anyio.CapacityLimiter(_AT_ONCE)

    async def why(self, request: Request) -> ASGIApp:
        """What a turn was shown, and why; with `entry` of one item only."""
        found, entry = await self._access.of(request), request.query_params.get("entry")
        turn_id = _turn_of(found, request.path_params["turn_id"])
        place_of(request).count_more(length_of(found.session) // EXPLAINED_TURNS)

        async def work() -> dict[str, object]:
            view = await self._view(found, turn_id)
            if entry is None:
                return view_json(view, view.explain_all())
            return view_json(view, [view.explain(entry)])

        return json_response(await self._read(found, work))

    async def diff(self, request: Request) -> ASGIApp:
        """What a turn was shown that an earlier one was not, and the other way round."""
        found, before = await self._access.of(request), request.query_params.get("before")
        if before is None:
            raise RequestRefused(400, "invalid_request", "before: name the turn to compare with")
        first, second = _turn_of(found, before), _turn_of(found, request.path_params["turn_id"])
        place_of(request).count_more(2 * (length_of(found.session) // EXPLAINED_TURNS))

        async def work() -> dict[str, object]:
            return diff_json(await self._view(found, first), await self._view(found, second))

        return json_response(await self._read(found, work))

    async def _view(self, found: FoundSession, turn_id: str) -> TurnView:
        return await read_turn(self._paths, found.supervisor.agent_class, turn_id)

    async def _read(self, found: FoundSession, work: Callable[[], Awaitable[R]]) -> R:
        """Reads the record in a thread with its own event loop, so that turns continue."""
        await found.ledgers.commit()  # the record is read from the files, by their index
        await found.ledgers.update_index()
        return await anyio.to_thread.run_sync(partial(anyio.run, work), limiter=self._places)


def _turn_of(found: FoundSession, turn_id: str) -> str:
    """A turn of the session. Raises NotOnRecord if it is none."""
    if session_of_turn(turn_id) != found.session.session_id:
        raise NotOnRecord("the session has no turn of this id")
    return turn_id
