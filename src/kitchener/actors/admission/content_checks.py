"""Checks a message and its content before its session exists, so that a refused message leaves nothing behind.

A server asks this before it looks for the session of a request. `request_checks.py` has the rules, `content.py` reads images
and files. Explained in `docs/turn.md`.
"""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import NamedTuple

import anyio
import anyio.to_thread

from kitchener.actors.admission.content import ContentIntake
from kitchener.actors.admission.request_checks import RequestChecks
from kitchener.ledger import LedgerGroup
from kitchener.records.output_schema import OutputSchema
from kitchener.records.parts import FilePart, ReadPart
from kitchener.records.tools.client_tools import ClientTool, ClientToolset
from kitchener.schemas.compiled_schemas import SchemaBudget


class MessageContent(NamedTuple):
    """The checked content of a message besides its text. `handle_turn` and `stream_turn` take the fields as they are."""

    parts: tuple[ReadPart, ...] = ()
    output: OutputSchema | None = None
    tool_choice: str = "auto"
    client_tools: ClientToolset | tuple[()] = ()


class ContentChecks:
    """Checks messages to one agent class.

    Args:
        rules: checks all other arguments
        intake: reads images and files, and knows which types the model takes
        ledgers: the ledgers of the agent class, whose entries a message must fit into
    """

    def __init__(self, rules: RequestChecks, intake: ContentIntake, ledgers: LedgerGroup) -> None:
        self._rules, self._intake, self._ledgers = rules, intake, ledgers
        self._compiling = anyio.Lock()

    async def checked(
        self,
        message: str,
        *,
        idempotency_key: str | None = None,
        parts: Sequence[FilePart] = (),
        output: Mapping[str, object] | None = None,
        tool_choice: str = "auto",
        client_tools: Sequence[ClientTool] = (),
        budget: SchemaBudget | None = None,
    ) -> MessageContent:
        """Returns the checked content of a message. Starts and records nothing.

        Schemas are compiled in a worker thread, for one message at a time.

        Args:
            message: text
            idempotency_key: an argument of `handle_turn`, like all that follow
            parts: images and files
            output: the JSON schema of the object that is wanted
            tool_choice: what the model must call first
            client_tools: tools that the caller runs
            budget: limits the time for schemas; None: no limit

        Raises:
            CallerError: the turn would be refused; its subclasses say why. UnsupportedPart is one
        """
        text = self._rules.message(message)
        self._rules.size(text, self._ledgers.ho2m.config)
        check = partial(
            self._rules.call,
            idempotency_key=idempotency_key,
            parts=parts,
            output=output,
            tool_choice=tool_choice,
            client_tools=client_tools,
            budget=budget,
        )
        if output is None and not client_tools:
            call = check()
        else:
            async with self._compiling:
                call = await anyio.to_thread.run_sync(check)
        if call.parts:
            call = await self._intake.read(call)
            if (refusal := self._intake.refusal(call.parts)) is not None:
                raise refusal
        read = tuple([each for each in call.parts if isinstance(each, ReadPart)])
        return MessageContent(read, call.output, tool_choice, call.client_tools or ())
