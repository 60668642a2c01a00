"""SQLite catalogs are kept by a process of their own.

DuckDB brings its own copy of SQLite. Two copies in one process break each other's file locks: POSIX
gives a lock to the process, and takes it away when *any* descriptor of the file is closed. Commits
were lost that way. So whoever attaches a SQLite catalog in DuckDB leaves everything else that
touches the file to the keeper, a child process that dies with its parent.
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

from swanlake.child import Child, ChildLost, serve_parent
from swanlake.errors import CatalogUnreachable, CommitStateUnknown, SwanLakeError
from swanlake.lake.commit import Committed, Retries
from swanlake.lake.local import LocalLake, open_metabase
from swanlake.lake.metabase import CatalogInfo
from swanlake.lake.operations import Commit

log = logging.getLogger("swanlake.lake")

#: No question takes longer; a commit says itself how long it may take.
_ANSWER_SECONDS = 300.0
_COMMIT_MARGIN_SECONDS = 30.0
_COMMIT_ATTEMPTS = 3
_NEVER_TWICE = {"create", "fork", "drop", "adopt", "expire"}
#: What looks through whole catalogs, or at every file of a lake, is not hung for a long time.
_LONG_SECONDS = 3600.0
_LONG = {"expire", "garbage"}


class RemoteLake:
    """A LocalLake in a child process, started when it is first asked and again if it dies."""

    def __init__(self, directory: Path, data_location: str) -> None:
        self._directory = directory
        self._data_location = data_location
        self._lock = threading.Lock()
        self._child: Child | None = None

    def close(self) -> None:
        """Ends the child."""
        with self._lock:
            child, self._child = self._child, None
        if child is not None:
            child.end()

    def __getattr__(self, method: str) -> Callable[..., Any]:
        """Every other method of LocalLake, done by the child."""
        if method.startswith("_") or not hasattr(LocalLake, method):
            raise AttributeError(method)
        return partial(self._change if method in _NEVER_TWICE else self._read, method)

    def commit(
        self, info: CatalogInfo, changes: Sequence[Commit], retries: Retries
    ) -> Sequence[Committed | SwanLakeError]:
        """Makes each of the commits visible at once, one after the other, or says why not."""
        patience = retries.timeout + _COMMIT_MARGIN_SECONDS
        times_lost = 0
        while times_lost < _COMMIT_ATTEMPTS:
            try:
                return self._ask(patience, "commit", info, changes, retries, times_lost > 0)  # type: ignore[no-any-return]
            except ChildLost as lost:
                times_lost += 1
                log.warning("the keeper of %s was lost during a commit: %s", info.name, lost)
            except CatalogUnreachable:
                if times_lost == 0:
                    raise
                break  # no new keeper, and the old one may have committed before it was lost
        raise CommitStateUnknown(
            f"The process that keeps the catalog {info.name} was lost {times_lost} times during "
            "this commit. It is either there whole or not at all: look before you repeat it."
        )

    def _read(self, method: str, *arguments: Any) -> Any:
        """What can be asked twice."""
        try:
            return self._ask(_patience(method), method, *arguments)
        except ChildLost:
            return self._change(method, *arguments)

    def _change(self, method: str, *arguments: Any) -> Any:
        try:
            return self._ask(_patience(method), method, *arguments)
        except ChildLost as lost:
            raise CatalogUnreachable(
                f"The process that keeps the catalogs in {self._directory} was lost while it was "
                f"asked to {method}: {lost}. Look whether it was done before you repeat it."
            ) from lost

    def _ask(self, patience: float, method: str, *arguments: Any) -> Any:
        child = self._running()
        try:
            return child.ask(patience, method, *arguments)
        except ChildLost:
            with self._lock:
                if self._child is child:
                    self._child = None
            child.end()
            raise

    def _running(self) -> Child:
        with self._lock:
            # A forked process must not share its parent's pipes.
            if self._child is None or self._child.owner != os.getpid():
                self._child = self._started()
            return self._child

    def _started(self) -> Child:
        child = Child("swanlake.lake.keeper", str(self._directory), self._data_location)
        try:
            child.await_ready()
        except ChildLost as lost:
            raise CatalogUnreachable(
                "The process that keeps the catalogs could not be started."
            ) from lost
        return child


def _patience(method: str) -> float:
    return _LONG_SECONDS if method in _LONG else _ANSWER_SECONDS


def _failed(method: str, error: Exception) -> SwanLakeError:
    return CatalogUnreachable(f"The catalog's keeper failed to {method}: {error}")


def main() -> None:
    """The child: serves its parent until the parent's end of the pipe is closed."""
    _, _, directory, data_location = sys.argv
    serve_parent(LocalLake(open_metabase(Path(directory), data_location)), _failed)


if __name__ == "__main__":
    main()
