"""The disk of this machine."""

from __future__ import annotations

import os
from pathlib import Path


def sync(path: str | Path) -> None:
    """Returns when a file or directory of this machine is on disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
