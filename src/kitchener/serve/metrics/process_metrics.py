"""Measures this process, by the names that Prometheus' own clients use. Blocks, because it reads `/proc` on Linux."""

import os
import platform
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Final

from kitchener.serve.metrics.metric_family import MetricFamily, single

_PROC: Final = Path("/proc")


def process_families() -> Iterator[MetricFamily]:
    """The metrics of this process. Metrics that the system does not provide are left out."""
    build = {"version": version("kitchener"), "python": platform.python_version()}
    yield MetricFamily("kitchener_build_info", "gauge", "The versions that run; always 1.", [(build, 1)])
    used = os.times()
    meaning = "CPU time of this process, user and system, seconds."
    yield MetricFamily("process_cpu_seconds_total", "counter", meaning, single(used.user + used.system))
    try:
        yield from _of_linux()
    except (OSError, ValueError):  # another system, or one that hides it
        return


def _of_linux() -> Iterator[MetricFamily]:
    # The name of the process is in brackets and may have spaces, so the fields begin after the last bracket.
    fields = (_PROC / "self/stat").read_text().rpartition(")")[2].split()
    ticks, page = os.sysconf("SC_CLK_TCK"), os.sysconf("SC_PAGE_SIZE")
    booted = next(line for line in (_PROC / "stat").read_text().splitlines() if line.startswith("btime "))
    limits = (line.split() for line in (_PROC / "self/limits").read_text().splitlines() if line.startswith("Max open files"))
    resident, virtual, started = int(fields[21]) * page, int(fields[20]), int(booted.split()[1]) + int(fields[19]) / ticks
    open_files = len(os.listdir(_PROC / "self/fd")) - 1  # without the one that reads the list
    yield MetricFamily("process_resident_memory_bytes", "gauge", "Resident memory, bytes.", single(resident))
    yield MetricFamily("process_virtual_memory_bytes", "gauge", "Virtual memory, bytes.", single(virtual))
    yield MetricFamily("process_start_time_seconds", "gauge", "When the process began, Unix time.", single(started))
    yield MetricFamily("process_open_fds", "gauge", "Open files and sockets.", single(open_files))
    for limit in limits:
        if limit[3] != "unlimited":
            yield MetricFamily("process_max_fds", "gauge", "Most open files and sockets.", single(int(limit[3])))
