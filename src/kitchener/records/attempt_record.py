"""Turns attempts at model calls into the payloads of HO1m that tell about them, and those into attempts."""

from collections.abc import Mapping

from kitchener.records import events
from kitchener.records.entries import AttemptFailedPayload, AttemptStartedPayload, ModelCallPayload, opened, payload_as
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


def started_fields(attempt: Attempt) -> AttemptStartedPayload:
    """The fields of `ATTEMPT_STARTED` besides those that all payloads carry."""
    return {
        "call": attempt.call,
        "attempt": attempt.attempt,
        "provider_id": attempt.provider_id,
        "model_id": attempt.model_id,
        "route_reason": attempt.route_reason,
    }


def failed_fields(attempt: Attempt) -> AttemptFailedPayload:
    """The fields of `ATTEMPT_FAILED`, besides those that all payloads carry and the `detail`, which may quote the provider."""
    return {
        "call": attempt.call,
        "attempt": attempt.attempt,
        "provider_id": attempt.provider_id,
        "model_id": attempt.model_id,
        "route_reason": attempt.route_reason,
        "reason": attempt.reason,
        "output_begun": attempt.output_begun,
    }
