"""Answers calls of chat clients for titles, tags, suggestions and summaries: with one model call, and without a turn.

Some clients name such a call, others only ask: without what tells them apart, each title would be a conversation of its own,
of which later ones are reminded. A summary would branch off the conversation that it is of.

The model gets the client's messages and nothing of the agent: no instructions, context, memory or tools. Nothing is recorded.
Explained in `docs/server.md`.
"""

from collections.abc import Sequence
from dataclasses import replace
from fnmatch import fnmatchcase
from typing import Final

import anyio
import orjson
from starlette.requests import Request

from kitchener.actors.supervisor import HO2Supervisor
from kitchener.config import ServeConfig
from kitchener.errors import ProviderError
from kitchener.plain_names import quoted
from kitchener.records.prompt import UTILITY_TAG, Attempt, PromptRequest, PromptResponse
from kitchener.runtime import Runtime
from kitchener.serve.chat_completions.asked_content import checked_content
from kitchener.serve.chat_completions.chat_request import UTILITY, ChatBody, chat_text, plain_messages, schema_of
from kitchener.serve.problems import RequestRefused

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
        self._prompts, self._summary_prompts = config.utility_prompts, config.summary_prompts
        self.is_offered = config.utility_calls == "allow"
        """Whether the settings allow such calls."""

    def is_asked(self, request: Request, body: ChatBody) -> bool:
        """Whether a request is such a call: a header or the model says so, or its message is a client's prompt for it.

        Within a conversation, a person may write such a prompt, so only prompts for a summary count there.

        Raises:
            RequestRefused: it is one, and there are none
        """
        by_model = body.model.endswith(UTILITY)
        is_one = by_model or bool(request.headers.get(TASK_HEADER, "").strip()) or self._has_prompt(body)
        if not is_one or self.is_offered:
            return is_one
        if by_model:
            raise RequestRefused(404, "model_not_found", f"there is no model {quoted(body.model)}; GET /v1/models lists them")
        raise RequestRefused(400, "unsupported", "this server refuses requests for titles, tags, suggestions and summaries")

    def _has_prompt(self, body: ChatBody) -> bool:
        *before, last = body.messages
        if last.role != "user":
            return False
        text, is_first = chat_text(last), all(each.role in ("system", "developer") for each in before)
        return _fits(text, self._summary_prompts) or (is_first and _fits(text, self._prompts))

    async def answer(self, request: Request, body: ChatBody, supervisor: HO2Supervisor, subject_id: str) -> PromptResponse:
        """The model's answer. If the client asks for an object, the answer is JSON, or the text that the model answered
        instead.

        Raises:
            CallerError: the schema of the object cannot be one
            RequestRefused: no model answered, or the subject has spent what it may
        """
        messages = plain_messages(body)
        if not messages:
            raise RequestRefused(400, "invalid_request", "messages: there is no text in them")
        wanted = schema_of(body.response_format)
        if wanted is not None:
            await checked_content(request, supervisor, UTILITY_TAG, (), output=wanted)
        prompt = PromptRequest(
            contract_id=UTILITY_TAG,
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
            domain_tags=(UTILITY_TAG,),  # `[router]` can send them to a smaller model
            output_schema=wanted,
        )
        try:
            found = await self._runtime.gateway.complete(prompt, on_attempt=_unrecorded)
        except ProviderError as error:
            if error.reason == "spending_limit":
                raise RequestRefused(
                    429, "spending_limit", "the daily limit of the subject is used up until midnight, UTC"
                ) from error
            raise RequestRefused(502, "model_failed", f"no model answered ({error.reason})") from error
        if found.structured is None:
            return found
        return replace(found, text=orjson.dumps(found.structured).decode())  # without the fence around it


def _fits(text: str, patterns: Sequence[str]) -> bool:
    return any(fnmatchcase(text, each) for each in patterns)


async def _unrecorded(_: Attempt) -> None:
    return None
