"""Turns a payload of an older version into the next version's, one function for each type and version. Pure.

`kitchener.records.events.read_payload` applies them. Fields of another form than expected pass as they are: a reader of the
payload then says what is wrong.
"""

from collections.abc import Callable

Upgrade = Callable[[dict[str, object]], dict[str, object]]


def name_projection(payload: dict[str, object]) -> dict[str, object]:
    """`PROJECTION_COMPUTED` 1 to 2: `overlay_type` names the entry type, and each listed reference is an object with `ref`."""
    upgraded = {**payload, "v": 2, "overlay_type": "PROJECTION_COMPUTED"}
    for name in ("eligible_refs", "visible_refs", "proof_refs"):
        if name in upgraded:
            upgraded[name] = _listed(upgraded[name])
    return upgraded


def keep_lists(payload: dict[str, object]) -> dict[str, object]:
    """`PROJECTION_COMPUTED` 2 to 3: positions may stand without a base. Lists that are written out are read as they are."""
    return {**payload, "v": 3}


def keep_recalled(payload: dict[str, object]) -> dict[str, object]:
    """`PROJECTION_COMPUTED` 3 to 4: recalled entries are grouped by ledger. Lists of references are read as they are."""
    return {**payload, "v": 4}


def keep_groups(payload: dict[str, object]) -> dict[str, object]:
    """`PROJECTION_COMPUTED` 4 to 5: recalled entries may be a change of a base. Groups of references are read as they are."""
    return {**payload, "v": 5}


def name_conflict(payload: dict[str, object]) -> dict[str, object]:
    """`CONFLICT_FLAG` 1 to 2: it has an `overlay_type`, and each listed reference is an object with `ref`."""
    upgraded = {**payload, "v": 2, "overlay_type": "CONFLICT_FLAG"}
    for name in ("involved_refs", "proof_refs"):
        if name in upgraded:
            upgraded[name] = _listed(upgraded[name])
    return upgraded


def keep_order(payload: dict[str, object]) -> dict[str, object]:
    """`HO3_OVERLAY_DEACTIVATED` 1 to 2: as in version 1, it takes effect when it was written, not at its `event_ts`."""
    return {**payload, "v": 2, "is_dated": False} if "event_ts" in payload else {**payload, "v": 2}


def name_weight(payload: dict[str, object]) -> dict[str, object]:
    """`HO3_OVERLAY_WEIGHT_UPDATED` 1 to 2: as `keep_order`, and the field `weight` is called `new_weight`."""
    upgraded = keep_order(payload)
    if "weight" in upgraded:
        upgraded["new_weight"] = upgraded.pop("weight")
    return upgraded


def gather_event(payload: dict[str, object]) -> dict[str, object]:
    """`HO3_SIGNAL` 1 to 2: its event is one of `signals`, and the turn of its metadata is its `turn_id`."""
    upgraded, metadata = {**payload, "v": 2}, payload.get("metadata")
    if "event_id" in upgraded and "signal_id" in upgraded:
        upgraded["signals"] = {str(upgraded.pop("event_id")): upgraded.pop("signal_id")}
    if isinstance(metadata, dict) and isinstance(turn_id := metadata.get("turn_id"), str):
        upgraded["turn_id"] = turn_id
    return upgraded


def _listed(value: object) -> object:
    """A list of references, or the edits or positions that stand for one, with each reference as an object with `ref`."""
    if isinstance(value, list):
        return [{"ref": each} if isinstance(each, dict) and "entry_id" in each else _listed(each) for each in value]
    if isinstance(value, dict):
        return {key: _listed(each) if key in ("edits", "add", "recalled") else each for key, each in value.items()}
    return value
