"""Queries that read the files of tables give what DuckLake's own scans give."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa
import pytest

from swanlake.client import connect
from tests.contenders import CALL_ERRORS, ContendedCatalog, Deployment, Session, deployment_fixture
from tests.integration.test_native_reads import sorted_rows
from tests.stock_duckdb import stock_duckdb

pytestmark = pytest.mark.covering(1)

deployment = deployment_fixture(servers=1, SWANLAKE_MAX_SESSIONS="1000")

TYPES = """
    CREATE TABLE t (
        id BIGINT, "Big B" INTEGER, tiny TINYINT, u64 UBIGINT, yes BOOLEAN, f FLOAT, d DOUBLE,
        n DECIMAL(18, 3), s VARCHAR, b BLOB, day DATE, clock TIME, moment TIMESTAMP,
        zoned TIMESTAMPTZ, u UUID
    )
"""
ROWS = """
    SELECT {0} + i AS id, CASE WHEN i % 7 = 0 THEN NULL ELSE i END, i % 100 - 50, 2 ** 63 + i,
        i % 3 = 0, i / 3, CASE WHEN i % 50 = 0 THEN 'nan' ELSE i / 7 END, i / 8,
        CASE WHEN i % 11 = 0 THEN NULL ELSE 'swan ' || i % 20 END, ('x' || i)::BLOB,
        DATE '2026-01-01' + {0} // 100 + (i % 5)::INTEGER, TIME '00:00:01' + INTERVAL (i) SECOND,
        TIMESTAMP '2026-01-01' + INTERVAL ({0} + i) HOUR,
        TIMESTAMPTZ '2026-01-01 00:00:00+02' + INTERVAL ({0} + i) HOUR,
        md5('' || i)::UUID
    FROM range({1}) r(i)
