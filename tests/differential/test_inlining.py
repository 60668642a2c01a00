"""Rows that we keep in the metadata are those that the stock extension keeps, in every way."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from datetime import timedelta
from typing import Any

import duckdb
import pyarrow as pa
import pytest

from swanlake.errors import CommitConflict
from swanlake.lake.commit import Committed
from swanlake.lake.inlined_tables import can_inline
from swanlake.lake.inlining import inlined
from swanlake.lake.lake import Catalog, new_table
from swanlake.lake.layout import SortKey
from swanlake.lake.operations import Commit, CreateTable, InlineInsert
from swanlake.lake.types import ColumnSpec
from swanlake.sql.quoting import identifier
from tests.differential.test_compaction import run
from tests.differential.test_operations import NUMBERS_SQL, numbers
from tests.differential.twins import Difference, Side, Tables, TwinMaker, Twins

Rows = list[tuple[Any, ...]]


@pytest.fixture
def inlining(twin_maker: TwinMaker, twins: Twins) -> Twins:
    """Twins for which stock DuckDB inlines up to ten rows."""
    for side in (twins.ours, twins.stock):
        attach(twin_maker, side, 10)
    return twins


def attach(maker: TwinMaker, side: Side, inlined_rows: int) -> None:
    side.connection.execute(f"DETACH {side.name}")
    maker.attach(side.name, inlined_rows)


def arrow(twins: Twins, query: str) -> pa.Table:
    """The rows of a query, as a session hands them to Arrow."""
    cursor = twins.connection.cursor()
    cursor.execute("SET arrow_lossless_conversion = true")
    return cursor.execute(query).to_arrow_table()


def small(twins: Twins, query: str, name: str = "t") -> InlineInsert:
    made = inlined(twins.catalog.table("main", name), arrow(twins, query), blind=True)
    assert made is not None
    return made


def insert(twins: Twins, query: str, name: str = "t") -> Committed:
    """Inserts rows with our writer, and keeps them in the metadata."""
    made = small(twins, query, name)
    assert not isinstance(made.table, CreateTable)
    return twins.commit(made, base=made.table.snapshot_id)


def insert_both(twins: Twins, query: str, name: str = "t") -> None:
    insert(twins, query, name)
    twins.stock(f"INSERT INTO lake.{name} {query}")


def kept(side: Side) -> dict[str, Rows]:
    """Every table of rows in the metadata: its columns, their types, and its rows."""
    found = side("SELECT table_name FROM meta.inlined_data_tables ORDER BY ALL")
    return {
        name: side(f"SELECT column_name, column_type FROM (DESCRIBE FROM meta.{_short(name)})")
        + side(f"FROM meta.{_short(name)} ORDER BY row_id, begin_snapshot")
        for (name,) in found
    }


def _short(name: str) -> str:
    return str(name).removeprefix("ducklake_")


def compare(twins: Twins, *differences: Difference) -> None:
    twins.compare(*differences)
    assert repr(kept(twins.ours)) == repr(kept(twins.stock))  # NaN is no other than itself


# ---- what is written ---------------------------------------------------------------------------


def test_the_first_rows_of_a_table_of_ours(inlining: Twins, twin_maker: TwinMaker) -> None:
    """There is no table for them yet: it comes with a new version of the schema."""
    attach(twin_maker, inlining.stock, 0)
    inlining.catalog.create_table(
        "main", "t", [ColumnSpec("i", "BIGINT"), ColumnSpec("t", "VARCHAR")]
    )
    inlining.stock(NUMBERS_SQL)
    attach(twin_maker, inlining.stock, 10)
    assert inlining.ours("FROM lake.t") == []  # a client that knows the table without it
    insert_both(inlining, numbers(0, 3))
    assert len(inlining.ours("FROM lake.t")) == 3
    insert_both(inlining, numbers(3, 4))
    insert_both(inlining, numbers(10, 12))
    compare(inlining)


def test_rows_for_a_table_of_the_stock_extension(inlining: Twins) -> None:
    inlining.both(NUMBERS_SQL)
    insert_both(inlining, numbers(0, 3))
    inlining.both(f"INSERT INTO lake.t {numbers(7, 9)}", f"INSERT INTO lake.t {numbers(20, 90)}")
    insert_both(inlining, "SELECT NULL, 'x' UNION ALL SELECT -5, NULL")
    compare(inlining)


def test_a_table_that_comes_with_its_rows(inlining: Twins) -> None:
    made = new_table("main", "t", [ColumnSpec("i", "BIGINT"), ColumnSpec("t", "VARCHAR")])
    rows = inlined(made, arrow(inlining, numbers(0, 3)))
    assert rows is not None
    inlining.commit(made, rows)
    inlining.stock(f"CREATE TABLE lake.t AS {numbers(0, 3)}")
    compare(inlining)


@pytest.fixture
def roomy(inlining: Twins) -> Twins:
    """A table of ours, made where small inserts are to be kept in the metadata, and its twin."""
    for side in (inlining.ours, inlining.stock):
        side("CALL lake.set_option('data_inlining_row_limit', 10)")
    inlining.catalog.create_table(
        "main", "t", [ColumnSpec("i", "BIGINT"), ColumnSpec("t", "VARCHAR")]
    )
    inlining.stock(NUMBERS_SQL)
    return inlining


def schema_version(twins: Twins) -> int:
    return int(twins.ours("SELECT max(schema_version) FROM meta.snapshot")[0][0])


def test_a_table_that_comes_with_room_for_rows(roomy: Twins) -> None:
    """No client reads the catalog again for the first of them."""
    compare(roomy)
    assert roomy.ours("FROM lake.t") == []
    version = schema_version(roomy)
    insert_both(roomy, numbers(0, 3))
    assert schema_version(roomy) == version
    assert len(roomy.ours("FROM lake.t")) == 3
    roomy.both(
        f"INSERT INTO lake.t {numbers(7, 9)}",
        "UPDATE lake.t SET t = 'updated' WHERE i = 1",
        "DELETE FROM lake.t WHERE i = 2",
    )
    insert_both(roomy, numbers(20, 21))
    assert schema_version(roomy) == version
    compare(roomy)
    roomy.both("ALTER TABLE lake.t ADD COLUMN x INTEGER")
    insert_both(roomy, "SELECT 30, 'n', 3")
    compare(roomy)
    assert roomy.ours("SELECT count(*), max(x) FROM lake.t") == [(6, 3)]
    roomy.both("DROP TABLE lake.t")
    compare(roomy)


def test_room_for_rows_that_an_alteration_left_behind(roomy: Twins, twin_maker: TwinMaker) -> None:
    insert(roomy, numbers(0, 1))
    roomy.ours("CALL lake.set_option('data_inlining_row_limit', 0)")
    attach(twin_maker, roomy.ours, 0)
    roomy.ours("ALTER TABLE lake.t ADD COLUMN x INTEGER")
    insert(roomy, "SELECT 1, 'n', 3")
    assert roomy.ours("SELECT i, x FROM lake.t ORDER BY i") == [(0, None), (1, 3)]
    _same_after_folding(roomy)


def test_deletes_from_files_of_a_table_with_room_for_them(roomy: Twins) -> None:
    roomy.append(numbers(0, 50), "t")
    roomy.stock(f"INSERT INTO lake.t {numbers(0, 50)}")
    roomy.both("DELETE FROM lake.t WHERE i IN (3, 5)")
    deletes = "SELECT * FROM meta.inlined_delete_1 ORDER BY ALL"
    assert roomy.ours(deletes) == roomy.stock(deletes)
    assert len(roomy.ours(deletes)) == 2
    assert roomy.ours("SELECT count(*) FROM lake.t") == [(48,)]
    insert(roomy, numbers(60, 62))
    _same_after_folding(roomy)
    assert roomy.ours("SELECT count(*) FROM lake.t") == [(50,)]


def test_room_that_stays_empty(roomy: Twins, twin_maker: TwinMaker) -> None:
    """Forks, compaction, expiry and checks find tables without rows."""
    name = twin_maker.new_name("fork")
    fork = roomy.lake.fork_catalog(roomy.catalog.name, name)
    roomy.lake.location(fork.info).attach(roomy.connection)
    forked = Twins(roomy.lake, fork, twin_maker.side(name), roomy.stock)
    for twins in (roomy, forked):
        run(twins)
        assert twins.ours("FROM meta.inlined_delete_1") == twins.ours("FROM lake.t") == []
        survey = twins.catalog.survey(1 << 20).tables[0]
        assert (survey.inlined_rows, survey.deleted_rows) == (0, 0)
        version = schema_version(twins)
        insert(twins, numbers(0, 3))
        assert schema_version(twins) == version
        assert len(twins.ours("FROM lake.t")) == 3
        _same_after_folding(twins)
        twins.catalog.drop_table("main", "t")
        twins.catalog.expire(keep_last=1)
        twins.check()
        assert twins.ours("FROM meta.inlined_data_tables") == []
        with pytest.raises(duckdb.Error, match="does not exist"):
            twins.ours("FROM meta.inlined_delete_1")


def test_no_rows(inlining: Twins) -> None:
    inlining.both(NUMBERS_SQL)
    insert(inlining, numbers(0, 0))
    assert inlining.ours("SELECT count(*) FROM lake.t") == [(0,)]
    assert kept(inlining.ours) == kept(inlining.stock)


def test_altered_tables(inlining: Twins, twin_maker: TwinMaker) -> None:
    inlining.both(NUMBERS_SQL)
    insert_both(inlining, numbers(0, 2))
    inlining.both("ALTER TABLE lake.t ADD COLUMN x INTEGER DEFAULT 7")
    insert_both(inlining, "SELECT 2, 'n', 3")
    inlining.both("COMMENT ON TABLE lake.t IS 'x'", "ALTER TABLE lake.t RENAME COLUMN t TO text")
    insert_both(inlining, "SELECT 3, 'n', NULL")
    inlining.both("ALTER TABLE lake.t SET PARTITIONED BY (i)")
    insert_both(inlining, "SELECT 4, 'n', 5")
    inlining.both("ALTER TABLE lake.t ALTER COLUMN x TYPE BIGINT", "ALTER TABLE lake.t DROP text")
    insert_both(inlining, "SELECT 5, 5_000_000_000")
    compare(inlining)
    rows = [(0, 7), (1, 7), (2, 3), (3, None), (4, 5), (5, 5_000_000_000)]
    assert inlining.ours("FROM lake.t ORDER BY ALL") == rows
    # Who alters it without inlining makes no table for rows of the new columns; we do.
    attach(twin_maker, inlining.ours, 0)
    inlining.ours("ALTER TABLE lake.t ADD COLUMN y DATE")
    insert(inlining, "SELECT 6, 6, DATE '2024-02-29'")
    attach(twin_maker, inlining.ours, 10)
    inlining.ours("INSERT INTO lake.t VALUES (7, 7, NULL)")
    assert inlining.ours("SELECT i, x FROM lake.t ORDER BY ALL") == [*rows, (6, 6), (7, 7)]
    inlining.check()


@pytest.mark.parametrize("name", ["Mixed", 'A "b', "日本", "a.b", "it's", "%s", "a(b)", "Order"])
def test_names_of_columns(inlining: Twins, name: str) -> None:
    quoted = identifier(name)
    inlining.both(f"CREATE TABLE lake.t ({quoted} INTEGER, value_0 INTEGER)")
    insert_both(inlining, "SELECT 1, 2")
    compare(inlining)
    inlining.catalog.create_table(
        "main", "ours", [ColumnSpec(name, "INTEGER"), ColumnSpec("value_0", "INTEGER")]
    )
    insert(inlining, "SELECT 1, 2", "ours")
    inlining.ours(f"INSERT INTO lake.ours VALUES (3, 4); UPDATE lake.ours SET {quoted} = 7")
    insert(inlining, "SELECT 5, 6", "ours")
    rows = [(5, 6), (7, 2), (7, 4)]
    assert inlining.ours(f"SELECT {quoted}, value_0 FROM lake.ours ORDER BY ALL") == rows
    inlining.ours("CALL ducklake_flush_inlined_data('lake')")
    assert inlining.ours(f"SELECT {quoted}, value_0 FROM lake.ours ORDER BY ALL") == rows


# ---- types -------------------------------------------------------------------------------------

VALUES = {
    "BOOLEAN": ["true", "false"],
    "TINYINT": ["-128", "127"],
    "SMALLINT": ["-32768", "32767"],
    "INTEGER": ["-2147483648", "2147483647"],
    "BIGINT": ["-9223372036854775808", "9223372036854775807"],
    "UTINYINT": ["0", "255"],
    "USMALLINT": ["0", "65535"],
    "UINTEGER": ["0", "4294967295"],
    "UBIGINT": ["0", "18446744073709551615", "9"],
    "FLOAT": ["'inf'", "'-inf'", "'-0.0'", "0.1", "'3.4028235e38'", "'1e-45'", "16777217"],
    "DOUBLE": ["'inf'", "'-inf'", "'-0.0'", "0.1", "'1.7976931348623157e308'", "'5e-324'", "1e22"],
    "DECIMAL(4,1)": ["999.9", "-999.9", "0", "0.1"],
    "DECIMAL(18,3)": ["'999999999999999.999'", "'-999999999999999.999'", "1.5"],
    "DECIMAL(38,10)": [
        "'9999999999999999999999999999.9999999999'",
        "'-9999999999999999999999999999.9999999999'",
        "'0.0000000001'",
    ],
    "DECIMAL(38,0)": ["'99999999999999999999999999999999999999'", "-1"],
    "DECIMAL(38,37)": ["'-9.9999999999999999999999999999999999999'", "0"],
    "DATE": ["'0001-01-01'", "'9999-12-31'", "'2024-02-29'", "'1969-12-31'"],
    "TIME": ["'00:00:00'", "'23:59:59.999999'", "'24:00:00'", "'12:34:56.7'"],
    "TIMESTAMP": [
        "'0001-01-01 00:00:00'",
        "'9999-12-31 23:59:59.999999'",
        "'1969-12-31 23:59:59.5'",
        "'2024-02-29 12:00:00.000001'",
    ],
    "TIMESTAMP_S": ["'0001-01-01 00:00:00'", "'1969-12-31 23:59:59'", "'9999-12-31 23:59:59'"],
    "TIMESTAMP_MS": ["'1969-12-31 23:59:59.999'", "'2024-01-01 00:00:01.01'"],
    "TIMESTAMP_NS": ["'1969-12-31 23:59:59.999999999'", "'2262-04-11 23:47:16.85477580'"],
    "TIMESTAMPTZ": ["'2024-01-01 00:00:00.123456+02'", "'1970-01-01 00:00:00-11:30'"],
    "VARCHAR": [
        "''",
        "'it''s'",
        "'a\\b\"c'",
        "'日本🦆é'",
        "chr(10) || chr(13) || chr(9)",
        "'NULL'",
        "'\\x41'",
        "'{1,2} %s :x'",
    ],
    "JSON": ["'{\"a\": [1, null, \"x''y\"]}'", "'1'", "'null'"],
    "BLOB": ["''", "'\\x00\\xFF'", "'ab''c'", "'\\x5Cx41'"],
    "UUID": [
        "'00000000-0000-0000-0000-000000000000'",
        "'ffffffff-ffff-ffff-ffff-ffffffffffff'",
        "'80000000-0000-0000-0000-000000000001'",
    ],
}


def _like_files(tables: Tables) -> None:
    types = {row["column_id"]: row["column_type"] for row in tables["column"]}
    for row in tables["table_column_stats"]:
        if types[row["column_id"]] in ("float32", "float64"):
            row["contains_nan"] = row["max_value"] == "nan"
            row["max_value"] = "5.0" if row["contains_nan"] else row["max_value"]
        if types[row["column_id"]] == "blob":
            row |= {"min_value": "", "max_value": "61622763"}


LIKE_FILES = Difference(
    "What is known of inlined rows is written as for files: NaN is no bound and is said to be "
    "there, and blobs are in hexadecimal digits. The stock extension has two forms of both.",
    _like_files,
)


@pytest.mark.parametrize("type_", VALUES)
def test_values_of_every_type(inlining: Twins, type_: str) -> None:
    inlining.both(f"CREATE TABLE lake.t (i INTEGER, c {type_})")
    rows = ", ".join(f"({n}, CAST({value} AS {type_}))" for n, value in enumerate(VALUES[type_]))
    assert can_inline(inlining.catalog.table("main", "t"))
    insert_both(inlining, f"FROM (VALUES {rows}, (-1, NULL)) v(i, c)")
    compare(inlining, LIKE_FILES)
    for value in VALUES[type_]:
        same = f"SELECT count(*) FROM lake.t WHERE c = CAST({value} AS {type_})"
        assert inlining.ours(same) == inlining.stock(same)
    _same_after_folding(inlining)


def test_decimals_without_an_integer_part(inlining: Twins) -> None:
    """DuckDB shows them without a zero before the point, and reads them with one too."""
    inlining.both("CREATE TABLE lake.t (c DECIMAL(38,38))")
    insert_both(inlining, f"SELECT CAST('{'0.'.ljust(40, '9')}' AS DECIMAL(38,38))")
    assert inlining.ours("FROM lake.t") == inlining.stock("FROM lake.t")
    inlining.ours("INSERT INTO lake.t VALUES (-0.5)")
    insert(inlining, "SELECT CAST(0.25 AS DECIMAL(38,38))")
    assert inlining.ours("SELECT count(*) FROM lake.t WHERE c < 0.3") == [(2,)]
    _same_after_folding(inlining)


def test_numbers_that_are_none(inlining: Twins) -> None:
    inlining.both("CREATE TABLE lake.t (f FLOAT, d DOUBLE)")
    insert_both(inlining, "SELECT 'nan'::FLOAT, 'nan'::DOUBLE UNION ALL SELECT 5, 5")
    compare(inlining, LIKE_FILES)
    inlining.ours("INSERT INTO lake.t VALUES ('nan', 7)")
    insert(inlining, "SELECT 9::FLOAT, 9::DOUBLE")
    assert inlining.ours("SELECT count(*) FROM lake.t WHERE f > 8") == [(3,)]
    assert inlining.ours("SELECT count(*) FROM lake.t WHERE d = 7") == [(1,)]
    _same_after_folding(inlining)


def test_texts_with_zeros_and_long_ones(inlining: Twins) -> None:
    inlining.both("CREATE TABLE lake.t (i INTEGER, c VARCHAR)")
    query = "FROM (VALUES (1, 'x' || chr(0) || 'y'), (2, repeat('z', 3000)), (3, chr(0))) v(i, c)"
    insert_both(inlining, query)
    assert kept(inlining.ours) == kept(inlining.stock)
    found = inlining.ours("SELECT c FROM lake.t ORDER BY i")
    assert found == [("x\0y",), ("z" * 3000,), ("\0",)]
    assert inlining.ours("SELECT count(*) FROM lake.t WHERE c = repeat('z', 3000)") == [(1,)]
    assert inlining.ours("SELECT count(*) FROM lake.t WHERE c > 'zz'") == [(1,)]
    inlining.check()
    _same_after_folding(inlining)


@pytest.mark.parametrize(
    ("type_", "value"),
    [
        ("DATE", "'infinity'"),
        ("DATE", "'0044-03-15 (BC)'"),
        ("DATE", "'10000-01-01'"),
        ("TIMESTAMP", "'-infinity'"),
        ("TIMESTAMPTZ", "'infinity'"),
        ("TIMESTAMP", "'294247-01-10 04:00:54.775806'"),
    ],
)
def test_values_that_need_a_file(inlining: Twins, type_: str, value: str) -> None:
    inlining.ours(f"CREATE TABLE lake.t (c {type_})")
    table = inlining.catalog.table("main", "t")
    assert can_inline(table)
    assert inlined(table, arrow(inlining, f"SELECT CAST({value} AS {type_})")) is None


@pytest.mark.parametrize(
    "columns",
    [
        "i INTEGER[]",
        "i STRUCT(a INTEGER)",
        "i MAP(INTEGER, VARCHAR)",
        "i HUGEINT",
        "i UHUGEINT",
        "i INTERVAL",
        "i TIMETZ",
        "i VARIANT",
        '"Row_Id" INTEGER',
        "xmin INTEGER",
        f"{'n' * 64} INTEGER",
    ],
)
def test_tables_that_need_files(twins: Twins, columns: str) -> None:
    twins.ours(f"CREATE TABLE lake.t ({columns})")
    table = twins.catalog.table("main", "t")
    assert not can_inline(table)
    assert inlined(table, pa.table({"c": pa.array([], pa.int32())})) is None


def test_sorted_tables(inlining: Twins) -> None:
    inlining.both(NUMBERS_SQL, "ALTER TABLE lake.t SET SORTED BY (i DESC)")
    assert not can_inline(inlining.catalog.table("main", "t"))
    assert not can_inline(
        new_table("main", "u", [ColumnSpec("i", "INTEGER")], sort_by=[SortKey("i")])
    )
    for side in (inlining.ours, inlining.stock):
        side("CALL lake.set_option('sort_on_insert', 'false', table_name => 't')")
    insert_both(inlining, numbers(0, 3))
    assert kept(inlining.ours) == kept(inlining.stock)


def test_the_limit(inlining: Twins) -> None:
    def limit() -> int | None:
        return inlining.catalog.table("main", "t").options.inlined_rows

    inlining.ours(NUMBERS_SQL)
    assert limit() is None
    inlining.ours("CALL lake.set_option('data_inlining_row_limit', 5)")
    assert limit() == 5
    inlining.ours("CALL lake.set_option('data_inlining_row_limit', 7, schema => 'main')")
    assert limit() == 7
    inlining.ours("CALL lake.set_option('data_inlining_row_limit', 0, table_name => 't')")
    assert limit() == 0


# ---- what can be done with them ----------------------------------------------------------------


def _states(catalog: Catalog, side: Side) -> dict[int, Rows]:
    """What every snapshot that is kept sees in the table."""
    found = {}
    for snapshot in catalog.snapshots():
        query = f"SELECT *, rowid FROM lake.t AT (VERSION => {snapshot.id})"
        if snapshot.id > 0:
            found[snapshot.id] = sorted(side(query), key=repr)
    return found


def _same_after_folding(twins: Twins) -> None:
    before = _states(twins.catalog, twins.ours)
    run(twins)
    after = _states(twins.catalog, twins.ours)
    assert repr({id: after[id] for id in before}) == repr(before)
    assert twins.ours("SELECT count(*) FROM meta.data_file")[0][0] > 0
    assert all(not rows for rows in _left(twins))
    twins.check()


def _left(twins: Twins) -> Iterator[Rows]:
    for (name,) in twins.ours("SELECT table_name FROM meta.inlined_data_tables"):
        yield twins.ours(f"FROM meta.{_short(name)}")


def _history(twins: Twins) -> None:
    """Ours and the stock extension's changes to one table, in turns."""
    inlining = twins
    inlining.both(NUMBERS_SQL)
    insert_both(inlining, numbers(0, 4))
    inlining.both(
        "UPDATE lake.t SET t = 'updated' WHERE i = 1",
        "DELETE FROM lake.t WHERE i = 2",
        f"INSERT INTO lake.t {numbers(10, 13)}",
    )
    insert_both(inlining, numbers(20, 23))
    inlining.both(
        "DELETE FROM lake.t WHERE i = 21",
        "ALTER TABLE lake.t ADD COLUMN x INTEGER",
        "INSERT INTO lake.t VALUES (30, 'thirty', 3)",
    )
    insert_both(inlining, "SELECT 31, 'n', 4")
    inlining.both("UPDATE lake.t SET x = i")


