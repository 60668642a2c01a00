"""Our inlined rows equal those of the stock extension."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from datetime import timedelta
from itertools import zip_longest
from typing import Any

import duckdb
import pyarrow as pa
import pytest

from swanlake.errors import CommitConflict
from swanlake.lake.catalog import Catalog, new_table
from swanlake.lake.commit.protocol import Committed
from swanlake.lake.files.inlined_tables import can_inline
from swanlake.lake.files.inlining import inline_rows
from swanlake.lake.model.layout import SortKey
from swanlake.lake.model.operations import Commit, CreateTable, InlineInsert
from swanlake.lake.model.types import ColumnSpec
from swanlake.sql.quoting import identifier
from tests.differential.catalog_pair import (
    AttachedCatalog,
    CatalogPair,
    Difference,
    PairFactory,
    Tables,
)
from tests.differential.test_compaction import run_compaction
from tests.differential.test_operations import NUMBERS_SQL, numbers

pytestmark = pytest.mark.covering(1)

Rows = list[tuple[Any, ...]]


@pytest.fixture
def inlining(pair_factory: PairFactory, pair: CatalogPair) -> CatalogPair:
    """A pair in which the stock extension inlines up to ten rows."""
    for side in (pair.ours, pair.stock):
        attach(pair_factory, side, 10)
    return pair


def attach(factory: PairFactory, side: AttachedCatalog, inlined_rows: int) -> None:
    side.connection.execute(f"DETACH {side.name}")
    factory.attach(side.name, inlined_rows)


def arrow(pair: CatalogPair, query: str) -> pa.Table:
    """The rows of a query as an Arrow table, as a session produces them."""
    cursor = pair.connection.cursor()
    cursor.execute("SET arrow_lossless_conversion = true")
    return cursor.execute(query).to_arrow_table()


def inline_insert(pair: CatalogPair, query: str, name: str = "t") -> InlineInsert:
    operation = inline_rows(pair.catalog.table("main", name), arrow(pair, query), blind=True)
    assert operation is not None
    return operation


def insert(pair: CatalogPair, query: str, name: str = "t") -> Committed:
    """Inserts inlined rows with our writer."""
    operation = inline_insert(pair, query, name)
    assert not isinstance(operation.table, CreateTable)
    return pair.commit(operation, base=operation.table.snapshot_id)


def insert_both(pair: CatalogPair, query: str, name: str = "t") -> None:
    insert(pair, query, name)
    pair.stock(f"INSERT INTO lake.{name} {query}")


def inlined_tables(side: AttachedCatalog) -> dict[str, Rows]:
    """All inlined data tables: their columns, types and rows."""
    names = side("SELECT table_name FROM meta.inlined_data_tables ORDER BY ALL")
    return {
        name: side(f"SELECT column_name, column_type FROM (DESCRIBE FROM meta.{_short(name)})")
        + side(f"FROM meta.{_short(name)} ORDER BY row_id, begin_snapshot")
        for (name,) in names
    }


def _short(name: str) -> str:
    return str(name).removeprefix("ducklake_")


def compare(pair: CatalogPair, *differences: Difference) -> None:
    pair.compare(*differences)
    assert repr(inlined_tables(pair.ours)) == repr(
        inlined_tables(pair.stock)
    )  # as text, because NaN does not equal itself


# ---- inserts -----------------------------------------------------------------------------------


def test_first_insert_creates_the_inlined_table(
    inlining: CatalogPair, pair_factory: PairFactory
) -> None:
    """The insert also makes a new schema version, so that clients reload the table."""
    attach(pair_factory, inlining.stock, 0)
    inlining.catalog.create_table(
        "main", "t", [ColumnSpec("i", "BIGINT"), ColumnSpec("t", "VARCHAR")]
    )
    inlining.stock(NUMBERS_SQL)
    attach(pair_factory, inlining.stock, 10)
    assert inlining.ours("FROM lake.t") == []  # a client that loaded the table without it
    insert_both(inlining, numbers(0, 3))
    assert len(inlining.ours("FROM lake.t")) == 3
    insert_both(inlining, numbers(3, 4))
    insert_both(inlining, numbers(10, 12))
    compare(inlining)


def test_inserts_into_a_table_of_the_stock_extension(inlining: CatalogPair) -> None:
    inlining.run_on_both(NUMBERS_SQL)
    insert_both(inlining, numbers(0, 3))
    inlining.run_on_both(
        f"INSERT INTO lake.t {numbers(7, 9)}", f"INSERT INTO lake.t {numbers(20, 90)}"
    )
    insert_both(inlining, "SELECT NULL, 'x' UNION ALL SELECT -5, NULL")
    compare(inlining)


def test_table_created_with_inlined_rows(inlining: CatalogPair) -> None:
    created = new_table("main", "t", [ColumnSpec("i", "BIGINT"), ColumnSpec("t", "VARCHAR")])
    rows = inline_rows(created, arrow(inlining, numbers(0, 3)))
    assert rows is not None
    inlining.commit(created, rows)
    inlining.stock(f"CREATE TABLE lake.t AS {numbers(0, 3)}")
    compare(inlining)


@pytest.fixture
def prepared(inlining: CatalogPair) -> CatalogPair:
    """A table created with its inlined table because the catalog's inlining limit is set."""
    for side in (inlining.ours, inlining.stock):
        side("CALL lake.set_option('data_inlining_row_limit', 10)")
    inlining.catalog.create_table(
        "main", "t", [ColumnSpec("i", "BIGINT"), ColumnSpec("t", "VARCHAR")]
    )
    inlining.stock(NUMBERS_SQL)
    return inlining