"""
QUERIES = [
    "SELECT * FROM t",
    "SELECT * FROM t WHERE id = 205",
    "SELECT s, d FROM t WHERE id BETWEEN 95 AND 105",
    "SELECT count(*), count(s), sum(id), avg(d), min(day), max(zoned), min(n), max(u) FROM t",
    'SELECT day, count(*) AS n, sum("Big B") FROM t GROUP BY day ORDER BY day',
    "SELECT count(*) FROM t WHERE day >= DATE '2026-01-03' AND moment < '2026-01-10'",
    "SELECT count(*) FROM t WHERE d > 1e300",
    "SELECT count(*) FROM t WHERE s IN ('swan 3', 'nothing') AND id > 150",
    "SELECT count(*) FROM t WHERE s IS NULL",
    "SELECT count(*) FROM t WHERE u64 = 9223372036854775810",
    "SELECT a.id, b.s FROM t a JOIN t b ON a.id = b.id + 100 WHERE a.id < 130 AND b.id >= 5",
    "SELECT a.id, v.v FROM t a LEFT JOIN v ON v.id = a.id WHERE a.id < 110 AND v.v > 1",
    "SELECT a.id, v.v FROM t a LEFT JOIN v USING (id) WHERE v.v IS NULL AND a.id < 10",
    "SELECT id FROM t WHERE id < 5 UNION ALL SELECT id FROM v WHERE id > 1 EXCEPT SELECT 3",
    "SELECT id, sum(id) OVER (ORDER BY id) FROM t WHERE id < 250 QUALIFY id % 50 = 0",
    "SELECT * FROM (SELECT id, s FROM t WHERE id > 290) x WHERE s = 'swan 5'",
    "SELECT t.* FROM t WHERE id > 297 ORDER BY id DESC LIMIT 2",
]
#: Of a table whose rows are in files: without deletes, with deletes in files and in the metadata,
#: and inlined.
HISTORY = [
    "INSERT INTO t " + ROWS.format(0, 100),
    "INSERT INTO t " + ROWS.format(100, 100),
    "INSERT INTO t " + ROWS.format(200, 100),
    "DELETE FROM t WHERE id % 10 = 3 AND id < 100",
    "CALL {}.set_option('data_inlining_row_limit', 20)",
    "UPDATE t SET s = 'changed' WHERE id = 150",
    "INSERT INTO t " + ROWS.format(300, 5),
]


@pytest.fixture(scope="module")
def extension_server(deployment: Deployment) -> int:
    """The number of a server on the same lake that runs nothing natively."""
    deployment.add_server(SWANLAKE_MAX_SESSIONS="1000", SWANLAKE_NATIVE_STATEMENTS="off")
    return len(deployment.servers) - 1


def catalog_with(deployment: Deployment, *statements: str) -> ContendedCatalog:
    catalog = deployment.new_catalog()
    session = catalog.session()
    for statement in statements:
        session(statement.format(catalog.name))
    return catalog


def counts(session: Session) -> dict[str, int]:
    found: dict[str, int] = session.flight.status()["lake_reads"]
    return found


def from_files(session: Session, sql: str) -> pa.Table:
    """What a query gives; it must have read files without the extension."""
    before = counts(session)
    found = session.flight.query(sql)
    assert counts(session) == before | {"files": before["files"] + 1}, sql
    return found


def test_rows_are_those_of_the_extension(deployment: Deployment, extension_server: int) -> None:
    catalog = catalog_with(
        deployment,
        TYPES,
        "CREATE TABLE v (id BIGINT, v BIGINT)",
        "INSERT INTO v SELECT range, range % 3 FROM range(3, 200)",
    )
    session, extension = catalog.session(), catalog.session(extension_server)
    for statement in HISTORY:
        session(statement.format(catalog.name))
        for sql in QUERIES:
            native, scanned = session.flight.query(sql), extension.flight.query(sql)
            assert (statement, sql, native.schema) == (statement, sql, scanned.schema)
            assert (statement, sql, sorted_rows(native)) == (statement, sql, sorted_rows(scanned))


def test_every_kind_of_rows_is_read(deployment: Deployment, extension_server: int) -> None:
    """Rows of files with and without deletes, in files and in the metadata, and inlined rows."""
    catalog = catalog_with(
        deployment,
        "CREATE TABLE t (id BIGINT, s VARCHAR, d DOUBLE)",
        "INSERT INTO t SELECT range, 'a', range / 3 FROM range(100)",
        "INSERT INTO t SELECT range, NULL, 'nan' FROM range(100, 200)",
        "DELETE FROM t WHERE id % 10 = 3 AND id < 100",
        "CALL {}.set_option('data_inlining_row_limit', 20)",
        "UPDATE t SET s = 'changed' WHERE id = 150",
        "INSERT INTO t VALUES (300, 'b', 1), (301, NULL, 'inf')",
    )
    session, extension = catalog.session(), catalog.session(extension_server)
    for sql in (
        "SELECT * FROM t",
        "SELECT * FROM t WHERE id IN (3, 4, 150, 301)",
        "SELECT count(*), sum(id), max(d), count(s) FROM t WHERE d > 20",
        "SELECT a.id FROM t a JOIN t b ON a.id = b.id - 150 WHERE b.s = 'changed'",
    ):
        assert sorted_rows(from_files(session, sql)) == sorted_rows(extension.flight.query(sql))


def test_rows_come_in_the_order_of_the_extension(
    deployment: Deployment, extension_server: int
) -> None:
    """Also if an old file has deletes and a newer one has none."""
    catalog = catalog_with(
        deployment,
        "CREATE TABLE t (id BIGINT, s VARCHAR)",
        *(f"INSERT INTO t SELECT range, 'a' FROM range({n}, {n + 10})" for n in range(0, 50, 10)),
        "DELETE FROM t WHERE id IN (0, 25)",
        "UPDATE t SET s = 'changed' WHERE id = 12",
        "CALL {}.set_option('data_inlining_row_limit', 20)",
        "DELETE FROM t WHERE id = 33",
        "INSERT INTO t VALUES (100, 'inlined')",
    )
    session, extension = catalog.session(), catalog.session(extension_server)
    for sql in (
        "SELECT * FROM t",
        "SELECT * FROM t LIMIT 1",
        "SELECT id, row_number() OVER () AS n FROM t WHERE id > 3",
    ):
        assert from_files(session, sql).to_pylist() == extension.flight.query(sql).to_pylist()


@pytest.mark.parametrize(
    "write",
    [
        "CREATE TABLE t AS SELECT range AS a, range + 100 AS b FROM range(50)",
        "INSERT INTO t SELECT range AS a, range + 100 AS b FROM range(50)",
    ],
)
def test_columns_that_are_renamed_after_their_rows_were_written_keep_them(
    deployment: Deployment, extension_server: int, write: str
) -> None:
    """The file is as old as the names, and has the names of before."""
    is_new = write.startswith("CREATE")
    catalog = catalog_with(
        deployment,
        *([] if is_new else ["CREATE TABLE t (a BIGINT, b BIGINT)"]),
        "BEGIN",
        write,
        "ALTER TABLE t RENAME a TO x",
        "ALTER TABLE t RENAME b TO a",
        "ALTER TABLE t RENAME x TO b",
        "COMMIT",
    )
    session, extension = catalog.session(), catalog.session(extension_server)
    for sql in ("SELECT a, b FROM t WHERE b = 7", "SELECT * FROM t"):
        assert session.flight.query(sql).to_pylist() == extension.flight.query(sql).to_pylist()


@pytest.mark.parametrize("scope", ["", "GLOBAL "])
def test_settings_of_all_sessions_apply(deployment: Deployment, scope: str) -> None:
    """Without a scope, DuckDB sets these for all sessions; a server of its own, as they last."""
    deployment.add_server(SWANLAKE_MAX_SESSIONS="1000")
    catalog = deployment.new_catalog()
    session, other = (catalog.session(len(deployment.servers) - 1) for _ in range(2))
    session("CREATE TABLE t (s VARCHAR)")
    session("INSERT INTO t SELECT 'swan' FROM range(20)")
    session("INSERT INTO t SELECT 'SWAN' FROM range(20)")
    session("CREATE TABLE few (i INTEGER)")
    session(f"CALL {catalog.name}.set_option('data_inlining_row_limit', 10)")
    session("INSERT INTO few VALUES (1), (NULL)")
    count = "SELECT count(*) AS n FROM t WHERE s = 'SWAN'"
    assert from_files(session, count).to_pylist() == [{"n": 20}]
    other(f"SET {scope}default_collation = 'nocase'")
    other(f"SET {scope}default_null_order = 'nulls_first'")
    assert session.flight.query(count).to_pylist() == [{"n": 40}]
    few = session.flight.query("SELECT i FROM few ORDER BY i").to_pylist()
    assert few == [{"i": None}, {"i": 1}]


def test_parameters_choose_files(deployment: Deployment) -> None:
    catalog = catalog_with(
        deployment, TYPES, *("INSERT INTO t " + ROWS.format(100 * n, 100) for n in range(3))
    )
    session = catalog.session()
    with connect(deployment.servers[0].url) as client:
        client.execute(f"USE {catalog.name}")
        before = counts(session)
        for id in (5, 105, 205, 305):
            found = client.query("SELECT id FROM t WHERE id = ?", [id]).table.to_pylist()
            assert found == ([{"id": id}] if id < 300 else [])
    # The last query reads no file.
    files, metadata = before["files"] + 3, before["metadata"] + 1
    assert counts(session) == before | {"files": files, "metadata": metadata}


def test_partitioned_tables_are_read(deployment: Deployment, extension_server: int) -> None:
    """Directories of partitions look like columns to DuckDB."""
    catalog = catalog_with(
        deployment,
        "CREATE TABLE p (k VARCHAR, day DATE, v BIGINT)",
        "ALTER TABLE p SET PARTITIONED BY (k, year(day))",
        "INSERT INTO p SELECT '0' || range % 3, DATE '2026-01-01', range FROM range(9)",
        "INSERT INTO p VALUES (NULL, NULL, 1), ('a=b/c', '2025-01-01', 2)",
    )
    session, extension = catalog.session(), catalog.session(extension_server)
    for sql in ("SELECT * FROM p", "SELECT * FROM p WHERE k = '01'"):
        assert sorted_rows(from_files(session, sql)) == sorted_rows(extension.flight.query(sql))


@pytest.mark.parametrize(
    ("statements", "sql"),
    [
        (["ALTER TABLE t ADD COLUMN x INTEGER DEFAULT 7"], "SELECT id, x FROM t ORDER BY id"),
        (["ALTER TABLE t RENAME COLUMN v TO w"], "SELECT w FROM t ORDER BY w"),
        (["ALTER TABLE t ALTER id SET DATA TYPE HUGEINT"], "SELECT id FROM t ORDER BY id"),
        (["CREATE MACRO next(x) AS x + 1"], "SELECT sum(v) AS s FROM t"),
        ([], "SELECT file_row_number FROM t"),
        (["CREATE VIEW w AS SELECT id FROM t"], "SELECT id FROM w ORDER BY id"),
        (["INSERT INTO t VALUES (9, 9)"], "SELECT id FROM t AT (VERSION => 2) ORDER BY id"),
        ([], "SELECT rowid, id FROM t ORDER BY id"),
        ([], "SELECT id FROM t TABLESAMPLE 100 PERCENT ORDER BY id"),
        (["SET SESSION default_order = 'desc'"], "SELECT id FROM t ORDER BY id"),
        (["BEGIN"], "SELECT id FROM t ORDER BY id"),
        (
            ["DROP TABLE t", "CREATE TABLE t (a INTEGER[])", "INSERT INTO t VALUES ([1, 2])"],
            "FROM t",
        ),
    ],
)
def test_other_queries_are_left_to_the_extension(
    deployment: Deployment, extension_server: int, statements: Sequence[str], sql: str
) -> None:
    catalog = catalog_with(
        deployment,
        "CREATE TABLE t (id BIGINT, v BIGINT)",
        "INSERT INTO t VALUES (1, 10), (2, 20)",
    )
    session = catalog.session()
    from_files(session, "SELECT id FROM t")
    for statement in statements:
        session(statement)
    before = counts(session)["files"]
    found = session.flight.query(sql)
    assert counts(session)["files"] == before
    if any(statement.startswith(("SET", "BEGIN")) for statement in statements):
        assert found.num_rows == 2
    else:
        extension = catalog.session(extension_server)
        assert found.to_pylist() == extension.flight.query(sql).to_pylist()


def test_large_results_stream_beside_other_statements(deployment: Deployment) -> None:
    """A result that is not read yet survives the next statements, on its own connection."""
    catalog = catalog_with(
        deployment,
        "CREATE TABLE big (id BIGINT, s VARCHAR)",
        "INSERT INTO big SELECT range, 'swan ' || range FROM range(600000)",
    )
    session = catalog.session()
    before = counts(session)
    info = session.flight.execute("SELECT id, s FROM big")
    assert session("SELECT count(*) AS n FROM big WHERE id < 10") == [(10,)]
    session("INSERT INTO big VALUES (-1, NULL)")
    session("DELETE FROM big WHERE id >= 0")
    table = session.flight.fetch(info).read_all()
    assert table.num_rows == 600_000
    assert sum(table["id"].to_pylist()) == sum(range(600_000))
    assert session("SELECT id FROM big") == [(-1,)]
    assert counts(session)["files"] >= before["files"] + 2
    assert counts(session)["repeated"] == before["repeated"]


def test_errors_are_those_of_the_extension(deployment: Deployment, extension_server: int) -> None:
    catalog = catalog_with(
        deployment, "CREATE TABLE t (id BIGINT, s VARCHAR)", "INSERT INTO t VALUES (1, 'secret')"
    )
    for sql in (
        "SELECT nothing FROM t",
        "SELECT CAST(s AS INTEGER) FROM t",
        "SELECT sum(s) FROM t",
        "SELECT id FROM gone",
    ):
        messages = []
        for server in (0, extension_server):
            with pytest.raises(CALL_ERRORS) as error:
                catalog.session(server)(sql)
            messages.append(str(error.value).split("query id")[0])
        assert messages[0] == messages[1]
        assert "read_parquet" not in messages[0]


def test_insert_from_a_query_reads_files(deployment: Deployment) -> None:
    catalog = catalog_with(
        deployment,
        "CREATE TABLE t (id BIGINT, s VARCHAR)",
        "INSERT INTO t SELECT range, 'x' FROM range(1000)",
        "CREATE TABLE copy (id BIGINT, s VARCHAR)",
    )
    session = catalog.session()
    for _ in range(2):
        session("INSERT INTO copy SELECT id, s FROM t WHERE id < 500")
    assert session("SELECT count(*), sum(id)::BIGINT FROM copy") == [(1000, 2 * sum(range(500)))]


def keep_reading(session: Session, done: threading.Event, wrong: list[object]) -> None:
    """Reads a table whose rows always come and go in pairs."""
    while not done.is_set():
        [(rows, total)] = session("SELECT count(*) AS n, sum(v)::BIGINT AS s FROM t")
        if rows % 2 or total != 0:
            wrong.append((rows, total))


def test_reads_are_consistent_beside_writers_and_maintenance(deployment: Deployment) -> None:
    """Each commit adds or removes a row and its opposite: a read sees both or none."""
    catalog = catalog_with(
        deployment,
        "CREATE TABLE t (id BIGINT, v BIGINT)",
        "INSERT INTO t VALUES (0, 1), (0, -1)",
    )
    writer, *readers = catalog.sessions(4)
    done, wrong = threading.Event(), list[object]()
    threads = [
        threading.Thread(target=keep_reading, args=(reader, done, wrong)) for reader in readers
    ]
    before = counts(writer)["files"]
    for thread in threads:
        thread.start()
    try:
        expected = {0}
        for id, step in enumerate(steps(random.Random(3)), 1):
            if step == "insert":
                writer(f"INSERT INTO t VALUES ({id}, {id}), ({id}, {-id})")
                expected.add(id)
            elif step == "delete":
                gone = expected.pop()
                writer(f"DELETE FROM t WHERE id = {gone}")
            else:
                writer(f"CALL swanlake_{step}(catalog => '{catalog.name}')")
            own = writer("SELECT id FROM t ORDER BY id")
            assert sorted({row[0] for row in own}) == sorted(expected)
    finally:
        done.set()
        for thread in threads:
            thread.join()
    assert wrong == []
    assert counts(writer)["files"] > before


def steps(choice: random.Random) -> Iterator[str]:
    """Inserts and deletes, with maintenance in between."""
    for number in range(24):
        yield choice.choice(["insert", "insert", "delete"]) if number else "insert"
        if number % 6 == 5:
            yield "compact"


def test_stock_duckdb_and_sessions_agree_while_both_write(deployment: Deployment) -> None:
    catalog = catalog_with(
        deployment, "CREATE TABLE t (id BIGINT, s VARCHAR)", "INSERT INTO t VALUES (0, 'a')"
    )
    session = catalog.session()
    with stock_duckdb() as stock:
        stock.execute(deployment.attach_statement(catalog.name))
        stock.execute(f"USE {catalog.name}")
        writers: list[Any] = [stock.execute, session]
        for number in range(1, 13):
            writers[number % 2](f"INSERT INTO t VALUES ({number}, 'x')")
            if number % 4 == 0:
                writers[number % 3 % 2](f"DELETE FROM t WHERE id = {number - 2}")
            rows = stock.execute("SELECT id, s FROM t ORDER BY id").fetchall()
            assert session("SELECT id, s FROM t ORDER BY id") == rows
