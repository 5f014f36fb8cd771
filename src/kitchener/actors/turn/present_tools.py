"""Gives each turn the tools that are present when it begins, after recording their definitions.

A turn keeps these tools to its end. `runner.py` calls this module when tools of the agent class were replaced; `registry.py`
holds the tools. Explained in `docs/tools.md`.
"""

from dataclasses import replace

import anyio

from kitchener.actors.sources import RequestSources
from kitchener.actors.tools.registry import ToolRegistry
from kitchener.actors.turn.services import TurnConstants, TurnServices


class PresentTools:
    """Rebuilds the parts of a turn that depend on the tools.

    Args:
        services: the components that all turns of the agent class share, with the tools at its start
        tools: the tools of the agent class
        sources: the sources of its requests
        is_recording: False: a replay, which finds the definitions on record
    """

    def __init__(self, services: TurnServices, tools: ToolRegistry, sources: RequestSources, *, is_recording: bool) -> None:
        self.services = services
        """The services of turns that begin now. Out of date if `are_replaced`."""
        self.registry = tools
        self._sources, self._is_recording = sources, is_recording
        self._renewing = anyio.Lock()

    @property
    def are_replaced(self) -> bool:
        """Whether tools were replaced since `services` was made."""
        return self.registry.generation != self.services.constants.tools_generation

    async def renew(self) -> TurnServices:
        """Returns the services with the present tools, after recording the tools' definitions.

        Raises:
            LedgerError: a definition cannot be recorded
        """
        async with self._renewing:
            await self.registry.ready()
            while self.are_replaced:  # tools may be replaced again while the definitions are being recorded
                before, present = self.services.constants, self.registry.present()
                sources = self._sources.with_tools(present)
                if self._is_recording:
                    await sources.record(self.services.ledgers.ho2m)
                constants = TurnConstants(self.services.config, present, sources, before.ruleset_hash, before.policy_version)
                self.services = replace(self.services, constants=constants)
        return self.services
