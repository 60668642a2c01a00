"""The SQLite worker: a child process that owns the SQLite catalogs of a lake.

DuckDB contains its own copy of SQLite. Two copies in one process break each other's file locks: a
POSIX lock belongs to the process and ends when *any* descriptor of the file is closed. Commits were
lost that way. A process that attaches a SQLite catalog in DuckDB therefore leaves all other access
to the worker, which dies with its parent.
"""

from __future__ import annotations

import logging
import os
import sys
import threading
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from swanlake._internal.subprocess_rpc import WorkerProcess, WorkerProcessLost, serve
from swanlake.config import child_environment
from swanlake.errors import CatalogUnreachable, CommitStateUnknown, SwanLakeError
from swanlake.lake.commit.protocol import Committed, Retries
from swanlake.lake.metastore.base import CatalogInfo
from swanlake.lake.metastore.local import MetadataService, open_metastore
from swanlake.lake.model.operations import Commit

log = logging.getLogger("swanlake.lake")

#: No call takes longer; a commit has its own timeout.
_CALL_SECONDS = 300.0
_COMMIT_MARGIN_SECONDS = 30.0
_COMMIT_ATTEMPTS = 3
_NOT_IDEMPOTENT = {
    "create",
    "fork",
    "drop",
    "adopt",
    "expire",
    "add_credential",
    "remove_credential",
}
#: Calls that read whole catalogs, or list every file of a lake.
_LONG_SECONDS = 3600.0
_LONG = {"expire", "deletable_files"}


class SqliteWorkerClient:
    """A MetadataService in a child process, started when it is first asked and again if it dies."""

    def __init__(self, directory: Path, data_location: str) -> None:
        self._directory = directory
        self._data_location = data_location
        self._lock = threading.Lock()
        self._child: WorkerProcess | None = None

    def close(self) -> None:
        """Ends the child."""
        with self._lock:
            child, self._child = self._child, None
        if child is not None:
            child.close()

    def __getattr__(self, method: str) -> Callable[..., Any]:
        """Every other method of MetadataService, done by the child."""
        if method.startswith("_") or not hasattr(MetadataService, method):
            raise AttributeError(method)
        return partial(self._change if method in _NOT_IDEMPOTENT else self._read, method)

    def commit(
        self, info: CatalogInfo, changes: Sequence[Commit], retries: Retries
    ) -> Sequence[Committed | SwanLakeError]:
        """Makes each of the commits visible at once, one after the other, or says why not."""
        timeout = retries.timeout + _COMMIT_MARGIN_SECONDS
        times_lost = 0
        while times_lost < _COMMIT_ATTEMPTS:
            try:
                return self._ask(timeout, "commit", info, changes, retries, times_lost > 0)  # type: ignore[no-any-return]
            except WorkerProcessLost as lost:
                times_lost += 1
                log.warning("the SQLite worker was lost during a commit to %s: %s", info.name, lost)
            except CatalogUnreachable:
                if times_lost == 0:
                    raise
                break  # no new worker, and the old one may have committed before it was lost
        raise CommitStateUnknown(
            f"The SQLite worker of the catalog {info.name} was lost {times_lost} times during "
            "this commit. It is either there whole or not at all: look before you repeat it."
        )

    def _read(self, method: str, *arguments: Any) -> Any:
        """Calls an idempotent method; a lost worker is replaced and the call repeated."""
        try:
            return self._ask(_timeout(method), method, *arguments)
        except WorkerProcessLost:
            return self._change(method, *arguments)

    def _change(self, method: str, *arguments: Any) -> Any:
        try:
            return self._ask(_timeout(method), method, *arguments)
        except WorkerProcessLost as lost:
            raise CatalogUnreachable(
                f"The SQLite worker of {self._directory} was lost during the call {method}: "
                f"{lost}. Check whether it succeeded before you repeat it."
            ) from lost

    def _ask(self, timeout: float, method: str, *arguments: Any) -> Any:
        child = self._running()
        try:
            return child.call(timeout, method, *arguments)
        except WorkerProcessLost:
            with self._lock:
                if self._child is child:
                    self._child = None
            child.close()
            raise

    def _running(self) -> WorkerProcess:
        with self._lock:
            # A forked process must not share its parent's pipes.
            if self._child is None or self._child.owner != os.getpid():
                self._child = self._started()
            return self._child

    def _started(self) -> WorkerProcess:
        child = WorkerProcess(
            "swanlake.lake.metastore.sqlite_worker",
            str(self._directory),
            self._data_location,
            environment=child_environment(),
        )
        try:
            child.wait_until_ready()
        except WorkerProcessLost as lost:
            raise CatalogUnreachable("The SQLite worker could not be started.") from lost
        return child


def _timeout(method: str) -> float:
    return _LONG_SECONDS if method in _LONG else _CALL_SECONDS


def _failed(method: str, error: Exception) -> SwanLakeError:
    return CatalogUnreachable(f"The SQLite worker failed in the call {method}: {error}")


def main() -> None:
    """The child: serves its parent until the parent's end of the pipe is closed."""
    _, _, directory, data_location = sys.argv
    serve(MetadataService(open_metastore(Path(directory), data_location)), _failed)


if __name__ == "__main__":
    main()
