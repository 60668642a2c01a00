"""Many processes commit to one lake concurrently; stock DuckDB checks the result."""

from __future__ import annotations

from collections.abc import Iterator
from multiprocessing.pool import AsyncResult
from pathlib import Path
from typing import Any

import duckdb
import psycopg
import pytest

from swanlake.errors import AlreadyExists
from swanlake.lake.catalog import Catalog
from swanlake.lake.lake import Lake
from swanlake.lake.model.types import ColumnSpec
from tests.faults.workers import (
    LakeAddress,
    TimedCommit,
    WorkerPool,
    assert_ids_in_commit_order,
    read_history,
    time_commit,
)

COLUMNS = [ColumnSpec("worker", "BIGINT", nullable=False), ColumnSpec("number", "BIGINT")]
WRITERS = 8


@pytest.fixture(scope="module")
def workers() -> Iterator[WorkerPool]:
    with WorkerPool(WRITERS) as workers:
        yield workers


@pytest.fixture
def address(metabase: str | Path, tmp_path: Path) -> LakeAddress:
    return LakeAddress(metabase, str(tmp_path / "data"))


@pytest.fixture
def sales(lake: Lake) -> Catalog:
    catalog = lake.create_catalog("sales")
    catalog.create_table("main", "shared", COLUMNS)
    return catalog


@pytest.fixture(autouse=True)
def _no_error_in_the_server_log(metabase: str | Path) -> Iterator[None]:
    """Checks that waiting writers cause no error in PostgreSQL's log."""
    if isinstance(metabase, Path):
        yield
        return
    with psycopg.connect(metabase) as connection:
        row = connection.execute("SHOW data_directory").fetchone()
        assert row is not None
    log = Path(row[0]) / "log"
    before = log.stat().st_size
    yield
    written = log.read_bytes()[before:].decode(errors="replace")
    assert "ducklake_snapshot_pkey" not in written
    assert [line for line in written.splitlines() if "ERROR:" in line] == []


# ---- work of one process -----------------------------------------------------------------------


def append(address: LakeAddress, table: str, worker: int, rounds: int) -> list[TimedCommit]:
    with address.writer("sales") as (sales, duck):
        return [
            time_commit(lambda n=n: sales.append(duck, f"SELECT {worker}, {n}", "main", table))  # type: ignore[misc]
            for n in range(rounds)
        ]


def create_tables(address: LakeAddress, worker: int, rounds: int) -> list[TimedCommit]:
    with address.writer("sales") as (sales, _):
        return [
            time_commit(lambda n=n: sales.create_table("main", f"t_{worker}_{n}", COLUMNS))  # type: ignore[misc]
            for n in range(rounds)
        ]


def create_schemas(address: LakeAddress, worker: int, rounds: int) -> list[TimedCommit]:
    with address.writer("sales") as (sales, _):
        return [
            time_commit(lambda n=n: sales.create_schema(f"s_{worker}_{n}"))  # type: ignore[misc]
            for n in range(rounds)
        ]


def create_catalogs(address: LakeAddress, worker: int, rounds: int) -> int:
    """Creates its own catalogs, and competes for names that all workers create."""
    won = 0
    with address.lake() as lake:
        for number in range(rounds):
            lake.create_catalog(f"c_{worker}_{number}").create_table("main", "t", COLUMNS)
            try:
                lake.create_catalog(f"wanted_{number}")
                won += 1
            except AlreadyExists:
                pass
    return won


def fork_or_append(address: LakeAddress, worker: int, rounds: int) -> list[TimedCommit]:
    if worker % 2:
        return append(address, "shared", worker, 3 * rounds)
    with address.lake() as lake:
        for number in range(rounds):
            lake.fork_catalog("sales", f"f_{worker}_{number}").create_schema("own")
    return []


# ---- tests -------------------------------------------------------------------------------------


class Observer:
    """Counts rows at snapshots with stock DuckDB; a snapshot's count must never change."""

    def __init__(self, lake: Lake, catalog: Catalog, duck: duckdb.DuckDBPyConnection) -> None:
        self._duck = duck
        self._catalog = catalog
        lake.location(catalog.info).attach(duck)
        self._seen: dict[int, int] = {}

    def watch(self, running: AsyncResult[Any]) -> None:
        while not running.ready():
            self.count(self._catalog.newest_snapshot())
            running.wait(0.02)

    def count(self, snapshot: int, table: str = "main.shared") -> int:
        name = f"{self._catalog.name}.{table}"
        counted = f"SELECT count(*) FROM {name} AT (VERSION => {snapshot})"
        # All rows: a result that is not read to the end leaves its transaction open.
        [(count,)] = self._duck.execute(counted).fetchall()
        assert self._seen.setdefault(snapshot, count) == count
        return int(count)

    def check_again(self) -> None:
        assert self._seen
        for snapshot in list(self._seen):
            self.count(snapshot)


