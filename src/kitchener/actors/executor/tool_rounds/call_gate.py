"""Decides which tool calls of a round wait for a person, by the constraints of the work order.

`execution.py` runs the others. The supervisor has decided which tools ask; this module knows no policy. Explained in
`docs/approval.md`.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Final

from kitchener.actors.tools.concurrent_calls import ToolRequested
from kitchener.actors.tools.results import ToolOutcome
from kitchener.records.entries import QuestionMapping
from kitchener.records.tools.deferred_loop import ApprovalRequest
from kitchener.records.tools.tool_question import ToolQuestion
from kitchener.records.work_order import Constraints

NO_ROOM: Final = (
    "this call needs a person's approval, and as many calls as may wait are waiting already;"
    " tell the user what you would do, and go on without it"
)
"""The error of a call that would wait beyond `most_requests`."""
NO_ROOM_AT_CLIENT: Final = (
    "this tool runs at the user's client, and as many calls as may wait for it are waiting already;"
    " tell the user what you would do, and go on without it"
)
"""The error of a call that would wait beyond `most_client_calls`."""
REFUSED_AFTER_UNTRUSTED: Final = (
    "this call was refused: the turn has read text of an untrusted source, after which tools with effects may not run;"
    " tell the user what you would do"
)
"""The error of a call of `deny_after_untrusted`."""


@dataclass(frozen=True, slots=True)
class WaitingCalls:
    """The calls of a round that wait for a person or a client. They end the work order as deferred."""

    requests: tuple[ApprovalRequest, ...]
    said: str = ""
    """What the model wrote beside them."""

    @property
    def waits_for_client(self) -> bool:
        """Whether all calls wait for the client that runs them. The model's text is then the reply."""
        return all(each.reason == "client_tool" for each in self.requests)


class CallGate:
    """Decides which calls of one work order wait for a person.

    Args:
        limits: the constraints of the work order
        has_read_untrusted: whether its input contains text of an untrusted source
    """

    __slots__ = ("_client_calls_left", "_limits", "_requests_left", "has_read_untrusted")

    has_read_untrusted: bool
    """Whether the work order has read text of an untrusted source."""

    def __init__(self, limits: Constraints, *, has_read_untrusted: bool) -> None:
        self._limits = limits
        self.has_read_untrusted = limits.has_read_untrusted or has_read_untrusted
        self._requests_left, self._client_calls_left = limits.most_requests, limits.most_client_calls

    def checked(self, outcome: ToolOutcome, untrusted_source: str | None, *, may_ask: bool) -> ToolOutcome:
        """Returns an outcome with its untrusted source, if it has one, and with an error for a question that cannot be asked.

        Args:
            outcome: the outcome of a tool call
            untrusted_source: the tool's source, if it is not trusted; None: the tool is trusted, so the outcome is, too, unless
                a turn that the tool ran read text of an untrusted source
            may_ask: whether a person can be asked: only while a model writes the reply
        """
        untrusted_source = untrusted_source or outcome.untrusted_source
        if untrusted_source is not None:
            self.has_read_untrusted = True
            outcome = replace(outcome, untrusted_source=untrusted_source)
        if outcome.question is None:
            return outcome
        if may_ask and self._take_request():
            return replace(outcome, error=None)
        problem = NO_ROOM if may_ask else "a person can be asked only while the reply is written; call the tool then"
        return replace(outcome, question=None, error=f"{outcome.error}; {problem}")

    def _take_request(self) -> bool:
        """Counts a request that waits; False: no more may wait."""
        if self._requests_left < 1:
            return False
        self._requests_left -= 1
        return True

    def _take_client_call(self) -> bool:
        """Counts a call that waits for the client; False: no more may wait."""
        if self._client_calls_left < 1:
            return False
        self._client_calls_left -= 1
        return True

    def judge(
        self, uses: Sequence[ToolRequested], answered: Collection[int], problem: Callable[[ToolRequested], str | None]
    ) -> tuple[dict[int, bool], dict[int, str]]:
        """Judges the calls of one round.

        Returns two mappings by the positions of calls: for a call that waits, whether it waits only because of untrusted text;
        for a refused call, the reason.

        Args:
            uses: the calls
            answered: the positions of calls that a person has answered
            problem: says why a call cannot run; a person is not asked about such a call
        """
        limits, waiting, refused = self._limits, dict[int, bool](), dict[int, str]()
        if not (limits.ask_tools or limits.ask_after_untrusted or limits.deny_after_untrusted or limits.client_tools):
            return waiting, refused
        for place, use in enumerate(uses):
            is_of_client = use[0] in limits.client_tools
            asks = is_of_client or use[0] in limits.ask_tools
            asks_later = self.has_read_untrusted and use[0] in limits.ask_after_untrusted
            is_refused = self.has_read_untrusted and use[0] in limits.deny_after_untrusted
            if place in answered or not (asks or asks_later or is_refused) or problem(use) is not None:
                continue
            if is_refused:
                refused[place] = REFUSED_AFTER_UNTRUSTED
            elif self._take_client_call() if is_of_client else self._take_request():
                waiting[place] = not asks
            else:
                refused[place] = NO_ROOM_AT_CLIENT if is_of_client else NO_ROOM
        return waiting, refused


def questions_in(outcomes: Sequence[ToolOutcome]) -> dict[int, ToolQuestion]:
    """The questions that tools asked instead of giving results, by the positions of their calls."""
    return {place: each.question for place, each in enumerate(outcomes) if each.question is not None}


def requests_for(
    uses: Sequence[ToolRequested],
    first: int,
    waiting: Mapping[int, bool],
    questions: Mapping[int, ToolQuestion],
    client_tools: Collection[str] = (),
) -> list[ApprovalRequest]:
    """Returns the requests of one round, in the order of its calls.

    Args:
        uses: the calls
        first: the number of the first call
        waiting: the calls that wait, by position, as `CallGate.judge` returns them
        questions: the questions of tools, by the positions of their calls
        client_tools: the tools that the caller of the turn runs
    """
    found = list[ApprovalRequest]()
    for place in sorted({*waiting, *questions}):
        tool_id, arguments = uses[place]
        asked = questions.get(place)
        if asked is None:
            call = ApprovalRequest(call=first + place, tool_id=tool_id, arguments=arguments, is_after_untrusted=waiting[place])
            found.append(replace(call, reason="client_tool") if tool_id in client_tools else call)
            continue
        found.append(
            ApprovalRequest(
                call=first + place,
                tool_id=tool_id,
                arguments=arguments,
                reason=asked.reason,
                message=asked.message,
                response_schema=asked.response_schema,
            )
        )
    return found


def question_mapping(question: ToolQuestion) -> QuestionMapping:
    found: QuestionMapping = {"message": question.message, "reason": question.reason}
    if question.response_schema is not None:
        found["response_schema"] = dict(question.response_schema)
    if question.state is not None:
        found["state"] = question.state
    return found
