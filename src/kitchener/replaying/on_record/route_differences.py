"""Compares the routes of recorded calls with the routes that the current settings give. Pure.

A route is the provider and model of a request, and their fallbacks. The fields that a provider's settings add are compared as
well, because they shape the answer. Failed attempts, and providers that were skipped because their circuit was open, are copied
from the record.
"""

from collections.abc import Iterable, Mapping, Sequence

from kitchener.config import ProviderConfig, RouterConfig
from kitchener.gateway.routing import Candidate, plan_longer, plan_route
from kitchener.records.prompt import RULES_PROVIDER, Attempt, PromptRequest
from kitchener.replaying.on_record.recorded_sources import RecordedSources

RouteDifference = tuple[dict[str, object], dict[str, object]]
"""The recorded provider and model of an attempt, and the present ones."""
FieldsDifference = tuple[Mapping[str, object], Mapping[str, object]]
"""The fields that a provider's settings added to a request, and those that they add now."""


class Routes:
    """The routes of a configuration.

    Args:
        router: the settings of `[router]`
        given: providers that the recording program passed in, besides those of the settings
    """

    def __init__(self, router: RouterConfig, given: Iterable[str] = ()) -> None:
        known = {each: ProviderConfig(kind="offline") for each in ("offline", RULES_PROVIDER, *given)}
        self._router = router.model_copy(update={"providers": {**known, **router.providers}})

    def difference(self, request: PromptRequest, attempts: Sequence[Attempt]) -> RouteDifference | None:
        """The first attempt that would go elsewhere now; None: there is none."""
        candidates = list(plan_route(request.provider_id, request.model_id, request.domain_tags, self._router).candidates)
        for each in candidates:
            candidates += [other for other in plan_longer(each.provider_id, self._router) if other not in candidates]
        for attempt in attempts:
            left = list(candidates)
            while left and not _is_same(left[0], attempt):
                del left[0]
            if not left:
                recorded = _as_json(attempt.provider_id, attempt.model_id, attempt.route_reason)
                return recorded, _as_json(*_fields(candidates[0]))
            candidates = left
        return None

    def changed_fields(self, recorded: RecordedSources | None, provider_id: str) -> FieldsDifference | None:
        """The fields that the settings of a provider added to its requests, and those that they add now; None: the same.

        Args:
            recorded: the sources of the turn; None: they are not on record
            provider_id: the provider
        """
        provider = self._router.providers.get(provider_id)
        now = provider.request_fields if provider is not None else {}
        then = recorded.request_fields.get(provider_id, {}) if recorded is not None else now
        return (then, now) if then != now else None


class AnyRoute(Routes):
    """Accepts every recorded route."""

    def __init__(self) -> None:
        super().__init__(RouterConfig())

    def difference(self, request: PromptRequest, attempts: Sequence[Attempt]) -> RouteDifference | None:
        """Returns None: no recorded route differs."""
        return None

    def changed_fields(self, recorded: RecordedSources | None, provider_id: str) -> FieldsDifference | None:
        """Returns None: no recorded field differs."""
        return None


def _is_same(candidate: Candidate, attempt: Attempt) -> bool:
    # A candidate without a model leaves the choice to its provider, and a replay does not compare that choice.
    return (candidate.provider_id, candidate.route_reason, candidate.model_id or attempt.model_id) == (
        attempt.provider_id,
        attempt.route_reason,
        attempt.model_id,
    )


def _fields(candidate: Candidate) -> tuple[str, str | None, str]:
    return candidate.provider_id, candidate.model_id, candidate.route_reason


def _as_json(provider_id: str, model_id: str | None, route_reason: str) -> dict[str, object]:
    return {"provider_id": provider_id, "model_id": model_id, "route_reason": route_reason}