def _changes(side: Side, last: int) -> Rows:
    found = side(
        f"SELECT * EXCLUDE (snapshot_id), snapshot_id FROM "
        f"ducklake_table_changes('{side.name}', 'main', 't', 0, {last})"
    )
    return sorted(found, key=repr)


def test_stock_changes_them(inlining: Twins) -> None:
    _history(inlining)
    compare(inlining)
    assert _states(inlining.catalog, inlining.ours) == _states(inlining.catalog, inlining.stock)
    head = inlining.catalog.snapshot_id()
    assert _changes(inlining.ours, head) == _changes(inlining.stock, head)


def test_stock_flushes_them(inlining: Twins) -> None:
    _history(inlining)
    before = _states(inlining.catalog, inlining.ours)
    inlining.both("CALL ducklake_flush_inlined_data('lake')")
    assert not any(_left(inlining))
    after = _states(inlining.catalog, inlining.ours)
    assert after == _states(inlining.catalog, inlining.stock)
    assert {id: after[id] for id in before} == before
    insert_both(inlining, "SELECT 40, 'later', 40")
    assert _states(inlining.catalog, inlining.ours) == _states(inlining.catalog, inlining.stock)
    inlining.check()


def test_compaction_folds_them(inlining: Twins) -> None:
    _history(inlining)
    head = inlining.catalog.snapshot_id()
    changes = _changes(inlining.ours, head)
    _same_after_folding(inlining)
    assert _changes(inlining.ours, head) == changes
    insert(inlining, "SELECT 40, 'later', 40")
    inlining.ours("DELETE FROM lake.t WHERE i = 40")
    _same_after_folding(inlining)


