"""The memory, worked out anew from every line of both files, slowly and with arithmetic of its own.

It shares nothing with the code under test but the files and the settings: what it says is what docs/memory.md says.
"""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from kitchener.config import HO3MemoryConfig
from kitchener.memory.reader import ReadOperations

Line = dict[str, Any]


class Files:
    """Every whole line of both ledgers."""

    def __init__(self, root: Path) -> None:
        self.signals, self.overlays = (
            read_lines(root / "HOT" / "memory" / f"{name}.jsonl") for name in ("signals", "overlays")
        )


def read_lines(file: Path) -> list[Line]:
    """Every line of a ledger that is whole."""
    lines = [json.loads(line) for line in file.read_text().splitlines(keepends=True) if line.endswith("\n")]
    return [{**line, "moment": datetime.fromisoformat(line["entry"]["timestamp"])} for line in lines]


@dataclass
class Scan:
    """The lines of one subject that count as of a moment and up to a place in each file."""

    signals: list[Line]
    overlays: list[Line]
    changes: list[Line]
    """The records of overlays up to the place, those with a later time too: a change may count as of before it was written."""
    as_of: datetime
    config: HO3MemoryConfig

    @classmethod
    def of(
        cls, files: Files, config: HO3MemoryConfig, namespace: str, as_of: str, up_to: Mapping[str, int] | None = None
    ) -> "Scan":
        """Goes through both files from end to end."""
        moment = datetime.fromisoformat(as_of)

        def kept(name: str, lines: list[Line]) -> list[Line]:
            last = (up_to or {}).get(name, math.inf)
            own = [line for line in lines if line["entry"]["payload"]["namespace"] == namespace]
            return [line for line in own if line["seq"] <= last]

        changes = kept("OVERLAYS", files.overlays)
        signals, overlays = (
            [line for line in lines if line["moment"] <= moment] for lines in (kept("SIGNALS", files.signals), changes)
        )
        return cls(signals, overlays, changes, moment, config)

    def faded(self, since: str) -> float:
        """The share that is left since a moment."""
        hours = max(timedelta(0), self.as_of - datetime.fromisoformat(since)) / timedelta(hours=1)
        return float(0.5 ** (hours / self.config.decay_half_life_hours))

    def of_type(self, *types: str) -> list[Line]:
        """The payloads of overlay records of these types."""
        return [
            {**line["entry"]["payload"], "type": line["entry"]["entry_type"]}
            for line in self.overlays
            if line["entry"]["entry_type"] in types
        ]

    def events(self) -> list[Line]:
        """The payloads of all signals that count, each event id once."""
        excluded = {record["target"] for record in self.of_type("HO3_QUARANTINED")}
        seen: set[str] = set()
        found = []
        for line in self.signals:
            payload = line["entry"]["payload"]
            if payload["event_id"] not in seen:
                seen.add(payload["event_id"])
                if not {payload["event_id"], payload["signal_id"]} & excluded:
                    found.append(payload)
        return found

    def accumulators(self) -> list[tuple[Any, ...]]:
        """Per signal: id, count, newest, sessions, events, decay."""
        found = []
        for signal_id in sorted({event["signal_id"] for event in self.events()}):
            events = [event for event in self.events() if event["signal_id"] == signal_id]
            newest = max(event["timestamp"] for event in events)
            sessions: list[str] = []
            for event in events:
                if event["session_id"] not in sessions:
                    sessions.append(event["session_id"])
            ids = [event["event_id"] for event in events]
            found.append((signal_id, len(events), newest, sessions, ids, rounded(self.faded(newest))))
        return found

    def dated(self) -> list[Line]:
        """The records of overlays that count, in the order in which they took effect.

        A change takes effect at its `event_ts`, or else when it was written, but not before its overlay. A quarantine cancels
        what was decided before it for later.
        """
        begun: dict[str, datetime] = {}
        found: list[Line] = []
        for line in self.changes:
            payload, entry_type = line["entry"]["payload"], line["entry"]["entry_type"]
            if entry_type not in ("HO3_OVERLAY", "HO3_OVERLAY_DEACTIVATED", "HO3_OVERLAY_WEIGHT_UPDATED"):
                continue
            key, when = payload.get("artifact_id") or payload["overlay_id"], line["moment"]
            if entry_type == "HO3_OVERLAY":
                begun[key] = when
            elif "event_ts" in payload:
                when = max(begun[key], datetime.fromisoformat(payload["event_ts"]))
            found.append({**payload, "type": entry_type, "key": key, "when": when, "seq": line["seq"]})
        counting = [each for each in found if each["when"] <= self.as_of]
        last = [each for each in counting if "target" in each]
        return sorted(
            (
                each
                for each in counting
                if not any(q["key"] == each["key"] and q["seq"] > each["seq"] and q["when"] < each["when"] for q in last)
            ),
            key=lambda each: (each["when"], each["seq"]),
        )

    def artifacts(self) -> list[Line]:
        """The overlays with their latest weight and state."""
        found: dict[str, Line] = {}
        for record in self.dated():
            key = record["key"]
            if record["type"] == "HO3_OVERLAY":
                found[key] = {"blocks": False, **record}
            elif record["type"] == "HO3_OVERLAY_DEACTIVATED":
                found[key] |= {"enabled": False, "blocks": record.get("block_signal", False)}
            else:
                found[key] |= {"enabled": True, "blocks": False, "weight": record["new_weight"]}
        return list(found.values())

    def biases(self) -> list[str]:
        """The overlay ids of what still speaks."""
        return [
            each["overlay_id"]
            for each in self.artifacts()
            if each["enabled"]
            and (each.get("expires_at_event_ts") is None or self.as_of < datetime.fromisoformat(each["expires_at_event_ts"]))
            and rounded(each["weight"] * self.faded(each["consolidation_event_ts"])) >= self.config.salience_floor
        ]

    def gate(self, signal_id: str) -> tuple[bool, int, int, bool]:
        """Whether it is open, events, sessions, whether it was consolidated within the window."""
        events = [event for event in self.events() if event["signal_id"] == signal_id]
        sessions = {event["session_id"] for event in events}
        window = timedelta(hours=self.config.gate_window_hours)
        ends = [each["window_end"] for each in self.of_type("HO3_OVERLAY") if each["signal_id"] == signal_id]
        consolidated = any(self.as_of - window <= datetime.fromisoformat(end) <= self.as_of for end in ends)
        blocked = any(each["blocks"] for each in self.artifacts() if each["signal_id"] == signal_id)
        enough = len(events) >= self.config.gate_count_threshold and len(sessions) >= self.config.gate_session_threshold
        is_open = enough and not consolidated and not blocked and signal_id not in self.config.gate_exclude
        return is_open, len(events), len(sessions), consolidated