def flat(results: list[list[TimedCommit]]) -> list[TimedCommit]:
    return [timed for result in results for timed in result]


def test_concurrent_appends_to_one_table_succeed_in_snapshot_order(
    workers: WorkerPool,
    address: LakeAddress,
    lake: Lake,
    sales: Catalog,
    duck: duckdb.DuckDBPyConnection,
) -> None:
    check_appends_to_one_table(workers, address, lake, sales, duck, rounds=5)


@pytest.mark.slow
def test_sixteen_processes_append_to_one_table(
    address: LakeAddress, lake: Lake, sales: Catalog, duck: duckdb.DuckDBPyConnection
) -> None:
    with WorkerPool(16) as workers:
        check_appends_to_one_table(workers, address, lake, sales, duck, rounds=200)


def check_appends_to_one_table(
    workers: WorkerPool,
    address: LakeAddress,
    lake: Lake,
    sales: Catalog,
    duck: duckdb.DuckDBPyConnection,
    rounds: int,
) -> None:
    observer = Observer(lake, sales, duck)
    parts = [(address, "shared", worker, rounds) for worker in range(workers.size)]
    running = workers.start(append, parts)
    observer.watch(running)
    commits = flat(running.get())
    assert all(timed.committed.attempts == 1 for timed in commits)
    assert sorted(timed.committed.snapshot_id for timed in commits) == list(
        range(2, 2 + workers.size * rounds)
    )
    assert_ids_in_commit_order(commits)
    observer.check_again()
    for snapshot in range(1, 2 + workers.size * rounds, max(1, rounds // 10)):
        assert observer.count(snapshot) == snapshot - 1
    assert duck.sql(
        "SELECT worker, count(DISTINCT number), count(*) FROM sales.main.shared "
        "GROUP BY worker ORDER BY worker"
    ).fetchall() == [(worker, rounds, rounds) for worker in range(workers.size)]
    row_ids = "SELECT count(DISTINCT rowid), max(rowid) + 1 FROM sales.main.shared"
    assert duck.sql(row_ids).fetchall() == [(workers.size * rounds, workers.size * rounds)]
    workers.call(read_history, address, "sales").assert_sound()


def test_concurrent_appends_to_different_tables_succeed(
    workers: WorkerPool,
    address: LakeAddress,
    lake: Lake,
    sales: Catalog,
    duck: duckdb.DuckDBPyConnection,
) -> None:
    check_appends_to_different_tables(workers, address, lake, sales, duck, rounds=4)


@pytest.mark.slow
def test_sixteen_processes_append_to_a_table_each(
    address: LakeAddress, lake: Lake, sales: Catalog, duck: duckdb.DuckDBPyConnection
) -> None:
    with WorkerPool(16) as workers:
        check_appends_to_different_tables(workers, address, lake, sales, duck, rounds=200)


def check_appends_to_different_tables(
    workers: WorkerPool,
    address: LakeAddress,
    lake: Lake,
    sales: Catalog,
    duck: duckdb.DuckDBPyConnection,
    rounds: int,
) -> None:
    for worker in range(workers.size):
        sales.create_table("main", f"own_{worker}", COLUMNS)
    parts = [(address, f"own_{worker}", worker, rounds) for worker in range(workers.size)]
    commits = flat(workers.run(append, parts))
    assert all(timed.committed.attempts == 1 for timed in commits)
    assert_ids_in_commit_order(commits)
    lake.location(sales.info).attach(duck)
    for worker in range(workers.size):
        rows = duck.sql(f"SELECT worker, count(*) FROM sales.main.own_{worker} GROUP BY ALL")
        assert rows.fetchall() == [(worker, rounds)]
    workers.call(read_history, address, "sales").assert_sound()


@pytest.mark.parametrize("job", [create_tables, create_schemas])
def test_tables_and_schemas_created_concurrently_have_distinct_ids(
    workers: WorkerPool,
    address: LakeAddress,
    lake: Lake,
    sales: Catalog,
    duck: duckdb.DuckDBPyConnection,
    job: Any,
) -> None:
    check_concurrent_creates(workers, address, lake, sales, duck, job, rounds=4)


@pytest.mark.slow
@pytest.mark.parametrize("job", [create_tables, create_schemas])
def test_sixteen_processes_create_tables_and_schemas(
    address: LakeAddress, lake: Lake, sales: Catalog, duck: duckdb.DuckDBPyConnection, job: Any
) -> None:
    with WorkerPool(16) as workers:
        check_concurrent_creates(workers, address, lake, sales, duck, job, rounds=60)


def check_concurrent_creates(
    workers: WorkerPool,
    address: LakeAddress,
    lake: Lake,
    sales: Catalog,
    duck: duckdb.DuckDBPyConnection,
    job: Any,
    rounds: int,
) -> None:
    commits = flat(workers.run(job, [(address, worker, rounds) for worker in range(workers.size)]))
    assert all(timed.committed.attempts == 1 for timed in commits)
    assert_ids_in_commit_order(commits)
    workers.call(read_history, address, "sales").assert_sound()
    lake.location(sales.info).attach(duck)
    tables, schemas = (1, 1 + workers.size * rounds)[:: 1 if job is create_schemas else -1]
    listed = "SELECT count(DISTINCT table_id) FROM ducklake_table_info('sales')"
    assert duck.sql(listed).fetchall() == [(tables,)]
    listed = "SELECT count(*) FROM duckdb_schemas() WHERE database_name = 'sales'"
    assert duck.sql(listed).fetchall() == [(schemas,)]


def test_catalogs_created_concurrently_are_complete_and_names_unique(
    workers: WorkerPool, address: LakeAddress, lake: Lake, duck: duckdb.DuckDBPyConnection
) -> None:
    check_concurrent_catalogs(workers, address, lake, duck, rounds=1)


@pytest.mark.slow
def test_sixteen_processes_create_catalogs(
    address: LakeAddress, lake: Lake, duck: duckdb.DuckDBPyConnection
) -> None:
    with WorkerPool(16) as workers:
        check_concurrent_catalogs(workers, address, lake, duck, rounds=15)


def check_concurrent_catalogs(
    workers: WorkerPool,
    address: LakeAddress,
    lake: Lake,
    duck: duckdb.DuckDBPyConnection,
    rounds: int,
) -> None:
    won = workers.run(
        create_catalogs, [(address, worker, rounds) for worker in range(workers.size)]
    )
    assert sum(won) == rounds
    infos = lake.catalogs()
    assert len(infos) == workers.size * rounds + rounds
    assert len({info.data_path for info in infos}) == len(infos)
    for info in infos:
        catalog = lake.catalog(info.name)
        assert catalog.check() == []
        assert catalog.newest_snapshot() == (0 if info.name.startswith("wanted") else 1)
    lake.location(infos[0]).attach(duck)
    assert duck.sql(f"SELECT count(*) FROM {infos[0].name}.main.t").fetchall() == [(0,)]


def test_forks_during_appends_equal_their_parent_at_the_fork_point(
    workers: WorkerPool,
    address: LakeAddress,
    lake: Lake,
    sales: Catalog,
    duck: duckdb.DuckDBPyConnection,
) -> None:
    check_forks_during_appends(workers, address, lake, sales, duck, rounds=1)


@pytest.mark.slow
def test_sixteen_processes_fork_and_append(
    address: LakeAddress, lake: Lake, sales: Catalog, duck: duckdb.DuckDBPyConnection
) -> None:
    with WorkerPool(16) as workers:
        check_forks_during_appends(workers, address, lake, sales, duck, rounds=20)


def check_forks_during_appends(
    workers: WorkerPool,
    address: LakeAddress,
    lake: Lake,
    sales: Catalog,
    duck: duckdb.DuckDBPyConnection,
    rounds: int,
) -> None:
    observer = Observer(lake, sales, duck)
    running = workers.start(
        fork_or_append, [(address, worker, rounds) for worker in range(workers.size)]
    )
    observer.watch(running)
    commits = flat(running.get())
    assert all(timed.committed.attempts == 1 for timed in commits)
    assert_ids_in_commit_order(commits)
    observer.check_again()
    workers.call(read_history, address, "sales").assert_sound()
    forks = [info for info in lake.catalogs() if info.parent == sales.info.id]
    assert len(forks) == workers.size // 2 * rounds
    for info in forks:
        assert info.parent_snapshot is not None
        workers.call(read_history, address, info.name).assert_sound()
        lake.location(info).attach(duck)
        rows = duck.sql(f"SELECT count(*) FROM {info.name}.main.shared").fetchall()
        assert rows == [(info.parent_snapshot - 1,)]
        duck.execute(f"DETACH {info.name}")