def schema_version(pair: CatalogPair) -> int:
    return int(pair.ours("SELECT max(schema_version) FROM meta.snapshot")[0][0])


def test_inserts_into_a_prepared_table_keep_the_schema_version(prepared: CatalogPair) -> None:
    """Clients need not reload the catalog for the first row."""
    compare(prepared)
    assert prepared.ours("FROM lake.t") == []
    version = schema_version(prepared)
    insert_both(prepared, numbers(0, 3))
    assert schema_version(prepared) == version
    assert len(prepared.ours("FROM lake.t")) == 3
    prepared.run_on_both(
        f"INSERT INTO lake.t {numbers(7, 9)}",
        "UPDATE lake.t SET t = 'updated' WHERE i = 1",
        "DELETE FROM lake.t WHERE i = 2",
    )
    insert_both(prepared, numbers(20, 21))
    assert schema_version(prepared) == version
    compare(prepared)
    prepared.run_on_both("ALTER TABLE lake.t ADD COLUMN x INTEGER")
    insert_both(prepared, "SELECT 30, 'n', 3")
    compare(prepared)
    assert prepared.ours("SELECT count(*), max(x) FROM lake.t") == [(6, 3)]
    prepared.run_on_both("DROP TABLE lake.t")
    compare(prepared)


def test_altered_table_without_inlined_table_gets_one(
    prepared: CatalogPair, pair_factory: PairFactory
) -> None:
    insert(prepared, numbers(0, 1))
    prepared.ours("CALL lake.set_option('data_inlining_row_limit', 0)")
    attach(pair_factory, prepared.ours, 0)
    prepared.ours("ALTER TABLE lake.t ADD COLUMN x INTEGER")
    insert(prepared, "SELECT 1, 'n', 3")
    assert prepared.ours("SELECT i, x FROM lake.t ORDER BY i") == [(0, None), (1, 3)]
    _assert_same_after_flush(prepared)


def test_deletes_from_files_of_a_prepared_table_are_inlined(prepared: CatalogPair) -> None:
    prepared.append(numbers(0, 50), "t")
    prepared.stock(f"INSERT INTO lake.t {numbers(0, 50)}")
    prepared.run_on_both("DELETE FROM lake.t WHERE i IN (3, 5)")
    deletes = "SELECT * FROM meta.inlined_delete_1 ORDER BY ALL"
    assert prepared.ours(deletes) == prepared.stock(deletes)
    assert len(prepared.ours(deletes)) == 2
    assert prepared.ours("SELECT count(*) FROM lake.t") == [(48,)]
    insert(prepared, numbers(60, 62))
    _assert_same_after_flush(prepared)
    assert prepared.ours("SELECT count(*) FROM lake.t") == [(50,)]


