"""Reads the attempts at model calls from the entries of HO1m that tell about them."""

from collections.abc import Mapping

from kitchener.records import events
from kitchener.records.entries import AttemptFailedPayload, ModelCallPayload, opened, payload_as
from kitchener.records.prompt import Attempt


def attempt_of(entry_type: str, payload: Mapping[str, object]) -> Attempt | None:
    """Returns what one of `events.OF_MODEL_CALLS` says about an attempt: that it failed, else that it started.

    Returns None for an answer whose attempt is told by an `ATTEMPT_STARTED` before it, as an older version recorded it.
    """
    if entry_type == events.LLM_CALL:
        answer = payload_as(ModelCallPayload, payload)
        number = answer.get("attempt")
        if number is None:
            return None
        model_id = answer.get("requested_model_id", answer["model_id"])
        return Attempt("started", answer["call"], number, answer["provider_id"], model_id, answer["route_reason"])
    told = payload_as(AttemptFailedPayload, payload)  # one that started has less
    return Attempt(
        "failed" if entry_type == events.ATTEMPT_FAILED else "started",
        told["call"],
        told["attempt"],
        told["provider_id"],
        told["model_id"],
        told["route_reason"],
        told.get("reason"),
        opened(told.get("detail")),
        told.get("output_begun", False),
    )
