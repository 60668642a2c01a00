"""gRPC does not survive a fork: a child that uses it after its parent did waits for ever."""

from __future__ import annotations

import os

from swanlake.errors import ForkedProcess

_used_by: int | None = None


def check_fork() -> None:
    """Raises ForkedProcess in a child whose parent has used gRPC; else notes that it is used."""
    global _used_by
    if is_forked():
        raise ForkedProcess(
            f"This process was forked from process {_used_by} after that had connected, and gRPC "
            "cannot be used on both sides of a fork. Start workers with 'spawn' or 'forkserver', "
            "or connect only after the fork."
        )
    _used_by = os.getpid()


def is_forked() -> bool:
    """True in a child of a process that had used gRPC."""
    return _used_by is not None and _used_by != os.getpid()
