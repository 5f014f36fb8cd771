"""Answers the calls by which chat clients make titles, tags and suggestions: one model call, and no turn.

Some clients name such a call, others only ask: without what tells them apart, each title would be a conversation of its own,
of which later ones are reminded.

The model gets the client's messages and nothing of the agent: no instructions, context, memory or tools. Nothing is recorded.
Explained in `docs/server.md`.
"""

from fnmatch import fnmatchcase
from typing import Final

import anyio
from starlette.requests import Request

from kitchener.actors.supervisor import HO2Supervisor
from kitchener.config import ServeConfig
from kitchener.errors import ProviderError
from kitchener.plain_names import quoted
from kitchener.records.prompt import Attempt, PromptRequest, PromptResponse
from kitchener.runtime import Runtime
from kitchener.serve.chat.chat_request import UTILITY, ChatBody, message_text, plain_messages
from kitchener.serve.problems import RequestRefused

TAG: Final = "utility"
"""Domain tag of these calls, by which `[router]` can send them to a smaller model."""
TASK_HEADER: Final = "x-openwebui-task"
"""A request that has it is such a call."""
_MAX_TOKENS: Final = 1_000
_TEMPERATURE: Final = 0.3


class UtilityCalls:
    """Tells these calls from messages to an agent, and makes them.

    Args:
        runtime: its gateway calls the models, within the limits of `[spending]`
        config: the settings of the server
    """

    def __init__(self, runtime: Runtime, config: ServeConfig) -> None:
        self._runtime = runtime
        self._prompts = config.utility_prompts
        self.is_offered = config.utility_calls == "allow"
        """Whether there are such calls at all."""

    def is_asked(self, request: Request, body: ChatBody) -> bool:
        """Whether a request is such a call: a header or the model says so, or its one message is a client's prompt for it.

        Raises:
            RequestRefused: it is one, and there are none
        """
        by_model = body.model.endswith(UTILITY)
        is_one = by_model or bool(request.headers.get(TASK_HEADER, "").strip()) or self._has_prompt(body)
        if not is_one or self.is_offered:
            return is_one
        if by_model:
            raise RequestRefused(404, "model_not_found", f"there is no model {quoted(body.model)}; GET /v1/models lists them")
        raise RequestRefused(400, "unsupported", "this server refuses requests for titles, tags and suggestions")

    def _has_prompt(self, body: ChatBody) -> bool:
        *before, last = body.messages
        if last.role != "user" or any(each.role not in ("system", "developer") for each in before):
            return False
        text = message_text(last)
        return any(fnmatchcase(text, each) for each in self._prompts)

    async def answer(self, body: ChatBody, supervisor: HO2Supervisor, subject_id: str) -> PromptResponse:
        """The model's answer.

        Raises:
            RequestRefused: no model answered, or the subject has spent what it may
        """
        messages = plain_messages(body)
        if not messages:
            raise RequestRefused(400, "invalid_request", "messages: there is no text in them")
        request = PromptRequest(
            contract_id=TAG,
            wo_type="synthesize",
            prompt_pack_version="",
            messages=messages,
            variables={"user_message": messages[-1].content, "context_text": ""},
            call=1,
            session_id="",
            wo_id="",
            subject_id=subject_id,
            deadline=anyio.current_time() + supervisor.config.turn_deadline_s,
            max_tokens=_MAX_TOKENS,
            temperature=_TEMPERATURE,
            domain_tags=(TAG,),
        )
        try:
            return await self._runtime.gateway.complete(request, on_attempt=_unrecorded)
        except ProviderError as error:
            if error.reason == "spending_limit":
                raise RequestRefused(429, "spending_limit", "the subject has spent what it may today") from error
            raise RequestRefused(502, "model_failed", f"no model answered ({error.reason})") from error


async def _unrecorded(_: Attempt) -> None:
    return None
