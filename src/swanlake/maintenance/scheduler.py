"""The thread that runs maintenance jobs when they are due."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial
from typing import TypeVar

import duckdb

from swanlake.errors import MaintenanceRunning, QueryCancelled, SwanLakeError
from swanlake.lake.read.survey import CatalogSurvey
from swanlake.maintenance.registry import find_due_jobs
from swanlake.maintenance.runs import RunControl
from swanlake.maintenance.service import Maintenance
from swanlake.maintenance.triggers import DueJob, in_window

log = logging.getLogger("swanlake.maintenance")

T = TypeVar("T")


class Scheduler:
    """Surveys the catalogs at an interval and runs the jobs that are due."""

    def __init__(
        self,
        maintenance: Maintenance,
        interval_seconds: float,
        clock: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._maintenance = maintenance
        self._rules = maintenance.settings.rules
        self._interval = interval_seconds
        self._clock = clock
        self._stopping = threading.Event()
        # The maintenance lock is not waited for: a job that is still due runs next time.
        self._control = RunControl(self._check, lock_timeout=0.0)
        self._thread = threading.Thread(target=self._run, name="swanlake-maintenance", daemon=True)

    def start(self) -> None:
        """Starts the thread; the first survey is after one interval."""
        self._thread.start()

    def request_stop(self) -> None:
        """Starts no more jobs; a running job ends at its next step."""
        self._stopping.set()

    def stop(self, grace: float) -> None:
        """Starts no more jobs, and waits up to the grace period for a running one.

        A job that does not end in time leaves the lake unchanged: its files are not committed.
        """
        self.request_stop()
        if self._thread.is_alive():
            self._thread.join(grace)

    def run_due_jobs(self) -> None:
        """Runs the jobs that are due now; a failure of one does not stop the others."""
        if not in_window(self._rules, self._clock()):
            return
        catalogs = self._guarded("the catalogs cannot be listed", self._maintenance.catalogs)
        surveys: dict[str, CatalogSurvey] = {}
        for name in catalogs or ():
            survey = self._guarded(
                f"the catalog {name} cannot be surveyed", partial(self._maintenance.survey, name)
            )
            if survey is not None:
                surveys[name] = survey
        past = self._guarded(
            "the history cannot be read", lambda: list(self._maintenance.past_runs())
        )
        if past is None:
            return  # without it every job would be due
        for job in find_due_jobs(self._clock(), self._rules, surveys, past):
            if self._stopping.is_set() or not in_window(self._rules, self._clock()):
                return
            log.info("%s is due: %s", _title(job), job.candidate.reason)
            self._guarded(f"{_title(job)} failed", partial(self._run_job, job))

    def _run_job(self, due: DueJob) -> None:
        arguments: dict[str, object] = {}
        if due.candidate.catalog is not None:
            arguments["catalog"] = due.candidate.catalog
        if due.candidate.table is not None:
            arguments["table"] = (due.candidate.table.schema, due.candidate.table.name)
        getattr(self._maintenance, due.target.job)(control=self._control, **arguments)

    def _run(self) -> None:
        while not self._stopping.wait(self._interval):
            self.run_due_jobs()

    def _check(self) -> None:
        if self._stopping.is_set():
            raise QueryCancelled("The server is shutting down.")

    def _guarded(self, failure: str, step: Callable[[], T]) -> T | None:
        """None if the step failed; it is tried again after the next interval."""
        try:
            return step()
        except (MaintenanceRunning, QueryCancelled) as not_now:
            log.info("%s", not_now)
        except (SwanLakeError, duckdb.Error, OSError) as error:
            log.warning("%s: %s", failure, " ".join(str(error).split()))
        except Exception:
            log.exception("%s", failure)
        return None


def _title(due: DueJob) -> str:
    target = due.target
    names = [name for name in (target.catalog, target.table) if name]
    return f"{target.job} of {' '.join(names) or 'the lake'}"
