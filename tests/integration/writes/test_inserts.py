"""Native writes have the outcomes of the extension, and leave no files when they fail."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import adbc_driver_manager
import duckdb
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

from swanlake.lake.model.types import ColumnSpec
from tests.flight import FlightSql
from tests.integration.writes.both_sides import (
    Ours,
    Outcome,
    Stock,
    Transcript,
    Writes,
    content,
    play,
    same,
    set_inline_limit,
)
from tests.integration.writes.insert_scripts import SCRIPTS
from tests.queries import ENDLESS_QUERY, ENDLESS_ROWS
from tests.server_process import ServerProcess
from tests.waiting import eventually

_ENDLESS = f"SELECT range, 'x' {ENDLESS_ROWS}"


@pytest.fixture(scope="module")
def threads() -> str:
    """Several: each writes files of its own, and each can fail."""
    return "2"


@pytest.fixture(scope="module")
def keeps_schemas() -> bool:
    """The last test reads the tables of all others."""
    return True


# ---- the same as stock ---------------------------------------------------------------------------


@pytest.mark.parametrize("inlined", [0, 5])
@pytest.mark.parametrize("subject", SCRIPTS)
def test_outcome_is_that_of_stock(
    writes: Writes,
    ours: Ours,
    stock_transcript: Callable[..., Transcript],
    schema: str,
    tmp_path: Path,
    subject: str,
    inlined: int,
) -> None:
    if inlined and not writes.is_native:
        pytest.skip("the extension loses values of some types that it inlines")
    script = SCRIPTS[subject]
    expected = stock_transcript(subject, script, 0, each_content=False)
    set_inline_limit(ours, schema, inlined)
    with writes.counted() as counted:
        names = {"{schema}": schema, "{home}": str(tmp_path / "ours")}
        (tmp_path / "ours").mkdir()
        found = play(ours, script, names, each_content=False)
    assert found == expected
    left = found.refused + sum(line.startswith("UPDATE") for line in script)
    # Only inserts that fail run in the extension, for its error message.
    assert counted["extension"] <= left
    assert counted["repeated"] == 0
    # The extension leaves the file of an insert that fails after its first rows, in stock DuckDB
    # too. It runs such an insert when DuckDB lost the error of one of its threads.
    assert len(writes.orphans(schema)) <= counted["extension"]


def test_view_is_not_replaced_by_a_table(
    writes: Writes, ours: Ours, stock: Stock, schema: str
) -> None:
    same(ours, stock, "CREATE VIEW v AS SELECT 1 AS a")
    assert isinstance(same(ours, stock, "CREATE OR REPLACE TABLE v AS SELECT 1 AS a"), tuple)
    assert content(ours, schema) == content(stock, schema)
    # The extension refuses it, and may leave its file, in stock DuckDB too.
    assert len(writes.orphans(schema)) <= 1


@pytest.mark.parametrize(
    ("sql", "files"),
    [
        ("INSERT INTO t VALUES (1, 'x'), (2, NULL)", 0),
        ("INSERT INTO t VALUES (1 + 1, upper('x'))", 0),
        ("INSERT INTO t VALUES (1, ''), (2, ''), (3, ''), (4, '')", 1),
        ("INSERT INTO t SELECT range, 'x' FROM range(3)", 0),
        ("INSERT INTO t (b) SELECT b FROM t WHERE a < 0", 0),
        ("INSERT INTO t SELECT range, 'x' FROM range(4)", 1),
        ("INSERT INTO t SELECT range, 'x' FROM range(250000)", 1),
        ("INSERT INTO t SELECT 1, error('no')", 0),
        ("CREATE TABLE u AS SELECT range AS a FROM range(3)", 0),
        ("CREATE OR REPLACE TABLE t AS SELECT range AS a FROM range(3)", 0),
        ("CREATE TABLE u AS SELECT range AS a FROM range(4)", 1),
        ("CREATE TABLE u AS SELECT [range] AS a FROM range(3)", 1),
    ],
)
def test_few_rows_are_inlined(
    writes: Writes, ours: Ours, stock: Stock, schema: str, sql: str, files: int
) -> None:
    if not writes.is_native and "[range]" in sql:
        pytest.skip("the extension inlines lists")
    set_inline_limit(ours, schema, 3)
    same(ours, stock, "CREATE TABLE t (a BIGINT, b VARCHAR)")
    same(ours, stock, sql)
    assert len(writes.files(schema)) == files
    assert content(ours, schema) == content(stock, schema)


def test_small_ingestion_is_inlined(writes: Writes, ours: Ours, schema: str) -> None:
    set_inline_limit(ours, schema, 3)
    for mode in ("create", "append"):
        rows = pa.table({"a": [1, 2, 3], "b": ["x", None, "z"]})
        assert ours.cursor.adbc_ingest("t", rows, mode=mode, db_schema_name=schema) == 3
    assert writes.files(schema) == []
    assert ours.run("SELECT count(*), sum(a)::INTEGER, count(b) FROM t") == [(6, 12, 4)]


_RETURNING = """
VALUES (1, 'x') RETURNING *
VALUES (2, 'y'), (3, 'z') RETURNING a + 1 AS n, upper(b)
SELECT range, 's' FROM range(3) RETURNING t.a
VALUES (4, 'q') RETURNING "T".a, t.b AS bee
(a) VALUES (5) RETURNING *
AS x VALUES (6, 'w') RETURNING x.a
SELECT 1, 'e' WHERE false RETURNING a
BY NAME SELECT 8 AS a RETURNING b, a
VALUES (12, 't.a') RETURNING 't.a' AS "t.a", b; -- t.a
VALUES (NULL, 'x') RETURNING a
VALUES (7, 'x') RETURNING nothing
VALUES ('bad', 'x') RETURNING a
VALUES (7, 'x') RETURNING count(*)
VALUES (7, 'x') RETURNING (SELECT max(a) FROM t)
""".strip().splitlines()


def test_returning_gives_the_rows_as_written(writes: Writes, ours: Ours, schema: str) -> None:
    """The stock extension does not support RETURNING."""
    if not writes.is_native:
        ours.run("CREATE TABLE t (a INTEGER)")
        assert ours.run("INSERT INTO t VALUES (1) RETURNING a")[0] == "BINDER_ERROR"
        return
    plain = Stock.plain()
    columns = "(a INTEGER NOT NULL, b VARCHAR DEFAULT 'none')"
    with writes.counted() as counted:
        for side in (plain, ours):
            side.run(f"CREATE TABLE t {columns}")
        for rows in _RETURNING:
            same(ours, plain, f"INSERT INTO t {rows}")
        same(ours, plain, "WITH v AS (SELECT 9) INSERT INTO t SELECT *, 'w' FROM v RETURNING a")
    assert counted["extension"] == 0
    same(ours, plain, "SELECT * FROM t ORDER BY ALL")
    assert writes.orphans(schema) == []


def test_parameters(writes: Writes, ours: Ours, stock: Stock, schema: str) -> None:
    same(ours, stock, "CREATE TABLE t (a INTEGER, b VARCHAR DEFAULT 'none', c INTEGER[])")
    with writes.counted() as counted:
        for sql, values in [
            ("INSERT INTO t VALUES (?, ?, NULL)", [1, "x"]),
            ("INSERT INTO t (b, a) VALUES ($2, $1)", [2, "y"]),
            ("INSERT INTO t (a) SELECT a + ? FROM t WHERE b = ?", [100, "x"]),
            ("WITH v AS (SELECT $1::INTEGER AS i) INSERT INTO t (a) SELECT i FROM v", [3]),
            ("CREATE TABLE made AS SELECT ?::INTEGER AS a", [4]),
            ("INSERT INTO t (a) VALUES (?)", ["bad"]),
            ("INSERT INTO t (a) VALUES (?)", [None]),
        ]:
            assert (sql, ours.run(sql, values)) == (sql, stock.run(sql, values))
        many = [(5, "five"), (6, None), (7, "seven")]
        ours.cursor.executemany("INSERT INTO t (a, b) VALUES (?, lower(?))", many)
        assert ours.cursor.rowcount == 3
        ours.cursor.executemany("INSERT INTO t (a, c) VALUES ($1, $2)", [(8, [1, None]), (9, [])])
    for row in many:
        stock.run("INSERT INTO t (a, b) VALUES (?, lower(?))", row)
    stock.run("INSERT INTO t (a, c) VALUES (8, [1, NULL]), (9, [])")
    assert content(ours, schema) == content(stock, schema)
    assert counted == writes.expected(8)


@pytest.mark.usefixtures("native_only")
def test_returning_with_many_rows_of_parameters(ours: Ours, schema: str) -> None:
    ours.run("CREATE TABLE t (a INTEGER)")
    rows = pa.record_batch({"0": pa.array([1, 2, 3], pa.int32())})
    ours.cursor.adbc_prepare("INSERT INTO t VALUES (?) RETURNING a * 2 AS twice")
    ours.cursor.execute("INSERT INTO t VALUES (?) RETURNING a * 2 AS twice", rows)
    assert sorted(ours.cursor.fetchall()) == [(2,), (4,), (6,)]
    assert ours.run("SELECT count(*), sum(a)::INTEGER FROM t") == [(3, 6)]


@pytest.mark.parametrize("frame", [pa.table, pd.DataFrame, pl.DataFrame], ids=["pa", "pd", "pl"])
def test_bulk_ingestion_is_native(
    writes: Writes, ours: Ours, schema: str, frame: Callable[..., Any]
) -> None:
    rows = frame({"a": [1, 2, 3], "b": ["x", None, "z"]})
    rows = pa.Table.from_pandas(rows) if isinstance(rows, pd.DataFrame) else rows
    with writes.counted() as counted:
        for mode in ("create", "append", "create_append", "replace", "create_append"):
            assert ours.cursor.adbc_ingest("t", rows, mode=mode, db_schema_name=schema) == 3
    assert counted == writes.expected(5, 0, 0)
    assert ours.run("SELECT count(*), sum(a)::INTEGER, count(b) FROM t") == [(6, 12, 4)]


@pytest.mark.usefixtures("native_only")
def test_not_null_is_checked_for_nested_columns(ours: Ours, schema: str) -> None:
    """The stock extension does not check NOT NULL for nested columns."""
    ours.run("CREATE TABLE t (s STRUCT(a INTEGER) NOT NULL, l INTEGER[] NOT NULL)")
    for rows in ("VALUES (NULL, [1])", "SELECT {'a': 1}, NULL"):
        assert ours.run(f"INSERT INTO t {rows}")[0] == "CONSTRAINT_ERROR"
    assert ours.run("INSERT INTO t SELECT {'a': NULL}, [NULL]") == 1


def test_catalog_named_only_in_the_query_is_attached(
    writes: Writes, ours: Ours, schema: str
) -> None:
    writes.lake.create_catalog("pond").create_table("main", "t", [ColumnSpec("a", "INTEGER")])
    ours.run("CREATE TABLE t AS SELECT 1 AS a")
    with writes.counted() as counted:
        assert ours.run("INSERT INTO t SELECT a FROM pond.main.t UNION ALL SELECT 2") == 1
        assert ours.run("INSERT INTO pond.main.t SELECT * FROM t") == 2
        assert ours.run("INSERT INTO pond.t VALUES ((SELECT max(a) FROM pond.t))") == 1
    assert counted == writes.expected(3, 0, 0)
    assert ours.run("FROM pond.t ORDER BY a") == [(1,), (2,), (2,)]


def test_attached_database_hides_catalog_of_the_same_name(
    writes: Writes, ours: Ours, schema: str
) -> None:
    ours.run("ATTACH ':memory:' AS mine")
    ours.run("CREATE TABLE mine.main.t (a INTEGER)")
    catalog = writes.lake.create_catalog("mine")
    catalog.create_table("main", "t", [ColumnSpec("a", "INTEGER")])
    before = catalog.newest_snapshot()
    assert ours.run("INSERT INTO mine.main.t VALUES (1)") == 1
    assert ours.run("INSERT INTO mine.t SELECT 2") == 1
    assert ours.run("FROM mine.main.t ORDER BY a") == [(1,), (2,)]
    assert catalog.newest_snapshot() == before
    ours.run("DETACH mine")


# ---- failures ------------------------------------------------------------------------------------


@pytest.mark.usefixtures("native_only")
@pytest.mark.parametrize("partitioned", [False, True])
def test_failed_write_leaves_no_file(
    writes: Writes, ours: Ours, schema: str, partitioned: bool
) -> None:
    ours.run("CREATE TABLE t (a INTEGER NOT NULL, b VARCHAR)")
    if partitioned:
        ours.run("ALTER TABLE t SET PARTITIONED BY (b)")
    late = "CASE WHEN range = 499_999 THEN {} ELSE range::VARCHAR END, range % 3"
    for write, value, refusal in (
        ("INSERT INTO t", "'bad'", "CONVERSION_ERROR"),
        ("INSERT INTO t", "NULL", "CONSTRAINT_ERROR"),
        ("CREATE TABLE u AS", "error('late')", "INVALID_INPUT_ERROR"),
    ):
        sql = f"{write} SELECT {late.format(value)} FROM range(500_000)"
        assert ours.run(sql)[0] == refusal
    assert writes.files(schema) == []
    assert ours.run("SELECT count(*) FROM t") == [(0,)]


@pytest.mark.usefixtures("native_only")
@pytest.mark.parametrize("inlined", [0, 5])
@pytest.mark.parametrize(
    "sql", [f"INSERT INTO t {_ENDLESS}", f"CREATE TABLE u AS {_ENDLESS}"], ids=["insert", "create"]
)
def test_stopped_write_leaves_no_file(
    writes: Writes, ours: Ours, schema: str, sql: str, inlined: int
) -> None:
    set_inline_limit(ours, schema, inlined)
    ours.run("CREATE TABLE t (a BIGINT, b VARCHAR)")
    with closing(FlightSql(writes.server.url)) as late:
        late.query(f"USE swanlake.{schema}")
        with pytest.raises(pa.lib.ArrowException, match="QUERY_TIMEOUT"):
            late.query(sql, x_swanlake_query_timeout_seconds="0.3")
    assert writes.files(schema) == []
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(ours.run, sql)
        eventually(lambda: writes.flight.status()["statements_running"])
        eventually(lambda: writes.files(schema))
        ours.cursor.adbc_cancel()
        assert isinstance(running.result(), tuple)
    eventually(lambda: not writes.files(schema))
    assert ours.run("SELECT count(*) FROM t") == [(0,)]


def test_write_that_waits_for_the_lock_can_be_stopped(
    writes: Writes, ours: Ours, schema: str
) -> None:
    ours.run("CREATE TABLE t (a INTEGER)")
    ours.run("CREATE TABLE u AS SELECT 1::BIGINT AS a")
    with (
        closing(FlightSql(writes.server.url)) as late,
        closing(Ours(writes.server)) as other,
        ThreadPoolExecutor(1) as pool,
    ):
        late.query(f"USE swanlake.{schema}")
        holding = pool.submit(
            other.run, f"UPDATE swanlake.{schema}.u SET a = ({ENDLESS_QUERY}) FROM (SELECT 1)"
        )
        eventually(lambda: writes.flight.status()["writers"])
        for rows in ("VALUES (1)", "SELECT 1", "VALUES (1) RETURNING a"):
            with pytest.raises(pa.lib.ArrowException, match="QUERY_TIMEOUT"):
                late.query(f"INSERT INTO t {rows}", x_swanlake_query_timeout_seconds="0.3")
        other.cursor.adbc_cancel()
        assert isinstance(holding.result(), tuple)
    assert ours.run("SELECT count(*) FROM t") == [(0,)]
    eventually(lambda: writes.orphans(schema) == [])


# ---- concurrent changes of the table -------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "rows"),
    [
        ("ALTER TABLE t ADD COLUMN c INTEGER DEFAULT 7", [(1, "x", 7)]),
        ("DROP TABLE t; CREATE TABLE t (b VARCHAR, a BIGINT)", [("x", 1)]),
        ("ALTER TABLE t SET PARTITIONED BY (b)", [(1, "x")]),
    ],
)
@pytest.mark.parametrize("given", ["VALUES (1, 'x')", "SELECT 1, 'x'"])
def test_insert_is_retried_when_its_table_changed(
    writes: Writes,
    ours: Ours,
    other_program: duckdb.DuckDBPyConnection,
    schema: str,
    given: str,
    change: str,
    rows: list[Any],
) -> None:
    ours.run("CREATE TABLE t (a INTEGER, b VARCHAR)")
    other_program.execute(f"USE swanlake.{schema}")
    with (
        writes.counted() as counted,
        writes.meanwhile(lambda: ours.run(f"INSERT INTO t (a, b) {given}")),
    ):
        other_program.execute(change)
    assert writes.outcome == 1
    assert ours.run("FROM t") == rows
    assert counted == writes.expected(1, 0, 1)
    assert writes.orphans(schema) == []


@pytest.mark.parametrize(
    ("sql", "change", "outcome"),
    [
        ("INSERT INTO t VALUES (1)", "DROP TABLE t", "CATALOG_ERROR"),
        ("INSERT INTO t SELECT 1", "DROP TABLE t; CREATE VIEW t AS SELECT 5 AS a", "CATALOG_ERROR"),
        ("CREATE TABLE u AS SELECT 1 AS a", "CREATE TABLE u (a INTEGER)", "CATALOG_ERROR"),
        ("CREATE TABLE IF NOT EXISTS u AS SELECT 1 AS a", "CREATE TABLE u (b INTEGER)", None),
        ("CREATE OR REPLACE TABLE u AS SELECT 1 AS a", "CREATE TABLE u (b INTEGER)", 1),
        ("CREATE OR REPLACE TABLE t AS SELECT 1 AS a", "DROP TABLE t", 1),
        ("CREATE OR REPLACE TABLE t AS SELECT 1 AS a", "ALTER TABLE t ADD COLUMN b INTEGER", 1),
    ],
)
def test_outcome_when_table_was_created_or_dropped_meanwhile(
    writes: Writes,
    ours: Ours,
    other_program: duckdb.DuckDBPyConnection,
    schema: str,
    sql: str,
    change: str,
    outcome: Outcome,
) -> None:
    ours.run("CREATE TABLE t (a INTEGER)")
    other_program.execute(f"USE swanlake.{schema}")
    with writes.meanwhile(lambda: ours.run(sql)):
        other_program.execute(change)
    found = writes.outcome
    assert (found[0] if isinstance(found, tuple) else found) == outcome
    if outcome == 1:
        assert ours.run("FROM t" if "TABLE t" in sql else "FROM u") == [(1,)]
    assert writes.orphans(schema) == []


def test_table_that_replaces_itself_keeps_concurrent_changes(
    writes: Writes, ours: Ours, other_program: duckdb.DuckDBPyConnection, schema: str
) -> None:
    ours.run("CREATE TABLE t AS SELECT 1 AS a")
    other_program.execute(f"USE swanlake.{schema}")
    with writes.meanwhile(lambda: ours.run("CREATE OR REPLACE TABLE t AS FROM t")):
        other_program.execute("ALTER TABLE t ADD COLUMN b INTEGER DEFAULT 7")
    assert ours.run("FROM t") == [(1, 7)]


@pytest.mark.usefixtures("native_only")
def test_ingestion_is_not_retried(
    writes: Writes, ours: Ours, other_program: duckdb.DuckDBPyConnection, schema: str
) -> None:
    ours.run("CREATE TABLE t (a INTEGER)")
    other_program.execute(f"USE swanlake.{schema}")
    rows = pa.table({"a": pa.array([1, 2], pa.int32())})

    def ingest() -> Outcome:
        with pytest.raises(adbc_driver_manager.Error, match="COMMIT_CONFLICT"):
            ours.cursor.adbc_ingest("t", rows, mode="append", db_schema_name=schema)

    with writes.meanwhile(ingest):
        other_program.execute("ALTER TABLE t ADD COLUMN b INTEGER")
    assert ours.run("SELECT count(*) FROM t") == [(0,)]
    assert writes.orphans(schema) == []


# ---- afterwards ----------------------------------------------------------------------------------


def test_stock_reads_the_same_rows(
    writes: Writes, ours: Ours, other_program: duckdb.DuckDBPyConnection
) -> None:
    tables = ours.run(
        'SELECT format(\'"{}"."{}"\', table_schema, replace(table_name, \'"\', \'""\')) '
        "FROM information_schema.tables WHERE table_catalog = 'swanlake'"
    )
    for (table,) in tables or ():
        sql = f"SELECT count(*), sum(hash(r)::HUGEINT)::VARCHAR FROM swanlake.{table} r"
        assert (table, other_program.execute(sql).fetchall()) == (table, ours.run(sql))
    catalog = writes.lake.catalog("swanlake")
    assert catalog.check() == []
    assert catalog.missing_files() == []


def test_outcome_is_that_of_stock_on_postgresql(
    start_server: Callable[..., ServerProcess],
    postgres_database: str,
    tmp_path: Path,
) -> None:
    server = start_server(SWANLAKE_METABASE_URL=postgres_database)
    with (
        closing(Stock(tmp_path)) as stock,
        closing(Ours(server)) as ours,
        closing(FlightSql(server.url)) as flight,
    ):
        schema = "on_postgresql"
        for side in (stock, ours):
            side.run(f"CREATE SCHEMA swanlake.{schema}")
            side.run(f"USE swanlake.{schema}")
        refused = 0
        for line in SCRIPTS["texts"]:
            refused += isinstance(same(ours, stock, line.replace("{schema}", schema)), tuple)
        assert content(ours, schema) == content(stock, schema)
        assert flight.status()["lake_writes"]["extension"] <= refused


@pytest.mark.parametrize(
    "script",
    [
        # Rows are sorted by a macro of the catalog, of the current schema, or with a variable.
        """
        CREATE MACRO opposite(x) AS -x;
        CREATE TABLE t (i INTEGER);
        ALTER TABLE t SET SORTED BY (opposite(i) ASC);
        INSERT INTO t VALUES (1), (3), (2);
        INSERT INTO t VALUES (abs(-4)), (5);
        INSERT INTO t SELECT unnest([6, 7]);
        FROM t
        """,
        """
        SET VARIABLE divisor = 2;
        CREATE MACRO remainder(x) AS x % getvariable('divisor');
        CREATE TABLE t (i INTEGER);
        ALTER TABLE t SET SORTED BY (remainder(i) ASC, i ASC);
        INSERT INTO t VALUES (1), (2), (3), (4);
        FROM t
        """,
        # Partitions and the order depend on the session's time zone.
        """
        SET TimeZone = 'America/New_York';
        CREATE TABLE t (d TIMESTAMPTZ);
        ALTER TABLE t SET PARTITIONED BY (day(d));
        INSERT INTO t VALUES ('2024-01-01 23:00:00');
        INSERT INTO t VALUES ('2024-01-02 23:00:00'::TIMESTAMPTZ + INTERVAL 0 DAY);
        INSERT INTO t SELECT '2024-01-03 23:00:00'::TIMESTAMPTZ;
        SELECT DISTINCT regexp_extract(filename, 'day=(.*)/', 1)
        FROM (SELECT filename FROM t) ORDER BY ALL
        """,
        """
        SET TimeZone = 'America/New_York';
        CREATE TABLE t (d TIMESTAMPTZ);
        ALTER TABLE t SET SORTED BY (hour(d) ASC);
        INSERT INTO t VALUES ('2024-01-01 23:00:00'), ('2024-01-01 01:00:00');
        SELECT d::VARCHAR FROM t
        """,
        # The names of a new table.
        """
        SET preserve_identifier_case = false;
        CREATE TABLE Folded (FirstName INTEGER, "SecondName" INTEGER);
        CREATE TABLE FoldedToo AS SELECT 1 AS ThirdName;
        SELECT table_name, column_name FROM duckdb_columns()
        WHERE schema_name = current_schema() AND table_name ILIKE 'folded%' ORDER BY ALL
        """,
    ],
    ids=["macro", "variable", "partition", "order", "names"],
)
def test_session_state_applies_to_what_is_written(
    ours: Ours, stock: Stock, schema: str, script: str
) -> None:
    for sql in script.split(";"):
        assert (sql, ours.run(sql)) == (sql, stock.run(sql))
    for setting in ("TimeZone", "preserve_identifier_case"):  # stock DuckDB serves all tests
        stock.run(f"RESET {setting}")


@pytest.mark.usefixtures("native_only")
def test_time_zone_of_one_session_is_not_that_of_another(ours: Ours, writes: Writes) -> None:
    """Both write through the same scratch connections."""
    ours.run("CREATE OR REPLACE TABLE zoned (d TIMESTAMPTZ)")
    ours.run("ALTER TABLE zoned SET PARTITIONED BY (day(d))")
    ours.run("CALL swanlake.set_option('data_inlining_row_limit', 0, table_name => 'zoned')")
    with closing(Ours(writes.server)) as other:
        for session, zone in ((ours, "America/New_York"), (other, "UTC"), (ours, "Asia/Tokyo")):
            session.run(f"SET TimeZone = '{zone}'")
            session.run("INSERT INTO zoned VALUES ('2024-01-01 23:00:00')")
    days = "SELECT DISTINCT regexp_extract(filename, 'day=(.*)/', 1) FROM zoned"
    assert ours.run(days) == [("1",)]
