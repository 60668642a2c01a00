"""A SQLite worker that kills itself at a step of a commit, a number of times.

The environment names the step, and a folder with one file for every crash that remains.
"""

from __future__ import annotations

import os
import signal
from pathlib import Path

from swanlake.lake.metastore import sqlite_worker, store


def crash(step: str) -> None:
    """Kills the process at the step while a crash remains; removes the crash first."""
    if step != os.environ["SWANLAKE_TEST_CRASH_AT"]:
        return
    for remaining in Path(os.environ["SWANLAKE_TEST_CRASHES"]).iterdir():
        remaining.unlink()
        os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    store._ignore_step = crash
    sqlite_worker.main()
