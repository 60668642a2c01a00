"""Maintenance runs: one at a time on each catalog, on whichever server, each in the history."""

from __future__ import annotations

import logging
import os
import socket
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from swanlake._internal.waiting import never_cancelled, polling, wait
from swanlake.errors import (
    CommitConflict,
    MaintenanceRunning,
    QueryCancelled,
    QueryTimeout,
    SwanLakeError,
)
from swanlake.lake.catalog import Catalog
from swanlake.lake.lake import Lake
from swanlake.lake.lifecycle.history import MaintenanceEntry, Outcome

log = logging.getLogger("swanlake.maintenance")

#: The catalog of runs on the whole lake in the history; no catalog can have this name.
WHOLE_LAKE = "*"
#: Errors of a run that its caller stopped.
STOPPED = (QueryCancelled, QueryTimeout)
#: How many entries of the history are searched for runs.
HISTORY_LIMIT = 1000


@dataclass(frozen=True)
class RunControl:
    """How long a caller waits for the maintenance lock, and whether it still wants the run.

    ``check`` raises when it does not; it is called between steps and while waiting.
    """

    check: Callable[[], None] = never_cancelled
    #: In seconds; None for the default of the settings.
    lock_timeout: float | None = None


DEFAULT_CONTROL = RunControl()


@dataclass(frozen=True)
class RunLock:
    """The right to maintain a catalog, or to clean up the lake."""

    catalog: str
    #: Raises if the caller gave up or the lock was lost.
    check: Callable[[], None]


@dataclass
class Run:
    """The outcome of a run, for the history."""

    outcome: Outcome = Outcome.FAILED
    report: dict[str, Any] = field(default_factory=dict)

    def succeed(self, report: dict[str, Any], *, idle: bool) -> None:
        """Records the report of a run; an idle one found nothing to do."""
        self.outcome, self.report = Outcome.IDLE if idle else Outcome.DONE, report


class Runs:
    """Locks catalogs for maintenance and records runs in the history."""

    def __init__(self, lake: Lake, lock_timeout: float, clock: Callable[[], datetime]) -> None:
        self._lake = lake
        self._lock_timeout = lock_timeout
        self._clock = clock
        self._leases = lake.leases()
        self._server = f"{socket.gethostname()}:{os.getpid()}"
        #: A lease belongs to the process; threads need locks as well.
        self._locks: defaultdict[str, threading.Lock] = defaultdict(threading.Lock)

    def close(self) -> None:
        """Releases all locks of this server."""
        self._leases.close()

    @contextmanager
    def lock(self, catalog: Catalog | None, control: RunControl) -> Iterator[RunLock]:
        """Holds the maintenance lock of a catalog, or without one of the lake, during the block."""
        name = WHOLE_LAKE if catalog is None else catalog.name
        lease = f"maintenance:{WHOLE_LAKE if catalog is None else catalog.info.id}"
        timeout = self._lock_timeout if control.lock_timeout is None else control.lock_timeout
        lock = self._locks[lease]
        is_acquired = polling(lambda: self._try_acquire(lease, lock))
        if not wait(is_acquired, control.check, time.monotonic() + timeout):
            raise MaintenanceRunning(self._describe_holder(name))

        def check() -> None:
            control.check()
            if not self._leases.acquire(lease):  # the connection that held it was lost
                raise MaintenanceRunning(self._describe_holder(name))

        try:
            self._close_abandoned(name)
            yield RunLock(name, check)
        finally:
            try:
                self._leases.release(lease)
            finally:
                lock.release()

    @contextmanager
    def record(self, lock: RunLock, job: str, table: str | None = None) -> Iterator[Run]:
        """Records a run in the history: its start and, after the block, its outcome."""
        lock.check()
        entry = MaintenanceEntry(lock.catalog, job, self._server, table, self._clock())
        self._lake.record(entry)
        run = Run()
        try:
            yield run
        except BaseException as error:
            run.outcome = _outcome(error)
            run.report = {"error": one_line(error)}
            raise
        finally:
            self._finish(entry, run.outcome, run.report)
            _log_run(lock, job, table, run)

    def _try_acquire(self, lease: str, lock: threading.Lock) -> bool:
        if not lock.acquire(blocking=False):
            return False
        is_acquired = False
        try:
            is_acquired = self._leases.acquire(lease)
        finally:
            if not is_acquired:
                lock.release()
        return is_acquired

    def _describe_holder(self, catalog: str) -> str:
        subject = "The lake" if catalog == WHOLE_LAKE else f"The catalog {catalog}"
        for entry in self._unfinished(catalog):
            table = f" of {entry.table_name}" if entry.table_name else ""
            return (
                f"{subject} is being maintained: {entry.job}{table} by {entry.server} since "
                f"{entry.started_at:%H:%M:%S} UTC. Nothing was done; try again when that is over."
            )
        return f"{subject} is being maintained already. Nothing was done; try again later."

    def _unfinished(self, catalog: str) -> Iterator[MaintenanceEntry]:
        for entry in self._lake.history(catalog, limit=HISTORY_LIMIT):
            if entry.finished_at is None:
                yield entry

    def _close_abandoned(self, catalog: str) -> None:
        """Closes unfinished entries: the holder of the lock knows that their servers died."""
        for entry in self._unfinished(catalog):
            report = {"error": "The server ended before the run did."}
            self._finish(entry, Outcome.STOPPED, report)

    def _finish(self, entry: MaintenanceEntry, outcome: Outcome, report: dict[str, Any]) -> None:
        """Records the end of a run; an unreachable lake does not undo what the run did."""
        try:
            self._lake.record(entry.finished(outcome, report, self._clock()))
        except SwanLakeError as unreachable:
            log.warning("the end of %s cannot be recorded: %s", entry.job, unreachable)


def _log_run(lock: RunLock, job: str, table: str | None, run: Run) -> None:
    catalog = "the lake" if lock.catalog == WHOLE_LAKE else lock.catalog
    target = catalog if table is None else f"{catalog} {table}"
    report = ", ".join(f"{key} {value}" for key, value in run.report.items())
    level = logging.WARNING if run.outcome is Outcome.FAILED else logging.INFO
    log.log(level, "%s of %s: %s; %s", job, target, run.outcome, report)


def _outcome(error: BaseException) -> Outcome:
    if isinstance(error, CommitConflict):
        return Outcome.SKIPPED  # other writers keep changing the table
    if isinstance(error, STOPPED) or not isinstance(error, Exception):
        return Outcome.STOPPED
    return Outcome.FAILED


def one_line(error: BaseException) -> str:
    """The message of an error without line breaks."""
    return " ".join(str(error).split()) or type(error).__name__
