"""Parts of a cluster die, in the midst of a flush or not: nothing is lost, nothing comes twice."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import pytest

from tests.flight import eventually
from tests.integration.spark.conftest import PATIENCE_SECONDS, MakeLab, SparkLab
from tests.spark_cluster import (
    ConnectServer,
    SparkDaemon,
    StandaloneCluster,
    short_directory,
    writer_below,
)

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

#: A flush of so many rows takes seconds.
MANY = 6_000_000


@contextmanager
def while_writing(lab: SparkLab, *daemons: SparkDaemon) -> Iterator[SparkDaemon]:
    """Flushes; the block runs when one of the daemons writes files, and must keep it from that."""
    with ThreadPoolExecutor(1) as pool:
        flush = pool.submit(lab.try_to_flush)
        yield eventually(lambda: writer_below(lab.data, daemons), PATIENCE_SECONDS)
        assert lab.being_written, "the flush was over before anyone died"
        assert not flush.done()
        flush.result(PATIENCE_SECONDS)


def test_a_worker_dies_in_a_flush(make_lab: MakeLab) -> None:
    with short_directory() as directory, StandaloneCluster(directory) as cluster:
        lab = make_lab(**cluster.environment())
        lab.insert(range(10))
        lab.flush()
        lab.insert(range(10, MANY))
        with while_writing(lab, *cluster.workers) as victim:
            victim.kill()
        eventually(lab.try_to_flush, PATIENCE_SECONDS)
        lab.assert_holds(range(MANY))
        lab.insert(range(MANY, MANY + 10))
        lab.flush()
        lab.assert_holds(range(MANY + 10))
        assert lab.times_ready() == 1, "Spark itself goes on without it"


def test_a_cluster_is_lost_and_comes_back(make_lab: MakeLab) -> None:
    with short_directory() as directory, StandaloneCluster(directory) as cluster:
        lab = make_lab(**cluster.environment())
        lab.insert(range(10))
        lab.flush()
        lab.insert(range(10, MANY))
        with while_writing(lab, *cluster.workers):
            cluster.kill()
            cluster.start()
        eventually(lab.try_to_flush, PATIENCE_SECONDS)
        lab.assert_holds(range(MANY))
        assert lab.times_ready() >= 2


def test_a_connect_server_dies_in_a_flush_and_comes_back(make_lab: MakeLab) -> None:
    with short_directory() as directory, ConnectServer(directory) as server:
        lab = make_lab(**server.environment())
        lab.insert(range(10))
        lab.flush()
        lab.insert(range(10, MANY))
        with while_writing(lab, server.daemon):
            server.daemon.kill()
            server.start()
        eventually(lab.try_to_flush, PATIENCE_SECONDS)
        lab.assert_holds(range(MANY))
        assert lab.times_ready() == 2

        # Nobody needs it, and it is noticed all the same.
        server.daemon.kill()
        eventually(lambda: "Spark: it was lost" in lab.server.log_text, PATIENCE_SECONDS)
        server.start()
        eventually(lambda: lab.times_ready() == 3, PATIENCE_SECONDS)
        lab.insert(range(MANY, MANY + 10))
        lab.flush()
        lab.assert_holds(range(MANY + 10))
