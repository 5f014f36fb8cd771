"""Asks the process that has a root open for its queues, for `kitchener doctor`."""

from collections.abc import Iterator

from kitchener.cli.config.findings import Finding
from kitchener.config import RuntimeConfig
from kitchener.errors import KitchenerError
from kitchener.gateway.guarded_provider import ProviderUsage
from kitchener.lanes.fair_queue import LaneStatistics
from kitchener.plain_names import counted
from kitchener.runtime.admin.admin_client import NobodyListens, ask
from kitchener.runtime.admin.operations import ReadStatistics
from kitchener.runtime.admin.runtime_statistics import RuntimeStatistics


async def read_queues(config: RuntimeConfig) -> tuple[object, list[Finding]]:
    """The queues of the process that has the root open, as JSON types of `RuntimeStatistics`, and a finding for each.

    If no process listens, None and no findings. If one does not answer, None and a finding that says why.
    """
    try:
        found = await ask(config, wanted := ReadStatistics())
    except NobodyListens:
        return None, []
    except KitchenerError as error:
        return None, [Finding("queues", "warn", str(error))]
    lines = [*[_finding(name, lane) for name, lane in _lanes(found)], *[_usage(*each) for each in found["usage"].items()]]
    return wanted.encoded(found), lines


def _lanes(found: RuntimeStatistics) -> Iterator[tuple[str, LaneStatistics]]:
    yield "turns", found["turns"]
    for owner, lanes in found["mailboxes"].items():
        for name, lane in lanes.items():
            yield f"{owner} {name}", lane


def _usage(provider_id: str, used: ProviderUsage) -> Finding:
    share = round(100 * used.cached_tokens / max(1, used.input_tokens))
    detail = (
        f"{counted(used.calls, 'call')} so far: {used.input_tokens:,} tokens in, {share} % of them from its cache,"
        f" {used.output_tokens:,} out"
    )
    return Finding(f"provider {provider_id}", "ok", detail)


def _finding(name: str, lane: LaneStatistics) -> Finding:
    detail = (
        f"{lane.running:,} of {lane.places:,} running, {lane.waiting:,} of {lane.capacity:,} waiting; so far"
        f" {lane.waited:,} waited, {lane.longest_wait_s:.1f} s at most, and {lane.given_up:,} found no room"
    )
    return Finding(f"queue {name}", "warn" if lane.given_up or lane.asking_for_room else "ok", detail)
