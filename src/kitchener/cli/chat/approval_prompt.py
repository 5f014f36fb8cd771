"""Asks the person in a chat about waiting tool calls, and reads the answers from the next lines."""

from dataclasses import dataclass, field
from typing import Any, Final

import orjson

from kitchener.actors.supervisor import HO2Supervisor
from kitchener.cli.terminal.account import account_name
from kitchener.cli.terminal.output import print_text, say
from kitchener.errors import ApprovalAnswered, ApprovalVoid, UnknownApproval
from kitchener.inspection.ledger_files import LedgerPaths
from kitchener.inspection.recorded_requests import arguments_text, read_requests
from kitchener.inspection.shown_text import one_line
from kitchener.plain_names import counted
from kitchener.records.entries import ApprovalScope, opened
from kitchener.records.turn import TurnResult
from kitchener.runtime.queries.approval_list import ApprovalInfo

_YES: Final = ("y", "yes")
_NO: Final = ("n", "no")
_ALWAYS: Final = ("a", "always")
_EDIT: Final = ("e", "edit")
_WIDTH: Final = 200
"""Most characters of a call, or of a tool's own words, in a question."""
_BACK: Final = "an empty line goes back"


@dataclass(slots=True)
class ApprovalPrompt:
    """The calls about which a chat asks. A line that is no answer is a message, and the calls keep waiting."""

    supervisor: HO2Supervisor
    paths: LedgerPaths
    _waiting: list[ApprovalInfo] = field(default_factory=list)
    _is_editing: bool = False

    async def read(self, session_id: str, more: tuple[str, ...] | None = None) -> int:
        """Finds the calls to ask about. Returns how many there are.

        Args:
            session_id: the session of the chat
            more: requests to ask about, besides those it already asks about; None: all that wait
        """
        found = await read_requests(self.paths, self.supervisor.agent_class, session_id)
        wanted = {each.approval_id for each in (self._waiting if more is not None else found)}.union(more or ())
        self._waiting = [each for each in found if each.status == "waiting" and each.approval_id in wanted]
        self._is_editing = False
        return len(self._waiting)

    def ask(self) -> None:
        """Asks about the first call that still waits, if there is one."""
        if self._waiting:
            words = _how_to_edit if self._is_editing else _question
            print_text(words(self._waiting[0]), style="pale")

    @property
    def overview(self) -> str:
        """The number of waiting calls, and the question about the first."""
        calls = counted(len(self._waiting), "tool call")
        return (
            f"{calls} of this session {'waits' if len(self._waiting) == 1 else 'wait'} for you\n{_question(self._waiting[0])}"
        )

    def is_answer(self, word: str) -> bool:
        """Whether a line answers the question."""
        return bool(self._waiting) and (self._is_editing or word.casefold() in _answers(self._waiting[0]))

    async def take(self, word: str) -> TurnResult | None:
        """Records an answer. Returns the result of the continued turn; None: more answers are needed.

        Raises:
            KitchenerError: the answer is refused, see `HO2Supervisor.approve`
        """
        folded, changes = word.casefold(), dict[str, Any]()
        if self._is_editing or folded in _EDIT:
            edited = self._edited(word) if self._is_editing else None
            if edited is None:
                self._is_editing = not self._is_editing or bool(word)
                return None
            changes = edited
        request, is_no = self._waiting[0], folded in _NO and not self._is_editing
        scope: ApprovalScope = "session" if folded in _ALWAYS and not self._is_editing else "once"
        try:
            if is_no:
                done = await self.supervisor.deny(request.approval_id, answered_by=account_name())
            else:
                done = await self.supervisor.approve(request.approval_id, scope=scope, answered_by=account_name(), **changes)
        except (ApprovalAnswered, ApprovalVoid, UnknownApproval):
            self._next()
            raise
        self._next()
        return done

    def forget(self) -> None:
        """Stops asking about waiting calls; `/approvals` asks again."""
        self._waiting, self._is_editing = [], False

    def _next(self) -> None:
        self._waiting, self._is_editing = self._waiting[1:], False

    def _edited(self, text: str) -> dict[str, Any] | None:
        """The change in a typed line, as an argument of `approve`. If there is none, tells the person why and returns None."""
        if not text:
            return None
        request = self._waiting[0]
        try:
            value = orjson.loads(text)
        except ValueError:
            value = text
        if _is_question(request):
            return {"answer": value}
        if isinstance(value, dict):
            return {"arguments": value}
        say("kitchener: expected a JSON object with the arguments of the tool")
        return None


def _is_question(request: ApprovalInfo) -> bool:
    """Whether the tool itself asks, not a policy."""
    return request.request["reason"] != "tool_call"


def _answers(request: ApprovalInfo) -> tuple[str, ...]:
    if not _is_question(request):
        return (*_YES, *_NO, *_ALWAYS, *_EDIT)
    return (*_NO, *_EDIT) if request.response_schema is not None else (*_YES, *_NO)


def _question(request: ApprovalInfo) -> str:
    call = _cut(request, f"{request.tool_id} {arguments_text(request)}")
    if not _is_question(request):
        return f"{call}: [y]es, [n]o, [a]lways in this session, [e]dit; or type your next message"
    asked = _cut(request, str(opened(request.request.get("message", "")) or call))
    answers = "[e]nter an answer, [n]o" if request.response_schema is not None else "[y]es, [n]o"
    return f"{asked} {answers}; or type your next message"


def _cut(request: ApprovalInfo, text: str) -> str:
    """A text on one line. It says so if it is cut, because a harmful part may be at its end."""
    line = one_line(text, _WIDTH)
    if not line.endswith("…"):
        return line
    return f"{line} (cut: `kitchener approval show {request.approval_id}` has all {len(text):,} characters)"


def _how_to_edit(request: ApprovalInfo) -> str:
    if not _is_question(request):
        return f"the arguments to use instead, as a JSON object; {_BACK}"
    schema = one_line(orjson.dumps(request.response_schema).decode(), _WIDTH)
    return f"the answer, as text or JSON that fits {schema}; {_BACK}"
