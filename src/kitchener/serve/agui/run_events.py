"""Turns the updates of turns into the events of one AG-UI run, in an order that the protocol allows.

For any updates, the events form a valid run: everything opened is closed, and no id is used twice. It knows
no connection, clock or ledger. Explained in `docs/server.md`.
"""

from collections.abc import Mapping, Sequence
from typing import Final

from kitchener.records.turn import (
    ClientCallRequested,
    TextDelta,
    TextRetracted,
    ToolProgress,
    ToolRan,
    ToolStarted,
    TurnCompleted,
    TurnResult,
    TurnUpdate,
    WorkOrderFinished,
    WorkOrderPlanned,
)
from kitchener.serve.agui.run_calls import RequestedCall, RunCalls
from kitchener.serve.agui.run_input import CONTINUED, RESUMED, AskedRun
from kitchener.serve.agui.run_texts import RunTexts
from kitchener.serve.event_stream import event
from kitchener.serve.problems import Problem
from kitchener.serve.token_usage import TokenUsage

PROTOCOL: Final = "1.0"
"""The version of the protocol that this server speaks."""


class RunEvents:
    """The events of one run.

    Args:
        asked: the run that the client asks for
        answered: the requests for approval that it brings answers to, oldest first, with their tools
    """

    def __init__(self, asked: AskedRun, answered: Sequence[tuple[str, str]] = ()) -> None:
        self._asked, self._body = asked, asked.body
        made: list[dict[str, object]] = []
        goes_on = RESUMED if answered else CONTINUED if asked.outputs is not None and not asked.message else ""
        self._texts = RunTexts(asked.body.run_id, asked.shown, made, goes_on)
        self._calls = RunCalls(asked.calls, made, answered)
        self._steps: dict[str, str] = {}
        """The names of the open steps, by work order."""
        self._usage: list[dict[str, int]] = []

    def start(self, now_ms: int, messages: Sequence[Mapping[str, object]] | None = None) -> bytes:
        """The run begins.

        Args:
            now_ms: milliseconds since 1970
            messages: all messages of the thread, for a client that has none; None: it has them
        """
        began: dict[str, object] = {**self._ids("RUN_STARTED", now_ms), "protocolVersion": PROTOCOL}
        if self._body.parent_run_id is not None:
            began["parentRunId"] = self._body.parent_run_id
        if messages is not None:
            return event(began) + event({"type": "MESSAGES_SNAPSHOT", "messages": messages})
        return event(began) + (self._texts.snapshot() if self._asked.is_tried_again else b"")

    def add(self, update: TurnUpdate) -> bytes:
        """The events of an update; b"": there are none."""
        if isinstance(update, TextDelta):
            return self._calls.flush() + self._texts.add(update.wo_id, update.text)
        if isinstance(update, TextRetracted):
            return self._calls.flush() + self._texts.withdraw(update.wo_id)
        if isinstance(update, WorkOrderPlanned):
            return self._calls.flush() + self._begin_step(update)
        if isinstance(update, WorkOrderFinished):
            return self._end_step(update.wo_id)
        if isinstance(update, ToolStarted):
            return self._calls.flush() + self._calls.started(update)
        if isinstance(update, ToolProgress):
            return self._calls.progress(update)
        if isinstance(update, ToolRan):
            return self._calls.ran(update)
        if isinstance(update, ClientCallRequested):
            return b""  # told at the end, with all calls that wait
        return self._complete(update)

    def finish(self, now_ms: int, waiting: Sequence[RequestedCall] = (), result: Mapping[str, object] | None = None) -> bytes:
        """The run ends.

        Args:
            now_ms: milliseconds since 1970
            waiting: the tool calls of the thread that wait for a person or for the front end
            result: what this server tells of the turn; None: nothing
        """
        told, interrupts = self._close(waiting), [each.interrupt for each in waiting if each.interrupt is not None]
        outcome = {"type": "interrupt", "interrupts": interrupts} if interrupts else {"type": "success"}
        ended: dict[str, object] = {**self._ids("RUN_FINISHED", now_ms), "outcome": outcome}
        if result is not None:
            ended["result"] = result
        if self._usage:
            ended["usage"] = self._usage
        return told + event(ended)

    def cancel(self, now_ms: int) -> bytes:
        """The run ends because somebody stopped its turn."""
        return self._close(()) + event({**self._ids("RUN_FINISHED", now_ms), "outcome": {"type": "cancelled"}})

    def fail(self, problem: Problem) -> bytes:
        """The run ends without a reply."""
        return event({"type": "RUN_ERROR", "message": problem.message, "code": problem.code})

    def _ids(self, kind: str, now_ms: int) -> dict[str, object]:
        return {"type": kind, "threadId": self._body.thread_id, "runId": self._body.run_id, "timestamp": now_ms}

    def _begin_step(self, planned: WorkOrderPlanned) -> bytes:
        if planned.wo_id in self._steps:
            return b""
        name: str = planned.wo_type
        if name in self._steps.values():
            name = f"{name} {planned.wo_id}"
        self._steps[planned.wo_id] = name
        return event({"type": "STEP_STARTED", "stepName": name})

    def _end_step(self, wo_id: str) -> bytes:
        name = self._steps.pop(wo_id, None)
        return event({"type": "STEP_FINISHED", "stepName": name}) if name is not None else b""

    def _complete(self, completed: TurnCompleted) -> bytes:
        result = completed.result
        self._usage.append(_usage(result))
        return self._calls.flush(result.pending_approval) + self._texts.complete(result.response)

    def _close(self, waiting: Sequence[RequestedCall]) -> bytes:
        steps = b"".join(map(self._end_step, list(self._steps)))
        return self._texts.close() + steps + self._calls.close(waiting)


def _usage(result: TurnResult) -> dict[str, int]:
    """Tokens as the protocol counts them."""
    used = TokenUsage.of_turn(result)
    found = {"inputTokens": used.read, "outputTokens": used.written, "totalTokens": used.read + used.written}
    return {**found, "cachedInputTokens": used.cached} if used.cached else found
