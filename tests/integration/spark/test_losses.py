"""Parts of a cluster die, in the midst of a flush or not: nothing is lost, nothing comes twice."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import pytest

from tests.flight import eventually
from tests.integration.spark.conftest import PATIENCE_SECONDS, MakeLab, SparkLab
from tests.spark_cluster import (
    ConnectServer,
    SparkDaemon,
    StandaloneCluster,
    freeze,
    short_directory,
    thaw,
    writer_below,
)

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

#: A flush of so many rows takes seconds.
MANY = 6_000_000


@contextmanager
def while_writing(lab: SparkLab, *daemons: SparkDaemon) -> Iterator[SparkDaemon]:
    """Flushes; when one of the daemons writes files all stand still, and the block may kill it."""
    with ThreadPoolExecutor(1) as pool:
        flush = pool.submit(lab.try_to_flush)
        try:
            yield eventually(lambda: frozen_writer(lab, daemons), PATIENCE_SECONDS)
            assert lab.being_written, "the flush was over before anyone died"
            assert not flush.done()
        finally:
            thaw(*daemons)
        flush.result(PATIENCE_SECONDS)


def frozen_writer(lab: SparkLab, daemons: Sequence[SparkDaemon]) -> SparkDaemon | None:
    """The one that writes files now; all of them are frozen then."""
    if not lab.being_written:
        return None
    freeze(*daemons)
    found = writer_below(lab.data, daemons)
    if found is None:
        thaw(*daemons)
    return found


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
