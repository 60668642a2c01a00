"""Every role and every statement that could get around it, in every way to run a statement."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import adbc_driver_flightsql.dbapi as adbc
import pyarrow as pa
import pyarrow.flight as flight
import pytest

from swanlake.protocol import encode, messages
from tests.flight import FlightSql
from tests.integration.access.conftest import RoleServer

#: ``seller`` writes one catalog and reads another; ``guest`` reads one that is not the default.
CALLERS = {
    "admin": "admin",
    "writer": "writer",
    "reader": "reader",
    "seller": "writer/sales=write,swanlake=read",
    "guest": "reader/sal*=read,hr=none",
}

#: The callers that may run the statements below their line; all others are denied.
VERDICTS = """
    = admin writer reader seller guest
    SELECT 1
    FROM sales.main.s
    FROM sales.snapshots()
    CREATE OR REPLACE TEMP TABLE mine AS SELECT 1 AS i
    SET TimeZone = 'UTC'
    SET SESSION default_order = 'asc'
    USE sales; USE memory
    SHOW ALL TABLES
    SELECT count(*) FROM information_schema.tables
    EXPLAIN SELECT 1
    CALL swanlake_catalogs()
    CALL swanlake_snapshots('sales')
    CALL duckling_queue_status()
    BEGIN; SELECT 1; ROLLBACK
    PIVOT sales.main.s ON i USING count(*)

    = admin writer reader seller
    FROM swanlake.main.t
    SELECT * FROM duckling_queue.t
    CALL swanlake_snapshots()

    = admin writer reader
    FROM hr.main.h
    FROM swanlake.main.leak
    FROM swanlake.main.peek()
    SELECT swanlake.main.pay()
    SELECT * FROM sales.main.s WHERE i IN (FROM hr.main.h)
    USE hr; USE memory
    CALL swanlake_snapshots('hr')

    = admin writer seller
    INSERT INTO sales.main.s VALUES (2)
    UPDATE sales.main.s SET i = 3 WHERE i = 2
    DELETE FROM sales.main.s WHERE i = 3
    MERGE INTO sales.main.s USING (SELECT 9 AS i) AS u ON s.i = u.i WHEN MATCHED THEN DELETE
    CREATE OR REPLACE TABLE sales.main.made AS SELECT 1 AS i
    CREATE OR REPLACE VIEW sales.main.seen AS FROM sales.main.s
    CREATE OR REPLACE MACRO sales.main.twice(x) AS 2 * x
    CREATE SCHEMA IF NOT EXISTS sales.extra
    COMMENT ON TABLE sales.main.s IS 'sold'
    ALTER TABLE sales.main.s ALTER i SET DEFAULT 1
    EXPLAIN ANALYZE INSERT INTO sales.main.s VALUES (4)
    DROP TABLE IF EXISTS sales.main.made

    = admin writer
    INSERT INTO swanlake.main.t VALUES (7)
    INSERT INTO duckling_queue.t VALUES (7)
    INSERT INTO sales.main.s FROM hr.main.h
    UPDATE swanlake.main.t SET i = 8 WHERE i = 7
    DELETE FROM swanlake.main.t WHERE i = 8
    CREATE OR REPLACE TABLE swanlake.main.made AS SELECT 1 AS i
    COMMENT ON TABLE swanlake.main.t IS 'commented'
    ALTER TABLE swanlake.main.t ALTER i SET DEFAULT 1
    DROP VIEW IF EXISTS swanlake.main.none
    CALL swanlake_create_schema('hr', 's'); CALL swanlake_drop_schema('hr', 's')

    = admin
    FROM swanlake.main.file
    FROM read_text('{home}/../secret.txt')
    FROM '{home}/data/hr/main/h/*.parquet'
    FROM glob('{home}/*')
    FROM __ducklake_metadata_sales.ducklake_snapshot
    COPY (SELECT 1) TO '{home}/../out.csv'
    FROM duckdb_secrets()
    FROM duckdb_settings()
    FROM pg_settings
    FROM duckdb_logs
    FROM query('SELECT 1')
    FROM sqlite_scan('{home}/catalogs/hr.sqlite', 'ducklake_snapshot')
    CALL enable_logging('QueryLog'); CALL disable_logging()
    SET GLOBAL default_order = 'asc'
    PRAGMA disable_optimizer; PRAGMA enable_optimizer
    ATTACH ':memory:' AS other; DETACH other
    CREATE SECRET other (TYPE s3); DROP SECRET other
    LOAD httpfs
    CALL sales.set_option('parquet_compression', 'zstd')
    CALL ducklake_expire_snapshots('sales', dry_run => true, older_than => now())
    CALL swanlake_create_catalog('other'); CALL swanlake_drop_catalog('other')
    CALL swanlake_fork_catalog('sales', 'fork'); CALL swanlake_drop_catalog('fork')
    CALL swanlake_compact(dry_run => true)
    CALL swanlake_maintenance_history()
    CALL duckling_queue_pause(); CALL duckling_queue_resume()
    CALL duckling_queue_replay()

    =
    ALTER DATABASE sales SET ALIAS TO other
    SET lock_configuration = true
    SET max_expression_depth = 1000000
    SET enable_external_access = false
    DROP TABLE __ducklake_metadata_sales.ducklake_snapshot
    EXPLAIN ANALYZE DELETE FROM __ducklake_metadata_sales.ducklake_snapshot
    PREPARE p AS DELETE FROM __ducklake_metadata_sales.ducklake_snapshot
    USE __ducklake_metadata_sales
    COPY t TO '{home}/catalogs/sales.sqlite'
    ATTACH '{home}/catalogs/sales.sqlite' AS raw (TYPE sqlite)
    CREATE MACRO lower(x) AS x
    CREATE MACRO sales.main.sum(x) AS x
    CREATE VIEW sales.main.duckdb_tables AS SELECT 1
    ALTER TABLE sales.main.s RENAME TO duckdb_tables
    CREATE SCHEMA sales.pg_catalog
    CALL swanlake_create_schema('sales', 'pg_catalog')
    FROM arrow_scan(1::UBIGINT, 2::UBIGINT, 3::UBIGINT)
