"""Starts the consolidations of one agent class: on request, and after a reply for each gate that the turn found open."""

from collections.abc import Mapping, Sequence
from functools import partial

from kitchener.actors.consolidation.background import BackgroundJobs
from kitchener.actors.consolidation.consolidator import Consolidator
from kitchener.actors.turn_memory import OpenGates
from kitchener.cancellation import raises_cut_off
from kitchener.errors import CallerError
from kitchener.records.work_order import WorkOrder


class ConsolidationTriggers:
    """Starts consolidations. `consolidator.py` runs them.

    Args:
        agent_class: the agent class
        consolidator: runs a consolidation; None: the class has no long-term memory
        background: runs the consolidations that turns start; None: turns start none
    """

    def __init__(self, agent_class: str, consolidator: Consolidator | None, background: BackgroundJobs | None) -> None:
        self._agent_class, self._consolidator, self._background = agent_class, consolidator, background

    async def run(self, by_namespace: Mapping[str, Sequence[str]], gate_ts: str | None) -> list[WorkOrder]:
        """Consolidates the signals of each namespace whose gates are open, and returns the finished work orders.

        Raises:
            CallerError: the class has no long-term memory, or a namespace belongs to another class
        """
        if self._consolidator is None:
            raise CallerError(f"agent class {self._agent_class!r} has no long-term memory; set ho3_enabled")
        with raises_cut_off("the consolidation"):
            runs = [
                await self._consolidator.run(signals, namespace=each, gate_ts=gate_ts) for each, signals in by_namespace.items()
            ]
        return [wo for done in runs for wo in done]

    def start(self, gates: OpenGates | None) -> None:
        """Starts the consolidation of a turn's open gates in the background. Call it after the reply was delivered."""
        if gates is not None and gates.signal_ids and self._background is not None and self._consolidator is not None:
            run = partial(self._consolidator.run, gates.signal_ids, is_asked_for=False)
            self._background.start(partial(run, namespace=gates.namespace, gate_ts=gates.gate_ts))

    async def recover(self) -> None:
        """Ends the consolidations that a crash left open."""
        if self._consolidator is not None:
            await self._consolidator.recover()
