"""Detects processes in which the client's threads do not run.

These are forked children, in which gRPC does not work, and interpreters that are shutting down.
Waiting for a client thread there would never end.
"""

from __future__ import annotations

import os
import sys

from swanlake.errors import ClientClosed, ForkedProcess

_pid: int | None = None


def check_fork() -> None:
    """Records that this process uses gRPC.

    Raises ForkedProcess in the child of a process that did, and ClientClosed during shutdown.
    """
    global _pid
    if is_forked():
        raise ForkedProcess(
            f"This process was forked from process {_pid} after that had connected, and gRPC "
            "cannot be used on both sides of a fork. Start workers with 'spawn' or 'forkserver', "
            "or connect only after the fork."
        )
    if sys.is_finalizing():
        raise ClientClosed("The program is ending, and nothing can be sent any more.")
    _pid = os.getpid()


def is_forked() -> bool:
    """True in a child of a process that used gRPC."""
    return _pid is not None and _pid != os.getpid()


def threads_unavailable() -> bool:
    """True if no client thread runs here and none can be started."""
    return is_forked() or sys.is_finalizing()