def rounded(value: float) -> float:
    """Twelve significant digits."""
    return float(f"{value:.12g}")


async def compare(
    memory: ReadOperations, files: Files, namespace: str, as_of: str, up_to: Mapping[str, int] | None, signal_ids: list[str]
) -> None:
    """Asserts that everything a memory says is what the scan says."""
    scan = Scan.of(files, memory.config, namespace, as_of, up_to)
    cut: dict[str, Any] = {"as_of_ts": as_of, "up_to": up_to, "namespace": namespace}
    assert [
        (
            each.signal_id,
            each.count,
            each.last_seen.isoformat(timespec="microseconds"),
            [*each.session_ids],
            [*each.event_ids],
            rounded(each.decay),
        )
        for each in await memory.read_signals(**cut)
    ] == scan.accumulators()
    every = await memory.read_overlays(active_only=False, **cut)
    expected = [(each["overlay_id"], each["enabled"], each["weight"], each["context_line"]) for each in scan.artifacts()]
    assert [(each.overlay_id, each.enabled, each.weight, each.context_line) for each in every] == expected
    assert [each.overlay_id for each in await memory.read_overlays(**cut)] == [each[0] for each in expected if each[1]]
    assert [each.overlay_id for each in await memory.read_active_biases(**cut)] == scan.biases()
    for signal_id in signal_ids:
        gate = await memory.check_gate(signal_id, **cut)
        assert (gate.crossed, gate.count, gate.session_count, gate.already_consolidated) == scan.gate(signal_id)
