"""Worker processes that use one lake at the same time.

A worker opens SQLite catalogs in its own process, so it must never attach one in DuckDB.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from multiprocessing.pool import AsyncResult
from multiprocessing.synchronize import Barrier
from pathlib import Path
from typing import Any, TypeVar

import duckdb
from sqlalchemy import func, select

from swanlake.lake.catalog import Catalog
from swanlake.lake.commit.protocol import Committed
from swanlake.lake.lake import Lake
from swanlake.lake.metastore.local import MetadataService, open_metastore

TIMEOUT_SECONDS = 600.0
#: Starts processes as forks of one that has imported what they need.
PROCESSES = multiprocessing.get_context("forkserver")
PROCESSES.set_forkserver_preload(["pytest", "tests.faults.workers"])

Result = TypeVar("Result")
_barrier: Barrier


class WorkerPool:
    """A number of processes that each run one part of a job."""

    def __init__(self, size: int) -> None:
        self.size = size
        self._pool = PROCESSES.Pool(size, _initialize, (PROCESSES.Barrier(size),))

    def __enter__(self) -> WorkerPool:
        return self

    def __exit__(self, *exception: object) -> None:
        self._pool.terminate()
        self._pool.join()

    def start(
        self, job: Callable[..., Result], parts: Sequence[tuple[Any, ...]]
    ) -> AsyncResult[list[Result]]:
        """Starts one part in each process, all at the same moment."""
        assert len(parts) == self.size
        return self._pool.starmap_async(
            _run_at_barrier, [(job, *part) for part in parts], chunksize=1
        )

    def run(self, job: Callable[..., Result], parts: Sequence[tuple[Any, ...]]) -> list[Result]:
        """Runs one part in each process; returns their results or raises the first error."""
        return self.start(job, parts).get(TIMEOUT_SECONDS)

    def call(self, job: Callable[..., Result], *arguments: Any) -> Result:
        """Runs a job in one of the processes."""
        return self._pool.apply_async(job, arguments).get(TIMEOUT_SECONDS)


def _initialize(barrier: Barrier) -> None:
    global _barrier
    _barrier = barrier


def wait_for_all() -> None:
    """Waits until every process of the pool calls it; for jobs that must prepare first."""
    _barrier.wait(TIMEOUT_SECONDS)


def _run_at_barrier(job: Callable[..., Result], *arguments: Any) -> Result:
    wait_for_all()
    return job(*arguments)


@dataclass(frozen=True)
class LakeAddress:
    """The location of a lake, as a value that can be sent to a process."""

    metabase: str | Path
    data: str

    @contextlib.contextmanager
    def lake(self) -> Iterator[Lake]:
        """Opens the lake in this process."""
        service = MetadataService(open_metastore(self.metabase, self.data))
        with Lake(service, self.metabase, self.data) as lake:
            yield lake

    @contextlib.contextmanager
    def writer(self, catalog: str) -> Iterator[tuple[Catalog, duckdb.DuckDBPyConnection]]:
        """A catalog of the lake, and a DuckDB connection that writes its files."""
        with self.lake() as lake, duckdb.connect(":memory:") as duck:
            duck.execute("SET threads = 1")
            yield lake.catalog(catalog), duck


@dataclass(frozen=True)
class TimedCommit:
    """A commit with its start and end on the monotonic clock, which processes share."""

    started: float
    finished: float
    committed: Committed


def time_commit(commit: Callable[[], Committed]) -> TimedCommit:
    """Runs a commit and records its start and end."""
    started = time.monotonic()
    committed = commit()
    return TimedCommit(started, time.monotonic(), committed)


@dataclass(frozen=True)
class CatalogHistory:
    """The history of a catalog, as its metadata records it."""

    #: (snapshot id, time, next catalog id, next file id) in the order of ids.
    snapshots: list[tuple[Any, ...]]
    #: Ids used by more than one schema, table or partitioning.
    shared_ids: list[int]
    findings: list[str]

    def assert_sound(self, *, times: bool = True) -> None:
        """Checks that ids have no gap, no counter or time decreases, and no id is used twice."""
        ids = [snapshot[0] for snapshot in self.snapshots]
        assert ids == list(range(len(ids)))
        for field in (1, 2, 3) if times else (2, 3):
            values = [snapshot[field] for snapshot in self.snapshots]
            assert values == sorted(values)
        assert self.shared_ids == []
        assert self.findings == []


def read_history(address: LakeAddress, name: str) -> CatalogHistory:
    """Reads a catalog's history; only for processes that do not attach the catalog."""
    metabase = open_metastore(address.metabase, address.data)
    with metabase.registry() as registry:
        info = metabase.get(registry, name)
    with address.lake() as lake:
        findings = lake.catalog(name).check()
    tables = metabase.store(info).tables
    with metabase.store(info).connect() as connection:
        snapshot = tables.snapshot
        snapshots = connection.execute(
            select(
                snapshot.c.snapshot_id,
                snapshot.c.snapshot_time,
                snapshot.c.next_catalog_id,
                snapshot.c.next_file_id,
            ).order_by(snapshot.c.snapshot_id)
        ).all()
        ids: list[int] = []
        for column in (
            tables.schema.c.schema_id,
            tables.table.c.table_id,
            tables.partition_info.c.partition_id,
        ):
            ids += connection.execute(select(func.distinct(column))).scalars().all()
    metabase.close()
    shared = sorted({id for id in ids if ids.count(id) > 1})
    return CatalogHistory([tuple(row) for row in snapshots], shared, findings)


def assert_ids_in_commit_order(commits: Sequence[TimedCommit]) -> None:
    """Checks that a commit that ended before another started has the smaller id."""
    newest = -1
    events = [(commit.finished, True, commit.committed.snapshot_id) for commit in commits]
    events += [(commit.started, False, commit.committed.snapshot_id) for commit in commits]
    for _, is_end, snapshot_id in sorted(events):
        if is_end:
            newest = max(newest, snapshot_id)
        else:
            assert snapshot_id > newest
