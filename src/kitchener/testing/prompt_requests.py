"""Requests to a model as the executor makes them, for tests of gateways and providers."""

from typing import Any

import anyio

from kitchener.records.entries import WorkOrderType
from kitchener.records.prompt import Message, PromptRequest


def prompt_request(
    text: str,
    *,
    wo_type: WorkOrderType = "synthesize",
    within_s: float = 30.0,
    **fields: Any,
) -> PromptRequest:
    """A request as the executor would make it, for tests that call a gateway or a provider directly.

    Args:
        text: the user's message; it is the only message and the only variable
        wo_type: what kind of work it is
        within_s: seconds from now until its deadline, on the running event loop's clock
        **fields: any other field of `PromptRequest`
    """
    name = wo_type.upper()
    plain = PromptRequest(
        contract_id=f"PRC-{name}-001",
        wo_type=wo_type,
        prompt_pack_version=f"PRM-{name}-001@00000000",
        messages=(Message("user", text),),
        variables={"user_message": text},
        call=1,
        session_id="SES-00000001",
        wo_id="WO-SES-00000001-001",
        subject_id="ada",
        deadline=anyio.current_time() + within_s,
        max_tokens=512,
        temperature=0.0,
    )
    return plain._replace(**fields)
