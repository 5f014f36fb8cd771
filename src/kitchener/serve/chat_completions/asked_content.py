"""Checks the content of a request's message before the session of the request is looked for or begun.

A request that is refused for it leaves no session behind. Explained in `docs/server.md`.
"""

from collections.abc import Mapping, Sequence
from typing import Final

import anyio
from starlette.requests import Request

from kitchener.actors.admission.content_checks import MessageContent
from kitchener.actors.supervisor import HO2Supervisor
from kitchener.records.parts import FilePart
from kitchener.serve.access.allowances import RequestSchemaTime
from kitchener.serve.access.guard import place_of
from kitchener.serve.chat_completions.client_functions import ClientFunctions

_NO_FUNCTIONS: Final = ClientFunctions()


async def checked_content(
    request: Request,
    supervisor: HO2Supervisor,
    message: str,
    parts: Sequence[FilePart],
    functions: ClientFunctions = _NO_FUNCTIONS,
    output: Mapping[str, object] | None = None,
    *,
    key: str | None = None,
) -> MessageContent:
    """What a message brings besides its text, checked.

    Args:
        request: the request
        supervisor: the agent
        message: the text; "": the request has no message, but outputs or answers, and nothing is checked
        parts: images and files
        functions: those that the client runs
        output: JSON schema of the object that is wanted; None: text
        key: its idempotency key; None: that of the headers, if there is one

    Raises:
        CallerError: the agent would refuse the message
        RequestRefused: schemas of the key or the subject have taken too long
    """
    if not message:
        return MessageContent()
    return await supervisor.content.checked(
        message,
        idempotency_key=key if key is not None else request.headers.get("idempotency-key"),
        parts=parts,
        output=output,
        tool_choice=functions.choice,
        client_tools=functions.tools,
        budget=RequestSchemaTime(place_of(request), anyio.current_time()),
    )