def test_compaction_folds_those_of_a_table_of_ours(twins: Twins) -> None:
    """Their table came with a version of the schema of its own."""
    twins.catalog.create_table("main", "t", [ColumnSpec("i", "BIGINT"), ColumnSpec("t", "VARCHAR")])
    insert(twins, numbers(0, 3))
    twins.append(numbers(3, 30), "t")
    insert(twins, numbers(30, 33))
    twins.ours("DELETE FROM lake.t WHERE i IN (1, 10, 31)")
    _same_after_folding(twins)


def test_a_fork_takes_them_along(inlining: Twins, twin_maker: TwinMaker) -> None:
    inlining.catalog.create_table(
        "main", "t", [ColumnSpec("i", "BIGINT"), ColumnSpec("t", "VARCHAR")]
    )
    insert(inlining, numbers(0, 2))
    parted = insert(inlining, numbers(2, 4)).snapshot_id
    inlining.ours("DELETE FROM lake.t WHERE i = 1")
    insert(inlining, numbers(4, 6))
    name = twin_maker.new_name("fork")
    fork = inlining.lake.fork_catalog(inlining.catalog.name, name, at=parted)
    inlining.lake.location(fork.info).attach(inlining.connection)
    forked = Twins(inlining.lake, fork, twin_maker.side(name), inlining.stock)
    assert forked.ours("SELECT i FROM lake.t ORDER BY i") == [(0,), (1,), (2,), (3,)]
    insert(forked, numbers(7, 8))
    insert(inlining, numbers(8, 9))
    assert forked.ours("SELECT max(i) FROM lake.t") == [(7,)]
    assert inlining.ours("SELECT max(i), count(*) FROM lake.t") == [(8, 6)]
    assert len(kept(forked.ours)) == len(kept(inlining.ours)) == 1