"""


DENIALS = ("ACCESS_DENIED", "SETTING_REFUSED", "CATALOG_IN_USE")


def cases() -> Iterator[tuple[str, str, bool]]:
    allowed: list[str] = []
    for line in filter(None, map(str.strip, VERDICTS.splitlines())):
        if line.startswith("="):
            allowed = line.split()[1:]
            continue
        for caller in CALLERS:
            yield caller, line, caller in allowed


def run_all(cursor: Any, sql: str) -> None:
    for statement in sql.split("; "):
        cursor.execute(statement)
        cursor.fetchall()


def denied(action: Callable[[], object]) -> bool:
    """True if the action is denied; all other errors are raised."""
    try:
        action()
    except (adbc.Error, pa.ArrowException, flight.FlightError) as error:
        if any(identifier in str(error) for identifier in DENIALS):
            return True
        raise
    return False


def ways(connection: FlightSql, sql: str) -> Iterator[tuple[str, Callable[[], object]]]:
    """Every way to have a text run, or described, as raw Flight."""
    query = messages.CommandStatementQuery(query=sql)
    descriptor = flight.FlightDescriptor.for_command(encode(query))
    create = messages.ActionCreatePreparedStatementRequest(query=sql)
    bound = encode(messages.TicketBoundStatement(query=sql))

    def get(ticket: bytes) -> object:
        return connection.client.do_get(flight.Ticket(ticket), connection.options()).read_all()

    yield "query", lambda: connection.query(sql)
    yield "schema", lambda: connection.client.get_schema(descriptor, connection.options())
    yield "ticket", lambda: get(encode(query))
    yield "bound ticket", lambda: get(bound)
    yield "update", lambda: connection.put(messages.CommandStatementUpdate(query=sql))
    yield "prepare", lambda: connection.action_result("CreatePreparedStatement", create)
    yield "several statements", lambda: connection.query(f"SELECT 1; {sql}")


@pytest.mark.parametrize(("caller", "sql", "is_allowed"), list(cases()))
def test_verdict(
    role_server: RoleServer,
    connect_as: Callable[[str], Any],
    flight_as: Callable[..., FlightSql],
    caller: str,
    sql: str,
    is_allowed: bool,
) -> None:
    text = sql.format(home=role_server.home)
    with connect_as(CALLERS[caller]).cursor() as cursor:
        assert denied(lambda: run_all(cursor, text)) is not is_allowed
    if is_allowed:
        return
    connection = flight_as(CALLERS[caller])
    for way, action in ways(connection, text.split("; ")[0]):
        # Only queries are bound to describe them; the engine decides about some of the others.
        if way not in ("schema", "prepare") or text.startswith(("SELECT", "FROM")):
            assert denied(action), way
