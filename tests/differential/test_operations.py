"""Every commit operation writes the same metadata as the stock extension."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from swanlake.errors import AlreadyExists, InvalidRequest
from swanlake.lake.catalog import new_table
from swanlake.lake.files.datafile import write_files
from swanlake.lake.model.layout import Column, DataFile, Default, DefaultKind, SortKey, Table
from swanlake.lake.model.operations import (
    CreateSchema,
    CreateTable,
    DropTable,
    Insert,
    Merge,
    SetProperty,
)
from swanlake.lake.model.types import ColumnSpec
from swanlake.sql.quoting import identifier
from tests.differential.catalog_pair import CatalogPair, Difference, Tables

pytestmark = pytest.mark.covering(1)

NUMBERS = [ColumnSpec("i", "BIGINT"), ColumnSpec("t", "VARCHAR")]
NUMBERS_SQL = "CREATE TABLE lake.t (i BIGINT, t VARCHAR)"


def numbers(first: int, end: int) -> str:
    """A query for rows of numbers and texts."""
    return f"SELECT i, 'n' || i AS t FROM range({first}, {end}) r(i)"


# ---- deliberate differences --------------------------------------------------------------------


def _empty_snapshot(tables: Tables) -> None:
    newest = max(tables["snapshot"], key=lambda row: int(row["snapshot_id"]))
    number = newest["snapshot_id"] + 1
    tables["snapshot"].append({**newest, "snapshot_id": number})
    tables["snapshot_changes"].append(
        {
            "snapshot_id": number,
            "changes_made": None,
            "author": None,
            "commit_message": None,
            "commit_extra_info": None,
        }
    )


def _flushed_too(tables: Tables) -> None:
    for row in tables["snapshot_changes"]:
        row["changes_made"] = re.sub(
            r"^(merge_adjacent|rewrite_delete):(\d+)$",
            r"inline_flush:\2,\1:\2",
            row["changes_made"],
        )


def _uncounted(tables: Tables) -> None:
    types = {row["column_id"]: row["column_type"] for row in tables["column"]}
    for row in tables["file_column_stats"]:
        if types[row["column_id"]] in ("timetz", "interval"):
            row |= {"value_count": None, "null_count": None}
    for row in tables["table_column_stats"]:
        if types[row["column_id"]] in ("timetz", "interval"):
            row["contains_null"] = None


def _not_altered(tables: Tables) -> None:
    for row in tables["snapshot_changes"]:
        if "created_table" in row["changes_made"]:
            row["changes_made"] = re.sub(r",altered_table:\d+$", "", row["changes_made"])


def _literal_defaults(tables: Tables) -> None:
    for row in tables["column"]:
        if row["initial_default"] is not None:
            row["initial_default"] = row["default_value"]


EMPTY_SNAPSHOT = Difference(
    "Every commit makes a snapshot, which its ledger entries name. The stock extension makes none "
    "for an option or for an insert of no rows.",
    _empty_snapshot,
)
SEEN_BY_INLINED_DELETES = Difference(
    "A compaction also reports a flush of inlined rows: the stock extension's inlined deletes "
    "check for nothing else, and would be lost with their file.",
    _flushed_too,
)
UNCOUNTED = Difference(
    "DuckDB does not count intervals and times with a zone. The stock extension stores zero; we "
    "store NULL.",
    _uncounted,
)
NOT_ALTERED = Difference(
    "A table is created with its partition and sort keys. The stock extension adds them by ALTER, "
    "and records that even in one transaction.",
    _not_altered,
)
LITERAL_DEFAULTS = Difference(
    "A literal default is stored twice as written. The stock extension stores the value for older "
    "rows in the format of the column's type (1.50), and the default itself as written (1.5).",
    _literal_defaults,
)


# ---- schemas and tables ------------------------------------------------------------------------


def test_new_catalog_has_the_same_metadata(pair: CatalogPair) -> None:
    # Types are not compared: our primary keys are NOT NULL in SQLite too.
    assert pair.ours.shape() == pair.stock.shape()
    pair.compare()


def test_schema_operations_write_the_same_metadata(pair: CatalogPair) -> None:
    pair.catalog.create_schema("raw")
    pair.stock("CREATE SCHEMA lake.raw")
    pair.catalog.create_schema('a "b/ é')
    pair.stock('CREATE SCHEMA lake."a ""b/ é"')
    pair.catalog.drop_schema("RAW")
    pair.stock("DROP SCHEMA lake.RAW")
    pair.catalog.create_schema("Raw")
    pair.stock("CREATE SCHEMA lake.Raw")
    pair.compare()


def test_drop_of_a_schema_with_its_contents_writes_the_same_metadata(pair: CatalogPair) -> None:
    pair.run_on_both(
        "CREATE SCHEMA lake.s",
        "CREATE TABLE lake.s.a AS FROM range(3)",
        "CREATE TABLE lake.s.b (i INTEGER)",
        "ALTER TABLE lake.s.b SET PARTITIONED BY (i)",
        "ALTER TABLE lake.s.b SET SORTED BY (i)",
        "COMMENT ON TABLE lake.s.b IS 'b'",
        "COMMENT ON COLUMN lake.s.b.i IS 'i'",
        "CREATE VIEW lake.s.v AS SELECT 1 AS i",
        "DELETE FROM lake.s.a WHERE range = 1",
        "CREATE MACRO lake.s.m(x) AS x + 1",
        "CREATE MACRO lake.s.tm(x) AS TABLE SELECT x",
        "CREATE MACRO lake.m(x) AS x",
    )
    pair.catalog.drop_schema("s", cascade=True)
    pair.stock("DROP SCHEMA lake.s CASCADE")
    pair.compare()


@pytest.mark.parametrize(
    "inside",
    [
        "TABLE lake.s.x (i INTEGER)",
        "VIEW lake.s.x AS SELECT 1 AS i",
        "MACRO lake.s.x(i) AS i",
        "MACRO lake.s.x(i) AS TABLE SELECT i",
    ],
)
def test_drop_of_a_schema_that_is_not_empty_is_refused(pair: CatalogPair, inside: str) -> None:
    pair.run_on_both("CREATE SCHEMA lake.s", f"CREATE {inside}")
    with pytest.raises(InvalidRequest, match="The schema s still holds 1 "):
        pair.catalog.drop_schema("s")
    pair.compare()


TYPES = {
    "flat": [
        *"BOOLEAN TINYINT SMALLINT INTEGER BIGINT HUGEINT UTINYINT USMALLINT UINTEGER".split(),
        *"UBIGINT UHUGEINT FLOAT DOUBLE DECIMAL(4,1) DECIMAL(18,3) DECIMAL(38,10) DATE".split(),
        *"TIME TIMETZ TIMESTAMP TIMESTAMP_S TIMESTAMP_MS TIMESTAMP_NS TIMESTAMPTZ".split(),
        *"INTERVAL VARCHAR JSON BLOB UUID VARIANT GEOMETRY".split(),
    ],
    "nested": [
        "INTEGER[]",
        "VARCHAR[][]",
        'STRUCT(a INTEGER, "b ""c" VARCHAR[])',
        "MAP(VARCHAR, STRUCT(x DATE, y DECIMAL(9,2)[]))",
        "STRUCT(m MAP(INTEGER, JSON))[]",
    ],
}


@pytest.mark.parametrize("kind", TYPES)
def test_table_of_every_type_has_the_same_metadata(pair: CatalogPair, kind: str) -> None:
    specs = [ColumnSpec(f"c{n}", type_) for n, type_ in enumerate(TYPES[kind])]
    pair.catalog.create_table("main", "t", specs)
    pair.stock(f"CREATE TABLE lake.t ({', '.join(f'{s.name} {s.type}' for s in specs)})")
    pair.compare()


def test_defaults_and_not_null_columns_have_the_same_metadata(pair: CatalogPair) -> None:
    def expression(text: str) -> Default:
        return Default(text, DefaultKind.EXPRESSION)

    specs = [
        ColumnSpec("a", "INTEGER", nullable=False),
        ColumnSpec("b", "VARCHAR", default=Default("it's")),
        ColumnSpec("c", "VARCHAR", default=Default("NULL")),
        ColumnSpec("d", "VARCHAR", default=Default("")),
        ColumnSpec("e", "INTEGER", nullable=False, default=Default("-5")),
        ColumnSpec("f", "TIMESTAMP", default=expression("now()")),
        ColumnSpec("g", "INTEGER", default=expression("(1 + 1)")),
        ColumnSpec("h", "DECIMAL(5,2)", default=Default("1.5")),
        ColumnSpec("s", "STRUCT(a INTEGER)", nullable=False),
    ]
    pair.catalog.create_table("main", "t", specs)
    pair.stock(
        "CREATE TABLE lake.t (a INTEGER NOT NULL, b VARCHAR DEFAULT 'it''s', "
        "c VARCHAR DEFAULT 'NULL', d VARCHAR DEFAULT '', e INTEGER DEFAULT -5 NOT NULL, "
        "f TIMESTAMP DEFAULT now(), g INTEGER DEFAULT 1 + 1, h DECIMAL(5,2) DEFAULT 1.5, "
        "s STRUCT(a INTEGER) NOT NULL)"
    )
    pair.compare(LITERAL_DEFAULTS)


def test_unusual_names_have_the_same_metadata(pair: CatalogPair) -> None:
    for name in (
        "plain_1-X",
        "Mixed",
        "a b",
        'q"x',
        "straße",
        "日本",
        "a.b",
        "é",
        "a/../b",
        "it's",
    ):
        quoted = identifier(name)
        pair.commit(
            CreateSchema(name),
            new_table(name, name, [ColumnSpec(name, "INTEGER")], partition_by=[name]),
        )
        pair.stock(
            f"BEGIN; CREATE SCHEMA lake.{quoted}; "
            f"CREATE TABLE lake.{quoted}.{quoted} ({quoted} INTEGER); "
            f"ALTER TABLE lake.{quoted}.{quoted} SET PARTITIONED BY ({quoted}); COMMIT"
        )
        pair.append("SELECT 7", name, name)
        pair.stock(f"INSERT INTO lake.{quoted}.{quoted} SELECT 7")
        assert pair.ours(f"SELECT {quoted} FROM lake.{quoted}.{quoted}") == [(7,)]
    pair.compare(NOT_ALTERED)
    pair.catalog.drop_table('q"X', 'Q"x')
    pair.stock('DROP TABLE lake."q""X"."Q""x"')
    pair.catalog.drop_schema("straße", cascade=True)
    pair.stock('DROP SCHEMA lake."straße" CASCADE')
    pair.compare(NOT_ALTERED)


def test_names_are_compared_as_in_duckdb(pair: CatalogPair) -> None:
    for name in ("é", "É", "strasse", "straße"):
        pair.catalog.create_schema(name)
        pair.stock(f'CREATE SCHEMA lake."{name}"')
        pair.catalog.create_table("main", name, NUMBERS)
        pair.stock(f'CREATE TABLE lake."{name}" (i BIGINT, t VARCHAR)')
        pair.append(numbers(0, len(name.encode())), name)
        pair.stock(f'INSERT INTO lake."{name}" {numbers(0, len(name.encode()))}')
    pair.catalog.drop_table("main", "é")
    pair.stock('DROP TABLE lake."é"')
    pair.catalog.drop_schema("É")
    pair.stock('DROP SCHEMA lake."É"')
    with pytest.raises(AlreadyExists):
        pair.catalog.create_table("main", "STRASSE", NUMBERS)
    pair.compare()
    assert pair.catalog.table("main", "STRAßE").name == "straße"


#: Columns, our partition keys, and the keys in the stock extension's SQL.
PARTITIONS: dict[str, tuple[list[str | tuple[str, str]], str]] = {
    "identity": (["k"], "k"),
    "calendar": (
        [("moment", "year"), ("moment", "month"), ("moment", "day"), ("moment", "hour")],
        "year(moment), month(moment), day(moment), hour(moment)",
    ),
    "bucket": ([("k", "bucket(4)"), ("i", "identity")], "bucket(4, k), i"),
}


@pytest.mark.parametrize("case", PARTITIONS)
def test_partitioned_table_has_the_same_metadata(pair: CatalogPair, case: str) -> None:
    ours, stock = PARTITIONS[case]
    specs = [
        ColumnSpec("i", "INTEGER"),
        ColumnSpec("k", "VARCHAR"),
        ColumnSpec("moment", "TIMESTAMP"),
    ]
    pair.catalog.create_table("main", "t", specs, partition_by=ours)
    pair.stock(
        "BEGIN; CREATE TABLE lake.t (i INTEGER, k VARCHAR, moment TIMESTAMP); "
        f"ALTER TABLE lake.t SET PARTITIONED BY ({stock}); COMMIT"
    )
    # One partition per commit: the order of the files of an insert is undefined.
    for values in ("(1, 'a/b', TIMESTAMP '2024-03-04 05:06:07')", "(NULL, NULL, NULL)"):
        pair.append(f"VALUES {values}", "t")
        pair.stock(f"INSERT INTO lake.t VALUES {values}")
    pair.compare(NOT_ALTERED)


def test_sorted_table_has_the_same_metadata(pair: CatalogPair) -> None:
    pair.catalog.create_table(
        "main",
        "t",
        NUMBERS,
        partition_by=["t"],
        sort_by=[SortKey("i", descending=True, nulls_first=True), SortKey("(i % 3)")],
    )
    pair.stock(
        f"BEGIN; {NUMBERS_SQL}; ALTER TABLE lake.t SET PARTITIONED BY (t); ALTER TABLE lake.t "
        "SET SORTED BY (i DESC NULLS FIRST, i % 3 ASC NULLS LAST); COMMIT"
    )
    pair.compare(NOT_ALTERED)


def test_dropped_tables_have_the_same_metadata(pair: CatalogPair) -> None:
    pair.run_on_both(
        "CREATE TABLE lake.a AS FROM range(3)",
        "COMMENT ON TABLE lake.a IS 'a'",
        "COMMENT ON COLUMN lake.a.range IS 'a'",
        "ALTER TABLE lake.a SET PARTITIONED BY (range)",
        "ALTER TABLE lake.a SET SORTED BY (range)",
        "DELETE FROM lake.a WHERE range = 1",
        NUMBERS_SQL,
    )
    pair.catalog.drop_table("main", "A")
    pair.stock("DROP TABLE lake.a")
    pair.catalog.drop_table("main", "t")
    pair.stock("DROP TABLE lake.t")
    pair.compare()


def test_replaced_table_has_the_same_metadata(pair: CatalogPair) -> None:
    pair.run_on_both("CREATE TABLE lake.t AS FROM range(3)")
    pair.commit(DropTable("main", "t"), new_table("main", "t", NUMBERS))
    pair.stock("CREATE OR REPLACE TABLE lake.t (i BIGINT, t VARCHAR)")
    pair.compare()


# ---- rows --------------------------------------------------------------------------------------


def test_inserts_write_the_same_metadata(pair: CatalogPair) -> None:
    pair.catalog.create_table("main", "t", NUMBERS)
    pair.stock(NUMBERS_SQL)
    for query in (numbers(5, 9), numbers(0, 3), "SELECT NULL, NULL", numbers(100, 2000)):
        pair.append(query, "t")
        pair.stock(f"INSERT INTO lake.t {query}")
    pair.compare()


VALUES = {
    "flat": """
        true, 1, 2, 3, 4, 6, 7, 8, 9, 1.5, 'nan', 1.5, 2.5, 3.5, '2024-01-02', '03:04:05',
        '03:04:05+02', '2024-01-02 03:04:05.6', '2024-01-02 03:04:05', '2024-01-02 03:04:05.6',
        '2024-01-02 03:04:05.678', '2024-01-02 03:04:05+02', INTERVAL 3 DAYS, 'text', '{"a": 1}',
        '\\xAA\\x00'::BLOB, 'ffffffff-0000-0000-0000-000000000000', 5::VARIANT,
        'POINT(1 2)'::GEOMETRY""",
    "nested": """
        [1, NULL], [['a'], []], {'a': 1, 'b "c': ['x']}, MAP {'k': {'x': '2024-01-02', 'y': [1]}},
        [{'m': MAP {1: '[]'}}]""",
}


#: The extension's files hold fewer digits than ours.
WIDE_INTEGERS = ("HUGEINT", "UHUGEINT")


@pytest.mark.parametrize("kind", TYPES)
def test_inserts_of_every_type_write_the_same_metadata(pair: CatalogPair, kind: str) -> None:
    types = [type_ for type_ in TYPES[kind] if type_ not in WIDE_INTEGERS]
    specs = [ColumnSpec(f"c{n}", type_) for n, type_ in enumerate(types)]
    pair.catalog.create_table("main", "t", specs)
    pair.stock(f"CREATE TABLE lake.t ({', '.join(f'{s.name} {s.type}' for s in specs)})")
    nothing = ", ".join(["NULL"] * len(specs))
    for values in (VALUES[kind], nothing):
        pair.append(f"VALUES ({values})", "t")
        pair.stock(f"INSERT INTO lake.t VALUES ({values})")
    pair.compare(*([UNCOUNTED] if kind == "flat" else []))


#: Values of a first insert and of a second one.
VARIANTS = {
    "numbers": (["5", "NULL"], ["10", "9"]),
    "null": (["NULL"], ["1"]),
    "null second": (["'x'"], ["NULL"]),
    "types": (["1", "'x'"], ["1"]),
    "other type": (["1"], ["'x'"]),
    "widths": (["1::TINYINT", "2::SMALLINT"], ["3::BIGINT", "4::UTINYINT"]),
    "unsigned": (["1::UBIGINT"], ["1::HUGEINT"]),
    "floats": (["'nan'::DOUBLE", "1.5::DOUBLE"], ["'-inf'::DOUBLE"]),
    "float": (["1.5::FLOAT"], ["'nan'::FLOAT"]),
    "decimals": (["1.5", "2.5"], ["10.5"]),
    "wide decimals": (["1.5::DECIMAL(38,5)"], ["2.5::DECIMAL(38,5)"]),
    "booleans": (["true"], ["false", "NULL"]),
    "texts": (["'b'", "repeat('z', 300)"], ["'é'", "repeat('é', 300)"]),
    "empty text": (["''"], ["'a'"]),
    "blobs": (["'\\xAA'::BLOB"], ["'a'::BLOB"]),
    "uuids": (
        ["uuid '8fffffff-0000-0000-0000-000000000000'"],
        ["uuid '0fffffff-0000-0000-0000-000000000000'", "NULL"],
    ),
    "dates": (["DATE '0044-03-15 (BC)'"], ["DATE '2024-01-01'"]),
    "times": (["TIME '10:00:00'"], ["TIME '09:00:00.5'"]),
    "timestamps": (["TIMESTAMP '2024-01-01'"], ["TIMESTAMP '10000-01-01'"]),
    "zoned timestamps": (["TIMESTAMPTZ '2024-01-01 00:00:00+00'"], ["TIMESTAMP_NS '2024-01-01'"]),
    "objects": (["{'a': 1, 'b': 'x'}", "{'a': 2}"], ["{'a': -1, 'b': 'y', 'c': 1}"]),
    "object or number": (["{'a': 1}", "7"], ["{'a': 2}"]),
    "lists": (["[1, 2]", "[]"], ["[3, NULL]"]),
    "deep": (["{'l': [{'z': 1.5::DOUBLE}], 'q\"x.y': {'element': 1}}"], ["{'l': [], 'm': [[1]]}"]),
    "names": (["{'root': 1, 'typed_value': 2, 'value': 3}"], ["{'root': 0, 'typed_value': 9}"]),
}


def test_variants_write_the_same_metadata(pair: CatalogPair) -> None:
    for number, inserts in enumerate(VARIANTS.values()):
        pair.catalog.create_table("main", f"t{number}", [ColumnSpec("v", "VARIANT")])
        pair.stock(f"CREATE TABLE lake.t{number} (v VARIANT)")
        for values in inserts:
            query = f"SELECT unnest([{', '.join(f'({value})::VARIANT' for value in values)}])"
            pair.append(query, f"t{number}")
            pair.stock(f"INSERT INTO lake.t{number} {query}")
    pair.compare()


def test_table_created_with_variants_has_the_same_metadata(pair: CatalogPair) -> None:
    query = "SELECT {'a': i, 'b': 'x' || i}::VARIANT AS v FROM range(3) r(i)"
    table = new_table("main", "t", [ColumnSpec("v", "VARIANT")])
    (file,) = new_files(pair, table, query)
    pair.commit(table, Insert(table, (file,)))
    pair.stock(f"CREATE TABLE lake.t AS {query}")
    pair.compare()


def test_insert_of_several_files_writes_the_same_metadata(pair: CatalogPair) -> None:
    pair.run_on_both(NUMBERS_SQL)
    for first in (50, 0):  # without and with table statistics
        table = pair.catalog.table("main", "t")
        queries = [numbers(first, first + 5), numbers(first + 20, first + 30)]
        files = [write_files(pair.connection, query, table)[0] for query in queries]
        pair.commit(Insert(table, tuple(files)))
        inserts = "; ".join(f"INSERT INTO lake.t {query}" for query in queries)
        pair.stock(f"BEGIN; {inserts}; COMMIT")
    pair.compare()


def test_several_inserts_in_one_commit_write_the_same_metadata(pair: CatalogPair) -> None:
    pair.run_on_both(NUMBERS_SQL)
    for first in (50, 0):
        table = pair.catalog.table("main", "t")
        queries = [numbers(first, first + 5), numbers(first + 20, first + 30)]
        files = [write_files(pair.connection, query, table)[0] for query in queries]
        pair.commit(*(Insert(table, (file,)) for file in files))
        inserts = "; ".join(f"INSERT INTO lake.t {query}" for query in queries)
        pair.stock(f"BEGIN; {inserts}; COMMIT")
    pair.compare()


def new_files(pair: CatalogPair, table: CreateTable, *queries: str) -> list[DataFile]:
    """Writes files for a table that does not exist yet."""
    directory = f"{pair.catalog.info.data_path}{table.schema}/{table.name}/"
    keys = table.partition_keys
    target = Table(0, table.schema, table.name, directory, table.columns, partition_keys=keys)
    return [file for query in queries for file in write_files(pair.connection, query, target)]


def test_table_created_with_rows_has_the_same_metadata(pair: CatalogPair) -> None:
    table = new_table("main", "t", NUMBERS)
    (file,) = new_files(pair, table, numbers(0, 10))
    pair.commit(table, Insert(table, (file,)))
    pair.stock(f"CREATE TABLE lake.t AS {numbers(0, 10)}")
    pair.compare()
    assert pair.ours("FROM lake.t ORDER BY i") == pair.stock("FROM lake.t ORDER BY i")


def test_partitioned_table_created_with_rows_has_the_same_metadata(pair: CatalogPair) -> None:
    table = new_table("main", "t", NUMBERS, partition_by=["t"])
    files = new_files(pair, table, numbers(0, 1), numbers(1, 2))
    pair.commit(table, *(Insert(table, (file,)) for file in files))
    pair.stock(
        f"BEGIN; {NUMBERS_SQL}; ALTER TABLE lake.t SET PARTITIONED BY (t); "
        f"INSERT INTO lake.t {numbers(0, 1)}; INSERT INTO lake.t {numbers(1, 2)}; COMMIT"
    )
    pair.compare(NOT_ALTERED)
    assert pair.ours("FROM lake.t ORDER BY i") == pair.stock("FROM lake.t ORDER BY i")


def test_table_replaced_with_rows_has_the_same_metadata(pair: CatalogPair) -> None:
    pair.run_on_both(f"CREATE TABLE lake.t AS {numbers(0, 3)}")
    table = new_table("main", "t", NUMBERS)
    (file,) = new_files(pair, table, numbers(5, 7))
    pair.commit(DropTable("main", "t"), table, Insert(table, (file,)))
    pair.stock(f"CREATE OR REPLACE TABLE lake.t AS {numbers(5, 7)}")
    pair.compare()


def test_insert_of_no_rows_makes_an_empty_snapshot(pair: CatalogPair) -> None:
    pair.run_on_both(NUMBERS_SQL)
    pair.append("SELECT 1, 'a' WHERE false", "t")
    pair.stock("INSERT INTO lake.t SELECT 1, 'a' WHERE false")
    pair.compare(EMPTY_SNAPSHOT)


def test_inserts_after_alterations_write_the_same_metadata(pair: CatalogPair) -> None:
    pair.run_on_both(
        f"CREATE TABLE lake.t AS {numbers(0, 3)}",
        "ALTER TABLE lake.t ADD COLUMN x INTEGER DEFAULT 1000",
        "ALTER TABLE lake.t ADD COLUMN s STRUCT(a INTEGER)",
        "ALTER TABLE lake.t RENAME COLUMN t TO text",
    )
    first = "SELECT i, 'x', 1, {'a': 2} FROM range(3, 5) r(i)"
    pair.append(first, "t")
    pair.stock(f"INSERT INTO lake.t {first}")
    pair.run_on_both(
        "ALTER TABLE lake.t ALTER COLUMN x TYPE BIGINT",
        "ALTER TABLE lake.t ADD COLUMN s.b VARCHAR",
        "ALTER TABLE lake.t DROP COLUMN i",
        "ALTER TABLE lake.t SET PARTITIONED BY (text)",
        "ALTER TABLE lake.t SET SORTED BY (x)",
        "ALTER TABLE lake.t RENAME TO u",
    )
    second = "SELECT 'y', 5_000_000_000, {'a': 2, 'b': 'c'}"
    pair.append(second, "u")
    pair.stock(f"INSERT INTO lake.u {second}")
    pair.compare()
    rows = "FROM lake.u ORDER BY ALL"
    assert pair.ours(rows) == pair.stock(rows)


# ---- merges, options ---------------------------------------------------------------------------


@pytest.mark.parametrize("inserts", ["one snapshot", "three snapshots"])
def test_merge_writes_the_same_metadata(pair: CatalogPair, inserts: str) -> None:
    statements = [f"INSERT INTO lake.t {numbers(n, n + 10)}" for n in (0, 10, 20)]
    if inserts == "one snapshot":
        pair.run_on_both(NUMBERS_SQL, f"BEGIN; {'; '.join(statements)}; COMMIT")
    else:
        pair.run_on_both(NUMBERS_SQL, *statements)
    pair.commit(merged_files(pair), base=pair.catalog.newest_snapshot())
    pair.stock("CALL ducklake_merge_adjacent_files('lake')")
    pair.compare(SEEN_BY_INLINED_DELETES)
    for version in range(1, pair.catalog.newest_snapshot() + 1):
        rows = f"SELECT *, rowid, snapshot_id FROM lake.t AT (VERSION => {version}) ORDER BY ALL"
        assert pair.ours(rows) == pair.stock(rows)


def merged_files(pair: CatalogPair) -> Merge:
    """Merges all files of the table into one whose rows record their snapshots."""
    table = pair.catalog.table("main", "t")
    sources = pair.ours(
        "SELECT data_file_id, begin_snapshot, row_id_start FROM meta.data_file ORDER BY ALL"
    )
    snapshot = Column(2147483539, "_ducklake_internal_snapshot_id", "int64")
    (file,) = write_files(
        pair.connection,
        f"SELECT *, snapshot_id FROM {pair.ours.name}.t ORDER BY rowid",
        replace(table, columns=(*table.columns, snapshot)),
    )
    stats = tuple(stats for stats in file.column_stats if stats.column_id != snapshot.id)
    return Merge(
        table,
        tuple(row[0] for row in sources),
        replace(file, column_stats=stats),
        begin_snapshot=sources[0][1],
        row_id_start=sources[0][2],
        partial_max=sources[-1][1],
    )


def test_options_write_the_same_metadata(pair: CatalogPair) -> None:
    pair.run_on_both("CREATE SCHEMA lake.s", NUMBERS_SQL)
    for megabytes in (1, 2):
        pair.commit(SetProperty("target_file_size", f"{megabytes}000000"))
        pair.stock(f"CALL lake.set_option('target_file_size', '{megabytes}MB')")
    pair.commit(
        SetProperty("parquet_compression", "zstd", schema_id=1),
        SetProperty("parquet_compression", "gzip", table_id=2),
    )
    pair.stock("CALL lake.set_option('parquet_compression', 'zstd', schema => 's')")
    pair.stock("CALL lake.set_option('parquet_compression', 'gzip', table_name => 't')")
    pair.compare(*[EMPTY_SNAPSHOT] * 3)
