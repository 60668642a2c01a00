"""Units on Spark: the default runner.

A supervisor keeps a driver process with a Spark session: it starts one when the server starts, and
another, after a pause that grows, whenever it is lost. Whoever has units to run meanwhile waits
for a while and is then refused; the rows stay where they are.
"""

from __future__ import annotations

import logging
import pickle
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import IO, Any

from swanlake.child import Child, ChildLost
from swanlake.config import Settings
from swanlake.errors import PipelineUnavailable, SwanLakeError
from swanlake.lake.files import is_url
from swanlake.lake.layout import DataFile, Table
from swanlake.pipeline.runner import R, RowsUnit, TransformPlan, Unit
from swanlake.pipeline.spark import SparkOptions, check_java, environment
from swanlake.pipeline.transforms import source_of
from swanlake.pipeline.worker import Done, Failed, Outcome, WorkerSpec

log = logging.getLogger("swanlake.pipeline")

_START_SECONDS = 300.0
#: How long work waits for a session that is being started.
_READY_SECONDS = 120.0
#: After a job's own deadline: time for the driver to say so.
_MARGIN_SECONDS = 120.0
_PAUSES = (1.0, 2.0, 5.0, 10.0, 30.0, 60.0)
#: A session that lasted so long was not the kind that never starts.
_STABLE_SECONDS = 60.0
_LOG_BYTES = 10_000_000


class SparkRunner:
    """Runs units as tasks of Spark jobs."""

    def __init__(self, settings: Settings) -> None:
        self._options = SparkOptions.from_settings(settings)
        check_java(self._options)
        self._worker = WorkerSpec(
            memory_limit=settings.spark_worker_memory,
            urls=is_url(settings.data_location),
            init_sql=settings.ducklake_init_sql,
        )
        self._modules = settings.transforms
        #: The tables that have transforms, and what these go into.
        self._declared: dict[str, tuple[str, ...]] = {}
        self._timeout = settings.spark_job_timeout_seconds
        self._log_file = settings.home.absolute() / "logs" / "spark.log"
        self._changed = threading.Condition()
        #: The process, from its first moment on, and the same once it can be asked.
        self._child: Child | None = None
        self._driver: Child | None = None
        self._why_not = "it is being started"
        self._closing = threading.Event()
        self._supervisor = threading.Thread(
            target=self._supervise, name="swanlake-spark", daemon=True
        )
        self._supervisor.start()

    def run(self, units: Sequence[Unit[R]], title: str) -> list[R]:
        """The results of all units; if one fails, the others are undone."""
        if not units:
            return []
        answers = self._do("run", _pickled(units), title)
        outcomes: list[Outcome] = [pickle.loads(answer) for answer in answers]
        failures = [outcome.error for outcome in outcomes if isinstance(outcome, Failed)]
        if failures:
            for unit, outcome in zip(units, outcomes, strict=True):
                if isinstance(outcome, Done):
                    _undo(unit, outcome.result)
            raise failures[0]
        return [outcome.result for outcome in outcomes if isinstance(outcome, Done)]

    def transform_of(self, catalog: str, table: Table) -> TransformPlan | None:
        """The transform that rows for a table go through; asks Spark, and so waits for it."""
        if not self._modules:
            return None
        self._ready_driver()
        key = source_of(self._declared, catalog, table.schema, table.name)
        return TransformPlan(key, table, self._declared[key]) if key else None

    def transform(
        self,
        plan: TransformPlan,
        units: Sequence[RowsUnit],
        targets: Mapping[str, Table],
        title: str,
    ) -> dict[str, tuple[DataFile, ...]]:
        """The files that a transform's results became, by table."""
        files: dict[str, tuple[DataFile, ...]] = self._do(
            "transform", plan.key, plan.source, dict(targets), _pickled(units), title
        )
        return files

    def close(self) -> None:
        """Ends the session and the process that holds it."""
        self._closing.set()
        with self._changed:
            if self._child is not None:
                self._child.kill()  # the supervisor waits for it, ready or not
            self._changed.notify_all()
        self._supervisor.join(timeout=10)

    @property
    def state(self) -> str:
        """``ready``, or why not."""
        with self._changed:
            return "ready" if self._driver is not None else self._why_not

    def _do(self, method: str, *arguments: Any) -> Any:
        """Has the driver do a job, which has a deadline."""
        return self._ask(self._timeout + _MARGIN_SECONDS, method, *arguments, self._timeout)

    def _ask(self, patience: float, method: str, *arguments: Any) -> Any:
        driver = self._ready_driver()
        try:
            return driver.ask(patience, method, *arguments)
        except ChildLost as lost:
            driver.end()
            raise PipelineUnavailable(
                f"Spark on {self._options.place} was lost during a job ({lost}); it is started "
                "again, and so will the job be."
            ) from lost

    def _ready_driver(self) -> Child:
        with self._changed:
            self._changed.wait_for(
                lambda: self._driver is not None or self._closing.is_set(), _READY_SECONDS
            )
            if self._driver is None or self._closing.is_set():
                raise PipelineUnavailable(
                    f"Spark on {self._options.place} is not there: {self._why_not}. "
                    f"{self._log_file} has more."
                )
            return self._driver

    # ---- the supervisor ------------------------------------------------------------------------

    def _supervise(self) -> None:
        failures = 0
        while not self._closing.is_set():
            started = time.monotonic()
            try:
                driver = self._start()
                log.info("Spark is ready on %s", self._options.place)
                driver.wait()
                self._lost("it was lost and is being started again")
            except (ChildLost, SwanLakeError, OSError) as failed:
                self._lost(str(failed))
            if self._closing.is_set():
                return
            failures = 0 if time.monotonic() - started > _STABLE_SECONDS else failures + 1
            pause = _PAUSES[min(failures, len(_PAUSES) - 1)]
            log.warning("Spark: %s; next attempt in %g s", self._why_not, pause)
            self._closing.wait(pause)

    def _start(self) -> Child:
        with _open_log(self._log_file) as errors:
            driver = Child(
                "swanlake.pipeline.driver",
                environment=environment(self._options),
                errors=errors,
            )
        with self._changed:
            self._child = driver
            if self._closing.is_set():  # too late for the one who closes to see it
                driver.kill()
        try:
            driver.await_ready()
            self._declared = driver.ask(
                _START_SECONDS, "start", self._options, self._worker, self._modules
            )
        except BaseException:
            driver.end()
            raise
        with self._changed:
            self._driver = driver
            self._changed.notify_all()
        return driver

    def _lost(self, why: str) -> None:
        with self._changed:
            driver, self._driver = self._driver, None
            self._why_not = why
        if driver is not None:
            driver.end()


def _pickled(units: Sequence[object]) -> tuple[bytes, ...]:
    return tuple(pickle.dumps(unit) for unit in units)


def _undo(unit: Unit[R], result: R) -> None:
    """Nothing refers to what stays, and the error that led here is the one to tell."""
    try:
        unit.undo(result)
    except SwanLakeError as stays:
        log.warning("files of a failed job stay: %s", stays)


def _open_log(path: Path) -> IO[bytes]:
    """The file for what Spark prints; one that has grown large makes room first."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.exists() and path.stat().st_size > _LOG_BYTES:
        path.replace(path.with_suffix(".log.old"))
    return path.open("ab")
