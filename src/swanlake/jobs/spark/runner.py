"""Runs units on Spark: the default runner.

A supervisor thread keeps a driver process with a Spark session. It restarts a lost driver with
back-off. Jobs wait for the driver for a while and fail then; their rows stay in the queue.
"""

from __future__ import annotations

import logging
import pickle
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any

from swanlake._internal.backoff import backoff
from swanlake._internal.subprocess_rpc import WorkerProcess, WorkerProcessLost
from swanlake.config import Settings
from swanlake.errors import PipelineUnavailable, SwanLakeError
from swanlake.jobs.runner import R, RowsUnit, RunnerStatus, TransformPlan, Unit
from swanlake.jobs.spark.session import SparkOptions, check_java, environment
from swanlake.jobs.spark.worker import WorkerSpec
from swanlake.jobs.transforms.registry import find_transform_key
from swanlake.lake.files.storage import is_url
from swanlake.lake.files.storage_options import StorageOptions
from swanlake.lake.model.layout import DataFile, Table

log = logging.getLogger("swanlake.pipeline")

_START_SECONDS = 300.0
#: How long a job waits for a session that is being started.
_READY_SECONDS = 120.0
#: Beyond the deadline of a job: time for the driver to report it.
_MARGIN_SECONDS = 120.0
_FIRST_RESTART_SECONDS, _LONGEST_RESTART_SECONDS = 1.0, 60.0
#: A session that lasted this long resets the back-off.
_STABLE_SECONDS = 60.0
_LOG_BYTES = 10_000_000


