"""Queries of tables that are all in the metadata give what DuckLake's own scans give."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import duckdb
import psycopg
import pyarrow as pa
import pytest

from swanlake.client import connect
from swanlake.lake.lake import Lake
from tests.ducks import stock_duckdb
from tests.faults.crew import Place
from tests.rivals import CALL_ERRORS, House, Rivalry, Session, open_house

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


@pytest.fixture(scope="module", params=["postgres", "sqlite"])
def house(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[House]:
    folder = tmp_path_factory.mktemp("kept")
    with open_house(request.param, lambda: request.getfixturevalue("postgres"), folder) as house:
        house.add_server(SWANLAKE_MAX_SESSIONS="1000")
        yield house


def kept_catalog(house: House, *statements: str) -> Rivalry:
    """A catalog that keeps small inserts, in which these statements were run."""
    catalog = house.new_catalog()
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


def from_lake(session: Session, sql: str) -> pa.Table:
    """What DuckLake's own scans give: transactions always have them."""
    session("BEGIN")
    try:
        return session.flight.query(sql)
    finally:
        session("ROLLBACK")


def rows(table: pa.Table) -> list[str]:
    return sorted(map(repr, table.to_pylist()))


def test_the_same_as_the_extension(house: House) -> None:
    catalog = kept_catalog(
        house,
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
    session = catalog.session()
    for sql in QUERIES:
        kept, scanned = from_metadata(session, sql), from_lake(session, sql)
        assert (sql, kept.schema) == (sql, scanned.schema)
        assert (sql, rows(kept)) == (sql, rows(scanned))
    assert session("SELECT id FROM t") == [(1,), (2,), (3,), (4,)]


@pytest.fixture
def stock(house: House) -> Iterator[Callable[[Rivalry], duckdb.DuckDBPyConnection]]:
    """Stock DuckDB as a second writer of a catalog."""
    with stock_duckdb() as connection:

        def attach(catalog: Rivalry) -> duckdb.DuckDBPyConnection:
            connection.execute(house.attach_statement(catalog.name))
            connection.execute(f"USE {catalog.name}")
            return connection

        yield attach


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
def test_what_another_program_did_is_seen_at_once(
    house: House,
    stock: Callable[[Rivalry], duckdb.DuckDBPyConnection],
    changes: list[str],
    query: str,
    expected: list[tuple[object, ...]],
) -> None:
    catalog = kept_catalog(
        house,
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


def test_tables_of_the_sessions_own_come_first(house: House) -> None:
    catalog = kept_catalog(
        house, "CREATE TABLE t (id BIGINT)", "INSERT INTO t VALUES (1)", "CREATE SCHEMA s"
    )
    session = catalog.session()
    assert session("SELECT id FROM t") == [(1,)]
    session("CREATE TEMP TABLE t AS SELECT 7 AS id")
    assert session("SELECT id FROM t") == [(7,)]
    assert session(f"SELECT id FROM {catalog.name}.main.t") == [(1,)]


def test_settings_of_the_session_hold(house: House) -> None:
    catalog = kept_catalog(
        house,
        "CREATE TABLE t (moment TIMESTAMPTZ)",
        "INSERT INTO t VALUES ('2020-01-01 12:00:00+00')",
    )
    session = catalog.session()
    session("SET TimeZone = 'Asia/Tokyo'")
    assert session("SELECT count(*) FROM t WHERE moment::VARCHAR LIKE '2020-01-01 21%'") == [(1,)]
    session("SET default_null_order = 'nulls_first'")
    session("INSERT INTO t VALUES (NULL)")
    assert session("SELECT moment IS NULL FROM t ORDER BY moment") == [(True,), (False,)]


def test_a_transaction_sees_what_it_wrote_and_nothing_newer(house: House) -> None:
    catalog = kept_catalog(house, "CREATE TABLE t (id BIGINT)", "INSERT INTO t VALUES (1)")
    session, other = catalog.sessions(2)
    session("BEGIN")
    assert session("SELECT count(*) FROM t") == [(1,)]
    other("INSERT INTO t VALUES (2)")
    assert session("SELECT count(*) FROM t") == [(1,)]
    assert other("SELECT count(*) FROM t") == [(2,)]
    session("ROLLBACK")
    assert session("SELECT count(*) FROM t") == [(2,)]


def test_many_rows_are_left_to_the_lake(house: House) -> None:
    catalog = kept_catalog(house, "CREATE TABLE t (id BIGINT)")
    session = catalog.session()
    for first in range(0, 1200, 100):
        session(f"INSERT INTO t SELECT range FROM range({first}, {first + 100})")
    assert session("SELECT count(*), sum(id)::BIGINT FROM t") == [(1200, 1200 * 1199 // 2)]


def test_a_result_that_does_not_fit_into_a_batch_is_streamed(house: House) -> None:
    catalog = kept_catalog(
        house, "CREATE TABLE t (id BIGINT)", "INSERT INTO t SELECT range FROM range(100)"
    )
    session = catalog.session()
    found = session.flight.query("SELECT a.id FROM t a JOIN t b ON true JOIN t c ON true")
    assert found.num_rows == 100**3
    assert session.flight.status()["lake_reads"]["repeated"] > 0


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
def test_errors_are_those_of_the_query_as_it_was_sent(house: House, sql: str) -> None:
    catalog = kept_catalog(
        house, "CREATE TABLE t (id BIGINT, s VARCHAR)", "INSERT INTO t VALUES (1, 'secret')"
    )
    session = catalog.session()
    with pytest.raises(pa.ArrowInvalid) as kept:
        session(sql)
    session("BEGIN")
    with pytest.raises(pa.ArrowInvalid) as scanned:
        session(sql)
    session("ROLLBACK")
    assert str(kept.value).partition(". Detail")[0] == str(scanned.value).partition(". Detail")[0]


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
]


@pytest.fixture(scope="module")
def deceived(house: House) -> House:
    """What sessions share has tables, functions and types that the lake has not."""
    session = house.session()
    for statement in (
        "CREATE TABLE memory.main.w AS SELECT 1 AS id",
        "CREATE TABLE memory.main.only_in_memory AS SELECT 1 AS id",
        "CREATE MACRO memory.main.lower(x) AS 'hijacked'",
        "CREATE MACRO memory.main.upper(x) AS 'hijacked'",
        'CREATE MACRO memory.main."+"(x, y) AS 42',
        "CREATE TYPE memory.main.mood AS ENUM ('a', 'b', 'c')",
    ):
        session(statement)
    return house


def outcome(session: Session, sql: str) -> object:
    """The rows of a statement with their names, or what is said of it, whatever the catalog."""
    try:
        found = session.flight.query(sql)
    except pa.ArrowException as refused:
        return str(refused).partition(". Detail")[0].partition("\n")[0]
    return found.schema, rows(found)


def both_ways(house: House, statements: list[str], sql: str) -> list[list[object]]:
    """What a statement says and leaves: by itself, and in a transaction, on the lake."""
    ends: list[list[object]] = []
    for in_transaction in (False, True):
        catalog = kept_catalog(
            house,
            "CREATE TABLE t (id BIGINT, s VARCHAR)",
            "INSERT INTO t VALUES (1, 'a'), (2, 'b'), (3, 'c')",
            "CREATE TABLE w (id BIGINT)",
            "INSERT INTO w VALUES (3)",
            "CREATE TABLE d (id BIGINT, place VARCHAR DEFAULT current_catalog())",
            *statements,
        )
        session = catalog.session()
        assert session("SELECT count(*) FROM t") == [(3,)]  # from the metadata, if anything is
        if in_transaction:
            session("BEGIN")
        said = outcome(session, sql)
        if in_transaction:
            session("ROLLBACK" if isinstance(said, str) else "COMMIT")
        left = [outcome(session, f"FROM {table}") for table in ("t", "d")]
        ends.append([repr(one).replace(catalog.name, "CATALOG") for one in (said, *left)])
    return ends


@pytest.mark.parametrize("sql", DECEPTIVE)
def test_what_is_not_in_the_lake_is_not_taken_for_it(deceived: House, sql: str) -> None:
    by_itself, on_the_lake = both_ways(deceived, [], sql)
    assert by_itself == on_the_lake


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT upper(s) FROM t",
        "SELECT count(id) FROM t",
        "UPDATE t SET s = upper(s)",
        "DELETE FROM t WHERE upper(s) = 'mine'",
        "INSERT INTO t SELECT id, upper(s) FROM t",
    ],
)
def test_macros_of_the_lake_come_before_functions(house: House, sql: str) -> None:
    macros = ["CREATE MACRO upper(x) AS 'mine'", "CREATE MACRO count(x) AS 42"]
    by_itself, on_the_lake = both_ways(house, macros, sql)
    assert by_itself == on_the_lake


def test_what_an_analysis_made_comes_first(house: House) -> None:
    catalog = kept_catalog(house, "CREATE TABLE t (id BIGINT)", "INSERT INTO t VALUES (1)")
    session = catalog.session()
    session("EXPLAIN ANALYZE CREATE TEMP TABLE t AS SELECT 7 AS id")
    assert session("SELECT id FROM t") == [(7,)]


def test_settings_say_how_a_text_is_read(house: House) -> None:
    catalog = kept_catalog(house, "CREATE TABLE t (id BIGINT)", "INSERT INTO t VALUES (1)")
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


def test_infinite_nanoseconds_are_not_kept_as_a_day(house: House) -> None:
    catalog = kept_catalog(house, "CREATE TABLE t (id BIGINT, v TIMESTAMP_NS)")
    session = catalog.session()
    session("INSERT INTO t SELECT 1, 'infinity'::TIMESTAMP_NS")
    session("INSERT INTO t VALUES (2, '-infinity'::TIMESTAMP_NS)")
    assert session("SELECT id, v::VARCHAR FROM t ORDER BY id") == [
        (1, "infinity"),
        (2, "-infinity"),
    ]


def test_a_look_at_the_metadata_leaves_no_transaction_open(house: House) -> None:
    if not house.on_postgres:
        pytest.skip("SQLite has nobody to ask")
    catalog = kept_catalog(house, "CREATE TABLE t (id BIGINT)", "INSERT INTO t VALUES (1)")
    session = catalog.session()
    assert session("SELECT id FROM t") == [(1,)]
    assert isinstance(house.metabase, str)
    with psycopg.connect(house.metabase) as connection:
        idle = connection.execute(
            "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() "
            "AND state LIKE 'idle in transaction%%' AND query LIKE %s",
            [f"%lake_{catalog.name}%"],
        ).fetchall()
    assert idle == [(0,)]
    house.session()(f"CALL swanlake_drop_catalog('{catalog.name}')")


def test_who_finds_the_metadata_locked_does_not_wait_for_it_in_vain(house: House) -> None:
    if not house.on_postgres:
        pytest.skip("a file of SQLite's cannot be locked against readers")
    catalog = kept_catalog(house, "CREATE TABLE t (id BIGINT)", "INSERT INTO t VALUES (1)")
    session = catalog.session()
    assert from_metadata(session, "SELECT id FROM t").num_rows == 1
    assert isinstance(house.metabase, str)
    with psycopg.connect(house.metabase) as holder:
        holder.execute(f"LOCK TABLE lake_{catalog.name}.ducklake_table")
        # The extension need not look at that table: it knows it.
        assert session.start("SELECT id FROM t").done() == [(1,)]


def test_a_catalog_that_was_dropped_from_outside_is_gone(house: House) -> None:
    catalog = kept_catalog(house, "CREATE TABLE t (id BIGINT)", "INSERT INTO t VALUES (1)")
    session = catalog.session()
    assert from_metadata(session, "SELECT id FROM t").num_rows == 1
    place = Place(house.metabase, str(house.data))
    with Lake.open(place.metabase, place.data) as lake:
        lake.drop_catalog(catalog.name)
    for sql in ("SELECT id FROM t", "INSERT INTO t VALUES (2)", "DELETE FROM t WHERE id = 1"):
        with pytest.raises(CALL_ERRORS):
            session(sql)


def test_parameters_keep_their_places(house: House) -> None:
    catalog = kept_catalog(
        house,
        "CREATE TABLE t (id BIGINT, s VARCHAR)",
        "INSERT INTO t VALUES (1, 'a'), (2, 'b'), (3, 'c?')",
    )
    with connect(house.servers[0].url) as client:
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
