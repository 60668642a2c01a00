"""Processes of their own that work on one lake at the same time.

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

from swanlake.lake.commit import Committed
from swanlake.lake.lake import Catalog, Lake
from swanlake.lake.local import LocalLake, open_metabase

PATIENCE_SECONDS = 600.0

Result = TypeVar("Result")
_start: Barrier


class Crew:
    """A number of processes that each do one part of a job."""

    def __init__(self, size: int) -> None:
        context = multiprocessing.get_context("spawn")
        self.size = size
        self._pool = context.Pool(size, _join, (context.Barrier(size),))

    def __enter__(self) -> Crew:
        return self

    def __exit__(self, *exception: object) -> None:
        self._pool.terminate()
        self._pool.join()

    def begin(
        self, job: Callable[..., Result], parts: Sequence[tuple[Any, ...]]
    ) -> AsyncResult[list[Result]]:
        """Starts one part in every process, all at the same moment."""
        assert len(parts) == self.size
        return self._pool.starmap_async(_together, [(job, *part) for part in parts], chunksize=1)

    def work(self, job: Callable[..., Result], parts: Sequence[tuple[Any, ...]]) -> list[Result]:
        """What every part gave; raises the first error of any."""
        return self.begin(job, parts).get(PATIENCE_SECONDS)

    def ask(self, job: Callable[..., Result], *arguments: Any) -> Result:
        """One job in one of the processes."""
        return self._pool.apply_async(job, arguments).get(PATIENCE_SECONDS)


def _join(start: Barrier) -> None:
    global _start
    _start = start


def wait_for_all() -> None:
    """For a job that must prepare first: returns when every process of the crew is here."""
    _start.wait(PATIENCE_SECONDS)


def _together(job: Callable[..., Result], *arguments: Any) -> Result:
    wait_for_all()
    return job(*arguments)


@dataclass(frozen=True)
class Place:
    """Where a lake is, as a value that can be sent to a process."""

    metabase: str | Path
    data: str

    @contextlib.contextmanager
    def lake(self) -> Iterator[Lake]:
        """The lake, opened in this process."""
        with Lake(LocalLake(open_metabase(self.metabase, self.data)), self.metabase) as lake:
            yield lake

    @contextlib.contextmanager
    def writer(self, catalog: str) -> Iterator[tuple[Catalog, duckdb.DuckDBPyConnection]]:
        """A catalog of the lake, and a DuckDB that writes its files."""
        with self.lake() as lake, duckdb.connect(":memory:") as duck:
            duck.execute("SET threads = 1")
            yield lake.catalog(catalog), duck


@dataclass(frozen=True)
class Timed:
    """A commit, and when it was asked for and answered, on the clock all processes share."""

    asked: float
    answered: float
    committed: Committed


def timed(act: Callable[[], Committed]) -> Timed:
    """Does it and looks at the clock."""
    asked = time.monotonic()
    committed = act()
    return Timed(asked, time.monotonic(), committed)


@dataclass(frozen=True)
class History:
    """What a catalog's metadata says of its own past."""

    #: (snapshot id, time, next catalog id, next file id) in the order of ids.
    snapshots: list[tuple[Any, ...]]
    #: Ids that more than one schema, table or partitioning has.
    shared_ids: list[int]
    findings: list[str]

    def assert_sound(self, *, times: bool = True) -> None:
        """No gap, nothing that goes backwards, no id given twice."""
        ids = [snapshot[0] for snapshot in self.snapshots]
        assert ids == list(range(len(ids)))
        for field in (1, 2, 3) if times else (2, 3):
            values = [snapshot[field] for snapshot in self.snapshots]
            assert values == sorted(values)
        assert self.shared_ids == []
        assert self.findings == []


def history(place: Place, name: str) -> History:
    """Reads a catalog's metadata; for a process that does not attach the catalog."""
    metabase = open_metabase(place.metabase, place.data)
    with metabase.registry() as registry:
        info = metabase.named(registry, name)
    with place.lake() as lake:
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
    return History([tuple(row) for row in snapshots], shared, findings)


def assert_ids_follow_time(commits: Sequence[Timed]) -> None:
    """A commit that was answered before another was asked for has the smaller id."""
    newest = -1
    events = [(timed.answered, True, timed.committed.snapshot_id) for timed in commits]
    events += [(timed.asked, False, timed.committed.snapshot_id) for timed in commits]
    for _, answered, snapshot_id in sorted(events):
        if answered:
            newest = max(newest, snapshot_id)
        else:
            assert snapshot_id > newest
