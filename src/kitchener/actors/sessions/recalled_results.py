"""Keeps the tool results that later turns of a session may be shown, and reads missing ones from HO1m.

Each `TURN_COMPLETED` names the results of its turn that may be shown later. `context/fold/tool_results.py` decides how a result
is shown. Explained in `docs/context.md`.
"""

from collections.abc import Iterable, Mapping, Sequence

from kitchener.actors.sessions.item_tool import ITEM_TOOL
from kitchener.actors.sessions.session_state import SessionState
from kitchener.config import HO2Config
from kitchener.context import Item, ToolResult, estimator, result_item
from kitchener.context.fold.tool_results import is_repeated, result_text
from kitchener.errors import LedgerError
from kitchener.ledger import LedgerGroup, StoredEntry
from kitchener.logs import get_logger
from kitchener.plain_names import origin_of
from kitchener.records import events
from kitchener.records.entries import KeptResults, ToolCallPayload, opened, payload_as
from kitchener.records.ref import Ref

logger = get_logger(__name__)


class SessionResults:
    """The tool results that one session may recall, at most `recalled_results`.

    Args:
        state: the session's state, which names the results
        ledgers: the results are read from HO1m
        config: how many results there may be, and how large their items may be
    """

    __slots__ = ("_config", "_held", "_ledgers", "_state")

    def __init__(self, state: SessionState, ledgers: LedgerGroup, config: HO2Config) -> None:
        self._state, self._ledgers, self._config = state, ledgers, config
        self._held: dict[Ref, ToolResult | None] = {}

    @property
    def held_chars(self) -> int:
        """The characters of the results in memory."""
        return sum([len(each.text) for each in self._held.values() if each is not None])

    @property
    def has_untrusted(self) -> bool:
        """Whether the turn was offered a result of an untrusted source. Call `items` first."""
        return bool(self._held) and any(each is not None and each.untrusted_source is not None for each in self._held.values())

    def keep(self, trace: Iterable[StoredEntry], reply: str) -> KeptResults:
        """Chooses the results of a turn that later turns may be shown, keeps them, and returns them for `TURN_COMPLETED`.

        Leaves out errors, results that the reply repeats, and items of the context that a model read in full. An empty list
        records that the setting is on; no list records that it is off.

        Args:
            trace: the turn's entries in HO1m
            reply: the turn's reply
        """
        most = self._config.recalled_results
        if most == 0:
            return {}
        kept = [each for each in trace if each.entry_type == events.TOOL_CALL and _is_fact(each, reply)][-most:]
        for each in kept:
            self._held[each.ref] = read_result(each)
        return {"tool_results": [{"ref": each.ref.as_mapping()} for each in kept]}

    async def items(self, message: str, turns: Mapping[str, Item] | None = None) -> Sequence[Item]:
        """The results as items for a turn, oldest first.

        Args:
            message: the turn's message, which decides which part of a long result is shown
            turns: the session's turns by id, to attach each result to its turn's intent; None: results belong to no intent
        """
        if not self._state.tool_results:
            return ()
        most, estimate = self._config.result_tokens, estimator(self._config.token_estimator)
        items = list[Item]()
        for each in await self._read_all():
            turn = turns.get(each.turn_id) if turns is not None else None
            intent_id = turn.intent_id if turn is not None else None
            items.append(result_item(each, message, most, estimate, intent_id=intent_id))
        return items

    async def _read_all(self) -> Sequence[ToolResult]:
        """The results, oldest first; of equal ones only the newest. Leaves out results that can no longer be read."""
        held = self._held
        self._held = {ref: held[ref] if ref in held else await self._read(ref) for _, ref in self._state.tool_results}
        return newest_of_equal([each for each in self._held.values() if each is not None])

    async def _read(self, ref: Ref) -> ToolResult | None:
        number = ref.seq
        try:
            found = [entry async for entry in self._ledgers.ho1m.read(after_seq=number - 1, up_to_seq=number)]
        except LedgerError as error:  # a turn without an old result is better than none
            logger.warning("result of a tool cannot be read", entry_id=ref.entry_id, error=origin_of(error))
            return None
        mine = [entry for entry in found if entry.ref == ref and entry.session_id == self._state.session_id]
        return read_result(mine[0]) if mine else None


def newest_of_equal(results: Sequence[ToolResult]) -> list[ToolResult]:
    """The results in their order, without those that a newer one repeats."""
    newest: dict[tuple[str, str], ToolResult] = {}
    for each in reversed(results):
        newest.setdefault((each.tool_id, each.text), each)
    return [*reversed(newest.values())]


def read_result(entry: StoredEntry) -> ToolResult | None:
    """The result in a `TOOL_CALL` entry; None: the call failed, or the result was erased."""
    payload = payload_as(ToolCallPayload, entry.payload)
    result = opened(payload.get("result"))
    if "error" in payload or "question" in payload or "turn_id" not in payload or result is None:
        return None
    call, tool_id, turn_id = payload["call"], payload["tool_id"], payload["turn_id"]
    source = payload.get("source") if payload.get("untrusted") else None
    return ToolResult(entry.ref, entry.timestamp, turn_id, entry.entity_id, call, tool_id, result_text(result), source)


def _is_fact(entry: StoredEntry, reply: str) -> bool:
    payload = payload_as(ToolCallPayload, entry.payload)
    if "result" not in payload or payload["tool_id"] == ITEM_TOOL:
        return False
    return not is_repeated(opened(payload.get("result")), reply)
