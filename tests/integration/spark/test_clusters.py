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

from swanlake._internal.subprocess_rpc import WorkerProcess
from swanlake.config import load
from swanlake.errors import PipelineFailed
from swanlake.jobs.spark.session import SparkOptions, environment
from swanlake.jobs.spark.worker import WorkerSpec
from tests.credentials import write_tokens
from tests.integration.spark.conftest import PATIENCE_SECONDS, MakeHarness, SparkLab
from tests.spark_cluster import ConnectServer, StandaloneCluster, minimal_python, short_directory
from tests.tls import self_signed

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

SENT = "of segment"
by_value: Any = untyped


def test_queued_rows_reach_the_lake_once(make_harness: MakeHarness, spark: dict[str, str]) -> None:
    harness = make_harness(**spark)
    harness.insert(range(1000))
    for id in range(1000, 1010):
        harness.insert(range(id, id + 1))
    assert [report["rows"] for report in harness.flush()] == [1010]
    harness.assert_holds(range(1010))
    harness.insert(range(1010, 300_000))  # one large and one small segment
    harness.insert(range(300_000, 300_001))
    assert [report["rows"] for report in harness.flush()] == [300_001 - 1010]
    harness.assert_holds(range(300_001))
    assert harness.flush() == []
    # All workers see the queue's directory.
    assert SENT not in harness.server.log_text
    assert harness.being_written == []
    assert harness.server.stop() == 0


# ---- executors that have nothing of ours, and see nothing of the queue ---------------------------


@pytest.fixture
def bare_directory() -> Iterator[Path]:
    with short_directory() as directory:
        yield directory


@pytest.fixture
def bare(bare_directory: Path) -> str:
    """A Python that has neither SwanLake nor DuckDB."""
    return minimal_python(bare_directory / "bare")


HIDDEN = {
    # Relative to each process: only the server's working directory has a queue.
    "DUCKLING_QUEUE_ROOT": "/proc/self/cwd/queue",
    "SWANLAKE_TRANSFORMS": "tests.integration.jobs.sample_transforms",
    "PYTHONPATH": os.pathsep.join([str(Path(__file__).parents[3]), *sys.path]),
}


def assert_flushes_what_executors_do_not_see(harness: SparkLab) -> None:
    harness.insert(range(200_000))
    harness.insert(range(200_000, 200_001))
    assert [report["rows"] for report in harness.flush()] == [200_001]
    harness.assert_holds(range(200_001))
    assert harness.server.log_text.count(SENT) == 2
    harness.sql(
        "CREATE TABLE with_udf (id BIGINT, note VARCHAR)",
        "INSERT INTO duckling_queue.with_udf VALUES (1, 'a'), (2, 'b')",
    )
    harness.flush()
    notes = [row["note"] for row in harness.sql("SELECT note FROM with_udf ORDER BY id")]
    assert notes == ["A!", "B!"], "a transform has rows and code that only the server has"
    assert "Bearer" not in harness.said()


def test_cluster_without_our_code_or_the_queue_directory(
    make_harness: MakeHarness, bare_directory: Path, bare: str
) -> None:
    """The server uses TLS and requires tokens."""
    certificate, key = self_signed(bare_directory)
    write_tokens(bare_directory / "home", alice="the-token-of-alice")
    with StandaloneCluster(bare_directory, bare) as cluster:
        harness = make_harness(
            {
                "adbc.flight.sql.client_option.tls_root_certs": certificate.read_text(),
                "adbc.flight.sql.authorization_header": "Bearer the-token-of-alice",
            },
            home=bare_directory / "home",
            SWANLAKE_AUTH="token",
            SWANLAKE_TLS_CERT=str(certificate),
            SWANLAKE_TLS_KEY=str(key),
            **cluster.environment(),
            **HIDDEN,
        )
        assert_flushes_what_executors_do_not_see(harness)


def test_connect_server_without_our_code_or_the_queue_directory(
    make_harness: MakeHarness, bare_directory: Path, bare: str
) -> None:
    with ConnectServer(bare_directory, bare) as server:
        harness = make_harness(**server.environment(), **HIDDEN)
        assert_flushes_what_executors_do_not_see(harness)


def test_executors_that_do_not_see_the_data_path_fail_clearly(
    make_harness: MakeHarness, connect_server: ConnectServer
) -> None:
    harness = make_harness(SWANLAKE_DATA_PATH="/proc/self/cwd/data", **connect_server.environment())
    harness.insert(range(10))
    with pytest.raises(adbc.Error, match=r"FLUSH_FAILED: .* does not see /proc/self/cwd/data"):
        harness.flush()
    (status,) = harness.sql("CALL duckling_queue_status()")
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
    """A unit that kills its worker."""

    def run(self, connection: Any) -> None:
        os._exit(9)


@pytest.fixture
def driver(spark: dict[str, str]) -> Iterator[WorkerProcess]:
    """The driver process, without a server."""
    settings = load(environ={name: spark[name] for name in spark if "SWANLAKE" in name}).settings
    with short_directory() as directory:
        options = replace(SparkOptions.from_settings(settings), local_directory=str(directory))
        log = directory / "spark.log"
        with log.open("wb") as errors:
            driver = WorkerProcess(
                "swanlake.jobs.spark.driver",
                environment=environment(options) | spark,
                errors=errors,
            )
        try:
            driver.wait_until_ready()
            driver.call(PATIENCE_SECONDS, "start", options, WorkerSpec(), "")
            yield driver
        finally:
            driver.close()
            sys.stdout.write(log.read_text(errors="replace")[-20_000:])


def run(driver: WorkerProcess, unit: object, seconds: float) -> object:
    # By value: workers cannot import the tests.
    by_value.register_pickle_by_value(sys.modules[__name__])
    arguments = ((by_value.dumps(unit),), "try something", seconds)
    (answer,) = driver.call(PATIENCE_SECONDS, "run", *arguments)
    outcome: object = pickle.loads(answer)
    return outcome


def test_failed_jobs_do_not_affect_others(driver: WorkerProcess) -> None:
    with pytest.raises(PipelineFailed, match="failed to try something: it did not end in 3 s"):
        run(driver, Sleep(600), 3.0)
    assert run(driver, Sleep(0), 60.0) == "slept"
    with pytest.raises(PipelineFailed, match="Python worker exited unexpectedly"):
        run(driver, Crash(), 120.0)
    assert run(driver, Sleep(0), 60.0) == "slept"
