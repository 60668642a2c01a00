"""Commits that are made as a group, of which one conflicts, or whose database or keeper is lost."""

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
from swanlake.lake import commit, datafile
from swanlake.lake.commit import Committed
from swanlake.lake.inlining import inlined
from swanlake.lake.lake import Catalog, Lake
from swanlake.lake.local import LocalLake, open_metabase
from swanlake.lake.operations import Commit, CreateSchema, Delete, InlineDelete, Insert
from swanlake.lake.types import ColumnSpec
from tests.faults.crew import Place
from tests.faults.proxy import Loss, Proxy
from tests.flight import eventually

STEPS = ("locked", "planned", "written", "committed")
COLUMNS = [ColumnSpec("id", "BIGINT")]
SIZE = 5


class Watched:
    """A keeper that is seen committing."""

    def __init__(self, keeper: LocalLake) -> None:
        self._keeper = keeper
        self.groups: list[int] = []

    def commit(self, info: Any, changes: Sequence[Commit], *others: Any) -> Any:
        self.groups.append(len(changes))
        return self._keeper.commit(info, changes, *others)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._keeper, name)


def commit_as_group(
    lake: Lake, catalog: Catalog, changes: Sequence[Commit]
) -> list[Committed | BaseException]:
    """What became of commits that came, one after the other, while somebody had the catalog."""
    watched = Watched(catalog.keeper)
    catalog = replace(catalog, keeper=cast("LocalLake", watched))
    with ThreadPoolExecutor(len(changes)) as pool:
        futures = []
        with lake.turn([lake.location(catalog.info)], "somebody", lambda: None):
            for change in changes:
                futures.append(pool.submit(catalog.commit, change))
                eventually(lambda: len(lake.writers()[0].waiters) == len(futures))
        ends = [future.exception() or future.result() for future in futures]
    assert watched.groups == [len(changes)]
    return ends


@contextmanager
def open_sales(place: Place) -> Iterator[tuple[Lake, Catalog]]:
    """A catalog with a table t, which has one row in one file."""
    with Lake.open(place.metabase, place.data) as lake, duckdb.connect() as duck:
        sales = lake.create_catalog("sales")
        sales.create_table("main", "t", COLUMNS)
        sales.append(duck, "SELECT -1", "main", "t")
        yield lake, sales


def appends(catalog: Catalog) -> list[Commit]:
    """Commits of a row each."""
    table = catalog.table("main", "t")
    with duckdb.connect() as duck:
        files = [tuple(datafile.write_files(duck, f"SELECT {n}", table)) for n in range(SIZE)]
    return [Commit((Insert(table, one, blind=True),), base=table.snapshot_id) for one in files]


def assert_all_happened_once(
    lake: Lake,
    catalog: Catalog,
    ends: Sequence[Committed | BaseException],
    first: int,
    duck: duckdb.DuckDBPyConnection,
) -> None:
    """Each has a snapshot and its rows; in their order, without a gap."""
    ids = [end.snapshot_id for end in ends if isinstance(end, Committed)]
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


def test_one_that_conflicts_leaves_the_others_of_its_group_alone(
    metabase: str | Path, tmp_path: Path
) -> None:
    with open_sales(Place(metabase, str(tmp_path / "data"))) as (lake, sales):
        table, first = sales.table("main", "t"), sales.snapshot_id() + 1
        delete = Commit((Delete(table, dropped=(0,)),), base=table.snapshot_id)
        again = Commit((Delete(table, dropped=(0,)),), base=table.snapshot_id)
        schemas = [Commit((CreateSchema(name),)) for name in ("a", "b", "c")]
        changes = [schemas[0], delete, again, schemas[1], schemas[2]]
        ends = commit_as_group(lake, sales, changes)
        assert isinstance(ends[2], CommitConflict)
        assert "main.t" in ends[2].message
        committed = [end.snapshot_id for end in ends if isinstance(end, Committed)]
        assert committed == list(range(first, first + 4))
        assert [one.id for one in sales.snapshots()] == list(range(first + 4))
        assert sales.check() == []


