"""Hosts the executor behind a mailbox. The host has the same method as the component that it hosts.

It chooses the lane of a message. `mailbox.py` owns queues, workers and failures. The supervisor sees only the protocol.
Explained in `docs/actors.md`.
"""

from collections.abc import Coroutine
from typing import Unpack

from kitchener.lanes.calling_chain import calling_chain
from kitchener.lanes.mailbox import BACKGROUND, INTERACTIVE, Mailbox, MailboxBounds
from kitchener.records.work_order import HO1ExecutorProtocol, WorkOrder


class HostedExecutor:
    """An executor behind a mailbox with bounded lanes; implements `HO1ExecutorProtocol`.

    Consolidation uses the background lane. A turn that a tool started uses a lane for its nesting depth. So a nested turn
    never waits for a slot that its own caller holds.
    """

    def __init__(self, mailbox: Mailbox[WorkOrder, WorkOrder]) -> None:
        self._mailbox = mailbox

    @staticmethod
    def hosting(executor: HO1ExecutorProtocol, **bounds: Unpack[MailboxBounds]) -> Mailbox[WorkOrder, WorkOrder]:
        """Returns a mailbox for the executor. Open the mailbox, then pass it to `HostedExecutor`."""
        return Mailbox(executor.execute, origin=lambda work_order: work_order.subject_id, **bounds)

    def execute(self, work_order: WorkOrder) -> Coroutine[object, object, WorkOrder]:
        """Returns the executed work order; see `HO1ExecutorProtocol`. The caller enforces the deadline."""
        return self._mailbox.ask_within(work_order, lane=self.lane_of(work_order))

    @staticmethod
    def lane_of(work_order: WorkOrder) -> str:
        """The lane for this work order: background, interactive, or `nested-<depth>`."""
        if work_order.wo_type == "consolidate":
            return BACKGROUND
        depth = len(calling_chain())
        return INTERACTIVE if depth <= 1 else f"nested-{depth - 1}"