def test_empty_inlined_tables_are_forked_compacted_and_dropped(
    prepared: CatalogPair, pair_factory: PairFactory
) -> None:
    """Forks, compaction, expiry and checks accept inlined tables without rows."""
    name = pair_factory.new_name("fork")
    fork = prepared.lake.fork_catalog(prepared.catalog.name, name)
    prepared.lake.location(fork.info).attach(prepared.connection)
    forked = CatalogPair(prepared.lake, fork, pair_factory.attached(name), prepared.stock)
    for pair in (prepared, forked):
        run_compaction(pair)
        assert pair.ours("FROM meta.inlined_delete_1") == pair.ours("FROM lake.t") == []
        survey = pair.catalog.survey(1 << 20).tables[0]
        assert (survey.inlined_rows, survey.deleted_rows) == (0, 0)
        version = schema_version(pair)
        insert(pair, numbers(0, 3))
        assert schema_version(pair) == version
        assert len(pair.ours("FROM lake.t")) == 3
        _assert_same_after_flush(pair)
        pair.catalog.drop_table("main", "t")
        pair.catalog.expire(keep_last=1)
        pair.check()
        assert pair.ours("FROM meta.inlined_data_tables") == []
        with pytest.raises(duckdb.Error, match="does not exist"):
            pair.ours("FROM meta.inlined_delete_1")


def test_insert_of_no_rows_writes_none(inlining: CatalogPair) -> None:
    inlining.run_on_both(NUMBERS_SQL)
    insert(inlining, numbers(0, 0))
    assert inlining.ours("SELECT count(*) FROM lake.t") == [(0,)]
    assert inlined_tables(inlining.ours) == inlined_tables(inlining.stock)


def test_inserts_after_alterations(inlining: CatalogPair, pair_factory: PairFactory) -> None:
    inlining.run_on_both(NUMBERS_SQL)
    insert_both(inlining, numbers(0, 2))
    inlining.run_on_both("ALTER TABLE lake.t ADD COLUMN x INTEGER DEFAULT 7")
    insert_both(inlining, "SELECT 2, 'n', 3")
    inlining.run_on_both(
        "COMMENT ON TABLE lake.t IS 'x'", "ALTER TABLE lake.t RENAME COLUMN t TO text"
    )
    insert_both(inlining, "SELECT 3, 'n', NULL")
    inlining.run_on_both("ALTER TABLE lake.t SET PARTITIONED BY (i)")
    insert_both(inlining, "SELECT 4, 'n', 5")
    inlining.run_on_both(
        "ALTER TABLE lake.t ALTER COLUMN x TYPE BIGINT", "ALTER TABLE lake.t DROP text"
    )
    insert_both(inlining, "SELECT 5, 5_000_000_000")
    compare(inlining)
    rows = [(0, 7), (1, 7), (2, 3), (3, None), (4, 5), (5, 5_000_000_000)]
    assert inlining.ours("FROM lake.t ORDER BY ALL") == rows
    # Altering without inlining creates no inlined table for the new columns; our insert does.
    attach(pair_factory, inlining.ours, 0)
    inlining.ours("ALTER TABLE lake.t ADD COLUMN y DATE")
    insert(inlining, "SELECT 6, 6, DATE '2024-02-29'")
    attach(pair_factory, inlining.ours, 10)
    inlining.ours("INSERT INTO lake.t VALUES (7, 7, NULL)")
    assert inlining.ours("SELECT i, x FROM lake.t ORDER BY ALL") == [*rows, (6, 6), (7, 7)]
    inlining.check()


@pytest.mark.parametrize("name", ["Mixed", 'A "b', "日本", "a.b", "it's", "%s", "a(b)", "Order"])
def test_inserts_with_unusual_column_names(inlining: CatalogPair, name: str) -> None:
    quoted = identifier(name)
    inlining.run_on_both(f"CREATE TABLE lake.t ({quoted} INTEGER, value_0 INTEGER)")
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
    "Statistics of inlined rows are written as those of files: NaN is flagged and is not a bound, "
    "and blobs are hexadecimal. The stock extension writes both differently for inlined rows.",
    _like_files,
)


def test_values_of_every_type_equal_the_stock_extensions(inlining: CatalogPair) -> None:
    columns = {f"c{number}": type_ for number, type_ in enumerate(VALUES)}
    definitions = ", ".join(f"{name} {type_}" for name, type_ in columns.items())
    inlining.run_on_both(f"CREATE TABLE lake.t (i INTEGER, {definitions})")
    assert can_inline(inlining.catalog.table("main", "t"))
    values = [
        [f"CAST({value} AS {type_})" for value in VALUES[type_]] for type_ in columns.values()
    ]
    rows = (
        f"({n}, {', '.join(row)})" for n, row in enumerate(zip_longest(*values, fillvalue="NULL"))
    )
    nulls = ", ".join(["NULL"] * len(columns))
    names = ", ".join(columns)
    insert_both(inlining, f"FROM (VALUES {', '.join(rows)}, (-1, {nulls})) v(i, {names})")
    compare(inlining, LIKE_FILES)
    for name, type_ in columns.items():
        for value in VALUES[type_]:
            same = f"SELECT i FROM lake.t WHERE {name} = CAST({value} AS {type_}) ORDER BY ALL"
            assert (same, inlining.ours(same)) == (same, inlining.stock(same))
    _assert_same_after_flush(inlining)


