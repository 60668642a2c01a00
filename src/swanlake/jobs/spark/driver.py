"""The process that holds the Spark session of a server.

Apart from the server, because a JVM that dies takes no more than this with it, and because what
Spark, its workers and the transforms print goes to a file of their own. It runs what it is sent and
answers with what came of it; it decides and commits nothing.
"""

from __future__ import annotations

import logging
import os
import pickle
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from swanlake.child import serve_parent
from swanlake.errors import PipelineFailed, PipelineUnavailable, SwanLakeError
from swanlake.lake.layout import DataFile, Table
from swanlake.pipeline.bundle import FOLDER, write_bundle
from swanlake.pipeline.spark import SparkOptions, open_session
from swanlake.pipeline.tasks import in_worker
from swanlake.pipeline.transforming import Transformation, load
from swanlake.pipeline.transforms import Transform
from swanlake.pipeline.worker import Failed, WarmUp, WorkerSpec

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

log = logging.getLogger("swanlake.pipeline")

_OUTCOMES = "position bigint, outcome binary"
_PROBE_SECONDS = 30.0
_WARM_UP_SECONDS = 120.0
#: Where the time comes from that the server gives a job.
_TIMEOUT = "SWANLAKE_SPARK_JOB_TIMEOUT_SECONDS"
#: How often a Spark that is not in this machine's hands is looked at.
_WATCH_SECONDS = 5.0
#: A job that waits for so long without a single executor has lost its cluster.
_ALONE_SECONDS = 60.0
#: The exit code of a driver that has lost its Spark.
_LOST = 3


