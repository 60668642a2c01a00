"""We and the stock extension take turns at one catalog, and both see what a plain table holds."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import duckdb
import pytest

from swanlake.errors import CommitConflict
from swanlake.lake.lake import Catalog
from swanlake.lake.layout import SortKey
from swanlake.lake.operations import Commit
from swanlake.lake.types import ColumnSpec
from tests.differential.twins import Side, TwinMaker, Twins, deletion

Rows = list[tuple[Any, ...]]


class Followed:
    """A table of a catalog, and a plain DuckDB table to which the same is done."""

    def __init__(self, catalog: Catalog, side: Side, name: str = "t") -> None:
        self.catalog = catalog
        self.side = side
        self.name = name
        self.seen: dict[int, Rows] = {}
        self.plain = f"memory.plain_{side.name}"
        self.side.connection.execute(f"CREATE TABLE {self.plain} AS FROM {side.name}.{name}")

    def stock(self, *statements: str) -> None:
        """Lets stock DuckDB do something to ``{t}``, here and there."""
        for sql in statements:
            self.side(sql.replace("{t}", f"lake.{self.name}"))
            self.side.connection.execute(sql.replace("{t}", self.plain))
            self.look()

    def maintain(self, *statements: str) -> None:
        """Lets stock DuckDB do something to the lake that changes no row."""
        for sql in statements:
            self.side(sql)
            self.look()

    def append(self, query: str) -> None:
        """Inserts with our writer."""
        self.catalog.append(self.side.connection, query, "main", self.name)
        self.side.connection.execute(f"INSERT INTO {self.plain} {query}")
        self.look()

    def delete(self, where: str) -> None:
        """Deletes with our writer."""
        table = self.catalog.table("main", self.name)
        deleted = deletion(self.side, table, where)
        self.catalog.commit(Commit((deleted,), base=table.snapshot_id))
        self.side.connection.execute(f"DELETE FROM {self.plain} WHERE {where}")
        self.look()

    def look(self) -> None:
        """Fails unless the table holds what the plain one does; remembers it for time travel."""
        plain = self.side.connection.execute(f"FROM {self.plain} ORDER BY ALL").fetchall()
        assert self.side(f"FROM lake.{self.name} ORDER BY ALL") == plain
        counted = self.side(f"SELECT count(*), min(i), max(i) FROM lake.{self.name}")
        numbers = [row[0] for row in plain if row[0] is not None]
        assert counted == [(len(plain), min(numbers, default=None), max(numbers, default=None))]
        self.seen[self.catalog.snapshot_id()] = plain

    def look_back(self, side: Side | None = None, until: int | None = None) -> None:
        """Fails unless every state that was seen, and is kept, is still there to be seen."""
        kept = {snapshot.id for snapshot in self.catalog.snapshots()}
        for version, rows in self.seen.items():
            if version in kept and (until is None or version <= until):
                # Not with ORDER BY: the stock extension takes the bounds of now, which a rewrite
                # narrows, for those of then, and DuckDB sorts wrong numbers.
                then = (side or self.side)(f"FROM lake.{self.name} AT (VERSION => {version})")
                assert sorted(then, key=repr) == sorted(rows, key=repr), version


NUMBERS = [ColumnSpec("i", "BIGINT"), ColumnSpec("t", "VARCHAR")]


def numbers(first: int, end: int) -> str:
    """Rows for a table of numbers and texts."""
    return f"SELECT i, 'n' || i AS t FROM range({first}, {end}) r(i)"


@pytest.fixture
def followed(twins: Twins) -> Followed:
    """A table that we made and filled, in three files, and deleted from."""
    twins.catalog.create_table("main", "t", NUMBERS)
    table = Followed(twins.catalog, twins.ours)
    for first in (0, 10, 20):
        table.append(numbers(first, first + 10))
    table.delete("i IN (3, 12)")
    return table


# ---- what we wrote -----------------------------------------------------------------------------


def test_stock_changes_what_we_wrote(followed: Followed) -> None:
    followed.stock(
        "UPDATE {t} SET t = 'updated' WHERE i % 5 = 0",
        "DELETE FROM {t} WHERE i IN (4, 14, 24)",
        "INSERT INTO {t} VALUES (NULL, 'new'), (1000, NULL)",
        "DELETE FROM {t} WHERE i < 10",
    )
    followed.delete("i BETWEEN 15 AND 16")
    followed.append(numbers(50, 55))
    followed.stock(
        "MERGE INTO {t} USING (VALUES (50, 'merged'), (60, 'merged')) m(i, t) USING (i) "
        "WHEN MATCHED THEN UPDATE SET t = m.t WHEN NOT MATCHED THEN INSERT",
        "TRUNCATE {t}",
    )
    followed.append(numbers(0, 3))
    followed.look_back()


def test_stock_maintains_what_we_wrote(followed: Followed) -> None:
    for first in (30, 40):
        followed.append(numbers(first, first + 10))
    followed.maintain("CALL ducklake_merge_adjacent_files('lake')")
    followed.look_back()
    followed.delete("i IN (1, 5, 30, 31, 45)")
    followed.delete("i IN (2, 32)")
    followed.look_back()
    followed.maintain("CALL ducklake_rewrite_data_files('lake', delete_threshold => 0)")
    followed.look_back()
    followed.delete("i = 33")
    followed.append(numbers(60, 70))
    followed.maintain(
        "CALL ducklake_merge_adjacent_files('lake')",
        "CALL ducklake_expire_snapshots('lake', versions => [2, 3, 4, 5])",
        "CALL ducklake_cleanup_old_files('lake', cleanup_all => true)",
        "CALL ducklake_delete_orphaned_files('lake', cleanup_all => true)",
    )
    followed.look_back()
    followed.delete("i > 42")
    followed.append(numbers(0, 5))
    assert followed.catalog.check() == []


def test_stock_alters_what_we_wrote(followed: Followed) -> None:
    followed.stock("ALTER TABLE {t} ADD COLUMN x INTEGER DEFAULT 1000")
    followed.append("SELECT i, 'x', i::INTEGER FROM range(100, 103) r(i)")
    followed.stock(
        "ALTER TABLE {t} RENAME COLUMN t TO text",
        "ALTER TABLE {t} ALTER COLUMN x TYPE BIGINT",
        "UPDATE {t} SET x = 5_000_000_000 WHERE i = 5",
    )
    followed.append("SELECT i, 'y', 6_000_000_000 + i FROM range(200, 203) r(i)")
    assert followed.side("SELECT count(*) FROM lake.t WHERE x > 5_500_000_000") == [(3,)]
    followed.delete("x = 101 OR i = 0")
    followed.stock("ALTER TABLE {t} DROP COLUMN text")
    followed.append("SELECT 300, 7")
    followed.stock("ALTER TABLE {t} ADD COLUMN text STRUCT(a INTEGER)")
    followed.append("SELECT 400, 8, {'a': 1}")
    assert followed.side("SELECT count(*) FROM lake.t WHERE x < 900") == [(4,)]
    followed.maintain("ALTER TABLE lake.t SET PARTITIONED BY (x)")
    followed.append("SELECT 500 + i, i, NULL FROM range(3) r(i)")
    followed.maintain("ALTER TABLE lake.t SET SORTED BY (i DESC)", "COMMENT ON TABLE lake.t IS 'c'")
    followed.append("SELECT 600 + i, i, NULL FROM range(3) r(i)")
    followed.side("ALTER TABLE lake.t RENAME TO renamed")
    followed.name = "renamed"
    followed.append("SELECT 700, 9, {'a': 2}")
    followed.delete("i IN (600, 300)")
    followed.stock("UPDATE {t} SET x = -1 WHERE i % 2 = 0")


def test_changes_are_those_the_stock_extension_would_report(twins: Twins) -> None:
    twins.both("CREATE TABLE lake.t (i BIGINT, t VARCHAR)")
    for first in (0, 10, 20):
        twins.append(numbers(first, first + 10), "t")
        twins.stock(f"INSERT INTO lake.t {numbers(first, first + 10)}")
    for where in ("i IN (3, 12)", "i IN (24, 25)", "i BETWEEN 10 AND 19"):
        twins.delete(where, "t")
        twins.stock(f"DELETE FROM lake.t WHERE {where}")
    twins.both("UPDATE lake.t SET t = 'updated' WHERE i = 7", "DELETE FROM lake.t WHERE i = 26")
    twins.append(numbers(30, 32), "t")
    twins.stock(f"INSERT INTO lake.t {numbers(30, 32)}")
    for function in ("table_changes", "table_insertions", "table_deletions"):
        for first in (1, 5, 6, 8):
            for last in (first, 10):
                query = f"FROM lake.{function}('t', {first}, {last}) ORDER BY ALL"
                assert twins.ours(query) == twins.stock(query), query
    rows = "SELECT rowid, snapshot_id, * FROM lake.t ORDER BY ALL"
    assert twins.ours(rows) == twins.stock(rows)


@pytest.mark.xfail(
    reason="The stock extension leaves out of a delete file what an older one had marked, but only "
    "if that is older than the first snapshot that is asked for; its own second delete file says "
    "of each row when it went, and ours does not.",
    raises=AssertionError,
)
def test_changes_name_a_row_once_that_we_deleted_before(twins: Twins) -> None:
    twins.both("CREATE TABLE lake.t AS " + numbers(0, 10))
    for number in (3, 5):
        twins.delete(f"i = {number}", "t")
        twins.stock(f"DELETE FROM lake.t WHERE i = {number}")
    query = "FROM lake.table_changes('t', 1, 3) ORDER BY ALL"
    assert twins.ours(query) == twins.stock(query)


def test_partitions_and_order_of_ours_serve_stock_queries(twins: Twins) -> None:
    columns = [ColumnSpec("i", "BIGINT"), ColumnSpec("k", "VARCHAR"), ColumnSpec("d", "TIMESTAMP")]
    twins.catalog.create_table(
        "main",
        "t",
        columns,
        partition_by=["k", ("d", "month"), ("i", "bucket(3)")],
        sort_by=[SortKey("i", descending=True)],
    )
    table = Followed(twins.catalog, twins.ours)
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
        found = f"SELECT count(*), sum(i) FROM {{}} WHERE {where}"
        plain = twins.connection.execute(found.format(table.plain)).fetchall()
        assert twins.ours(found.format("lake.t")) == plain
    table.look_back()


# ---- what stock wrote --------------------------------------------------------------------------


@pytest.fixture
def inlined(twin_maker: TwinMaker) -> Iterator[Followed]:
    """A table that the stock extension made, with rows and deletes in the metadata, adopted."""
    name = twin_maker.new_name("drake")
    side = twin_maker.attach(name, inlined_rows=10)
    side("CREATE TABLE lake.t (i BIGINT, t VARCHAR)")
    catalog = twin_maker.lake.adopt_catalog(name)
    table = Followed(catalog, side)
    table.stock(
        "INSERT INTO {t} " + numbers(0, 5),
        "INSERT INTO {t} " + numbers(10, 40),
        "DELETE FROM {t} WHERE i IN (1, 11, 12)",
        "UPDATE {t} SET t = 'updated' WHERE i IN (2, 13)",
        "INSERT INTO {t} VALUES (100, 'it''s'), (NULL, NULL)",
    )
    yield table
    twin_maker.detach()


def test_we_go_on_where_rows_are_inlined(inlined: Followed) -> None:
    assert inlined.side("SELECT count(*) FROM meta.inlined_data_tables") == [(1,)]
    inlined.append(numbers(200, 220))
    inlined.delete("i IN (14, 15, 201)")  # in files with and without inlined deletes
    inlined.stock(
        "DELETE FROM {t} WHERE i IN (0, 16, 100, 202)",
        "INSERT INTO {t} VALUES (101, 'more')",
    )
    inlined.look_back()
    inlined.maintain("CALL ducklake_flush_inlined_data('lake')")
    inlined.look_back()
    inlined.delete("i IN (4, 101, 18)")
    inlined.delete("i = 17")
    inlined.look_back()
    inlined.append(numbers(300, 303))
    inlined.stock("ALTER TABLE {t} ADD COLUMN x INTEGER", "INSERT INTO {t} VALUES (7, 'x', 1)")
    inlined.append("SELECT 8, 'y', 2")
    inlined.maintain("CALL ducklake_flush_inlined_data('lake')")
    inlined.delete("x = 1")
    inlined.maintain("CALL ducklake_rewrite_data_files('lake', delete_threshold => 0)")
    assert inlined.catalog.check() == []


@pytest.mark.xfail(
    reason="A flush puts inlined deletes and our newest delete file into one that begins with the "
    "oldest of them, and so covers snapshots of our first delete file too: rows appear twice in "
    "them. The stock extension never has two delete files in the history of one data file.",
    raises=AssertionError,
)
def test_time_travel_after_two_of_our_deletes_and_a_flush(inlined: Followed) -> None:
    inlined.delete("i = 14")
    inlined.delete("i = 15")
    inlined.look_back()
    inlined.maintain("CALL ducklake_flush_inlined_data('lake')")
    inlined.look_back()


def test_forks_begin_where_rows_are_inlined(inlined: Followed, twin_maker: TwinMaker) -> None:
    inlined.append(numbers(200, 220))
    inlined.maintain("CALL ducklake_flush_inlined_data('lake')")
    inlined.stock("INSERT INTO {t} VALUES (7, 'x')", "DELETE FROM {t} WHERE i IN (210, 20)")
    inlined.maintain("CALL ducklake_merge_adjacent_files('lake')")
    inlined.delete("i IN (21, 211)")
    inlined.look_back()
    for version in list(inlined.seen)[3::3]:
        name = twin_maker.new_name("coot")
        fork = twin_maker.lake.fork_catalog(inlined.catalog.name, name, at=version)
        side = twin_maker.attach(name, inlined_rows=10)
        inlined.look_back(side, until=version)
        table = Followed(fork, side)
        table.seen = {v: r for v, r in inlined.seen.items() if v <= version}
        table.look()
        table.append(numbers(400, 402))
        table.stock("INSERT INTO {t} VALUES (-5, 'fork')", "DELETE FROM {t} WHERE i IN (22, 401)")
        table.stock("UPDATE {t} SET t = 'fork' WHERE i IN (23, 200)")
        table.look_back()
        assert fork.check() == []
    inlined.look()
    inlined.look_back()


def test_we_delete_after_stock_did(twins: Twins) -> None:
    twins.both("CREATE TABLE lake.t AS " + numbers(0, 20))
    table = Followed(twins.catalog, twins.ours)
    table.stock(
        "DELETE FROM {t} WHERE i = 1", "DELETE FROM {t} WHERE i = 2", "DELETE FROM {t} WHERE i = 3"
    )
    table.delete("i = 4")
    table.stock("DELETE FROM {t} WHERE i = 5")
    table.delete("i = 6")
    table.look_back()
    table.delete("i >= 0")
    table.look_back()


# ---- at the same time --------------------------------------------------------------------------


def test_stock_commits_around_ours(followed: Followed, twin_maker: TwinMaker) -> None:
    other = followed.side.connection.cursor()
    name = followed.side.name
    other.execute(f"BEGIN; INSERT INTO {name}.t {numbers(500, 505)}")
    followed.append(numbers(600, 603))
    followed.append("SELECT 1, 'a' WHERE false")  # a snapshot that changes nothing
    followed.append(numbers(700, 703))
    if twin_maker.is_sqlite:  # there, the stock extension does not try again
        with pytest.raises(duckdb.TransactionException, match="database is locked"):
            other.execute("COMMIT")
    else:
        other.execute("COMMIT")
        followed.side.connection.execute(f"INSERT INTO {followed.plain} {numbers(500, 505)}")
    followed.look()
    followed.look_back()
    assert followed.catalog.check() == []


def test_deletes_of_one_file_at_the_same_time_conflict(followed: Followed) -> None:
    other = followed.side.connection.cursor()
    name = followed.side.name
    other.execute(f"BEGIN; DELETE FROM {name}.t WHERE i = 5")
    followed.delete("i = 6")
    with pytest.raises(duckdb.TransactionException):
        other.execute("COMMIT")
    table = followed.catalog.table("main", "t")
    mine = deletion(followed.side, table, "i = 7")
    followed.stock("DELETE FROM {t} WHERE i = 8")
    with pytest.raises(CommitConflict):
        followed.catalog.commit(Commit((mine,), base=table.snapshot_id))
    followed.look()
