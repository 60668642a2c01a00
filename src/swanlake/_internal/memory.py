"""The memory of this process: how much it has and may have, and giving back what is free."""

from __future__ import annotations

import ctypes
import os
import re
from contextlib import suppress
from pathlib import Path

_STATM = Path("/proc/self/statm")


def resident_bytes() -> int | None:
    """The physical memory of this process; None where the system does not tell."""
    try:
        pages = int(_STATM.read_text().split()[1])
    except OSError:
        return None
    return pages * os.sysconf("SC_PAGE_SIZE")


def release_free_memory() -> None:
    """Gives memory that was freed back to the system, where the C library keeps it."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # of glibc only
    if trim is not None:
        trim(0)


#: Without a limit of its own, DuckDB takes this part of the machine's memory.
_ENGINE_SHARE = 0.8
#: Callers may have this part of what the engine may have.
_CALLER_SHARE = 1 / 8
_MIN_CALLER_BYTES = 64 * 1024**2
_CGROUP_LIMITS = (
    Path("/sys/fs/cgroup/memory.max"),
    Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"),
)
_SIZE = re.compile(r"\s*([\d.]+)\s*([kmgt]?)(i?)b?\s*", re.IGNORECASE)


def machine_bytes() -> int:
    """The memory that this process may use: that of the machine, or the limit of its container."""
    limits = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")]
    for file in _CGROUP_LIMITS:
        with suppress(OSError, ValueError):  # the word "max", or no such control group
            limits.append(int(file.read_text()))
    return min(limits)


def caller_bytes(configured: int, engine_limit: str) -> int:
    """The budget for callers: as configured, else an eighth of what the engine may use."""
    if configured:
        return configured
    engine = parse_size(engine_limit) or int(machine_bytes() * _ENGINE_SHARE)
    return max(int(engine * _CALLER_SHARE), _MIN_CALLER_BYTES)


def parse_size(text: str) -> int | None:
    """The bytes of a size as DuckDB's settings have it, such as ``8GB``; None if it is none."""
    size = _SIZE.fullmatch(text)
    if size is None:
        return None
    number, prefix, binary = size.groups()
    base = 1024 if binary else 1000
    try:
        return int(float(number) * base ** " kmgt".index(prefix.lower() or " "))
    except ValueError:
        return None
