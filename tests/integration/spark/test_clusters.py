"""Flushes on every kind of Spark: local, a standalone cluster, Spark Connect."""

from __future__ import annotations

import os
import pickle
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import adbc_driver_flightsql.dbapi as adbc
import pytest
from pyspark import cloudpickle as untyped

from swanlake.child import Child
from swanlake.config import load
from swanlake.errors import PipelineFailed
from swanlake.pipeline.spark import SparkOptions, environment
from swanlake.pipeline.worker import Done, Outcome, WorkerSpec
from tests.integration.spark.conftest import PATIENCE_SECONDS, MakeLab, SparkLab
from tests.spark_cluster import ConnectServer, StandaloneCluster, bare_python, short_directory
from tests.tls import self_signed

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

SENT = "of segment"
by_value: Any = untyped


def test_queued_rows_reach_the_lake_once(make_lab: MakeLab, spark: dict[str, str]) -> None:
    lab = make_lab(**spark)
    lab.insert(range(1000))
    for id in range(1000, 1010):
        lab.insert(range(id, id + 1))
    assert [report["rows"] for report in lab.flush()] == [1010]
    lab.assert_holds(range(1010))
    lab.insert(range(1010, 300_000))  # a segment of its own beside a small one
    lab.insert(range(300_000, 300_001))
    assert [report["rows"] for report in lab.flush()] == [300_001 - 1010]
    lab.assert_holds(range(300_001))
    assert lab.flush() == []
    # They see the queue's directory, all of them.
    assert SENT not in lab.server.log_text
    assert lab.being_written == []
    assert lab.server.stop() == 0


# ---- executors that have nothing of ours, and see nothing of the queue ---------------------------


@pytest.fixture
def bare_directory() -> Iterator[Path]:
    with short_directory() as directory:
        yield directory


@pytest.fixture
def bare(bare_directory: Path) -> str:
    """A Python that has neither SwanLake nor DuckDB."""
    return bare_python(bare_directory / "bare")


HIDDEN = {
    # For each process this is another place: only the server's working directory has a queue.
    "DUCKLING_QUEUE_ROOT": "/proc/self/cwd/queue",
    "SWANLAKE_TRANSFORMS": "tests.integration.pipeline.some_transforms",
    "PYTHONPATH": os.pathsep.join([str(Path(__file__).parents[3]), *sys.path]),
}


def assert_flushes_what_executors_do_not_see(lab: SparkLab) -> None:
    lab.insert(range(200_000))
    lab.insert(range(200_000, 200_001))
    assert [report["rows"] for report in lab.flush()] == [200_001]
    lab.assert_holds(range(200_001))
    assert lab.server.log_text.count(SENT) == 2
    lab.sql(
        "CREATE TABLE with_udf (id BIGINT, note VARCHAR)",
        "INSERT INTO duckling_queue.with_udf VALUES (1, 'a'), (2, 'b')",
    )
    lab.flush()
    notes = [row["note"] for row in lab.sql("SELECT note FROM with_udf ORDER BY id")]
    assert notes == ["A!", "B!"], "a transform has rows and code that only the server has"
    assert "Bearer" not in lab.said()


def test_a_cluster_without_our_code_and_without_the_queue(
    make_lab: MakeLab, bare_directory: Path, bare: str
) -> None:
    """And a server with TLS that asks for tokens."""
    certificate, key = self_signed(bare_directory)
    tokens = bare_directory / "home" / "tokens"
    tokens.mkdir(parents=True)
    (tokens / "alice").write_text("token-of-alice")
    with StandaloneCluster(bare_directory, bare) as cluster:
        lab = make_lab(
            {
                "adbc.flight.sql.client_option.tls_root_certs": certificate.read_text(),
                "adbc.flight.sql.authorization_header": "Bearer token-of-alice",
            },
            home=bare_directory / "home",
            SWANLAKE_AUTH="token",
            SWANLAKE_TLS_CERT=str(certificate),
            SWANLAKE_TLS_KEY=str(key),
            **cluster.environment(),
            **HIDDEN,
        )
        assert_flushes_what_executors_do_not_see(lab)


def test_a_connect_server_without_our_code_and_without_the_queue(
    make_lab: MakeLab, bare_directory: Path, bare: str
) -> None:
    with ConnectServer(bare_directory, bare) as server:
        lab = make_lab(**server.environment(), **HIDDEN)
        assert_flushes_what_executors_do_not_see(lab)


def test_executors_that_do_not_see_the_lake_are_told_so(
    make_lab: MakeLab, connect_server: ConnectServer
) -> None:
    lab = make_lab(SWANLAKE_DATA_PATH="/proc/self/cwd/data", **connect_server.environment())
    lab.insert(range(10))
    with pytest.raises(adbc.Error, match=r"FLUSH_FAILED: .* does not see /proc/self/cwd/data"):
        lab.flush()
    (status,) = lab.sql("CALL duckling_queue_status()")
    assert status["rows"] == 10


# ---- what becomes of jobs ------------------------------------------------------------------------


class Sleep:
    """A unit that sleeps."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds

    def run(self, connection: Any) -> str:
        time.sleep(self._seconds)
        return "slept"


class Crash:
    """A unit that takes its worker with it."""

    def run(self, connection: Any) -> None:
        os._exit(9)


@pytest.fixture
def driver(spark: dict[str, str]) -> Iterator[Child]:
    """The process that holds the session, without a server."""
    settings = load(environ={name: spark[name] for name in spark if "SWANLAKE" in name}).settings
    with short_directory() as directory:
        options = replace(SparkOptions.from_settings(settings), local_directory=str(directory))
        log = directory / "spark.log"
        with log.open("wb") as errors:
            driver = Child(
                "swanlake.pipeline.driver",
                environment=environment(options) | spark,
                errors=errors,
            )
        try:
            driver.await_ready()
            driver.ask(PATIENCE_SECONDS, "start", options, WorkerSpec(), "")
            yield driver
        finally:
            driver.end()
            sys.stdout.write(log.read_text(errors="replace")[-20_000:])


def run(driver: Child, unit: object, seconds: float) -> Outcome:
    # By value: workers have no tests.
    by_value.register_pickle_by_value(sys.modules[__name__])
    arguments = ((by_value.dumps(unit),), "try something", seconds)
    (answer,) = driver.ask(PATIENCE_SECONDS, "run", *arguments)
    outcome: Outcome = pickle.loads(answer)
    return outcome


def test_jobs_that_go_wrong_do_no_harm_to_others(driver: Child) -> None:
    with pytest.raises(PipelineFailed, match="failed to try something: it did not end in 3 s"):
        run(driver, Sleep(600), 3.0)
    assert run(driver, Sleep(0), 60.0) == Done("slept")
    with pytest.raises(PipelineFailed, match="Python worker exited unexpectedly"):
        run(driver, Crash(), 120.0)
    assert run(driver, Sleep(0), 60.0) == Done("slept")