class Driver:
    """What the server can ask."""

    def __init__(self) -> None:
        self._options = SparkOptions()
        self._worker = WorkerSpec()
        self._session: SparkSession | None = None
        #: Of the machine, for all units of a job; elsewhere of a task.
        self._cores = 1
        #: Those that are under way.
        self._jobs: set[str] = set()
        self._transforms: dict[str, Transform] = {}

    def start(
        self, options: SparkOptions, worker: WorkerSpec, modules: str
    ) -> dict[str, tuple[str, ...]]:
        """Opens the session and runs a job, so that the first of the queue's is not the first.

        Says which tables have transforms, and into which tables these go.
        """
        self._options, self._worker = options, worker
        self._session = session = open_session(options)
        if options.is_local:
            self._cores = os.cpu_count() or 1
        else:
            self._cores = int(session.conf.get("spark.task.cpus", "1") or 1)
            self._send_bundle(session)
        self._watch(session)
        self._transforms = load(modules)
        (answer,) = self.run((pickle.dumps(WarmUp()),), "warm up", _WARM_UP_SECONDS, "")
        outcome = pickle.loads(answer)
        if isinstance(outcome, Failed):
            raise PipelineFailed(f"Spark's workers lack something: {outcome.error}")
        if not options.is_local:
            watch = self._watch_server if options.remote else self._watch_executors
            threading.Thread(target=watch, args=(session,), daemon=True).start()
        return {key: transform.into for key, transform in self._transforms.items()}

    def run(
        self, units: tuple[bytes, ...], title: str, timeout: float, setting: str = _TIMEOUT
    ) -> list[bytes]:
        """The outcomes of pickled units, one task each, in their order."""
        task = in_worker("run_units", self._folder, units, self._spec(len(units)))
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
        """The files with what a transform makes of the rows of units, by table."""
        with self._job(title, timeout) as session:
            return Transformation(
                session,
                self._transforms[key],
                source,
                targets,
                self._spec(len(units)),
                self._folder,
            ).run(units)

    # ---- inside --------------------------------------------------------------------------------

    def _spec(self, tasks: int) -> bytes:
        """How a worker is set up when so many tasks share the cores of this machine."""
        elsewhere = not self._options.is_local
        threads = self._cores if elsewhere else max(1, self._cores // tasks)
        return pickle.dumps(replace(self._worker, threads=threads, elsewhere=elsewhere))

    @property
    def _folder(self) -> str | None:
        """Where workers find our code; None if they have it."""
        return None if self._options.is_local else FOLDER

    @contextmanager
    def _job(self, title: str, timeout: float, setting: str = _TIMEOUT) -> Iterator[SparkSession]:
        """A job with a name, that ends in time; if Spark itself is gone, so is this process."""
        session = self._session
        if session is None:
            raise PipelineUnavailable("Spark is not started.")
        tag = f"swanlake-{uuid4().hex}"
        stop: Callable[[str], object]
        if self._options.remote:
            add, remove, stop = session.addTag, session.removeTag, session.interruptTag
        else:
            # A session's own tags do not reach the thread in which it collects Arrow.
            context = session.sparkContext
            add, remove, stop = context.addJobTag, context.removeJobTag, context.cancelJobsWithTag
            context.setJobDescription(title)
        late = threading.Event()

        def stop_late() -> None:
            late.set()  # first, for the job may fail before it is known to be stopped
            stop(tag)

        timer = threading.Timer(timeout, stop_late)
        timer.daemon = True
        add(tag)
        timer.start()
        self._jobs.add(tag)
        try:
            yield session
        except Exception as failed:
            if late.is_set():  # whatever Spark, or a transform, makes of being stopped
                reason = f"it did not end in {timeout:g} s" + (setting and f" ({setting})")
            elif isinstance(failed, SwanLakeError):
                raise
            else:
                reason = first_sentence(failed)
                log.warning("failed to %s", title, exc_info=True)
            self._leave_if_lost(session)
            raise PipelineFailed(f"Spark failed to {title}: {reason}") from failed
        finally:
            self._jobs.discard(tag)
            timer.cancel()
            remove(tag)

    def _leave_if_lost(self, session: SparkSession, *, try_a_job: bool = True) -> None:
        """Ends the process if the session answers no more, or no job succeeds on it any more.

        The server starts another. A job may have to wait until others are done, and proves nothing
        by that.
        """
        answered, failed = threading.Event(), threading.Event()

        def probe() -> None:
            try:
                self._ask(session)
                answered.set()
                if try_a_job:
                    session.range(1).count()
            except Exception:
                log.exception("Spark does not answer")
                failed.set()

        thread = threading.Thread(target=probe, daemon=True)
        thread.start()
        thread.join(_PROBE_SECONDS)
        if failed.is_set() or not answered.is_set():
            os._exit(_LOST)

    def _ask(self, session: SparkSession) -> None:
        """Returns if Spark answers, with or without executors."""
        if self._options.remote:
            session.conf.get("spark.app.name", "")
        elif session.sparkContext._jsc.sc().isStopped():
            raise PipelineUnavailable("The session was stopped.")

    def _watch(self, session: SparkSession) -> None:
        """Ends the process with its JVM."""
        if self._options.remote:
            return
        jvm: Any = session.sparkContext._gateway.proc  # type: ignore[union-attr]

        def wait() -> None:
            jvm.wait()
            log.error("the JVM has ended")
            os._exit(_LOST)

        threading.Thread(target=wait, daemon=True).start()

    def _watch_server(self, session: SparkSession) -> None:
        """Ends the process if a Spark Connect server is gone, or is another one by now.

        Its client would try again for many minutes. To be asked now and then also keeps the server
        from forgetting the session.
        """
        while True:
            time.sleep(_WATCH_SECONDS)
            self._leave_if_lost(session, try_a_job=False)

    def _watch_executors(self, session: SparkSession) -> None:
        """Ends the process if jobs wait and no executor comes.

        A cluster that was started again does not know us any more, and Spark would wait for ever.
        """
        status: Any = session.sparkContext._jsc.sc()
        seen = time.monotonic()
        while True:
            time.sleep(_WATCH_SECONDS)
            # The driver is among them.
            if not self._jobs or status.getExecutorMemoryStatus().size() > 1:
                seen = time.monotonic()
            elif time.monotonic() - seen > _ALONE_SECONDS:
                log.error("no executor came in %g s", _ALONE_SECONDS)
                os._exit(_LOST)

    def _send_bundle(self, session: SparkSession) -> None:
        """Offers our code to the executors: it stays, for some of them come for it much later."""
        bundle = Path(self._options.local_directory or tempfile.gettempdir()) / f"{FOLDER}.zip"
        bundle.parent.mkdir(parents=True, exist_ok=True)
        write_bundle(bundle)
        session.addArtifacts(f"{bundle}#{FOLDER}", archive=True)


def first_sentence(error: Exception) -> str:
    """What an error of Spark says, without the stacks of the JVM and of Python."""
    _, raised, stack = str(error).partition("Traceback (most recent call last):")
    if raised:
        return next((line for line in stack.splitlines() if line.strip(" ^") == line != ""), "")
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    causes = [line.removeprefix("Caused by: ") for line in lines if line.startswith("Caused by: ")]
    # The innermost that says more than the name of its class.
    causes = [cause for cause in causes if ": " in cause] or causes
    return (causes[-1:] or lines[:1] or [type(error).__name__])[0]


def _failed(method: str, error: Exception) -> SwanLakeError:
    return PipelineFailed(f"Spark failed to {method}: {first_sentence(error)}")


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s %(message)s")
    logging.getLogger("py4j").setLevel(logging.WARNING)
    serve_parent(Driver(), _failed)