def test_expiry_takes_what_nobody_sees(inlining: Twins) -> None:
    _history(inlining)
    rows = inlining.ours("SELECT *, rowid FROM lake.t ORDER BY ALL")
    inlining.catalog.expire(keep_last=1)
    inlining.lake.collect(age=timedelta(0))
    assert inlining.ours("SELECT *, rowid FROM lake.t ORDER BY ALL") == rows
    head = inlining.catalog.snapshot_id()
    assert all(row[2] in (None, head) for rows in _left(inlining) for row in rows)
    insert(inlining, "SELECT 50, 'new', 1")
    assert inlining.ours("SELECT t FROM lake.t WHERE i = 50") == [("new",)]
    inlining.check()


# ---- others ------------------------------------------------------------------------------------


def test_conflicts(inlining: Twins) -> None:
    inlining.ours(NUMBERS_SQL)
    insert(inlining, numbers(0, 3))
    blind = small(inlining, numbers(3, 4))
    table = inlining.catalog.table("main", "t")
    seeing = inlined(table, arrow(inlining, numbers(4, 5)))
    assert seeing is not None
    insert(inlining, numbers(5, 6))
    inlining.commit(seeing, base=table.snapshot_id)
    inlining.ours("DELETE FROM lake.t WHERE i = 0")
    with pytest.raises(CommitConflict, match="rows were deleted from it"):
        inlining.commit(seeing, base=table.snapshot_id)
    inlining.commit(blind, base=table.snapshot_id)
    inlining.ours("ALTER TABLE lake.t ADD COLUMN x INTEGER")
    with pytest.raises(CommitConflict, match="it was altered"):
        inlining.commit(blind, base=table.snapshot_id)
    assert inlining.ours("SELECT i FROM lake.t ORDER BY i") == [(n,) for n in (1, 2, 3, 4, 5)]


