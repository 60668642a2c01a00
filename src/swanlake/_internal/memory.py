"""The memory of this process: how much it has, and giving back what it does not use."""

from __future__ import annotations

import ctypes
import os
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
