"""Queries of tables that are all in the metadata give what DuckLake's own scans give."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cache

import duckdb
import psycopg
import pyarrow as pa
import pytest

from swanlake.client import connect
from swanlake.lake.lake import Lake
from swanlake.lake.read.inlined_scan import MAX_ROWS
from tests.contenders import (
    CALL_ERRORS,
    ContendedCatalog,
    Deployment,
    Session,
    deployment_fixture,
    postgres_only,
)
from tests.faults.workers import LakeAddress
from tests.stock_duckdb import stock_duckdb

KEEP = "CALL {}.set_option('data_inlining_row_limit', 100)"

TYPES = """
    CREATE TABLE t (
        id BIGINT, "Big B" INTEGER, tiny TINYINT, u8 UTINYINT, u64 UBIGINT, yes BOOLEAN, f FLOAT,
        d DOUBLE, n DECIMAL(18, 3), s VARCHAR, day DATE, at_s TIMESTAMP_S, at_us TIMESTAMP,
        at_ns TIMESTAMP_NS, at_tz TIMESTAMPTZ, u UUID
    )
"""
ROWS = """
    (1, NULL, -128, 255, 18446744073709551615, true, 0.1, 1e308, 123456789012345.678,
     'it''s "x"', '0001-01-01', '2020-01-01 01:02:03', '9999-12-31 23:59:59.999999',
     '2020-01-01 00:00:00.123456789', '2020-06-01 00:00:00+02', uuid()),
    (2, NULL, 127, 0, 0, false, 'nan', '-inf', -0.001, '', '1969-12-31', '1970-01-01',
     '1970-01-01', '1970-01-01', '1969-12-31 23:59:59.5+00', NULL),
    (3, NULL, NULL, NULL, NULL, NULL, '-0.0', 'nan', NULL, E'ü\\n\\t日', NULL, NULL, NULL, NULL,
     NULL, NULL),
    (4, NULL, 0, 1, 9223372036854775808, NULL, 'inf', -0.0, 0.5, NULL, '9999-12-31', NULL, NULL,
     NULL, NULL, '00000000-0000-0000-0000-000000000000')
