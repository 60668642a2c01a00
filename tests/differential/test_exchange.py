"""SwanLake and the stock extension change one catalog alternately; a plain table is the model."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import duckdb
import pytest

from swanlake.lake.catalog import Catalog
from swanlake.lake.model.layout import SortKey
from swanlake.lake.model.types import ColumnSpec
from tests.differential.catalog_pair import AttachedCatalog, CatalogPair, PairFactory

Rows = list[tuple[Any, ...]]


class MirroredTable:
    """A table of a catalog, and a plain DuckDB table that gets the same changes."""

    def __init__(self, catalog: Catalog, side: AttachedCatalog, name: str = "t") -> None:
        self.catalog = catalog
        self.side = side
        self.name = name
        self.seen: dict[int, Rows] = {}
        self.plain = f"memory.plain_{side.name}"
        self.side.connection.execute(f"CREATE TABLE {self.plain} AS FROM {side.name}.{name}")

    def stock(self, *statements: str) -> None:
        """Runs statements on ``{t}``, which means the table and then the plain one."""
        for sql in statements:
            self.side(sql.replace("{t}", f"lake.{self.name}"))
            self.side.connection.execute(sql.replace("{t}", self.plain))
            self.compare()

    def maintain(self, *statements: str) -> None:
        """Runs statements of the stock extension that change no row."""
        for sql in statements:
            self.side(sql)
            self.compare()

    def append(self, query: str) -> None:
        """Inserts with our writer."""
        self.catalog.append(self.side.connection, query, "main", self.name)
        self.side.connection.execute(f"INSERT INTO {self.plain} {query}")
        self.compare()

    def delete(self, where: str) -> None:
        """Deletes with the stock extension."""
        self.stock(f"DELETE FROM {{t}} WHERE {where}")

    def compare(self) -> None:
        """Checks that both tables are equal; records the rows of this snapshot."""
        plain = self.side.connection.execute(f"FROM {self.plain} ORDER BY ALL").fetchall()
        assert self.side(f"FROM lake.{self.name} ORDER BY ALL") == plain
        counted = self.side(f"SELECT count(*), min(i), max(i) FROM lake.{self.name}")
        numbers = [row[0] for row in plain if row[0] is not None]
        assert counted == [(len(plain), min(numbers, default=None), max(numbers, default=None))]
        self.seen[self.catalog.newest_snapshot()] = plain

    def compare_history(
        self, side: AttachedCatalog | None = None, until: int | None = None
    ) -> None:
        """Checks that every recorded snapshot that still exists has the recorded rows."""
        existing = {snapshot.id for snapshot in self.catalog.snapshots()}
        for version, rows in self.seen.items():
            if version in existing and (until is None or version <= until):
                # Without ORDER BY: the stock extension uses the current bounds, which a rewrite
                # narrows, also for older snapshots, and DuckDB then sorts incorrectly.
                then = (side or self.side)(f"FROM lake.{self.name} AT (VERSION => {version})")
                assert sorted(then, key=repr) == sorted(rows, key=repr), version


NUMBERS = [ColumnSpec("i", "BIGINT"), ColumnSpec("t", "VARCHAR")]


def numbers(first: int, end: int) -> str:
    """A query for rows of numbers and texts."""
    return f"SELECT i, 'n' || i AS t FROM range({first}, {end}) r(i)"


@pytest.fixture
def mirrored(pair: CatalogPair) -> MirroredTable:
    """A table of three files that SwanLake wrote, with deleted rows."""
    pair.catalog.create_table("main", "t", NUMBERS)
    mirrored = MirroredTable(pair.catalog, pair.ours)
    for first in (0, 10, 20):
        mirrored.append(numbers(first, first + 10))
    mirrored.delete("i IN (3, 12)")
    return mirrored


# ---- tables written by SwanLake ----------------------------------------------------------------


def test_stock_extension_changes_our_table(mirrored: MirroredTable) -> None:
    mirrored.stock(
        "UPDATE {t} SET t = 'updated' WHERE i % 5 = 0",
        "DELETE FROM {t} WHERE i IN (4, 14, 24)",
        "INSERT INTO {t} VALUES (NULL, 'new'), (1000, NULL)",
        "DELETE FROM {t} WHERE i < 10",
    )
    mirrored.delete("i BETWEEN 15 AND 16")
    mirrored.append(numbers(50, 55))
    mirrored.stock(
        "MERGE INTO {t} USING (VALUES (50, 'merged'), (60, 'merged')) m(i, t) USING (i) "
        "WHEN MATCHED THEN UPDATE SET t = m.t WHEN NOT MATCHED THEN INSERT",
        "TRUNCATE {t}",
    )
    mirrored.append(numbers(0, 3))
    mirrored.compare_history()


def test_stock_extension_maintains_our_table(mirrored: MirroredTable) -> None:
    for first in (30, 40):
        mirrored.append(numbers(first, first + 10))
    mirrored.maintain("CALL ducklake_merge_adjacent_files('lake')")
    mirrored.compare_history()
    mirrored.delete("i IN (1, 5, 30, 31, 45)")
    mirrored.delete("i IN (2, 32)")
    mirrored.compare_history()
    mirrored.maintain("CALL ducklake_rewrite_data_files('lake', delete_threshold => 0)")
    mirrored.compare_history()
    mirrored.delete("i = 33")
    mirrored.append(numbers(60, 70))
    mirrored.maintain(
        "CALL ducklake_merge_adjacent_files('lake')",
        "CALL ducklake_expire_snapshots('lake', versions => [2, 3, 4, 5])",
        "CALL ducklake_cleanup_old_files('lake', cleanup_all => true)",
        "CALL ducklake_delete_orphaned_files('lake', cleanup_all => true)",
    )
    mirrored.compare_history()
    mirrored.delete("i > 42")
    mirrored.append(numbers(0, 5))
    assert mirrored.catalog.check() == []


def test_stock_extension_alters_our_table(mirrored: MirroredTable) -> None:
    mirrored.stock("ALTER TABLE {t} ADD COLUMN x INTEGER DEFAULT 1000")
    mirrored.append("SELECT i, 'x', i::INTEGER FROM range(100, 103) r(i)")
    mirrored.stock(
        "ALTER TABLE {t} RENAME COLUMN t TO text",
        "ALTER TABLE {t} ALTER COLUMN x TYPE BIGINT",
        "UPDATE {t} SET x = 5_000_000_000 WHERE i = 5",
    )
    mirrored.append("SELECT i, 'y', 6_000_000_000 + i FROM range(200, 203) r(i)")
    assert mirrored.side("SELECT count(*) FROM lake.t WHERE x > 5_500_000_000") == [(3,)]
    mirrored.delete("x = 101 OR i = 0")
    mirrored.stock("ALTER TABLE {t} DROP COLUMN text")
    mirrored.append("SELECT 300, 7")
    mirrored.stock("ALTER TABLE {t} ADD COLUMN text STRUCT(a INTEGER)")
    mirrored.append("SELECT 400, 8, {'a': 1}")
    assert mirrored.side("SELECT count(*) FROM lake.t WHERE x < 900") == [(4,)]
    mirrored.maintain("ALTER TABLE lake.t SET PARTITIONED BY (x)")
    mirrored.append("SELECT 500 + i, i, NULL FROM range(3) r(i)")
    mirrored.maintain("ALTER TABLE lake.t SET SORTED BY (i DESC)", "COMMENT ON TABLE lake.t IS 'c'")
    mirrored.append("SELECT 600 + i, i, NULL FROM range(3) r(i)")
    mirrored.side("ALTER TABLE lake.t RENAME TO renamed")
    mirrored.name = "renamed"
    mirrored.append("SELECT 700, 9, {'a': 2}")
    mirrored.delete("i IN (600, 300)")
    mirrored.stock("UPDATE {t} SET x = -1 WHERE i % 2 = 0")


def test_change_feed_equals_the_stock_extensions(pair: CatalogPair) -> None:
    pair.run_on_both("CREATE TABLE lake.t (i BIGINT, t VARCHAR)")
    for first in (0, 10, 20):
        pair.append(numbers(first, first + 10), "t")
        pair.stock(f"INSERT INTO lake.t {numbers(first, first + 10)}")
    pair.run_on_both(
        "DELETE FROM lake.t WHERE i IN (3, 12)",
        "DELETE FROM lake.t WHERE i IN (24, 25)",
        "DELETE FROM lake.t WHERE i BETWEEN 10 AND 19",
        "UPDATE lake.t SET t = 'updated' WHERE i = 7",
        "DELETE FROM lake.t WHERE i = 26",
    )
    pair.append(numbers(30, 32), "t")
    pair.stock(f"INSERT INTO lake.t {numbers(30, 32)}")
    for function in ("table_changes", "table_insertions", "table_deletions"):
        for first in (1, 5, 6, 8):
            for last in (first, 10):
                query = f"FROM lake.{function}('t', {first}, {last}) ORDER BY ALL"
                assert pair.ours(query) == pair.stock(query), query
    rows = "SELECT rowid, snapshot_id, * FROM lake.t ORDER BY ALL"
    assert pair.ours(rows) == pair.stock(rows)


def test_change_feed_lists_a_deleted_row_once(pair: CatalogPair) -> None:
    pair.run_on_both("CREATE TABLE lake.t (i BIGINT, t VARCHAR)")
    pair.append(numbers(0, 10), "t")
    pair.stock(f"INSERT INTO lake.t {numbers(0, 10)}")
    pair.run_on_both("DELETE FROM lake.t WHERE i = 3", "DELETE FROM lake.t WHERE i = 5")
    query = "FROM lake.table_changes('t', {}, 4) ORDER BY ALL"
    for first in (1, 3, 4):
        assert pair.ours(query.format(first)) == pair.stock(query.format(first))
    deleted = f"SELECT i FROM ({query.format(1)}) WHERE change_type = 'delete'"
    assert pair.ours(deleted) == [(3,), (5,)]


def test_stock_extension_queries_our_partitioned_table(pair: CatalogPair) -> None:
    columns = [ColumnSpec("i", "BIGINT"), ColumnSpec("k", "VARCHAR"), ColumnSpec("d", "TIMESTAMP")]
    pair.catalog.create_table(
        "main",
        "t",
        columns,
        partition_by=["k", ("d", "month"), ("i", "bucket(3)")],
        sort_by=[SortKey("i", descending=True)],
    )
    table = MirroredTable(pair.catalog, pair.ours)
    query = (
        "SELECT i, nullif('k' || i % 3, 'k2'), TIMESTAMP '2024-01-15' + to_days(i::INTEGER) "
        "FROM range({}, {}) r(i)"
    )
    table.append(query.format(0, 40))
    table.stock("INSERT INTO {t} " + query.format(40, 60), "DELETE FROM {t} WHERE k = 'k1'")
    table.append(query.format(60, 80))
    table.stock("UPDATE {t} SET k = 'k9' WHERE k IS NULL")
    table.maintain("CALL ducklake_merge_adjacent_files('lake')")
    for where in ("k = 'k9'", "k IS NULL", "month(d) = 2", "d < '2024-02-01'", "i IN (7, 66)"):
        query = f"SELECT count(*), sum(i) FROM {{}} WHERE {where}"
        plain = pair.connection.execute(query.format(table.plain)).fetchall()
        assert pair.ours(query.format("lake.t")) == plain
    table.compare_history()


# ---- tables written by the stock extension -----------------------------------------------------


@pytest.fixture
def inlined(pair_factory: PairFactory) -> Iterator[MirroredTable]:
    """An adopted table of the stock extension with inlined rows and deletes."""
    name = pair_factory.new_name("drake")
    side = pair_factory.attach(name, inlined_rows=10)
    side("CREATE TABLE lake.t (i BIGINT, t VARCHAR)")
    catalog = pair_factory.lake.adopt_catalog(name)
    table = MirroredTable(catalog, side)
    table.stock(
        "INSERT INTO {t} " + numbers(0, 5),
        "INSERT INTO {t} " + numbers(10, 40),
        "DELETE FROM {t} WHERE i IN (1, 11, 12)",
        "UPDATE {t} SET t = 'updated' WHERE i IN (2, 13)",
        "INSERT INTO {t} VALUES (100, 'it''s'), (NULL, NULL)",
    )
    yield table
    pair_factory.detach_all()


def test_our_writer_appends_to_a_table_with_inlined_rows(inlined: MirroredTable) -> None:
    assert inlined.side("SELECT count(*) FROM meta.inlined_data_tables") == [(1,)]
    inlined.append(numbers(200, 220))
    inlined.delete("i IN (14, 15, 201)")  # in files with and without inlined deletes
    inlined.stock(
        "DELETE FROM {t} WHERE i IN (0, 16, 100, 202)",
        "INSERT INTO {t} VALUES (101, 'more')",
    )
    inlined.compare_history()
    inlined.maintain("CALL ducklake_flush_inlined_data('lake')")
    inlined.compare_history()
    inlined.delete("i IN (4, 101, 18)")
    inlined.delete("i = 17")
    inlined.compare_history()
    inlined.append(numbers(300, 303))
    inlined.stock("ALTER TABLE {t} ADD COLUMN x INTEGER", "INSERT INTO {t} VALUES (7, 'x', 1)")
    inlined.append("SELECT 8, 'y', 2")
    inlined.maintain("CALL ducklake_flush_inlined_data('lake')")
    inlined.delete("x = 1")
    inlined.maintain("CALL ducklake_rewrite_data_files('lake', delete_threshold => 0)")
    assert inlined.catalog.check() == []


def test_time_travel_after_two_deletes_and_a_flush_is_unchanged(inlined: MirroredTable) -> None:
    inlined.delete("i = 14")
    inlined.delete("i = 15")
    inlined.compare_history()
    inlined.maintain("CALL ducklake_flush_inlined_data('lake')")
    inlined.compare_history()


def test_fork_of_a_table_with_inlined_rows_is_writable(
    inlined: MirroredTable, pair_factory: PairFactory
) -> None:
    inlined.append(numbers(200, 220))
    inlined.maintain("CALL ducklake_flush_inlined_data('lake')")
    inlined.stock("INSERT INTO {t} VALUES (7, 'x')", "DELETE FROM {t} WHERE i IN (210, 20)")
    inlined.maintain("CALL ducklake_merge_adjacent_files('lake')")
    inlined.delete("i IN (21, 211)")
    inlined.compare_history()
    for version in list(inlined.seen)[3::3]:
        name = pair_factory.new_name("coot")
        fork = pair_factory.lake.fork_catalog(inlined.catalog.name, name, at=version)
        side = pair_factory.attach(name, inlined_rows=10)
        inlined.compare_history(side, until=version)
        table = MirroredTable(fork, side)
        table.seen = {v: r for v, r in inlined.seen.items() if v <= version}
        table.compare()
        table.append(numbers(400, 402))
        table.stock("INSERT INTO {t} VALUES (-5, 'fork')", "DELETE FROM {t} WHERE i IN (22, 401)")
        table.stock("UPDATE {t} SET t = 'fork' WHERE i IN (23, 200)")
        table.compare_history()
        assert fork.check() == []
    inlined.compare()
    inlined.compare_history()


# ---- concurrent transactions -------------------------------------------------------------------


def test_stock_transaction_spans_our_commits(
    mirrored: MirroredTable, pair_factory: PairFactory
) -> None:
    other = mirrored.side.connection.cursor()
    name = mirrored.side.name
    other.execute(f"BEGIN; INSERT INTO {name}.t {numbers(500, 505)}")
    mirrored.append(numbers(600, 603))
    mirrored.append("SELECT 1, 'a' WHERE false")  # an empty snapshot
    mirrored.append(numbers(700, 703))
    if pair_factory.is_sqlite:  # the stock extension does not retry on SQLite
        with pytest.raises(duckdb.TransactionException, match="database is locked"):
            other.execute("COMMIT")
    else:
        other.execute("COMMIT")
        mirrored.side.connection.execute(f"INSERT INTO {mirrored.plain} {numbers(500, 505)}")
    mirrored.compare()
    mirrored.compare_history()
    assert mirrored.catalog.check() == []