def test_decimals_without_an_integer_part_are_readable(inlining: CatalogPair) -> None:
    """DuckDB prints them without a leading zero, and reads both forms."""
    inlining.run_on_both("CREATE TABLE lake.t (c DECIMAL(38,38))")
    insert_both(inlining, f"SELECT CAST('{'0.'.ljust(40, '9')}' AS DECIMAL(38,38))")
    assert inlining.ours("FROM lake.t") == inlining.stock("FROM lake.t")
    inlining.ours("INSERT INTO lake.t VALUES (-0.5)")
    insert(inlining, "SELECT CAST(0.25 AS DECIMAL(38,38))")
    assert inlining.ours("SELECT count(*) FROM lake.t WHERE c < 0.3") == [(2,)]
    _assert_same_after_flush(inlining)


def test_nan_is_inlined(inlining: CatalogPair) -> None:
    inlining.run_on_both("CREATE TABLE lake.t (f FLOAT, d DOUBLE)")
    insert_both(inlining, "SELECT 'nan'::FLOAT, 'nan'::DOUBLE UNION ALL SELECT 5, 5")
    compare(inlining, LIKE_FILES)
    inlining.ours("INSERT INTO lake.t VALUES ('nan', 7)")
    insert(inlining, "SELECT 9::FLOAT, 9::DOUBLE")
    assert inlining.ours("SELECT count(*) FROM lake.t WHERE f > 8") == [(3,)]
    assert inlining.ours("SELECT count(*) FROM lake.t WHERE d = 7") == [(1,)]
    _assert_same_after_flush(inlining)


def test_texts_with_zero_bytes_and_long_texts_are_inlined(inlining: CatalogPair) -> None:
    inlining.run_on_both("CREATE TABLE lake.t (i INTEGER, c VARCHAR)")
    query = "FROM (VALUES (1, 'x' || chr(0) || 'y'), (2, repeat('z', 3000)), (3, chr(0))) v(i, c)"
    insert_both(inlining, query)
    assert inlined_tables(inlining.ours) == inlined_tables(inlining.stock)
    texts = inlining.ours("SELECT c FROM lake.t ORDER BY i")
    assert texts == [("x\0y",), ("z" * 3000,), ("\0",)]
    assert inlining.ours("SELECT count(*) FROM lake.t WHERE c = repeat('z', 3000)") == [(1,)]
    assert inlining.ours("SELECT count(*) FROM lake.t WHERE c > 'zz'") == [(1,)]
    inlining.check()
    _assert_same_after_flush(inlining)


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
def test_values_outside_the_range_are_not_inlined(
    inlining: CatalogPair, type_: str, value: str
) -> None:
    inlining.ours(f"CREATE TABLE lake.t (c {type_})")
    table = inlining.catalog.table("main", "t")
    assert can_inline(table)
    assert inline_rows(table, arrow(inlining, f"SELECT CAST({value} AS {type_})")) is None


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
def test_unsupported_columns_are_not_inlined(pair: CatalogPair, columns: str) -> None:
    pair.ours(f"CREATE TABLE lake.t ({columns})")
    table = pair.catalog.table("main", "t")
    assert not can_inline(table)
    assert inline_rows(table, pa.table({"c": pa.array([], pa.int32())})) is None


def test_sorted_tables_are_inlined_only_without_sort_on_insert(inlining: CatalogPair) -> None:
    inlining.run_on_both(NUMBERS_SQL, "ALTER TABLE lake.t SET SORTED BY (i DESC)")
    assert not can_inline(inlining.catalog.table("main", "t"))
    assert not can_inline(
        new_table("main", "u", [ColumnSpec("i", "INTEGER")], sort_by=[SortKey("i")])
    )
    for side in (inlining.ours, inlining.stock):
        side("CALL lake.set_option('sort_on_insert', 'false', table_name => 't')")
    insert_both(inlining, numbers(0, 3))
    assert inlined_tables(inlining.ours) == inlined_tables(inlining.stock)


def test_inlining_limit_comes_from_the_nearest_option(inlining: CatalogPair) -> None:
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


# ---- later operations --------------------------------------------------------------------------


