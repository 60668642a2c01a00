"""The driver: the process that holds the Spark session of a server.

It is a process of its own so that a dying JVM does not take the server with it, and so that the
output of Spark, its workers and the transforms goes to a separate log file. It runs the units it is
sent and returns their outcomes; it decides and commits nothing.
"""

from __future__ import annotations

import logging
import os
import pickle
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from swanlake._internal.subprocess_rpc import serve
from swanlake.errors import PipelineFailed, PipelineUnavailable, SwanLakeError
from swanlake.jobs.spark.bundle import FOLDER, worker_task, write_bundle
from swanlake.jobs.spark.session import SparkOptions, open_session
from swanlake.jobs.spark.worker import WarmUp, WorkerSpec
from swanlake.jobs.transforms.execution import Transformation, load
from swanlake.jobs.transforms.registry import Transform
from swanlake.lake.files import storage
from swanlake.lake.model.layout import DataFile, Table

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

log = logging.getLogger("swanlake.pipeline")

_OUTCOMES = "position bigint, outcome binary"
_PROBE_SECONDS = 30.0
_WARM_UP_SECONDS = 120.0
#: The setting that limits the time of a job, for messages.
_TIMEOUT = "SWANLAKE_SPARK_JOB_TIMEOUT_SECONDS"
_WATCH_SECONDS = 5.0
#: After this time without any executor, the cluster counts as lost.
_NO_EXECUTOR_SECONDS = 60.0
_EXIT_SPARK_LOST = 3


