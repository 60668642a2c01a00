"""Identifiers that sort by creation time, as DuckLake uses them."""

from __future__ import annotations

import os
import time
import uuid


def uuid7() -> uuid.UUID:
    """A UUID of version 7: 48 bits of milliseconds, then 74 random ones."""
    random = int.from_bytes(os.urandom(10), "big")
    value = (time.time_ns() // 1_000_000) << 80
    value |= 0x7 << 76 | (random >> 68) << 64
    value |= 0b10 << 62 | (random & ((1 << 62) - 1))
    return uuid.UUID(int=value)
