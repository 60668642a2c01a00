"""Every operation of a commit leaves in the catalog the rows that the stock extension leaves."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from swanlake.errors import AlreadyExists, InvalidRequest
from swanlake.lake.datafile import write_files
from swanlake.lake.lake import new_table
from swanlake.lake.layout import Column, DataFile, Default, DefaultKind, SortKey, Table
from swanlake.lake.operations import (
    CreateSchema,
    CreateTable,
    DropTable,
    Insert,
    Merge,
    SetProperty,
)
from swanlake.lake.types import ColumnSpec
from swanlake.sql.quoting import identifier
from tests.differential.twins import Difference, Tables, Twins, deletion

NUMBERS = [ColumnSpec("i", "BIGINT"), ColumnSpec("t", "VARCHAR")]
NUMBERS_SQL = "CREATE TABLE lake.t (i BIGINT, t VARCHAR)"


def numbers(first: int, end: int) -> str:
    """Rows for a table of numbers and texts."""
    return f"SELECT i, 'n' || i AS t FROM range({first}, {end}) r(i)"


# ---- what we write otherwise, on purpose -------------------------------------------------------


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


def _new_file_id(tables: Tables) -> None:
    max(tables["snapshot"], key=lambda row: int(row["snapshot_id"]))["next_file_id"] += 1


def _kept_delete_file(tables: Tables) -> None:
    """The second delete on a file: the stock extension replaces the file of the first."""
    (new,) = tables["delete_file"]
    (scheduled,) = tables["files_scheduled_for_deletion"]
    tables["files_scheduled_for_deletion"] = []
    deleted_in = new["partial_max"]
    old = {
        **new,
        "delete_file_id": scheduled["data_file_id"],
        "end_snapshot": deleted_in,
        "delete_count": 1,
        "partial_max": None,
    }
    new |= {"begin_snapshot": deleted_in, "partial_max": None}
    tables["delete_file"] = [old, new]


def _ended_delete_file(tables: Tables) -> None:
    ends = {row["data_file_id"]: row["end_snapshot"] for row in tables["data_file"]}
    for row in tables["delete_file"]:
        assert row["end_snapshot"] is None
        row["end_snapshot"] = ends[row["data_file_id"]]


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


def _no_variant_stats(tables: Tables) -> None:
    (column,) = {row["column_id"] for row in tables["column"] if row["column_type"] == "variant"}
    tables["file_variant_stats"] = []
    for name in ("file_column_stats", "table_column_stats"):
        for row in tables[name]:
            if row["column_id"] == column:
                known = {"data_file_id", "table_id", "column_id"}
                row |= {key: None for key in row if key not in known}


def _not_altered(tables: Tables) -> None:
    for row in tables["snapshot_changes"]:
        if "created_table" in row["changes_made"]:
            row["changes_made"] = re.sub(r",altered_table:\d+$", "", row["changes_made"])


def _literal_defaults(tables: Tables) -> None:
    for row in tables["column"]:
        if row["initial_default"] is not None:
            row["initial_default"] = row["default_value"]


EMPTY_SNAPSHOT = Difference(
    "A commit is a snapshot, also if it changes no table: its ledger entries name one. The stock "
    "extension writes none for an option, or for an insert of no rows.",
    _empty_snapshot,
)
NEW_FILE_ID = Difference(
    "Clients keep table statistics by next_file_id, so every change of data moves it. The stock "
    "extension leaves it where it is when whole files are dropped.",
    _new_file_id,
)
KEPT_DELETE_FILE = Difference(
    "A second delete on a file ends the first delete file and keeps it for time travel. The stock "
    "extension schedules it for deletion and hides in the new one which row went when; its own "
    "conflict check cannot see that, and a fork may need the file.",
    _kept_delete_file,
)
ENDED_DELETE_FILE = Difference(
    "A data file that ends takes its delete file along. The stock extension leaves that live.",
    _ended_delete_file,
)
SEEN_BY_INLINED_DELETES = Difference(
    "A compaction says that it flushed inlined rows too: inlined deletes of the stock extension "
    "look for nothing else, and would be lost with the file they are for.",
    _flushed_too,
)
UNCOUNTED = Difference(
    "DuckDB does not count intervals and times with a zone. The stock extension takes the zero for "
    "a number; we say that nobody counted.",
    _uncounted,
)
NO_VARIANT_STATS = Difference(
    "The bounds of a variant's parts are an optional extra that our writer does not offer.",
    _no_variant_stats,
)
NOT_ALTERED = Difference(
    "A table is made with its partitions and its order. The stock extension can only add them to "
    "it, and says so even if it happens in one transaction.",
    _not_altered,
)
LITERAL_DEFAULTS = Difference(
    "A literal default is kept as it was given, twice. The stock extension stores the value that "
    "older rows get in the spelling of the column's type (1.50), and the default itself as it was "
    "given (1.5).",
    _literal_defaults,
)


# ---- schemas and tables ------------------------------------------------------------------------


def test_a_new_catalog(twins: Twins) -> None:
    # Not compared: in SQLite our primary keys are NOT NULL, as everywhere else.
    assert twins.ours.shape() == twins.stock.shape()
    twins.compare()


def test_schemas(twins: Twins) -> None:
    twins.catalog.create_schema("raw")
    twins.stock("CREATE SCHEMA lake.raw")
    twins.catalog.create_schema('a "b/ é')
    twins.stock('CREATE SCHEMA lake."a ""b/ é"')
    twins.catalog.drop_schema("RAW")
    twins.stock("DROP SCHEMA lake.RAW")
    twins.catalog.create_schema("Raw")
    twins.stock("CREATE SCHEMA lake.Raw")
    twins.compare()


def test_a_schema_with_everything_in_it(twins: Twins) -> None:
    twins.both(
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
    twins.catalog.drop_schema("s", cascade=True)
    twins.stock("DROP SCHEMA lake.s CASCADE")
    twins.compare()


@pytest.mark.parametrize(
    "inside",
    [
        "TABLE lake.s.x (i INTEGER)",
        "VIEW lake.s.x AS SELECT 1 AS i",
        "MACRO lake.s.x(i) AS i",
        "MACRO lake.s.x(i) AS TABLE SELECT i",
    ],
)
def test_a_schema_that_is_not_empty_stays(twins: Twins, inside: str) -> None:
    twins.both("CREATE SCHEMA lake.s", f"CREATE {inside}")
    with pytest.raises(InvalidRequest, match="The schema s still holds 1 "):
        twins.catalog.drop_schema("s")
    twins.compare()


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
def test_a_table_of_every_type(twins: Twins, kind: str) -> None:
    specs = [ColumnSpec(f"c{n}", type_) for n, type_ in enumerate(TYPES[kind])]
    twins.catalog.create_table("main", "t", specs)
    twins.stock(f"CREATE TABLE lake.t ({', '.join(f'{s.name} {s.type}' for s in specs)})")
    twins.compare()


def test_defaults_and_required_columns(twins: Twins) -> None:
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
    twins.catalog.create_table("main", "t", specs)
    twins.stock(
        "CREATE TABLE lake.t (a INTEGER NOT NULL, b VARCHAR DEFAULT 'it''s', "
        "c VARCHAR DEFAULT 'NULL', d VARCHAR DEFAULT '', e INTEGER DEFAULT -5 NOT NULL, "
        "f TIMESTAMP DEFAULT now(), g INTEGER DEFAULT 1 + 1, h DECIMAL(5,2) DEFAULT 1.5, "
        "s STRUCT(a INTEGER) NOT NULL)"
    )
    twins.compare(LITERAL_DEFAULTS)


def test_names_of_schemas_tables_and_columns(twins: Twins) -> None:
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
        twins.commit(
            CreateSchema(name),
            new_table(name, name, [ColumnSpec(name, "INTEGER")], partition_by=[name]),
        )
        twins.stock(
            f"BEGIN; CREATE SCHEMA lake.{quoted}; "
            f"CREATE TABLE lake.{quoted}.{quoted} ({quoted} INTEGER); "
            f"ALTER TABLE lake.{quoted}.{quoted} SET PARTITIONED BY ({quoted}); COMMIT"
        )
        twins.append("SELECT 7", name, name)
        twins.stock(f"INSERT INTO lake.{quoted}.{quoted} SELECT 7")
        assert twins.ours(f"SELECT {quoted} FROM lake.{quoted}.{quoted}") == [(7,)]
    twins.compare(NOT_ALTERED)
    twins.catalog.drop_table('q"X', 'Q"x')
    twins.stock('DROP TABLE lake."q""X"."Q""x"')
    twins.catalog.drop_schema("straße", cascade=True)
    twins.stock('DROP SCHEMA lake."straße" CASCADE')
    twins.compare(NOT_ALTERED)


def test_names_differ_if_duckdb_says_so(twins: Twins) -> None:
    for name in ("é", "É", "strasse", "straße"):
        twins.catalog.create_schema(name)
        twins.stock(f'CREATE SCHEMA lake."{name}"')
        twins.catalog.create_table("main", name, NUMBERS)
        twins.stock(f'CREATE TABLE lake."{name}" (i BIGINT, t VARCHAR)')
        twins.append(numbers(0, len(name.encode())), name)
        twins.stock(f'INSERT INTO lake."{name}" {numbers(0, len(name.encode()))}')
    twins.catalog.drop_table("main", "é")
    twins.stock('DROP TABLE lake."é"')
    twins.catalog.drop_schema("É")
    twins.stock('DROP SCHEMA lake."É"')
    with pytest.raises(AlreadyExists):
        twins.catalog.create_table("main", "STRASSE", NUMBERS)
    twins.compare()
    assert twins.catalog.table("main", "STRAßE").name == "straße"


#: Columns, our keys, and the keys in the words of the stock extension.
PARTITIONS: dict[str, tuple[list[str | tuple[str, str]], str]] = {
    "identity": (["k"], "k"),
    "calendar": (
        [("moment", "year"), ("moment", "month"), ("moment", "day"), ("moment", "hour")],
        "year(moment), month(moment), day(moment), hour(moment)",
    ),
    "bucket": ([("k", "bucket(4)"), ("i", "identity")], "bucket(4, k), i"),
}


@pytest.mark.parametrize("case", PARTITIONS)
def test_a_partitioned_table(twins: Twins, case: str) -> None:
    ours, stock = PARTITIONS[case]
    specs = [
        ColumnSpec("i", "INTEGER"),
        ColumnSpec("k", "VARCHAR"),
        ColumnSpec("moment", "TIMESTAMP"),
    ]
    twins.catalog.create_table("main", "t", specs, partition_by=ours)
    twins.stock(
        "BEGIN; CREATE TABLE lake.t (i INTEGER, k VARCHAR, moment TIMESTAMP); "
        f"ALTER TABLE lake.t SET PARTITIONED BY ({stock}); COMMIT"
    )
    # One partition a commit: the order of the files of one insert is not defined.
    for values in ("(1, 'a/b', TIMESTAMP '2024-03-04 05:06:07')", "(NULL, NULL, NULL)"):
        twins.append(f"VALUES {values}", "t")
        twins.stock(f"INSERT INTO lake.t VALUES {values}")
    twins.compare(NOT_ALTERED)


def test_a_table_with_an_order(twins: Twins) -> None:
    twins.catalog.create_table(
        "main",
        "t",
        NUMBERS,
        partition_by=["t"],
        sort_by=[SortKey("i", descending=True, nulls_first=True), SortKey("(i % 3)")],
    )
    twins.stock(
        f"BEGIN; {NUMBERS_SQL}; ALTER TABLE lake.t SET PARTITIONED BY (t); ALTER TABLE lake.t "
        "SET SORTED BY (i DESC NULLS FIRST, i % 3 ASC NULLS LAST); COMMIT"
    )
    twins.compare(NOT_ALTERED)


def test_dropped_tables(twins: Twins) -> None:
    twins.both(
        "CREATE TABLE lake.a AS FROM range(3)",
        "COMMENT ON TABLE lake.a IS 'a'",
        "COMMENT ON COLUMN lake.a.range IS 'a'",
        "ALTER TABLE lake.a SET PARTITIONED BY (range)",
        "ALTER TABLE lake.a SET SORTED BY (range)",
        "DELETE FROM lake.a WHERE range = 1",
        NUMBERS_SQL,
    )
    twins.catalog.drop_table("main", "A")
    twins.stock("DROP TABLE lake.a")
    twins.catalog.drop_table("main", "t")
    twins.stock("DROP TABLE lake.t")
    twins.compare()


def test_a_table_in_place_of_another(twins: Twins) -> None:
    twins.both("CREATE TABLE lake.t AS FROM range(3)")
    twins.commit(DropTable("main", "t"), new_table("main", "t", NUMBERS))
    twins.stock("CREATE OR REPLACE TABLE lake.t (i BIGINT, t VARCHAR)")
    twins.compare()


# ---- rows --------------------------------------------------------------------------------------


def test_inserts(twins: Twins) -> None:
    twins.catalog.create_table("main", "t", NUMBERS)
    twins.stock(NUMBERS_SQL)
    for query in (numbers(5, 9), numbers(0, 3), "SELECT NULL, NULL", numbers(100, 2000)):
        twins.append(query, "t")
        twins.stock(f"INSERT INTO lake.t {query}")
    twins.compare()


VALUES = {
    "flat": """
        true, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 1.5, 'nan', 1.5, 2.5, 3.5, '2024-01-02', '03:04:05',
        '03:04:05+02', '2024-01-02 03:04:05.6', '2024-01-02 03:04:05', '2024-01-02 03:04:05.6',
        '2024-01-02 03:04:05.678', '2024-01-02 03:04:05+02', INTERVAL 3 DAYS, 'text', '{"a": 1}',
        '\\xAA\\x00'::BLOB, 'ffffffff-0000-0000-0000-000000000000', 5::VARIANT,
        'POINT(1 2)'::GEOMETRY""",
    "nested": """
        [1, NULL], [['a'], []], {'a': 1, 'b "c': ['x']}, MAP {'k': {'x': '2024-01-02', 'y': [1]}},
        [{'m': MAP {1: '[]'}}]""",
}


@pytest.mark.parametrize("kind", TYPES)
def test_inserts_of_every_type(twins: Twins, kind: str) -> None:
    specs = [ColumnSpec(f"c{n}", type_) for n, type_ in enumerate(TYPES[kind])]
    twins.catalog.create_table("main", "t", specs)
    twins.stock(f"CREATE TABLE lake.t ({', '.join(f'{s.name} {s.type}' for s in specs)})")
    nothing = ", ".join(["NULL"] * len(specs))
    for values in (VALUES[kind], nothing):
        twins.append(f"VALUES ({values})", "t")
        twins.stock(f"INSERT INTO lake.t VALUES ({values})")
    twins.compare(*([UNCOUNTED, NO_VARIANT_STATS] if kind == "flat" else []))


def test_several_files_at_once(twins: Twins) -> None:
    twins.both(NUMBERS_SQL)
    for first in (50, 0):  # without and with statistics of the table
        table = twins.catalog.table("main", "t")
        queries = [numbers(first, first + 5), numbers(first + 20, first + 30)]
        files = [write_files(twins.connection, query, table)[0] for query in queries]
        twins.commit(Insert(table, tuple(files)))
        inserts = "; ".join(f"INSERT INTO lake.t {query}" for query in queries)
        twins.stock(f"BEGIN; {inserts}; COMMIT")
    twins.compare()


def test_several_inserts_in_one_commit(twins: Twins) -> None:
    twins.both(NUMBERS_SQL)
    for first in (50, 0):
        table = twins.catalog.table("main", "t")
        queries = [numbers(first, first + 5), numbers(first + 20, first + 30)]
        files = [write_files(twins.connection, query, table)[0] for query in queries]
        twins.commit(*(Insert(table, (file,)) for file in files))
        inserts = "; ".join(f"INSERT INTO lake.t {query}" for query in queries)
        twins.stock(f"BEGIN; {inserts}; COMMIT")
    twins.compare()


def new_files(twins: Twins, table: CreateTable, *queries: str) -> list[DataFile]:
    """Files of a table that is not there yet."""
    directory = f"{twins.catalog.info.data_path}{table.schema}/{table.name}/"
    keys = table.partition_keys
    place = Table(0, table.schema, table.name, directory, table.columns, partition_keys=keys)
    return [file for query in queries for file in write_files(twins.connection, query, place)]


def test_a_table_made_with_its_rows(twins: Twins) -> None:
    table = new_table("main", "t", NUMBERS)
    (file,) = new_files(twins, table, numbers(0, 10))
    twins.commit(table, Insert(table, (file,)))
    twins.stock(f"CREATE TABLE lake.t AS {numbers(0, 10)}")
    twins.compare()
    assert twins.ours("FROM lake.t ORDER BY i") == twins.stock("FROM lake.t ORDER BY i")


def test_a_partitioned_table_made_with_its_rows(twins: Twins) -> None:
    table = new_table("main", "t", NUMBERS, partition_by=["t"])
    files = new_files(twins, table, numbers(0, 1), numbers(1, 2))
    twins.commit(table, *(Insert(table, (file,)) for file in files))
    twins.stock(
        f"BEGIN; {NUMBERS_SQL}; ALTER TABLE lake.t SET PARTITIONED BY (t); "
        f"INSERT INTO lake.t {numbers(0, 1)}; INSERT INTO lake.t {numbers(1, 2)}; COMMIT"
    )
    twins.compare(NOT_ALTERED)
    assert twins.ours("FROM lake.t ORDER BY i") == twins.stock("FROM lake.t ORDER BY i")


def test_a_table_replaced_with_its_rows(twins: Twins) -> None:
    twins.both(f"CREATE TABLE lake.t AS {numbers(0, 3)}")
    table = new_table("main", "t", NUMBERS)
    (file,) = new_files(twins, table, numbers(5, 7))
    twins.commit(DropTable("main", "t"), table, Insert(table, (file,)))
    twins.stock(f"CREATE OR REPLACE TABLE lake.t AS {numbers(5, 7)}")
    twins.compare()


def test_an_insert_of_no_rows(twins: Twins) -> None:
    twins.both(NUMBERS_SQL)
    twins.append("SELECT 1, 'a' WHERE false", "t")
    twins.stock("INSERT INTO lake.t SELECT 1, 'a' WHERE false")
    twins.compare(EMPTY_SNAPSHOT)


def test_inserts_after_the_table_was_altered(twins: Twins) -> None:
    twins.both(
        f"CREATE TABLE lake.t AS {numbers(0, 3)}",
        "ALTER TABLE lake.t ADD COLUMN x INTEGER DEFAULT 1000",
        "ALTER TABLE lake.t ADD COLUMN s STRUCT(a INTEGER)",
        "ALTER TABLE lake.t RENAME COLUMN t TO text",
    )
    first = "SELECT i, 'x', 1, {'a': 2} FROM range(3, 5) r(i)"
    twins.append(first, "t")
    twins.stock(f"INSERT INTO lake.t {first}")
    twins.both(
        "ALTER TABLE lake.t ALTER COLUMN x TYPE BIGINT",
        "ALTER TABLE lake.t ADD COLUMN s.b VARCHAR",
        "ALTER TABLE lake.t DROP COLUMN i",
        "ALTER TABLE lake.t SET PARTITIONED BY (text)",
        "ALTER TABLE lake.t SET SORTED BY (x)",
        "ALTER TABLE lake.t RENAME TO u",
    )
    second = "SELECT 'y', 5_000_000_000, {'a': 2, 'b': 'c'}"
    twins.append(second, "u")
    twins.stock(f"INSERT INTO lake.u {second}")
    twins.compare()
    rows = "FROM lake.u ORDER BY ALL"
    assert twins.ours(rows) == twins.stock(rows)


# ---- deletes, merges, options ------------------------------------------------------------------


def test_a_delete(twins: Twins) -> None:
    # From one file: the order of several is not defined.
    twins.both(NUMBERS_SQL, *(f"INSERT INTO lake.t {numbers(n, n + 10)}" for n in (0, 10)))
    twins.delete("i IN (11, 13)", "t")
    twins.stock("DELETE FROM lake.t WHERE i IN (11, 13)")
    twins.compare()
    assert twins.ours("SELECT count(*), sum(i) FROM lake.t") == [(18, 190 - 24)]


def test_a_second_delete_on_the_same_file(twins: Twins) -> None:
    twins.both(f"CREATE TABLE lake.t AS {numbers(0, 10)}")
    for number in (3, 5):
        twins.delete(f"i = {number}", "t")
        twins.stock(f"DELETE FROM lake.t WHERE i = {number}")
    twins.compare(KEPT_DELETE_FILE)
    for version in range(1, 4):
        rows = f"FROM lake.t AT (VERSION => {version}) ORDER BY ALL"
        assert twins.ours(rows) == twins.stock(rows)


def test_a_delete_of_all_rows_of_a_file(twins: Twins) -> None:
    twins.both(NUMBERS_SQL, *(f"INSERT INTO lake.t {numbers(n, n + 10)}" for n in (0, 10)))
    twins.delete("i < 10", "t")
    twins.stock("DELETE FROM lake.t WHERE i < 10")
    twins.compare(NEW_FILE_ID)


def test_a_delete_of_the_rest_of_a_file(twins: Twins) -> None:
    twins.both(
        f"CREATE TABLE lake.t AS {numbers(0, 10)}",
        "DELETE FROM lake.t WHERE i < 5",
    )
    twins.delete("i >= 5", "t")
    twins.stock("DELETE FROM lake.t WHERE i >= 5")
    twins.compare(NEW_FILE_ID, ENDED_DELETE_FILE)
    assert twins.ours("SELECT count(*) FROM lake.t") == [(0,)]


def test_a_delete_and_an_insert_in_one_commit(twins: Twins) -> None:
    twins.both(f"CREATE TABLE lake.t AS {numbers(0, 10)}")
    table = twins.catalog.table("main", "t")
    (file,) = write_files(twins.connection, numbers(20, 22), table)
    twins.commit(Insert(table, (file,)), deletion(twins.ours, table, "i < 2"), base=1)
    twins.stock(
        f"BEGIN; INSERT INTO lake.t {numbers(20, 22)}; DELETE FROM lake.t WHERE i < 2; COMMIT"
    )
    twins.compare()


@pytest.mark.parametrize("inserts", ["one snapshot", "three snapshots"])
def test_a_merge(twins: Twins, inserts: str) -> None:
    statements = [f"INSERT INTO lake.t {numbers(n, n + 10)}" for n in (0, 10, 20)]
    if inserts == "one snapshot":
        twins.both(NUMBERS_SQL, f"BEGIN; {'; '.join(statements)}; COMMIT")
    else:
        twins.both(NUMBERS_SQL, *statements)
    twins.commit(merged_files(twins), base=twins.catalog.snapshot_id())
    twins.stock("CALL ducklake_merge_adjacent_files('lake')")
    twins.compare(SEEN_BY_INLINED_DELETES)
    for version in range(1, twins.catalog.snapshot_id() + 1):
        rows = f"SELECT *, rowid, snapshot_id FROM lake.t AT (VERSION => {version}) ORDER BY ALL"
        assert twins.ours(rows) == twins.stock(rows)


def merged_files(twins: Twins) -> Merge:
    """One file in place of all files of the table; its rows say from which snapshot they are."""
    table = twins.catalog.table("main", "t")
    sources = twins.ours(
        "SELECT data_file_id, begin_snapshot, row_id_start FROM meta.data_file ORDER BY ALL"
    )
    snapshot = Column(2147483539, "_ducklake_internal_snapshot_id", "int64")
    (file,) = write_files(
        twins.connection,
        f"SELECT *, snapshot_id FROM {twins.ours.name}.t ORDER BY rowid",
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


def test_options(twins: Twins) -> None:
    twins.both("CREATE SCHEMA lake.s", NUMBERS_SQL)
    for megabytes in (1, 2):
        twins.commit(SetProperty("target_file_size", f"{megabytes}000000"))
        twins.stock(f"CALL lake.set_option('target_file_size', '{megabytes}MB')")
    twins.commit(
        SetProperty("parquet_compression", "zstd", schema_id=1),
        SetProperty("parquet_compression", "gzip", table_id=2),
    )
    twins.stock("CALL lake.set_option('parquet_compression', 'zstd', schema => 's')")
    twins.stock("CALL lake.set_option('parquet_compression', 'gzip', table_name => 't')")
    twins.compare(*[EMPTY_SNAPSHOT] * 3)
