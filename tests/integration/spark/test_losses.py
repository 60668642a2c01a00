"""Parts of a cluster die, during a flush or not: no row is lost or duplicated."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import pytest

from tests.integration.spark.conftest import PATIENCE_SECONDS, MakeHarness, SparkLab
from tests.spark_cluster import (
    ConnectServer,
    SparkDaemon,
    StandaloneCluster,
    find_writer_below,
    freeze,
    short_directory,
    thaw,
)
from tests.waiting import eventually

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

#: A flush of this many rows takes seconds.
MANY = 6_000_000


@contextmanager
def while_writing(harness: SparkLab, *daemons: SparkDaemon) -> Iterator[SparkDaemon]:
    """Flushes; freezes all daemons once one writes files, so that the block can kill it."""
    with ThreadPoolExecutor(1) as pool:
        flush = pool.submit(harness.try_to_flush)
        try:
            yield eventually(lambda: frozen_writer(harness, daemons), PATIENCE_SECONDS)
            assert harness.being_written, "the flush was over before anyone died"
            assert not flush.done()
        finally:
            thaw(*daemons)
        flush.result(PATIENCE_SECONDS)


def frozen_writer(harness: SparkLab, daemons: Sequence[SparkDaemon]) -> SparkDaemon | None:
    """The daemon that is writing files; all daemons are frozen then."""
    if not harness.being_written:
        return None
    freeze(*daemons)
    found = find_writer_below(harness.data, daemons)
    if found is None:
        thaw(*daemons)
    return found


def test_worker_killed_during_a_flush(make_harness: MakeHarness) -> None:
    with short_directory() as directory, StandaloneCluster(directory) as cluster:
        harness = make_harness(**cluster.environment())
        harness.insert(range(10))
        harness.flush()
        harness.insert(range(10, MANY))
        with while_writing(harness, *cluster.workers) as victim:
            victim.kill()
        eventually(harness.try_to_flush, PATIENCE_SECONDS)
        harness.assert_holds(range(MANY))
        harness.insert(range(MANY, MANY + 10))
        harness.flush()
        harness.assert_holds(range(MANY + 10))
        assert harness.times_ready() == 1, "Spark itself goes on without it"


def test_cluster_restart(make_harness: MakeHarness) -> None:
    with short_directory() as directory, StandaloneCluster(directory) as cluster:
        harness = make_harness(**cluster.environment())
        harness.insert(range(10))
        harness.flush()
        harness.insert(range(10, MANY))
        with while_writing(harness, *cluster.workers):
            cluster.kill()
            cluster.start()
        eventually(harness.try_to_flush, PATIENCE_SECONDS)
        harness.assert_holds(range(MANY))
        assert harness.times_ready() >= 2


def test_connect_server_killed_during_a_flush(make_harness: MakeHarness) -> None:
    with short_directory() as directory, ConnectServer(directory) as server:
        harness = make_harness(**server.environment())
        harness.insert(range(10))
        harness.flush()
        harness.insert(range(10, MANY))
        with while_writing(harness, server.daemon):
            server.daemon.kill()
            server.start()
        eventually(harness.try_to_flush, PATIENCE_SECONDS)
        harness.assert_holds(range(MANY))
        assert harness.times_ready() == 2

        # The loss is noticed even without a job.
        server.daemon.kill()
        eventually(lambda: "Spark: it was lost" in harness.server.log_text, PATIENCE_SECONDS)
        server.start()
        eventually(lambda: harness.times_ready() == 3, PATIENCE_SECONDS)
        harness.insert(range(MANY, MANY + 10))
        harness.flush()
        harness.assert_holds(range(MANY + 10))
