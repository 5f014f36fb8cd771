"""Decides which tool calls of a round wait for a person, by the constraints of the work order.

`execution.py` runs the others. Which tools ask was decided by the supervisor; this module knows no policy.
Explained in `docs/approval.md`.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import Final

from kitchener.actors.tools.results import ToolOutcome
from kitchener.actors.tools.side_by_side import ToolRequested
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


class WorkOrderDeferred(Exception):
    """Ends the work order as deferred. The executor catches it and returns the work order with its requests.

    Args:
        requests: the calls that wait
        said: what the model wrote beside them
    """

    def __init__(self, requests: Sequence[ApprovalRequest], said: str = "") -> None:
        self.requests, self.said = tuple(requests), said
        super().__init__(f"{len(self.requests)} tool calls wait for an answer")

    @property
    def waits_for_client(self) -> bool:
        """Whether all calls wait for the client that runs them, so that what the model wrote is the reply."""
        return all(each.reason == "client_tool" for each in self.requests)


class CallGate:
    """Which calls of one work order wait for a person.

    Args:
        limits: the constraints of the work order
        has_read_untrusted: whether it is given text of an untrusted source
    """

    __slots__ = ("_client_calls_left", "_limits", "_requests_left", "has_read_untrusted")

    has_read_untrusted: bool
    """Whether the work order has read text of an untrusted source."""

    def __init__(self, limits: Constraints, *, has_read_untrusted: bool) -> None:
        self._limits = limits
        self.has_read_untrusted = limits.has_read_untrusted or has_read_untrusted
        self._requests_left, self._client_calls_left = limits.most_requests, limits.most_client_calls

    def checked(self, outcome: ToolOutcome, untrusted_source: str | None, *, may_ask: bool) -> ToolOutcome:
        """Returns an outcome with its source, if that is not trusted, and with an error for a question that cannot be asked.

        Args:
            outcome: of a tool call
            untrusted_source: where it comes from; None: from a tool that is trusted, if no turn that it ran read text of an
                untrusted source
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
        """Takes one of the requests that may wait; False: none is left."""
        if self._requests_left < 1:
            return False
        self._requests_left -= 1
        return True

    def _take_client_call(self) -> bool:
        """Takes one of the calls that may wait for the client; False: none is left."""
        if self._client_calls_left < 1:
            return False
        self._client_calls_left -= 1
        return True

    def judge(
        self, uses: Sequence[ToolRequested], answered: Collection[int], problem: Callable[[ToolRequested], str | None]
    ) -> tuple[dict[int, bool], dict[int, str]]:
        """Judges the calls of one round.

        Returns the places of those that wait, each with whether that is only because of untrusted text, and the places of
        those that are refused, each with the reason.

        Args:
            uses: the calls
            answered: the places of those that a person has answered
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
    """The questions that tools asked in place of results, by the places of their calls."""
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
        waiting: the places of the calls that wait, as `CallGate.judge` gives them
        questions: the questions of tools, by the places of their calls
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
    """A question as a JSON object."""
    found: QuestionMapping = {"message": question.message, "reason": question.reason}
    if question.response_schema is not None:
        found["response_schema"] = dict(question.response_schema)
    if question.state is not None:
        found["state"] = question.state
    return found
