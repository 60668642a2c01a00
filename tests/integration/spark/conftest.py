"""The kinds of Spark that a server can use, and a server on one of them."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import adbc_driver_flightsql.dbapi as adbc
import pytest

from tests.faults.harness import lake_location
from tests.server_process import ServerProcess
from tests.spark_cluster import ConnectServer, StandaloneCluster, short_directory
from tests.stock_duckdb import stock_duckdb

READY = "Spark is ready on"
#: Spark starts slowly, more so on a busy machine.
PATIENCE_SECONDS = 300.0


@pytest.fixture(scope="module")
def standalone() -> Iterator[StandaloneCluster]:
    """A master and two workers."""
    with short_directory() as directory, StandaloneCluster(directory) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def connect_server() -> Iterator[ConnectServer]:
    """A Spark Connect server."""
    with short_directory() as directory, ConnectServer(directory) as server:
        yield server


@pytest.fixture(params=["local", "standalone", "connect"])
def spark(request: pytest.FixtureRequest) -> dict[str, str]:
    """The settings for each kind of Spark."""
    if request.param == "local":
        return {"SWANLAKE_PIPELINE": "spark", "PYSPARK_PYTHON": sys.executable}
    kind = {"standalone": "standalone", "connect": "connect_server"}[request.param]
    environment: dict[str, str] = request.getfixturevalue(kind).environment()
    return environment


class SparkLab:
    """A server with a table ``t (id, note)``, whose queue is flushed by Spark."""

    def __init__(self, home: Path, options: dict[str, str], **environment: str) -> None:
        # Only requested flushes run.
        environment.setdefault("DUCKLING_QUEUE_BUFFER_MAX_ROWS", "1000000000")
        environment.setdefault("DUCKLING_QUEUE_ROTATE_SIZE_BYTES", "1000000000000")
        self.server = ServerProcess(home, **environment)
        self._options = options
        self._metabase = environment.get("SWANLAKE_METABASE_URL") or home / "catalogs"
        self.data = Path(environment.get("SWANLAKE_DATA_PATH", home / "data"))

    def start(self) -> SparkLab:
        self.server.start()
        self.sql("CREATE TABLE t (id BIGINT, note VARCHAR)")
        return self

    def sql(self, *statements: str) -> list[dict[str, Any]]:
        """The rows of the last statement."""
        with (
            adbc.connect(self.server.url, db_kwargs=self._options, autocommit=True) as connection,
            connection.cursor() as cursor,
        ):
            for statement in statements:
                cursor.execute(statement)
            rows: list[dict[str, Any]] = cursor.fetch_arrow_table().to_pylist()
            return rows

    def insert(self, ids: range) -> None:
        """Inserts ids into the queue with one statement."""
        self.sql(
            f"INSERT INTO duckling_queue.t SELECT range, 'row ' || range "
            f"FROM range({ids.start}, {ids.stop})"
        )

    def flush(self) -> list[dict[str, Any]]:
        """The reports of a flush, which waits for a starting Spark."""
        return self.sql("CALL duckling_queue_flush()")

    def try_to_flush(self) -> bool:
        """False if the flush failed; the rows are still in the queue then."""
        try:
            self.flush()
        except adbc.Error:
            return False
        return True

    def assert_holds(self, ids: range) -> None:
        """Asserts that stock DuckDB reads each of these ids once, and nothing else."""
        with stock_duckdb() as duck:
            lake_location(self._metabase, self.data).attach(duck)
            found = duck.execute(
                "SELECT count(*), count(DISTINCT id), min(id), max(id) FROM swanlake.main.t "
                "WHERE note = 'row ' || id"
            ).fetchone()
            assert found == (len(ids), len(ids), ids[0], ids[-1])
            assert duck.execute("SELECT count(*) FROM swanlake.main.t").fetchone() == (len(ids),)

    @property
    def being_written(self) -> list[Path]:
        """The folders of units that are writing or were killed while writing."""
        return list(self.data.glob("**/.swanlake-*"))

    def times_ready(self) -> int:
        """How often Spark became ready."""
        return self.server.log_text.count(READY)

    def said(self) -> str:
        """The logs of the server and of Spark."""
        log = self.server.home / "logs" / "spark.log"
        return self.server.log_text + (log.read_text(errors="replace") if log.exists() else "")


MakeHarness = Callable[..., SparkLab]


@pytest.fixture
def make_harness() -> Iterator[MakeHarness]:
    """Starts servers that use Spark; prints their logs when a test fails."""
    with short_directory() as directory, _stopped_at_the_end() as labs:

        def make(
            options: dict[str, str] | None = None, *, home: Path | None = None, **environment: str
        ) -> SparkLab:
            home = home or directory / f"home{len(labs)}"
            harness = SparkLab(home, options or {}, **environment)
            labs.append(harness)
            return harness.start()

        yield make


@contextmanager
def _stopped_at_the_end() -> Iterator[list[SparkLab]]:
    labs: list[SparkLab] = []
    try:
        yield labs
    finally:
        for harness in labs:
            harness.server.kill()
            sys.stdout.write(harness.said()[-20_000:])
