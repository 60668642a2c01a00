"""Group commits with a conflicting member, or a lost database or SQLite worker."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import duckdb
import psycopg
import pyarrow as pa
import pytest

from swanlake.errors import CommitConflict, CommitStateUnknown, SwanLakeError
from swanlake.lake.catalog import Catalog
from swanlake.lake.commit import protocol
from swanlake.lake.commit.protocol import Committed
from swanlake.lake.files import datafile
from swanlake.lake.files.inlining import inline_rows
from swanlake.lake.lake import Lake
from swanlake.lake.metastore.local import MetadataService, open_metastore
from swanlake.lake.model.operations import Commit, CreateSchema, InlineDelete, Insert
from swanlake.lake.model.types import ColumnSpec
from tests.faults.postgres_proxy import LostMessage, PostgresProxy
from tests.faults.workers import LakeAddress
from tests.waiting import eventually

STEPS = ("locked", "planned", "written", "committed")
COLUMNS = [ColumnSpec("id", "BIGINT")]
SIZE = 5


class RecordingService:
    """Forwards to a metadata service and records the sizes of its commit groups."""

    def __init__(self, service: MetadataService) -> None:
        self._service = service
        self.groups: list[int] = []

    def commit(self, info: Any, changes: Sequence[Commit], *arguments: Any) -> Any:
        self.groups.append(len(changes))
        return self._service.commit(info, changes, *arguments)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._service, name)


def commit_as_group(
    lake: Lake, catalog: Catalog, changes: Sequence[Commit]
) -> list[Committed | BaseException]:
    """The outcomes of commits that queued one after another behind a holder of the lock."""
    recording = RecordingService(catalog.metadata)
    catalog = replace(catalog, metadata=cast("MetadataService", recording))
    with ThreadPoolExecutor(len(changes)) as pool:
        futures = []
        with lake.exclusive_writer([lake.location(catalog.info)], "holder", lambda: None):
            for change in changes:
                futures.append(pool.submit(catalog.commit, change))
                eventually(lambda: len(lake.writers()[0].waiters) == len(futures))
        outcomes = [future.exception() or future.result() for future in futures]
    assert recording.groups == [len(changes)]
    return outcomes


@contextmanager
def open_sales(address: LakeAddress) -> Iterator[tuple[Lake, Catalog]]:
    """A catalog with a table ``t`` of one row."""
    with Lake.open(address.metabase, address.data) as lake, duckdb.connect() as duck:
        sales = lake.create_catalog("sales")
        sales.create_table("main", "t", COLUMNS)
        sales.append(duck, "SELECT -1", "main", "t")
        yield lake, sales


def appends(catalog: Catalog) -> list[Commit]:
    """Commits that append one row each."""
    table = catalog.table("main", "t")
    with duckdb.connect() as duck:
        files = [tuple(datafile.write_files(duck, f"SELECT {n}", table)) for n in range(SIZE)]
    return [
        Commit((Insert(table, written, blind=True),), base=table.snapshot_id) for written in files
    ]


def delete_of_an_inlined_row(catalog: Catalog) -> Commit:
    """Inlines two rows; the commit deletes the first."""
    rows = pa.table({"id": pa.array([1, 2], pa.int64())})
    inlined = inline_rows(catalog.table("main", "t"), rows, blind=True)
    assert inlined is not None
    catalog.change(inlined)
    table = catalog.table("main", "t")
    (source,) = catalog.files(table.id).inlined
    return Commit((InlineDelete(table, source.name, (1,)),), base=table.snapshot_id)


def assert_all_applied_once(
    lake: Lake,
    catalog: Catalog,
    outcomes: Sequence[Committed | BaseException],
    first: int,
    duck: duckdb.DuckDBPyConnection,
) -> None:
    """Checks that each commit has a snapshot with its rows, in order and without a gap."""
    ids = [outcome.snapshot_id for outcome in outcomes if isinstance(outcome, Committed)]
    assert ids == list(range(first, first + SIZE))
    assert [snapshot.id for snapshot in catalog.snapshots()] == list(range(first + SIZE))
    lake.location(catalog.info).attach(duck)
    rows = duck.execute("SELECT id FROM sales.main.t").fetchall()
    assert sorted(rows) == [(id,) for id in range(-1, SIZE)]
    for number in range(SIZE):
        at = f"sales.main.t AT (VERSION => {first + number})"
        assert duck.execute(f"SELECT max(id) FROM {at}").fetchall() == [(number,)]
    assert catalog.check() == []
    assert catalog.missing_files() == []


def test_conflict_fails_only_its_own_commit_of_a_group(
    metabase: str | Path, tmp_path: Path
) -> None:
    with open_sales(LakeAddress(metabase, str(tmp_path / "data"))) as (lake, sales):
        delete = delete_of_an_inlined_row(sales)
        again = Commit(delete.operations, base=delete.base)
        first = sales.newest_snapshot() + 1
        schemas = [Commit((CreateSchema(name),)) for name in ("a", "b", "c")]
        changes = [schemas[0], delete, again, schemas[1], schemas[2]]
        outcomes = commit_as_group(lake, sales, changes)
        assert isinstance(outcomes[2], CommitConflict)
        assert "main.t" in outcomes[2].message
        committed = [outcome.snapshot_id for outcome in outcomes if isinstance(outcome, Committed)]
        assert committed == list(range(first, first + 4))
        assert [snapshot.id for snapshot in sales.snapshots()] == list(range(first + 4))
        assert sales.check() == []


def test_row_lock_of_another_program_fails_only_the_commit_that_needs_it(
    postgres_database: str, tmp_path: Path
) -> None:
    address = LakeAddress(postgres_database, str(tmp_path / "data"))
    with (
        open_sales(address) as (_, sales),
        closing(open_metastore(address.metabase, address.data)) as metabase,
        psycopg.connect(postgres_database) as holder,
    ):
        delete = delete_of_an_inlined_row(sales)
        [operation] = delete.of_type(InlineDelete)
        holder.execute(f"DELETE FROM lake_sales.{operation.table_name}")
        schemas = [Commit((CreateSchema(name),)) for name in ("a", "b")]
        store = metabase.store(sales.info)
        outcomes = protocol.apply_all(store, [schemas[0], delete, schemas[1]])
        assert isinstance(outcomes[1], CommitConflict)
        assert "main.t" in outcomes[1].message
        assert isinstance(outcomes[0], Committed)
        assert isinstance(outcomes[2], Committed)
        holder.rollback()
        assert isinstance(protocol.apply(store, delete), Committed)
        assert sales.check() == []


def test_planning_error_fails_only_its_own_commit_of_a_group(
    metabase: str | Path, tmp_path: Path
) -> None:
    with (
        open_sales(LakeAddress(metabase, str(tmp_path / "data"))) as (_, sales),
        closing(open_metastore(metabase, str(tmp_path / "data"))) as opened,
    ):
        invalid = Commit((CreateSchema("\ud800"),))
        schemas = [Commit((CreateSchema(name),)) for name in ("a", "b")]
        outcomes = protocol.apply_all(opened.store(sales.info), [schemas[0], invalid, schemas[1]])
        assert isinstance(outcomes[1], CommitStateUnknown)
        assert isinstance(outcomes[0], Committed)
        assert isinstance(outcomes[2], Committed)


@pytest.mark.parametrize("loss", LostMessage)
def test_group_is_found_or_retried_when_the_connection_is_lost(
    postgres_database: str,
    tmp_path: Path,
    tmp_path_factory: pytest.TempPathFactory,
    duck: duckdb.DuckDBPyConnection,
    loss: LostMessage,
) -> None:
    data = str(tmp_path / "data")
    with (
        open_sales(LakeAddress(postgres_database, data)) as (direct, sales),
        PostgresProxy(postgres_database, tmp_path_factory.mktemp("wire")) as proxy,
        Lake.open(proxy.url, data) as lake,
    ):
        changes, first = appends(sales), sales.newest_snapshot() + 1
        through_proxy = lake.catalog("sales")
        proxy.lose_next_commit(loss)
        outcomes = commit_as_group(lake, through_proxy, changes)
        assert proxy.lost == 1
        assert_all_applied_once(direct, sales, outcomes, first, duck)


@pytest.mark.parametrize("step", STEPS[:3])
def test_group_is_retried_one_by_one_when_its_backend_is_terminated(
    postgres_database: str, tmp_path: Path, duck: duckdb.DuckDBPyConnection, step: str
) -> None:
    address = LakeAddress(postgres_database, str(tmp_path / "data"))
    ended = 0

    def terminate(reached: str) -> None:
        nonlocal ended
        if reached != step or ended:
            return
        with psycopg.connect(postgres_database, autocommit=True) as connection:
            row = connection.execute(
                "SELECT count(pg_terminate_backend(pid, 10000)) FROM (SELECT DISTINCT pid "
                "FROM pg_locks JOIN pg_database d ON d.oid = database "
                "WHERE locktype = 'advisory' AND datname = current_database()) AS holders"
            ).fetchone()
        assert row is not None
        ended = row[0]

    with (
        open_sales(address) as (lake, sales),
        closing(open_metastore(address.metabase, address.data)) as metabase,
    ):
        changes, first = appends(sales), sales.newest_snapshot() + 1
        store = metabase.store(sales.info)
        store.reached = terminate
        outcomes: list[Committed | SwanLakeError] = protocol.apply_all(store, changes)
        assert ended == 1
        assert_all_applied_once(lake, sales, outcomes, first, duck)


@pytest.mark.parametrize("step", STEPS)
def test_group_is_applied_once_when_its_worker_is_killed(
    tmp_path: Path,
    duck: duckdb.DuckDBPyConnection,
    crash_sqlite_worker: Callable[..., Path],
    step: str,
) -> None:
    address = LakeAddress(tmp_path / "catalogs", str(tmp_path / "data"))
    with open_sales(address) as (direct, sales):
        changes, first = appends(sales), sales.newest_snapshot() + 1
        left = crash_sqlite_worker(step, 1)
        with Lake.open(address.metabase, address.data) as lake:
            outcomes = commit_as_group(lake, lake.catalog("sales"), changes)
        assert list(left.iterdir()) == []
        assert_all_applied_once(direct, sales, outcomes, first, duck)
