"""Asks the person in a chat about waiting tool calls, and reads the answers from the next lines."""

from dataclasses import dataclass, field
from typing import Any, Final

import orjson

from kitchener.cli.terminal.account import account_name
from kitchener.cli.terminal.output import print_text, say
from kitchener.errors import ApprovalAnswered, ApprovalVoid, UnknownApproval
from kitchener.inspection.recorded_approvals import arguments_text
from kitchener.inspection.shown_text import one_line
from kitchener.plain_names import counted
from kitchener.records.entries import ApprovalScope, opened
from kitchener.records.turn import TurnResult
from kitchener.runtime import Runtime
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
    """The calls that a chat asks its user about: calls of its session, and of the agents that the session asked.

    A line that is no answer is a message, and the calls keep waiting.
    """

    runtime: Runtime
    agent_class: str
    """The agent class of the chat."""
    _waiting: list[ApprovalInfo] = field(default_factory=list)
    _known: set[str] = field(default_factory=set)
    """The calls about which it has asked."""
    _alike: dict[str, set[str]] = field(default_factory=dict)
    """The ids of the calls about which it has asked, by what the questions show of them."""
    _is_editing: bool = False

    async def read(self, session_id: str) -> int:
        """Finds all calls that wait, to ask about them. Returns how many there are."""
        self._waiting, self._is_editing = await self._find(session_id), False
        for each in self._waiting:
            self._known.add(each.approval_id)
            self._alike.setdefault(_shown_call(each), set()).add(each.approval_id)
        return len(self._waiting)

    async def read_new(self, session_id: str) -> list[ApprovalInfo]:
        """Finds the calls that began to wait since the last look, to ask about them, too. Returns them."""
        asked, known = {each.approval_id for each in self._waiting}, frozenset(self._known)
        await self.read(session_id)
        new = [each for each in self._waiting if each.approval_id not in known]
        self._waiting = [each for each in self._waiting if each.approval_id in asked or each in new]
        return new

    async def _find(self, session_id: str) -> list[ApprovalInfo]:
        found = await self.runtime.pending_approvals(self.agent_class, session_id=session_id)
        return [each for each in found if each.status == "waiting"]

    def ask(self) -> None:
        """Asks about the first call that still waits, if there is one."""
        if self._waiting:
            print_text(_how_to_edit(self._waiting[0]) if self._is_editing else self._question(), style="pale")

    @property
    def overview(self) -> str:
        """The number of waiting calls, and the question about the first."""
        calls = counted(len(self._waiting), "tool call")
        return f"{calls} of this session {'waits' if len(self._waiting) == 1 else 'wait'} for you\n{self._question()}"

    @property
    def asker(self) -> str:
        """The agent class whose call is asked about; the chat's own class if no call is."""
        return self._waiting[0].agent_class if self._waiting else self.agent_class

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
        supervisor = self.runtime.supervisor(request.agent_class)
        scope: ApprovalScope = "session" if folded in _ALWAYS and not self._is_editing else "once"
        try:
            if is_no:
                done = await supervisor.deny(request.approval_id, answered_by=account_name())
            else:
                done = await supervisor.approve(request.approval_id, scope=scope, answered_by=account_name(), **changes)
        except (ApprovalAnswered, ApprovalVoid, UnknownApproval):
            self._next()
            raise
        self._next()
        return done

    def forget(self) -> None:
        """Stops asking about waiting calls; `/approvals` asks again."""
        self._waiting, self._is_editing = [], False

    def _question(self) -> str:
        """The question about the first call. Has its id if another question of this chat shows the same call."""
        call = _shown_call(self._waiting[0])
        if len(self._alike[call]) > 1:
            call = f"{call} ({self._waiting[0].approval_id})"
        question = f"{call}{_choices(self._waiting[0])}; or type your next message"
        return question if self.asker == self.agent_class else f"{self.asker} asks: {question}"

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


def _shown_call(request: ApprovalInfo) -> str:
    """What a question shows of a call: the tool's own question, or the tool and its arguments."""
    call = f"{request.tool_id} {arguments_text(request)}"
    return _cut(request, str(opened(request.request.get("message", "")) or call) if _is_question(request) else call)


def _choices(request: ApprovalInfo) -> str:
    if not _is_question(request):
        return ": [y]es, [n]o, [a]lways in this session, [e]dit"
    return " [e]nter an answer, [n]o" if request.response_schema is not None else " [y]es, [n]o"


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