def test_many_at_once_lose_nothing(twins: Twins) -> None:
    """The first of them make the table for the rows; others append files meanwhile."""
    twins.catalog.create_table("main", "t", [ColumnSpec("i", "BIGINT"), ColumnSpec("t", "VARCHAR")])
    table = twins.catalog.table("main", "t")
    made = [inlined(table, arrow(twins, numbers(n, n + 2)), blind=True) for n in range(0, 120, 2)]
    failed: list[Exception] = []

    def commit(some: list[InlineInsert | None], number: int) -> None:
        try:
            for one in some:
                assert one is not None
                twins.catalog.commit(Commit((one,), base=table.snapshot_id))
            if number % 2:
                cursor = twins.connection.cursor()
                first = 1000 + 20 * number
                twins.catalog.append(cursor, numbers(first, first + 20), "main", "t")
        except Exception as error:  # noqa: BLE001 - the test fails on all
            failed.append(error)

    threads = [threading.Thread(target=commit, args=(made[n::8], n)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failed == []
    assert twins.ours("SELECT count(*), count(DISTINCT i), count(DISTINCT rowid) FROM lake.t") == [
        (200, 200, 200)
    ]
    assert twins.ours("SELECT min(i), max(i) FROM lake.t") == [(0, 1159)]
    assert len(kept(twins.ours)) == 1
    twins.check()