def _states(catalog: Catalog, side: AttachedCatalog) -> dict[int, Rows]:
    """The rows of the table at every snapshot."""
    states = {}
    for snapshot in catalog.snapshots():
        query = f"SELECT *, rowid FROM lake.t AT (VERSION => {snapshot.id})"
        if snapshot.id > 0:
            states[snapshot.id] = sorted(side(query), key=repr)
    return states


def _assert_same_after_flush(pair: CatalogPair) -> None:
    before = _states(pair.catalog, pair.ours)
    run_compaction(pair)
    after = _states(pair.catalog, pair.ours)
    assert repr({id: after[id] for id in before}) == repr(before)
    assert pair.ours("SELECT count(*) FROM meta.data_file")[0][0] > 0
    assert all(not rows for rows in _inlined_rows_left(pair))
    pair.check()


def _inlined_rows_left(pair: CatalogPair) -> Iterator[Rows]:
    for (name,) in pair.ours("SELECT table_name FROM meta.inlined_data_tables"):
        yield pair.ours(f"FROM meta.{_short(name)}")


def _change_table(pair: CatalogPair) -> None:
    """Changes the table alternately with our writer and the stock extension."""
    inlining = pair
    inlining.run_on_both(NUMBERS_SQL)
    insert_both(inlining, numbers(0, 4))
    inlining.run_on_both(
        "UPDATE lake.t SET t = 'updated' WHERE i = 1",
        "DELETE FROM lake.t WHERE i = 2",
        f"INSERT INTO lake.t {numbers(10, 13)}",
    )
    insert_both(inlining, numbers(20, 23))
    inlining.run_on_both(
        "DELETE FROM lake.t WHERE i = 21",
        "ALTER TABLE lake.t ADD COLUMN x INTEGER",
        "INSERT INTO lake.t VALUES (30, 'thirty', 3)",
    )
    insert_both(inlining, "SELECT 31, 'n', 4")
    inlining.run_on_both("UPDATE lake.t SET x = i")


def _changes(side: AttachedCatalog, last: int) -> Rows:
    changes = side(
        f"SELECT * EXCLUDE (snapshot_id), snapshot_id FROM "
        f"ducklake_table_changes('{side.name}', 'main', 't', 0, {last})"
    )
    return sorted(changes, key=repr)


def test_stock_extension_changes_our_inlined_rows(inlining: CatalogPair) -> None:
    _change_table(inlining)
    compare(inlining)
    assert _states(inlining.catalog, inlining.ours) == _states(inlining.catalog, inlining.stock)
    head = inlining.catalog.newest_snapshot()
    assert _changes(inlining.ours, head) == _changes(inlining.stock, head)


def test_stock_extension_flushes_our_inlined_rows(inlining: CatalogPair) -> None:
    _change_table(inlining)
    before = _states(inlining.catalog, inlining.ours)
    inlining.run_on_both("CALL ducklake_flush_inlined_data('lake')")
    assert not any(_inlined_rows_left(inlining))
    after = _states(inlining.catalog, inlining.ours)
    assert after == _states(inlining.catalog, inlining.stock)
    assert {id: after[id] for id in before} == before
    insert_both(inlining, "SELECT 40, 'later', 40")
    assert _states(inlining.catalog, inlining.ours) == _states(inlining.catalog, inlining.stock)
    inlining.check()


def test_compaction_flushes_inlined_rows(inlining: CatalogPair) -> None:
    _change_table(inlining)
    head = inlining.catalog.newest_snapshot()
    changes = _changes(inlining.ours, head)
    _assert_same_after_flush(inlining)
    assert _changes(inlining.ours, head) == changes
    insert(inlining, "SELECT 40, 'later', 40")
    inlining.ours("DELETE FROM lake.t WHERE i = 40")
    _assert_same_after_flush(inlining)


def test_compaction_flushes_inlined_rows_of_our_table(pair: CatalogPair) -> None:
    """The first insert made a schema version for the inlined table."""
    pair.catalog.create_table("main", "t", [ColumnSpec("i", "BIGINT"), ColumnSpec("t", "VARCHAR")])
    insert(pair, numbers(0, 3))
    pair.append(numbers(3, 30), "t")
    insert(pair, numbers(30, 33))
    pair.ours("DELETE FROM lake.t WHERE i IN (1, 10, 31)")
    _assert_same_after_flush(pair)


