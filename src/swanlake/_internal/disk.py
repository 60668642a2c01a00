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


def make_directories(directory: str) -> set[str]:
    """Makes a directory; returns those whose content changes when a file comes into it."""
    directory = os.path.abspath(directory)
    changed = {directory}
    above = directory
    while not os.path.isdir(above):
        above = os.path.dirname(above)
        changed.add(above)
    os.makedirs(directory, exist_ok=True)
    return changed
