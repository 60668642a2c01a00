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
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from swanlake.child import serve_parent
from swanlake.errors import PipelineFailed, PipelineUnavailable, SwanLakeError
from swanlake.lake.layout import Table
from swanlake.pipeline.bundle import FOLDER, write_bundle
from swanlake.pipeline.spark import SparkOptions, open_session
from swanlake.pipeline.tasks import in_worker
from swanlake.pipeline.transforming import Transformation, load
from swanlake.pipeline.transforms import Transform
from swanlake.pipeline.worker import WarmUp, WorkerSpec

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

log = logging.getLogger("swanlake.pipeline")

_OUTCOMES = "position bigint, outcome binary"
_PROBE_SECONDS = 30.0
#: The exit code of a driver that has lost its Spark.
_LOST = 3


class Driver:
    """What the server can ask."""

    def __init__(self) -> None:
        self._options = SparkOptions()
        self._worker = WorkerSpec()
        self._session: SparkSession | None = None
        self._cores = 1
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
            self._send_bundle(session)
        self._watch(session)
        self._transforms = load(modules)
        self.run((pickle.dumps(WarmUp()),), "warm up", _PROBE_SECONDS * 4)
        return {key: transform.into for key, transform in self._transforms.items()}

    def run(self, units: tuple[bytes, ...], title: str, timeout: float) -> list[bytes]:
        """The outcomes of pickled units, one task each, in their order."""
        task = in_worker("run_units", self._folder, units, self._spec(len(units)))
        with self._job(title, timeout) as session:
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
    ) -> dict[str, list[bytes]]:
        """The outcomes of writing what a transform makes of the rows of units, by table."""
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
        """How a worker is set up when so many tasks share the cores."""
        return pickle.dumps(replace(self._worker, threads=max(1, self._cores // tasks)))

    @property
    def _folder(self) -> str | None:
        """Where workers find our code; None if they have it."""
        return None if self._options.is_local else FOLDER

    @contextmanager
    def _job(self, title: str, timeout: float) -> Iterator[SparkSession]:
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
        late = threading.Timer(timeout, stop, (tag,))
        late.daemon = True
        add(tag)
        late.start()
        try:
            yield session
        except SwanLakeError:
            raise
        except Exception as failed:
            if not late.is_alive():
                reason = f"it did not end in {timeout:g} s"
            else:
                reason = first_sentence(failed)
                self._leave_if_lost(session)
            raise PipelineFailed(f"Spark failed to {title}: {reason}") from failed
        finally:
            late.cancel()
            remove(tag)

    def _leave_if_lost(self, session: SparkSession) -> None:
        """Ends the process if the session answers no more; the server starts another."""
        answered = threading.Event()

        def probe() -> None:
            try:
                session.range(1).count()
            except Exception:
                log.exception("Spark does not answer")
            else:
                answered.set()

        thread = threading.Thread(target=probe, daemon=True)
        thread.start()
        thread.join(_PROBE_SECONDS)
        if not answered.is_set():
            os._exit(_LOST)

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

    def _send_bundle(self, session: SparkSession) -> None:
        with tempfile.TemporaryDirectory() as folder:
            bundle = Path(folder) / f"{FOLDER}.zip"
            write_bundle(bundle)
            session.addArtifacts(f"{bundle}#{FOLDER}", archive=True)


def first_sentence(error: Exception) -> str:
    """What an error of Spark says, without the stack of the JVM."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    causes = [line for line in lines if line.startswith("Caused by: ")]
    text = (causes or lines or [type(error).__name__])[-1 if causes else 0]
    return text.removeprefix("Caused by: ")


def _failed(method: str, error: Exception) -> SwanLakeError:
    return PipelineFailed(f"Spark failed to {method}: {first_sentence(error)}")


if __name__ == "__main__":
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s %(message)s")
    logging.getLogger("py4j").setLevel(logging.WARNING)
    serve_parent(Driver(), _failed)