"""

QUERIES = [
    "SELECT * FROM t",
    "SELECT * FROM t ORDER BY id DESC LIMIT 2",
    "SELECT t FROM t",
    "SELECT x.* FROM t AS x WHERE x.id > 1",
    "SELECT count(*), count(s), sum(u8), avg(d), min(day), max(at_tz), min(n) FROM t",
    "SELECT count(*) FROM t WHERE s = 'it''s \"x\"' OR u = '00000000-0000-0000-0000-000000000000'",
    "SELECT yes, count(*) FROM t GROUP BY ALL ORDER BY ALL",
    "SELECT a.id, b.id FROM t a JOIN t AS b ON a.id < b.id LEFT JOIN small ON small.id = a.id",
    "SELECT id FROM t UNION ALL SELECT id FROM main.small UNION SELECT v FROM small",
    "SELECT s IS DISTINCT FROM '', coalesce(s, 'none'), length(s), upper(s) FROM t",
    "SELECT id, sum(id) OVER (ORDER BY id), lag(s) OVER (ORDER BY id) FROM t QUALIFY id > 1",
    'SELECT "BIG b", "Big B" AS "a b", tiny::VARCHAR, CAST(n AS DECIMAL(20, 1)) FROM t',
    "SELECT * FROM (SELECT id FROM t WHERE id > 1) s JOIN (SELECT v FROM small) ON true",
    "SELECT at_tz > '2020-01-01', at_us - INTERVAL 1 DAY, day > '1970-01-01' FROM t",
    "SELECT id FROM t EXCEPT SELECT id FROM empty",
    'SELECT count(*), max("odd Näme"), max(c0) FROM empty',
    'SELECT * FROM "quo""ted" ORDER BY ALL',
]


#: How names are resolved does not depend on the database of the metadata.
pytestmark = pytest.mark.covering(1)

deployment = deployment_fixture(servers=1, SWANLAKE_MAX_SESSIONS="1000")


def inlined_catalog(deployment: Deployment, *statements: str) -> ContendedCatalog:
    """A catalog that keeps small inserts, in which these statements were run."""
    catalog = deployment.new_catalog()
    session = catalog.session()
    for statement in (KEEP.format(catalog.name), *statements):
        session(statement)
    return catalog


def from_metadata(session: Session, sql: str) -> pa.Table:
    """What a query gives; it must not have needed the lake."""
    before = session.flight.status()["lake_reads"]["metadata"]
    found = session.flight.query(sql)
    assert session.flight.status()["lake_reads"]["metadata"] == before + 1, sql
    return found


@pytest.fixture(scope="module")
def extension_server(deployment: Deployment) -> int:
    """The number of a server on the same lake that runs nothing natively."""
    deployment.add_server(SWANLAKE_MAX_SESSIONS="1000", SWANLAKE_NATIVE_STATEMENTS="off")
    return len(deployment.servers) - 1


def sorted_rows(table: pa.Table) -> list[str]:
    """The rows as texts, in an order that does not depend on how they were read."""
    return sorted(map(repr, table.to_pylist()))


def test_rows_are_those_of_the_extension(deployment: Deployment, extension_server: int) -> None:
    catalog = inlined_catalog(
        deployment,
        TYPES,
        f"INSERT INTO t VALUES {ROWS}",
        "CREATE TABLE small (id BIGINT, v BIGINT)",
        "INSERT INTO small VALUES (1, 10), (2, NULL), (7, 70)",
        "UPDATE small SET v = 20 WHERE id = 2",
        "DELETE FROM small WHERE id = 7",
        'CREATE TABLE empty (id BIGINT, "odd Näme" DATE, c1 UUID, c0 DECIMAL(5, 2))',
        'CREATE TABLE "quo""ted" (c1 VARCHAR, c0 INTEGER, "Select" INTEGER, id VARCHAR)',
        "INSERT INTO \"quo\"\"ted\" VALUES ('a', 1, 2, 'b'), (NULL, NULL, NULL, NULL)",
    )
    session, extension = catalog.session(), catalog.session(extension_server)
    for sql in QUERIES:
        native, scanned = from_metadata(session, sql), extension.flight.query(sql)
        assert (sql, native.schema) == (sql, scanned.schema)
        assert (sql, sorted_rows(native)) == (sql, sorted_rows(scanned))
    assert session("SELECT id FROM t") == [(1,), (2,), (3,), (4,)]
    status = extension.flight.status()
    assert not any((status["lake_reads"] | status["lake_writes"]).values())


#: Queries of no table, with what they are bound to.
CONSTANTS: list[tuple[str, list[object] | None]] = [
    ("SELECT 42 AS answer", None),
    ("SELECT 1 + 1, upper('a') || 'b', 'x' AS \"a b\", NULL, 7 / 2, -0.0, 1e308", None),
    ("SELECT ?, ? + 1 AS n, ?::VARCHAR", ["a", 2, 3.5]),
    ("SELECT $2, $1", [1, None]),
    ("SELECT DATE '2024-01-01' + INTERVAL 1 DAY, '2024-01-01'::TIMESTAMPTZ", None),
    ("SELECT * FROM (SELECT 1 AS a UNION ALL SELECT 2) ORDER BY a DESC LIMIT 1", None),
    ("SELECT current_schema(), current_catalog", None),
    ("SELECT 'nan'::DOUBLE, 5::HUGEINT, true, x'00'::BLOB", None),
]


@pytest.mark.parametrize(("sql", "values"), CONSTANTS)
def test_query_of_no_table_gives_the_row_of_the_extension(
    deployment: Deployment, extension_server: int, sql: str, values: list[object] | None
) -> None:
    found = []
    for server in (0, extension_server):
        with connect(deployment.servers[server].url) as client:
            found.append(client.query(sql, values).table)
    native, expected = found
    assert native.schema == expected.schema
    assert sorted_rows(native) == sorted_rows(expected)


def test_error_of_a_query_of_no_table_is_that_of_the_extension(
    deployment: Deployment, extension_server: int
) -> None:
    catalog = deployment.new_catalog()
    for sql in ("SELECT 'x'::INTEGER", "SELECT missing", "SELECT 1 +"):
        messages = []
        for server in (0, extension_server):
            with pytest.raises(CALL_ERRORS) as error:
                catalog.session(server)(sql)
            messages.append(str(error.value).split("query id")[0])
        assert messages[0] == messages[1]


@pytest.fixture
def stock(
    deployment: Deployment,
) -> Iterator[Callable[[ContendedCatalog], duckdb.DuckDBPyConnection]]:
    """Stock DuckDB as a second writer of a catalog."""
    with stock_duckdb() as connection:

        def attach(catalog: ContendedCatalog) -> duckdb.DuckDBPyConnection:
            connection.execute(deployment.attach_statement(catalog.name))
            connection.execute(f"USE {catalog.name}")
            return connection

        yield attach


@pytest.mark.covering(2)
@pytest.mark.parametrize(
    ("changes", "query", "expected"),
    [
        (["INSERT INTO t VALUES (3, 30)"], "SELECT sum(v) FROM t", [(60,)]),
        (["DELETE FROM t WHERE id = 1"], "SELECT id, v FROM t", [(2, 20)]),
        (["UPDATE t SET v = 7 WHERE id = 1"], "SELECT v FROM t WHERE id = 1", [(7,)]),
        (["ALTER TABLE t ADD COLUMN x INTEGER DEFAULT 5"], "SELECT x FROM t", [(5,), (5,)]),
        (
            ["ALTER TABLE t ADD COLUMN x INTEGER", "INSERT INTO t VALUES (3, 30, 300)"],
            "SELECT * FROM t ORDER BY id",
            [(1, 10, None), (2, 20, None), (3, 30, 300)],
        ),
        (["ALTER TABLE t RENAME COLUMN v TO w"], "SELECT sum(w) FROM t", [(30,)]),
        (["ALTER TABLE t DROP COLUMN v"], "SELECT * FROM t ORDER BY id", [(1,), (2,)]),
        (["ALTER TABLE t ALTER id SET DATA TYPE BIGINT"], "SELECT id FROM t", [(1,), (2,)]),
        (
            ["DROP TABLE t", "CREATE TABLE t (id BIGINT, v BIGINT)", "INSERT INTO t VALUES (9, 9)"],
            "SELECT id, v FROM t",
            [(9, 9)],
        ),
        (
            ["ALTER TABLE t RENAME TO gone", "ALTER TABLE u RENAME TO t"],
            "SELECT id, v FROM t",
            [(5, 50)],
        ),
        (["DROP TABLE t", "CREATE VIEW t AS SELECT 42 AS v"], "SELECT v FROM t", [(42,)]),
        (["CALL ducklake_flush_inlined_data('{catalog}')"], "SELECT sum(v) FROM t", [(30,)]),
        (
            ["INSERT INTO t SELECT range, 1 FROM range(3000)"],
            "SELECT count(*), sum(v) FROM t",
            [(3002, 3030)],
        ),
        (
            ["BEGIN; INSERT INTO t VALUES (3, 30); INSERT INTO u VALUES (3, 30); COMMIT"],
            "SELECT count(*) FROM t UNION ALL SELECT count(*) FROM u",
            [(3,), (2,)],
        ),
    ],
)
def test_commits_of_another_program_are_seen_at_once(
    deployment: Deployment,
    stock: Callable[[ContendedCatalog], duckdb.DuckDBPyConnection],
    changes: list[str],
    query: str,
    expected: list[tuple[object, ...]],
) -> None:
    catalog = inlined_catalog(
        deployment,
        "CREATE TABLE t (id BIGINT, v BIGINT)",
        "INSERT INTO t VALUES (1, 10), (2, 20)",
        "CREATE TABLE u (id BIGINT, v BIGINT)",
        "INSERT INTO u VALUES (5, 50)",
    )
    session = catalog.session()
    assert from_metadata(session, "SELECT sum(v) AS s FROM t").to_pylist() == [{"s": 30}]
    other = stock(catalog)
    for change in changes:
        other.execute(change.replace("{catalog}", catalog.name))
    assert session(query) == expected
    assert session(query) == expected


def test_temporary_tables_hide_tables_of_the_lake(deployment: Deployment) -> None:
    catalog = inlined_catalog(
        deployment, "CREATE TABLE t (id BIGINT)", "INSERT INTO t VALUES (1)", "CREATE SCHEMA s"
    )
    session = catalog.session()
    assert session("SELECT id FROM t") == [(1,)]
    session("CREATE TEMP TABLE t AS SELECT 7 AS id")
    assert session("SELECT id FROM t") == [(7,)]
    assert session(f"SELECT id FROM {catalog.name}.main.t") == [(1,)]


def test_settings_of_the_session_apply(deployment: Deployment) -> None:
    catalog = inlined_catalog(
        deployment,
        "CREATE TABLE t (moment TIMESTAMPTZ)",
        "INSERT INTO t VALUES ('2020-01-01 12:00:00+00')",
    )
    session = catalog.session()
    session("SET TimeZone = 'Asia/Tokyo'")
    assert session("SELECT count(*) FROM t WHERE moment::VARCHAR LIKE '2020-01-01 21%'") == [(1,)]
    session("SET default_null_order = 'nulls_first'")
    session("INSERT INTO t VALUES (NULL)")
    assert session("SELECT moment IS NULL FROM t ORDER BY moment") == [(True,), (False,)]


def test_transaction_sees_its_own_writes_and_nothing_newer(deployment: Deployment) -> None:
    catalog = inlined_catalog(deployment, "CREATE TABLE t (id BIGINT)", "INSERT INTO t VALUES (1)")
    session, other = catalog.sessions(2)
    session("BEGIN")
    assert session("SELECT count(*) FROM t") == [(1,)]
    other("INSERT INTO t VALUES (2)")
    assert session("SELECT count(*) FROM t") == [(1,)]
    assert other("SELECT count(*) FROM t") == [(2,)]
    session("ROLLBACK")
    assert session("SELECT count(*) FROM t") == [(2,)]


def test_table_with_many_rows_is_read_by_the_extension(deployment: Deployment) -> None:
    catalog = inlined_catalog(deployment, "CREATE TABLE t (id BIGINT)")
    session = catalog.session()
    for first in range(0, MAX_ROWS, 100):
        session(f"INSERT INTO t SELECT range FROM range({first}, {first + 100})")
    summary = "SELECT count(*) AS n, sum(id)::BIGINT AS s FROM t"
    sums = {"n": MAX_ROWS, "s": MAX_ROWS * (MAX_ROWS - 1) // 2}
    assert from_metadata(session, summary).to_pylist() == [sums]
    session("INSERT INTO t VALUES (0)")
    before = session.flight.status()["lake_reads"]["metadata"]
    assert session(summary) == [(sums["n"] + 1, sums["s"])]
    assert session.flight.status()["lake_reads"]["metadata"] == before


def test_large_result_is_streamed(deployment: Deployment) -> None:
    catalog = inlined_catalog(
        deployment, "CREATE TABLE t (id BIGINT)", "INSERT INTO t SELECT range FROM range(100)"
    )
    session = catalog.session()
    found = from_metadata(session, "SELECT a.id FROM t a JOIN t b ON true JOIN t c ON true")
    assert found.num_rows == 100**3


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT nothing FROM t",
        "SELECT id FROM t WHERE t.nothing = 1",
        "SELECT CAST(s AS INTEGER) FROM t",
        "SELECT sum(s) FROM t",
        "SELECT id FROM t GROUP BY s",
    ],
)
def test_errors_are_reported_for_the_query_as_sent(deployment: Deployment, sql: str) -> None:
    catalog = inlined_catalog(
        deployment, "CREATE TABLE t (id BIGINT, s VARCHAR)", "INSERT INTO t VALUES (1, 'secret')"
    )
    session = catalog.session()
    with pytest.raises(pa.ArrowInvalid) as native:
        session(sql)
    session("BEGIN")
    with pytest.raises(pa.ArrowInvalid) as scanned:
        session(sql)
    session("ROLLBACK")
    assert str(native.value).partition(". Detail")[0] == str(scanned.value).partition(". Detail")[0]


#: Statements that a connection without the lake would take for something else. Each is run on both
#: ways, in catalogs that are alike but for their names.
DECEPTIVE = [
    "SELECT ? AS p, id FROM t",
    "SELECT $1 AS p, id FROM t",
    "UPDATE t SET s = ? WHERE id = 1",
    "DELETE FROM t WHERE ? IS NOT NULL",
    "DELETE FROM t WHERE id IN (FROM w)",
    "UPDATE t SET id = (FROM w) WHERE id = 2",
    "DELETE FROM t WHERE id IN (FROM only_in_memory)",
    'SELECT "current_catalog" FROM t',
    "SELECT current_catalog--x\n FROM t",
    "DELETE FROM t WHERE \"current_catalog\" = 'memory'",
    'UPDATE t SET s = "current_catalog" WHERE id = 1',
    'DELETE FROM t WHERE "file_row_number" IS NULL',
    'UPDATE t SET id = "file_row_number"',
    "SELECT (FROM w) FROM t",
    "SELECT id IN (FROM w) FROM t",
    "SELECT id = ANY (FROM w), exists (FROM w) FROM t",
    "SELECT id IS DISTINCT FROM (SELECT max(id) FROM w) FROM t",
    "INSERT INTO d (id) SELECT id FROM t",
    "SELECT lower(s), 1 + 1, s || 'x' FROM t",
    "UPDATE t SET s = upper(s)",
    "DELETE FROM t WHERE lower(s) = 'hijacked'",
    "SELECT s::mood FROM t",
    "SELECT id FROM t WHERE s = 'nothing'",
    "SELECT id AS rowid, rowid + 1 FROM t",
    "SELECT current_date AS s FROM t WHERE s = 'a'",
    "SELECT user IS NULL, t.rowid FROM t",
    "TABLE t",
    "SELECT * FROM (TABLE t) JOIN w ON true",
    "FROM t, w SELECT t.id + w.id AS n, COLUMNS('s')",
    "WITH w AS (SELECT 5 AS id) SELECT * FROM w JOIN t ON true",
    "SELECT getvariable('x'), current_setting('integer_division'), id FROM t",
    "SELECT /* FROM w */ id FROM t -- , w",
    "INSERT INTO d (id) VALUES ((TABLE w))",
    "INSERT INTO t SELECT id + 10, current_schema FROM t",
    "UPDATE t SET id = rowid",
    "DELETE FROM t WHERE t.filename IS NULL",
]


@pytest.fixture(scope="module")
def deceived(deployment: Deployment, extension_server: int) -> Deployment:
    """What sessions share has tables and types that the lake has not."""
    sessions = [deployment.session(server=number) for number in (0, extension_server)]
    for statement in (
        "CREATE TABLE memory.main.w AS SELECT 1 AS id",
        "CREATE TABLE memory.main.only_in_memory AS SELECT 1 AS id",
        "CREATE TYPE memory.main.mood AS ENUM ('a', 'b', 'c')",
    ):
        for session in sessions:
            session(statement)
    return deployment


def outcome(session: Session, sql: str) -> object:
    """The rows of a statement with their names, or what is said of it, whatever the catalog."""
    try:
        found = session.flight.query(sql)
    except pa.ArrowException as refused:
        return str(refused).partition(". Detail")[0].partition("\n")[0]
    return found.schema, sorted_rows(found)


def deceptive_catalog(deployment: Deployment, *by_stock: str) -> ContendedCatalog:
    """A catalog with tables for statements that may mean something else."""
    catalog = inlined_catalog(
        deployment,
        "CREATE TABLE t (id BIGINT, s VARCHAR)",
        "INSERT INTO t VALUES (1, 'a'), (2, 'b'), (3, 'c')",
        "CREATE TABLE w (id BIGINT)",
        "INSERT INTO w VALUES (3)",
        "CREATE TABLE d (id BIGINT, place VARCHAR DEFAULT current_catalog())",
    )
    if by_stock:
        with stock_duckdb() as stock:
            stock.execute(f"{deployment.attach_statement(catalog.name)} USE {catalog.name}")
            for statement in by_stock:
                stock.execute(statement)
    return catalog


#: For queries, which change nothing.
shared_catalog = cache(deceptive_catalog)


def run_both_ways(
    deployment: Deployment, extension_server: int, sql: str, by_stock: Sequence[str] = ()
) -> list[list[object]]:
    """The outcome of a statement and the rows it leaves, on a server of either kind.

    Stock DuckDB runs the statements ``by_stock`` before, which the server would refuse.
    """
    outcomes: list[list[object]] = []
    for server in (0, extension_server):
        is_query = sql.split()[0] in ("SELECT", "FROM", "TABLE", "WITH")
        catalog = (shared_catalog if is_query else deceptive_catalog)(deployment, *by_stock)
        session = catalog.session(server)
        assert session("SELECT count(*) FROM t") == [(3,)]  # from the metadata, if anything is
        results = [outcome(session, text) for text in (sql, "FROM t", "FROM d")]
        outcomes.append([repr(result).replace(catalog.name, "CATALOG") for result in results])
    return outcomes


@pytest.mark.parametrize("sql", DECEPTIVE)
def test_names_outside_the_lake_do_not_hide_those_of_the_lake(
    deceived: Deployment, extension_server: int, sql: str
) -> None:
    native, extension = run_both_ways(deceived, extension_server, sql)
    assert native == extension


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT upper(s) FROM t",
        "SELECT count(id) FROM t",
        "UPDATE t SET s = upper(s)",
        "DELETE FROM t WHERE upper(s) = 'mine'",
        "INSERT INTO t SELECT id, upper(s) FROM t",
        "SELECT upper('a'), 1 + 1",
        "INSERT INTO t SELECT 7, upper('a')",
        "UPDATE t SET id = id + 1",
        "INSERT INTO d VALUES (8, upper('a'))",
    ],
)
def test_macros_of_the_lake_hide_functions(
    deployment: Deployment, extension_server: int, sql: str
) -> None:
    macros = (
        "CREATE MACRO upper(x) AS 'mine'",
        "CREATE MACRO count(x) AS 42",
        'CREATE MACRO "+"(x, y) AS 42',
    )
    native, extension = run_both_ways(deployment, extension_server, sql, macros)
    assert native == extension


def test_table_created_by_explain_analyze_is_found(deployment: Deployment) -> None:
    catalog = inlined_catalog(deployment, "CREATE TABLE t (id BIGINT)", "INSERT INTO t VALUES (1)")
    session = catalog.session()
    session("EXPLAIN ANALYZE CREATE TEMP TABLE t AS SELECT 7 AS id")
    assert session("SELECT id FROM t") == [(7,)]


def test_settings_apply_to_parsing(deployment: Deployment) -> None:
    catalog = inlined_catalog(deployment, "CREATE TABLE t (id BIGINT)", "INSERT INTO t VALUES (1)")
    session, other = catalog.sessions(2)
    for one in (session, other):
        assert one("SELECT id / 2 FROM t") == [(0.5,)]
    session("SET integer_division = true")
    assert session("SELECT id / 2 FROM t") == [(0,)]
    session("RESET integer_division")
    assert session("SELECT id / 2 FROM t") == [(0.5,)]
    session("SET GLOBAL integer_division = true")
    try:
        assert other("SELECT id / 2 FROM t") == [(0,)]
    finally:
        session("RESET GLOBAL integer_division")
    assert other("SELECT id / 2 FROM t") == [(0.5,)]


def test_infinite_nanoseconds_stay_infinite(deployment: Deployment) -> None:
    catalog = inlined_catalog(deployment, "CREATE TABLE t (id BIGINT, v TIMESTAMP_NS)")
    session = catalog.session()
    session("INSERT INTO t SELECT 1, 'infinity'::TIMESTAMP_NS")
    session("INSERT INTO t VALUES (2, '-infinity'::TIMESTAMP_NS)")
    assert session("SELECT id, v::VARCHAR FROM t ORDER BY id") == [
        (1, "infinity"),
        (2, "-infinity"),
    ]


@postgres_only
def test_read_leaves_no_metadata_transaction_open(deployment: Deployment) -> None:
    """Seen in pg_stat_activity, which SQLite lacks."""
    catalog = inlined_catalog(deployment, "CREATE TABLE t (id BIGINT)", "INSERT INTO t VALUES (1)")
    session = catalog.session()
    assert session("SELECT id FROM t") == [(1,)]
    assert isinstance(deployment.metabase, str)
    with psycopg.connect(deployment.metabase) as connection:
        idle = connection.execute(
            "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() "
            "AND state LIKE 'idle in transaction%%' AND query LIKE %s",
            [f"%lake_{catalog.name}%"],
        ).fetchall()
    assert idle == [(0,)]
    deployment.session()(f"CALL swanlake_drop_catalog('{catalog.name}')")


@postgres_only
def test_read_falls_back_when_the_metadata_is_locked(deployment: Deployment) -> None:
    """A file of SQLite cannot be locked against readers."""
    catalog = inlined_catalog(deployment, "CREATE TABLE t (id BIGINT)", "INSERT INTO t VALUES (1)")
    session = catalog.session()
    assert from_metadata(session, "SELECT id FROM t").num_rows == 1
    assert isinstance(deployment.metabase, str)
    with psycopg.connect(deployment.metabase) as holder:
        holder.execute(f"LOCK TABLE lake_{catalog.name}.ducklake_table")
        # The extension need not look at that table: it knows it.
        assert session.start("SELECT id FROM t").get() == [(1,)]


def test_dropped_catalog_is_gone(deployment: Deployment) -> None:
    catalog = inlined_catalog(deployment, "CREATE TABLE t (id BIGINT)", "INSERT INTO t VALUES (1)")
    session = catalog.session()
    assert from_metadata(session, "SELECT id FROM t").num_rows == 1
    address = LakeAddress(deployment.metabase, str(deployment.data))
    with Lake.open(address.metabase, address.data) as lake:
        lake.drop_catalog(catalog.name)
    for sql in ("SELECT id FROM t", "INSERT INTO t VALUES (2)", "DELETE FROM t WHERE id = 1"):
        with pytest.raises(CALL_ERRORS):
            session(sql)


def test_parameters_keep_their_positions(deployment: Deployment) -> None:
    catalog = inlined_catalog(
        deployment,
        "CREATE TABLE t (id BIGINT, s VARCHAR)",
        "INSERT INTO t VALUES (1, 'a'), (2, 'b'), (3, 'c?')",
    )
    with connect(deployment.servers[0].url) as client:
        client.execute(f"USE {catalog.name}")

        def rows_of(sql: str, parameters: object = None) -> list[tuple[object, ...]]:
            return client.execute(sql, parameters).rows()

        assert rows_of("SELECT id, ? FROM t WHERE s = ?", ["x", "b"]) == [(2, "x")]
        assert rows_of("SELECT id, $2 FROM t WHERE s = $1", ["b", "x"]) == [(2, "x")]
        assert rows_of("SELECT id FROM t WHERE s = $s", {"s": "b"}) == [(2,)]
        assert rows_of("SELECT id FROM t WHERE s = 'c?' AND id = ?", [3]) == [(3,)]
        client.execute("UPDATE t SET s = ?, id = id + ? WHERE id = ?", ["z", 10, 1])
        client.execute("DELETE FROM t WHERE id = ?", [2])
        client.execute("INSERT INTO t SELECT id + ?, s || ? FROM t WHERE id = ?", [1, "!", 11])
        assert rows_of("SELECT id, s FROM t ORDER BY id") == [(3, "c?"), (11, "z"), (12, "z!")]