def test_rows_that_another_program_holds_are_no_trouble_for_the_others_of_a_group(
    postgres_database: str, tmp_path: Path
) -> None:
    place = Place(postgres_database, str(tmp_path / "data"))
    with (
        open_sales(place) as (_, sales),
        closing(open_metabase(place.metabase, place.data)) as metabase,
        psycopg.connect(postgres_database) as holder,
    ):
        rows = pa.table({"id": pa.array([1, 2], pa.int64())})
        kept = inlined(sales.table("main", "t"), rows, blind=True)
        assert kept is not None
        sales.change(kept)
        [(name,)] = holder.execute(
            "SELECT table_name FROM lake_sales.ducklake_inlined_data_tables"
        ).fetchall()
        holder.execute(f"DELETE FROM lake_sales.{name}")
        table = sales.table("main", "t")
        delete = Commit((InlineDelete(table, name, (1,)),), base=table.snapshot_id)
        schemas = [Commit((CreateSchema(one),)) for one in ("a", "b")]
        store = metabase.store(sales.info)
        ends = commit.apply_all(store, [schemas[0], delete, schemas[1]])
        assert isinstance(ends[1], CommitConflict)
        assert "main.t" in ends[1].message
        assert isinstance(ends[0], Committed)
        assert isinstance(ends[2], Committed)
        holder.rollback()
        assert isinstance(commit.apply(store, delete), Committed)
        assert sales.check() == []


def test_one_that_cannot_be_planned_leaves_the_others_of_its_group_alone(
    metabase: str | Path, tmp_path: Path
) -> None:
    with (
        open_sales(Place(metabase, str(tmp_path / "data"))) as (_, sales),
        closing(open_metabase(metabase, str(tmp_path / "data"))) as opened,
    ):
        unspeakable = Commit((CreateSchema("\ud800"),))
        schemas = [Commit((CreateSchema(one),)) for one in ("a", "b")]
        ends = commit.apply_all(opened.store(sales.info), [schemas[0], unspeakable, schemas[1]])
        assert isinstance(ends[1], CommitStateUnknown)
        assert isinstance(ends[0], Committed)
        assert isinstance(ends[2], Committed)


@pytest.mark.parametrize("loss", Loss)
def test_a_group_whose_commit_got_lost_on_the_wire_is_found_or_repeated(
    postgres_database: str,
    tmp_path: Path,
    tmp_path_factory: pytest.TempPathFactory,
    duck: duckdb.DuckDBPyConnection,
    loss: Loss,
) -> None:
    data = str(tmp_path / "data")
    with (
        open_sales(Place(postgres_database, data)) as (direct, sales),
        Proxy(postgres_database, tmp_path_factory.mktemp("wire")) as proxy,
        Lake.open(proxy.url, data) as lake,
    ):
        changes, first = appends(sales), sales.snapshot_id() + 1
        over_wire = lake.catalog("sales")
        proxy.lose(loss)
        ends = commit_as_group(lake, over_wire, changes)
        assert proxy.lost == 1
        assert_all_happened_once(direct, sales, ends, first, duck)


@pytest.mark.parametrize("step", STEPS[:3])
def test_a_group_whose_backend_is_terminated_is_made_one_by_one(
    postgres_database: str, tmp_path: Path, duck: duckdb.DuckDBPyConnection, step: str
) -> None:
    place = Place(postgres_database, str(tmp_path / "data"))
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
        open_sales(place) as (lake, sales),
        closing(open_metabase(place.metabase, place.data)) as metabase,
    ):
        changes, first = appends(sales), sales.snapshot_id() + 1
        store = metabase.store(sales.info)
        store.reached = terminate
        ends: list[Committed | SwanLakeError] = commit.apply_all(store, changes)
        assert ended == 1
        assert_all_happened_once(lake, sales, ends, first, duck)


@pytest.mark.parametrize("step", STEPS)
def test_a_group_whose_keeper_is_killed_happens_once(
    tmp_path: Path, duck: duckdb.DuckDBPyConnection, deaths: Callable[..., Path], step: str
) -> None:
    place = Place(tmp_path / "catalogs", str(tmp_path / "data"))
    with open_sales(place) as (kept, sales):
        changes, first = appends(sales), sales.snapshot_id() + 1
        left = deaths(step, 1)
        with Lake.open(place.metabase, place.data) as lake:
            ends = commit_as_group(lake, lake.catalog("sales"), changes)
        assert list(left.iterdir()) == []
        assert_all_happened_once(kept, sales, ends, first, duck)
