"""Asks the person in a chat about the tool calls that wait, and reads the answer from the next lines."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

import orjson

from kitchener.actors.supervisor import HO2Supervisor
from kitchener.cli.terminal.output import print_text, say
from kitchener.records.entries import ApprovalScope
from kitchener.records.turn import TurnResult

_YES: Final = ("y", "yes")
_NO: Final = ("n", "no")
_ALWAYS: Final = ("a", "always")
_EDIT: Final = ("e", "edit")


@dataclass(slots=True)
class ApprovalPrompt:
    """The calls that the last turn waits for. Any line that is no answer is a message, and they go on waiting."""

    supervisor: HO2Supervisor
    _pending: list[str] = field(default_factory=list)
    _is_editing: bool = False

    def ask(self, result: TurnResult | None) -> None:
        """Asks about the first call that still waits.

        Args:
            result: of the last turn; None: other calls of the same turn still wait
        """
        self._is_editing = False
        if result is not None:
            self._pending = list(result.pending_approval)
        if self._pending:
            print_text(f"{self._pending[0]}? [y]es, [n]o, [a]lways in this session, [e]dit; or go on talking", style="pale")

    def is_answer(self, word: str) -> bool:
        """Whether a line answers the question."""
        return bool(self._pending) and (self._is_editing or word.casefold() in (*_YES, *_NO, *_ALWAYS, *_EDIT))

    async def take(self, word: str) -> TurnResult | None:
        """Takes an answer. Returns the result of the turn that goes on; None: there is more to answer."""
        folded = word.casefold()
        arguments: Mapping[str, object] | None = None
        if self._is_editing:
            arguments = _arguments(word)
            if arguments is None:
                return None
        elif folded in _EDIT:
            self._is_editing = True
            print_text("the arguments to use instead, as a JSON object:", style="pale")
            return None
        approval_id = self._pending[0]
        if folded in _NO and arguments is None:
            done = await self.supervisor.deny(approval_id)
        else:
            scope: ApprovalScope = "session" if folded in _ALWAYS and arguments is None else "once"
            done = await self.supervisor.approve(approval_id, arguments=arguments, scope=scope)
        self._pending.pop(0)
        if done is None:
            self.ask(None)
        return done

    def forget(self) -> None:
        """Asks no more about calls that wait; `kitchener approval` still can."""
        self._pending, self._is_editing = [], False


def _arguments(text: str) -> Mapping[str, object] | None:
    try:
        found = orjson.loads(text)
    except ValueError:
        found = None
    if not isinstance(found, dict):
        say("kitchener: expected a JSON object with the arguments of the tool")
        return None
    return found
