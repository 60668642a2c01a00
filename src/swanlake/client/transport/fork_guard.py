"""Where the client's threads do not run, and who waits for them waits for ever.

That is in the child of a fork, which gRPC does not survive, and while the interpreter ends.
"""

from __future__ import annotations

import os
import sys

from swanlake.errors import ClientClosed, ForkedProcess

_used_by: int | None = None


def check_fork() -> None:
    """Raises ForkedProcess in a child whose parent has used gRPC; else notes that it is used.

    While the interpreter ends it raises ClientClosed.
    """
    global _used_by
    if is_forked():
        raise ForkedProcess(
            f"This process was forked from process {_used_by} after that had connected, and gRPC "
            "cannot be used on both sides of a fork. Start workers with 'spawn' or 'forkserver', "
            "or connect only after the fork."
        )
    if sys.is_finalizing():
        raise ClientClosed("The program is ending, and nothing can be sent any more.")
    _used_by = os.getpid()


def is_forked() -> bool:
    """True in a child of a process that had used gRPC."""
    return _used_by is not None and _used_by != os.getpid()


def is_cut_off() -> bool:
    """True where no thread of the client runs, and none can be started."""
    return is_forked() or sys.is_finalizing()
