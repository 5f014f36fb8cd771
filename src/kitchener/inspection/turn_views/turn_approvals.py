"""Lists the approvals of one turn: its requests, their answers, the turn that continued, and the calls that ran unasked.

Made from the entries of a session. `context explain`, the page about a turn and `session show` print it.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import orjson

from kitchener.clock import SystemClock
from kitchener.inspection.recorded_approvals import arguments_text, details
from kitchener.inspection.shown_text import one_line, short_time
from kitchener.ledger import StoredEntry
from kitchener.records import events
from kitchener.records.entries import ResumesMapping, TurnStartedPayload, WorkOrderPlannedPayload, payload_as
from kitchener.runtime.queries.approval_list import ApprovalInfo, approvals_in
from kitchener.times import iso_of

_WIDTH: Final = 200
_ENDS: Final[Mapping[str, str]] = {
    "waiting": "nobody has answered yet",
    "expired": "nobody answered in time",
    "cancelled": "void: the tool had changed",
    "void": "void: the turn that asked was cut off, or the session has ended",
}
_CLIENT_ENDS: Final = {**_ENDS, "waiting": "the client has given no output yet", "expired": "the client gave no output in time"}


@dataclass(frozen=True, slots=True)
class TurnApprovals:
    """What one turn has to do with approval."""

    asked: tuple[ApprovalInfo, ...] = ()
    """What the turn asked."""
    continued_by: str | None = None
    """The turn that continued after the answers; None: there is none."""
    continues: str | None = None
    """The turn that it continues; None: it continues none."""
    answered: tuple[ApprovalInfo, ...] = ()
    """The requests of that turn."""
    granted: tuple[ApprovalInfo, ...] = ()
    """What was allowed for the session, where calls of the turn could run unasked by it."""

    def as_json(self) -> dict[str, object] | None:
        """As JSON types; None: the turn has nothing to do with approval."""
        if not (self.asked or self.continues or self.granted):
            return None
        return {
            "asked": [details(each) for each in self.asked],
            "continued_by": self.continued_by,
            "continues": self.continues,
            "answered": [details(each) for each in self.answered],
            "granted": [details(each) for each in self.granted],
        }

    def lines(self) -> Iterator[str]:
        """The requests and answers as lines for the terminal."""
        for each in self.asked:
            asked = "asked the client to run" if each.is_of_client else f"asked for approval, by rule {each.rule!r}:"
            yield f"{asked} {each.approval_id}, {_call(each)}"
            yield f"  {answer_words(each)}"
        if self.continued_by is not None:
            yield f"continued by {self.continued_by}"
        if self.continues is not None:
            yield f"continues {self.continues}"
        for each in self.answered:
            asked = "run by the client" if each.is_of_client else f"asked for by rule {each.rule!r}"
            yield f"{each.approval_id}, {_call(each)}, {asked}"
            yield f"  {answer_words(each)}"
        for each in self.granted:
            yield f"{each.tool_id} could run without approval: {each.approval_id} {answer_words(each)}"


def approvals_of(entries: Sequence[StoredEntry]) -> dict[str, TurnApprovals]:
    """What the turns of a session have to do with approval, by turn; turns that have nothing to do with it are left out.

    Args:
        entries: all of the session in the supervisor's ledger, in order
    """
    requests, grants = approvals_in(entries, iso_of(SystemClock().time_us())), dict[str, list[str]]()
    resumed: dict[str, ResumesMapping] = {}
    for entry in entries:
        payload = entry.payload
        if entry.entry_type == events.TURN_STARTED:
            if (resumes := payload_as(TurnStartedPayload, payload).get("resumes")) is not None:
                resumed[entry.entity_id] = resumes
        elif entry.entry_type == events.WO_PLANNED:
            plan = payload_as(WorkOrderPlannedPayload, payload)
            limits = plan.get("constraints")
            named = limits.get("grants") if isinstance(limits, Mapping) else None
            if named:
                grants.setdefault(str(plan.get("turn_id")), []).extend(named)
    turns = dict.fromkeys((*(each.turn_id for each in requests), *resumed, *grants))
    return {turn_id: _of_turn(turn_id, requests, resumed, grants.get(turn_id, ())) for turn_id in turns}


def _of_turn(
    turn_id: str, requests: Iterable[ApprovalInfo], resumed: Mapping[str, ResumesMapping], grants: Sequence[str]
) -> TurnApprovals:
    found, mine = tuple(requests), resumed.get(turn_id)
    later = [name for name, each in resumed.items() if each["turn_id"] == turn_id]
    return TurnApprovals(
        asked=tuple([each for each in found if each.turn_id == turn_id]),
        continued_by=later[-1] if later else None,
        continues=mine["turn_id"] if mine is not None else None,
        answered=tuple([each for each in found if mine is not None and each.wo_id == mine["wo_id"]]),
        granted=tuple([each for each in found if each.approval_id in grants]),
    )


def _call(each: ApprovalInfo) -> str:
    return f"{each.tool_id} {one_line(arguments_text(each), _WIDTH)}"


def answer_words(each: ApprovalInfo) -> str:
    """How a request ended: who decided what and when, with what they said."""
    given = details(each)
    if each.resolved is None or each.resolved["decision"] in _ENDS:
        decision = each.status if each.resolved is None else each.resolved["decision"]
        return (_CLIENT_ENDS if each.is_of_client else _ENDS).get(decision, decision)
    if each.is_of_client:
        error = f" – {one_line(str(given['given_message']), _WIDTH)}" if "given_message" in given else ""
        how = "failed at the client" if each.resolved["decision"] == "failed" else "returned by the client"
        return f"{how} at {short_time(each.resolved_at or '')}{error}"
    words = [each.resolved["decision"], f"by {given.get('given_answered_by', 'a person who was not named')}"]
    words.append(f"at {short_time(each.resolved_at or '')}")
    if each.resolved["scope"] == "session":
        words.append("for the session")
    if "given_override_args" in given:
        words.append(f"with {one_line(orjson.dumps(given['given_override_args']).decode(), _WIDTH)}")
    if "given_message" in given:
        words.append(f"– {one_line(str(given['given_message']), _WIDTH)}")
    return " ".join(words)