class Driver:
    """The methods that the server calls."""

    def __init__(self) -> None:
        self._options = SparkOptions()
        self._worker = WorkerSpec()
        self._session: SparkSession | None = None
        #: Of this machine, shared by all tasks of a job; on a cluster, of each task.
        self._cores = 1
        #: The tags of the jobs under way.
        self._jobs: set[str] = set()
        self._transforms: dict[str, Transform] = {}

    def start(
        self,
        options: SparkOptions,
        worker: WorkerSpec,
        transform_modules: str,
        unit_modules: tuple[str, ...] = (),
    ) -> dict[str, tuple[str, ...]]:
        """Opens the session and runs a warm-up job, so that the first flush is fast.

        Returns the target tables of each transform, by its key.
        """
        self._options, self._worker = options, worker
        if worker.storage is not None:
            storage.configure(worker.storage)
        sockets = str(Path(sys.argv[1]).parent)  # that of the socket to the server, too
        self._session = session = open_session(replace(options, socket_directory=sockets))
        if options.is_local:
            self._cores = os.cpu_count() or 1
        else:
            self._cores = int(session.conf.get("spark.task.cpus", "1") or 1)
            self._send_bundle(session)
        self._watch(session)
        self._transforms = load(transform_modules)
        (result,) = self.run((pickle.dumps(WarmUp(unit_modules)),), "warm up", _WARM_UP_SECONDS, "")
        outcome = pickle.loads(result)
        if isinstance(outcome, Exception):
            raise PipelineFailed(f"Spark's workers lack something: {outcome}")
        if not options.is_local:
            watch = self._watch_server if options.remote else self._watch_executors
            threading.Thread(target=watch, args=(session,), daemon=True).start()
        return {key: transform.into for key, transform in self._transforms.items()}

    def ui_url(self) -> str | None:
        """The address of Spark's own pages, if they are on and the session is not remote."""
        if self._session is None or self._options.remote:
            return None
        return self._session.sparkContext.uiWebUrl

    def run(
        self, units: tuple[bytes, ...], title: str, timeout: float, setting: str = _TIMEOUT
    ) -> list[bytes]:
        """The pickled outcomes of pickled units, in order; each unit is a task."""
        task = worker_task("run_units", self._folder, units, self._spec(len(units)))
        with self._job(title, timeout, setting) as session:
            rows = session.range(0, len(units), 1, len(units)).mapInArrow(task, _OUTCOMES)
            table = rows.toArrow()
        outcomes = dict(
            zip(table["position"].to_pylist(), table["outcome"].to_pylist(), strict=True)
        )
        return [outcomes[position] for position in range(len(units))]

    def transform(
        self,
        key: str,
        source: Table,
        targets: dict[str, Table],
        units: tuple[bytes, ...],
        title: str,
        timeout: float,
    ) -> dict[str, tuple[DataFile, ...]]:
        """The files with the results of a transform of the units' rows, by target table."""
        with self._job(title, timeout) as session:
            return Transformation(
                session,
                self._transforms[key],
                source,
                targets,
                self._spec(len(units)),
                self._folder,
            ).run(units)

    def _spec(self, tasks: int) -> bytes:
        """The configuration of workers; local tasks share the cores of this machine."""
        is_remote = not self._options.is_local
        threads = self._cores if is_remote else max(1, self._cores // tasks)
        return pickle.dumps(replace(self._worker, threads=threads, is_remote=is_remote))

    @property
    def _folder(self) -> str | None:
        """The folder of our code on workers; None if it is installed there."""
        return None if self._options.is_local else FOLDER

    @contextmanager
    def _job(self, title: str, timeout: float, setting: str = _TIMEOUT) -> Iterator[SparkSession]:
        """Runs a tagged job with a deadline; exits the process if Spark is lost."""
        session = self._session
        if session is None:
            raise PipelineUnavailable("Spark is not started.")
        tag = f"swanlake-{uuid4().hex}"
        stop: Callable[[str], object]
        if self._options.remote:
            add, remove, stop = session.addTag, session.removeTag, session.interruptTag
        else:
            # The tags of a session do not reach the thread that collects Arrow.
            context = session.sparkContext
            add, remove, stop = context.addJobTag, context.removeJobTag, context.cancelJobsWithTag
            context.setJobDescription(title)
        timed_out = threading.Event()

        def cancel() -> None:
            timed_out.set()  # first: the job may fail before the cancellation returns
            stop(tag)

        timer = threading.Timer(timeout, cancel)
        timer.daemon = True
        add(tag)
        timer.start()
        self._jobs.add(tag)
        try:
            yield session
        except Exception as error:
            if timed_out.is_set():  # Spark and transforms may raise anything when cancelled
                reason = f"it did not end in {timeout:g} s" + (setting and f" ({setting})")
            elif isinstance(error, SwanLakeError):
                raise
            else:
                reason = summarize_error(error)
                log.warning("failed to %s", title, exc_info=True)
            self._exit_if_lost(session)
            raise PipelineFailed(f"Spark failed to {title}: {reason}") from error
        finally:
            self._jobs.discard(tag)
            timer.cancel()
            remove(tag)

    def _exit_if_lost(self, session: SparkSession, *, try_a_job: bool = True) -> None:
        """Exits if the session does not answer, or fails a trivial job; the server restarts it.

        A trivial job that does not end in time proves nothing: it may wait for other jobs.
        """
        has_answered, has_failed = threading.Event(), threading.Event()

        def probe() -> None:
            try:
                self._ping(session)
                has_answered.set()
                if try_a_job:
                    session.range(1).count()
            except Exception:
                log.exception("Spark does not answer")
                has_failed.set()

        thread = threading.Thread(target=probe, daemon=True)
        thread.start()
        thread.join(_PROBE_SECONDS)
        if has_failed.is_set() or not has_answered.is_set():
            os._exit(_EXIT_SPARK_LOST)

    def _ping(self, session: SparkSession) -> None:
        """Raises if Spark does not answer; executors are not needed."""
        if self._options.remote:
            session.conf.get("spark.app.name", "")
        elif session.sparkContext._jsc.sc().isStopped():
            raise PipelineUnavailable("The session was stopped.")

    def _watch(self, session: SparkSession) -> None:
        """Exits when the JVM ends."""
        if self._options.remote:
            return
        jvm: Any = session.sparkContext._gateway.proc  # type: ignore[union-attr]

        def wait() -> None:
            jvm.wait()
            log.error("the JVM has ended")
            os._exit(_EXIT_SPARK_LOST)

        threading.Thread(target=wait, daemon=True).start()

    def _watch_server(self, session: SparkSession) -> None:
        """Exits if a Spark Connect server is gone or was restarted.

        Its client would retry for many minutes. Regular calls also keep the session alive.
        """
        while True:
            time.sleep(_WATCH_SECONDS)
            self._exit_if_lost(session, try_a_job=False)

    def _watch_executors(self, session: SparkSession) -> None:
        """Exits if jobs wait and there is no executor.

        A restarted cluster does not know the application, and Spark would wait forever.
        """
        status: Any = session.sparkContext._jsc.sc()
        seen = time.monotonic()
        while True:
            time.sleep(_WATCH_SECONDS)
            # The driver is counted as well.
            if not self._jobs or status.getExecutorMemoryStatus().size() > 1:
                seen = time.monotonic()
            elif time.monotonic() - seen > _NO_EXECUTOR_SECONDS:
                log.error("no executor in %g s", _NO_EXECUTOR_SECONDS)
                os._exit(_EXIT_SPARK_LOST)

    def _send_bundle(self, session: SparkSession) -> None:
        """Offers our code to the executors; the file stays, as executors may start much later."""
        bundle = Path(self._options.local_directory or tempfile.gettempdir()) / f"{FOLDER}.zip"
        bundle.parent.mkdir(parents=True, exist_ok=True)
        write_bundle(bundle)
        session.addArtifacts(f"{bundle}#{FOLDER}", archive=True)


def summarize_error(error: Exception) -> str:
    """The message of a Spark error without the stack traces of the JVM and of Python."""
    _, raised, stack = str(error).partition("Traceback (most recent call last):")
    if raised:
        return next((line for line in stack.splitlines() if line.strip(" ^") == line != ""), "")
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    causes = [line.removeprefix("Caused by: ") for line in lines if line.startswith("Caused by: ")]
    # The innermost cause with more than a class name.
    causes = [cause for cause in causes if ": " in cause] or causes
    return (causes[-1:] or lines[:1] or [type(error).__name__])[0]


def _failed(method: str, error: Exception) -> SwanLakeError:
    return PipelineFailed(f"Spark failed to {method}: {summarize_error(error)}")


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s %(message)s")
    logging.getLogger("py4j").setLevel(logging.WARNING)
    serve(Driver(), _failed)
