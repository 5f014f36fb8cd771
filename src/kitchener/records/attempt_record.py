"""Turns attempts at model calls into the payloads of HO1m that tell about them, and those into attempts and words."""

from collections.abc import Mapping
from typing import Final, NamedTuple

from kitchener.model_usage import Usage
from kitchener.records import events
from kitchener.records.entries import AttemptFailedPayload, AttemptStartedPayload, ModelCallPayload, opened, payload_as
from kitchener.records.prompt import Attempt

_SHOWN_ATTEMPTS: Final = 3
"""Most attempts of one call that an error names; they are the newest."""


def attempt_of(entry_type: str, payload: Mapping[str, object]) -> Attempt | None:
    """Returns what one of `events.OF_MODEL_CALLS` says about an attempt: that it failed, else that it started.

    Returns None for an answer of an older version, whose attempt has an `ATTEMPT_STARTED` of its own before it.
    """
    if entry_type == events.LLM_CALL:
        answer = payload_as(ModelCallPayload, payload)
        number = answer.get("attempt")
        if number is None:
            return None
        model_id = answer.get("requested_model_id", answer["model_id"])
        return Attempt("started", answer["call"], number, answer["provider_id"], model_id, answer["route_reason"])
    told = payload_as(AttemptFailedPayload, payload)  # `ATTEMPT_STARTED` lacks its last fields
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
        Usage.on_record(told.get("usage")),
    )


class BilledAnswer(NamedTuple):
    """An answer whose tokens are on record, and which the provider may charge."""

    provider_id: str
    model_id: str
    usage: Usage
    is_usable: bool
    """Whether it answered the call; otherwise its attempt failed."""


def billed_answer(entry_type: str, payload: Mapping[str, object]) -> BilledAnswer | None:
    """Returns the answer that one of `events.WITH_USAGE` tells of; None: no answer came, or its tokens are not known."""
    told = payload_as(AttemptFailedPayload, payload)  # `LLM_CALL` has these fields, too
    usage, provider_id, model_id = Usage.on_record(told.get("usage")), told.get("provider_id"), told.get("model_id")
    if usage is None or not isinstance(provider_id, str) or not isinstance(model_id, str):
        return None
    return BilledAnswer(provider_id, model_id, usage, entry_type == events.LLM_CALL)


class UnansweredCall:
    """Follows the entries of one turn's model calls, and knows the attempts of the newest call if no model answered it."""

    def __init__(self) -> None:
        self._call: tuple[str, int] | None = None
        self._attempts: dict[int, Attempt] = {}

    def take(self, wo_id: str, entry_type: str, payload: Mapping[str, object]) -> None:
        """Applies the next entry of a type in `events.OF_MODEL_CALLS`.

        Args:
            wo_id: the work order that called, the `entity_id` of the entry
            entry_type: of the entry
            payload: of the entry
        """
        if entry_type == events.LLM_CALL:
            self._attempts = {}
        elif (attempt := attempt_of(entry_type, payload)) is not None:
            if self._call != (wo_id, attempt.call):
                self._call, self._attempts = (wo_id, attempt.call), {}
            self._attempts[attempt.attempt] = attempt

    @property
    def words(self) -> str:
        """The newest attempts of the call and the outcome of each, for people; "": a model answered, or none was asked."""
        return "; ".join([_words(each) for each in list(self._attempts.values())[-_SHOWN_ATTEMPTS:]])


def _words(attempt: Attempt) -> str:
    outcome = "had no answer yet" if attempt.state == "started" else f"failed: {attempt.reason}"
    return f"attempt {attempt.attempt} at provider {attempt.provider_id!r} {outcome}"


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
    fields: AttemptFailedPayload = {
        "call": attempt.call,
        "attempt": attempt.attempt,
        "provider_id": attempt.provider_id,
        "model_id": attempt.model_id,
        "route_reason": attempt.route_reason,
        "reason": attempt.reason,
        "output_begun": attempt.output_begun,
    }
    if attempt.usage is not None:
        fields["usage"] = attempt.usage.as_mapping()
    return fields