class SparkRunner:
    """Runs units as tasks of Spark jobs."""

    def __init__(self, settings: Settings, unit_modules: tuple[str, ...] = ()) -> None:
        self._options = SparkOptions.from_settings(settings)
        check_java(self._options)
        self._worker = WorkerSpec(
            memory_limit=settings.spark_worker_memory,
            storage=StorageOptions.from_settings(settings)
            if is_url(settings.data_location)
            else None,
        )
        self._transform_modules = settings.transforms
        self._unit_modules = unit_modules
        #: The target tables of each transform, by its key.
        self._declared: dict[str, tuple[str, ...]] = {}
        self._ui_url: str | None = None
        self._timeout = settings.spark_job_timeout_seconds
        self._log_file = settings.home.absolute() / "logs" / "spark.log"
        self._changed = threading.Condition()
        #: The driver process, and the same once it is ready.
        self._child: WorkerProcess | None = None
        self._driver: WorkerProcess | None = None
        self._unavailable_reason = "it is being started"
        self._closing = threading.Event()
        self._supervisor = threading.Thread(
            target=self._supervise, name="swanlake-spark", daemon=True
        )
        self._supervisor.start()

    def run(self, units: Sequence[Unit[R]], title: str) -> list[R]:
        if not units:
            return []
        answers = self._run_job("run", _pickled(units), title)
        outcomes = [pickle.loads(answer) for answer in answers]
        failures = [outcome for outcome in outcomes if isinstance(outcome, Exception)]
        if failures:
            for unit, outcome in zip(units, outcomes, strict=True):
                if not isinstance(outcome, Exception):
                    _undo(unit, outcome)
            raise failures[0]
        return outcomes

    def find_transform(self, catalog: str, table: Table) -> TransformPlan | None:
        """The transform for the rows of a table; waits for Spark, which knows the transforms."""
        if not self._transform_modules:
            return None
        self._ready_driver()
        key = find_transform_key(self._declared, catalog, table.schema, table.name)
        return TransformPlan(key, table, self._declared[key]) if key else None

    def transform(
        self,
        plan: TransformPlan,
        units: Sequence[RowsUnit],
        targets: Mapping[str, Table],
        title: str,
    ) -> dict[str, tuple[DataFile, ...]]:
        arguments = plan.key, plan.source, dict(targets), _pickled(units), title
        files: dict[str, tuple[DataFile, ...]] = self._run_job("transform", *arguments)
        return files

    def close(self) -> None:
        """Ends the session and the process that holds it."""
        self._closing.set()
        with self._changed:
            if self._child is not None:
                self._child.kill()  # the supervisor waits for its end
            self._changed.notify_all()
        self._supervisor.join(timeout=10)

    def status(self) -> RunnerStatus:
        """Whether Spark can run units now, and its transforms."""
        with self._changed:
            is_ready = self._driver is not None
            return RunnerStatus(
                "spark",
                "ready" if is_ready else self._unavailable_reason,
                self._options.location,
                self._ui_url if is_ready else None,
                self._declared,
            )

    def _run_job(self, method: str, *arguments: Any) -> Any:
        """Calls a method of the driver that runs a job with a deadline."""
        driver = self._ready_driver()
        try:
            timeout = self._timeout
            return driver.call(timeout + _MARGIN_SECONDS, method, *arguments, timeout)
        except WorkerProcessLost as lost:
            driver.close()
            raise PipelineUnavailable(
                f"Spark on {self._options.location} was lost during a job ({lost}); it is started "
                "again, and so will the job be."
            ) from lost

    def _ready_driver(self) -> WorkerProcess:
        with self._changed:
            self._changed.wait_for(
                lambda: self._driver is not None or self._closing.is_set(), _READY_SECONDS
            )
            if self._driver is None or self._closing.is_set():
                raise PipelineUnavailable(
                    f"Spark on {self._options.location} is not available: "
                    f"{self._unavailable_reason}. {self._log_file} has more."
                )
            return self._driver

    def _supervise(self) -> None:
        failures = 0
        while not self._closing.is_set():
            started = time.monotonic()
            try:
                driver = self._start()
                log.info("Spark is ready on %s", self._options.location)
                driver.wait()
                self._mark_lost("it was lost and is being started again")
            except (WorkerProcessLost, SwanLakeError, OSError) as error:
                self._mark_lost(str(error))
            if self._closing.is_set():
                return
            failures = 0 if time.monotonic() - started > _STABLE_SECONDS else failures + 1
            pause = backoff(
                failures + 1, first=_FIRST_RESTART_SECONDS, longest=_LONGEST_RESTART_SECONDS
            )
            log.warning("Spark: %s; next attempt in %g s", self._unavailable_reason, pause)
            self._closing.wait(pause)

    def _start(self) -> WorkerProcess:
        with _open_log(self._log_file) as errors:
            driver = WorkerProcess(
                "swanlake.jobs.spark.driver", environment=environment(self._options), errors=errors
            )
        with self._changed:
            self._child = driver
            if self._closing.is_set():  # close() has not seen this process
                driver.kill()
        try:
            driver.wait_until_ready()
            self._declared = driver.call(
                _START_SECONDS,
                "start",
                self._options,
                self._worker,
                self._transform_modules,
                self._unit_modules,
            )
            self._ui_url = driver.call(_START_SECONDS, "ui_url")
        except BaseException:
            driver.close()
            raise
        with self._changed:
            self._driver = driver
            self._changed.notify_all()
        return driver

    def _mark_lost(self, reason: str) -> None:
        with self._changed:
            driver, self._driver = self._driver, None
            self._unavailable_reason = reason
        if driver is not None:
            driver.close()


def _pickled(units: Sequence[object]) -> tuple[bytes, ...]:
    return tuple(pickle.dumps(unit) for unit in units)


def _undo(unit: Unit[R], result: R) -> None:
    """Best effort: nothing refers to the files, and the first error is the one to report."""
    try:
        unit.undo(result)
    except SwanLakeError as error:
        log.warning("files of a failed job cannot be removed: %s", error)


def _open_log(path: Path) -> IO[bytes]:
    """Opens the file for Spark's output; a large one is rotated first."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.exists() and path.stat().st_size > _LOG_BYTES:
        path.replace(path.with_suffix(".log.old"))
    return path.open("ab")