def test_fork_copies_inlined_rows(inlining: CatalogPair, pair_factory: PairFactory) -> None:
    inlining.catalog.create_table(
        "main", "t", [ColumnSpec("i", "BIGINT"), ColumnSpec("t", "VARCHAR")]
    )
    insert(inlining, numbers(0, 2))
    forked_at = insert(inlining, numbers(2, 4)).snapshot_id
    inlining.ours("DELETE FROM lake.t WHERE i = 1")
    insert(inlining, numbers(4, 6))
    name = pair_factory.new_name("fork")
    fork = inlining.lake.fork_catalog(inlining.catalog.name, name, at=forked_at)
    inlining.lake.location(fork.info).attach(inlining.connection)
    forked = CatalogPair(inlining.lake, fork, pair_factory.attached(name), inlining.stock)
    assert forked.ours("SELECT i FROM lake.t ORDER BY i") == [(0,), (1,), (2,), (3,)]
    insert(forked, numbers(7, 8))
    insert(inlining, numbers(8, 9))
    assert forked.ours("SELECT max(i) FROM lake.t") == [(7,)]
    assert inlining.ours("SELECT max(i), count(*) FROM lake.t") == [(8, 6)]
    assert len(inlined_tables(forked.ours)) == len(inlined_tables(inlining.ours)) == 1


def test_expiry_deletes_unreachable_inlined_rows(inlining: CatalogPair) -> None:
    _change_table(inlining)
    rows = inlining.ours("SELECT *, rowid FROM lake.t ORDER BY ALL")
    inlining.catalog.expire(keep_last=1)
    inlining.lake.collect(age=timedelta(0))
    assert inlining.ours("SELECT *, rowid FROM lake.t ORDER BY ALL") == rows
    head = inlining.catalog.newest_snapshot()
    assert all(row[2] in (None, head) for rows in _inlined_rows_left(inlining) for row in rows)
    insert(inlining, "SELECT 50, 'new', 1")
    assert inlining.ours("SELECT t FROM lake.t WHERE i = 50") == [("new",)]
    inlining.check()


# ---- concurrency -------------------------------------------------------------------------------


def test_inlined_inserts_conflict_with_deletes_and_alterations(inlining: CatalogPair) -> None:
    inlining.ours(NUMBERS_SQL)
    insert(inlining, numbers(0, 3))
    blind = inline_insert(inlining, numbers(3, 4))
    table = inlining.catalog.table("main", "t")
    reading = inline_rows(table, arrow(inlining, numbers(4, 5)))
    assert reading is not None
    insert(inlining, numbers(5, 6))
    inlining.commit(reading, base=table.snapshot_id)
    inlining.ours("DELETE FROM lake.t WHERE i = 0")
    with pytest.raises(CommitConflict, match="rows were deleted from it"):
        inlining.commit(reading, base=table.snapshot_id)
    inlining.commit(blind, base=table.snapshot_id)
    inlining.ours("ALTER TABLE lake.t ADD COLUMN x INTEGER")
    with pytest.raises(CommitConflict, match="it was altered"):
        inlining.commit(blind, base=table.snapshot_id)
    assert inlining.ours("SELECT i FROM lake.t ORDER BY i") == [(n,) for n in (1, 2, 3, 4, 5)]


def test_concurrent_inlined_inserts_lose_nothing(pair: CatalogPair) -> None:
    """The first inserts create the inlined table while others append files."""
    pair.catalog.create_table("main", "t", [ColumnSpec("i", "BIGINT"), ColumnSpec("t", "VARCHAR")])
    table = pair.catalog.table("main", "t")
    inserts = [
        inline_rows(table, arrow(pair, numbers(n, n + 2)), blind=True) for n in range(0, 120, 2)
    ]
    failed: list[Exception] = []

    def commit(operations: list[InlineInsert | None], number: int) -> None:
        try:
            for operation in operations:
                assert operation is not None
                pair.catalog.commit(Commit((operation,), base=table.snapshot_id))
            if number % 2:
                cursor = pair.connection.cursor()
                first = 1000 + 20 * number
                pair.catalog.append(cursor, numbers(first, first + 20), "main", "t")
        except Exception as error:  # noqa: BLE001 - any error fails the test
            failed.append(error)

    threads = [threading.Thread(target=commit, args=(inserts[n::8], n)) for n in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failed == []
    assert pair.ours("SELECT count(*), count(DISTINCT i), count(DISTINCT rowid) FROM lake.t") == [
        (200, 200, 200)
    ]
    assert pair.ours("SELECT min(i), max(i) FROM lake.t") == [(0, 1159)]
    assert len(inlined_tables(pair.ours)) == 1
    pair.check()
