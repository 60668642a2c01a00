"""Each statement, in each context, has one route."""

from __future__ import annotations

from typing import Any

import duckdb
import pytest

from swanlake.errors import QueryError
from swanlake.sessions.execution.router import (
    Engine,
    Enqueue,
    NativeRead,
    NativeWrite,
    Procedure,
    QueueRead,
    RouteContext,
    enqueue_head,
    route,
)
from swanlake.sql.statement import Statement, parse

AUTOCOMMIT = RouteContext()
IN_TRANSACTION = RouteContext(in_transaction=True, has_local_state=True)
NATIVE_OFF = RouteContext(native=False)
LOCAL_STATE = RouteContext(has_local_state=True)
CLIENT_ROWS = RouteContext(has_client_rows=True)
DISCARDED = RouteContext(keep_rows=False)

#: A statement, and its route in autocommit mode and in a transaction.
ROUTES: list[tuple[str, Any, Any]] = [
    # Procedures of the server.
    ("CALL swanlake_catalogs()", Procedure, Procedure),
    ("CALL duckling_queue_flush('t')", Procedure, Procedure),
    ("CALL ducklake_snapshots('swanlake')", Engine, Engine),
    # INSERTs into the queue.
    ("INSERT INTO duckling_queue.t VALUES (1)", Enqueue, Enqueue),
    ("INSERT INTO Duckling_Queue.main.t (a) VALUES (?)", Enqueue, Enqueue),
    ('INSERT INTO "duckling_queue"."a.b" BY NAME SELECT 1 AS a', Enqueue, Enqueue),
    ("WITH x AS (SELECT 1) INSERT INTO duckling_queue.t FROM x", Enqueue, Enqueue),
    ("INSERT INTO duckling_queue.t SELECT * FROM duckling_queue.u", Enqueue, Enqueue),
    # Statements that read the queue.
    ("SELECT * FROM duckling_queue.t", QueueRead, QueueRead),
    ("FROM duckling_queue.main.t", QueueRead, QueueRead),
    ("INSERT INTO t SELECT * FROM duckling_queue.t", QueueRead, QueueRead),
    ("CREATE TABLE t AS FROM duckling_queue.u", QueueRead, QueueRead),
    ("EXPLAIN SELECT * FROM duckling_queue.t", QueueRead, QueueRead),
    ("EXPLAIN INSERT INTO t FROM duckling_queue.u", QueueRead, QueueRead),
    ("SELECT 1 FROM t JOIN duckling_queue.u ON duckling_queue.u.a = t.a", QueueRead, QueueRead),
    ("CREATE TABLE t AS TABLE duckling_queue.u", QueueRead, QueueRead),
    ("CREATE TABLE t AS SELECT -view FROM duckling_queue.u", QueueRead, QueueRead),
    ("COPY (FROM duckling_queue.t) TO 'file.csv'", QueueRead, QueueRead),
    ("COPY duckling_queue.t TO 'file.csv'", QueueRead, QueueRead),
    ("DELETE FROM t WHERE a IN (SELECT a FROM duckling_queue.u)", QueueRead, QueueRead),
    # The queue's name as a word.
    ("SELECT 'duckling_queue.t'", NativeRead, Engine),
    ("INSERT INTO t VALUES ('duckling_queue')", NativeWrite, Engine),
    ("INSERT INTO t VALUES ('__duckling_queue_staging_0')", NativeWrite, Engine),
    ("INSERT INTO main.t VALUES ('duckling_queue')", NativeWrite, Engine),
    ("INSERT INTO duckling_queue VALUES (1)", NativeWrite, Engine),  # a table of this name
    ("EXPLAIN INSERT INTO duckling_queue VALUES (1)", Engine, Engine),
    ("ATTACH 'my_duckling_queue.db' AS other", Engine, Engine),
    ("SET schema = 'duckling_queue'", Engine, Engine),
    # Writes.
    ("INSERT INTO t VALUES (1)", NativeWrite, Engine),
    ("INSERT INTO swanlake.main.t SELECT * FROM u", NativeWrite, Engine),
    ("INSERT INTO t VALUES (1) RETURNING a", NativeWrite, Engine),
    ("INSERT OR REPLACE INTO t VALUES (1)", Engine, Engine),
    ("INSERT INTO t VALUES (1) ON CONFLICT DO NOTHING", Engine, Engine),
    ("INSERT INTO t VALUES ('on conflict')", NativeWrite, Engine),
    ("UPDATE t SET a = 1 WHERE b = 2", NativeWrite, Engine),
    ("UPDATE t SET a = u.a FROM u", Engine, Engine),
    ("DELETE FROM t WHERE a = 1", NativeWrite, Engine),
    ("DELETE FROM t WHERE a = 1 RETURNING a", Engine, Engine),
    ("DELETE FROM t USING u WHERE t.a = u.a", Engine, Engine),
    ("CREATE TABLE t (a INTEGER)", NativeWrite, Engine),
    ("CREATE TABLE t (a INTEGER PRIMARY KEY)", Engine, Engine),
    ("CREATE OR REPLACE TABLE t AS SELECT 1 AS a", NativeWrite, Engine),
    ("CREATE TEMP TABLE t (a INTEGER)", Engine, Engine),
    ("CREATE VIEW v AS SELECT 1", Engine, Engine),
    ("COPY t FROM 'file.csv'", NativeWrite, Engine),
    ("COPY t TO 'file.csv'", Engine, Engine),
    ("MERGE INTO t USING u ON t.a = u.a WHEN MATCHED THEN DELETE", Engine, Engine),
    ("DROP TABLE t", Engine, Engine),
    ("ALTER TABLE t ADD COLUMN b INTEGER", Engine, Engine),
    ("TRUNCATE t", Engine, Engine),
    # Queries.
    ("SELECT a FROM t", NativeRead, Engine),
    ("SELECT 1; ", NativeRead, Engine),
    ("EXPLAIN SELECT a FROM t", Engine, Engine),
    # Settings and transactions.
    ("USE swanlake", Engine, Engine),
    ("SET threads = 1", Engine, Engine),
    ("BEGIN", Engine, Engine),
    ("COMMIT", Engine, Engine),
    ("ROLLBACK", Engine, Engine),
    ("ATTACH ':memory:' AS other", Engine, Engine),
    ("PREPARE p AS SELECT 1", Engine, Engine),
]

#: Statements that the queue refuses, and a part of the reason.
REFUSED = [
    ("INSERT OR REPLACE INTO duckling_queue.t VALUES (1)", "INSERT OR REPLACE"),
    ("INSERT OR IGNORE INTO duckling_queue.t VALUES (1)", "INSERT OR IGNORE"),
    ("INSERT INTO duckling_queue.t VALUES (1) RETURNING a", "RETURNING"),
    ("PREPARE p AS SELECT * FROM duckling_queue.t", "PREPARE"),
    ("EXPLAIN INSERT INTO duckling_queue.t VALUES (1)", "no plan"),
    ("UPDATE duckling_queue.t SET a = 1", "UPDATE cannot be done"),
    ("DELETE FROM duckling_queue.t", "DELETE cannot be done"),
    ("DROP TABLE duckling_queue.t", "DROP cannot be done"),
    ("ALTER TABLE duckling_queue.t ADD COLUMN b INTEGER", "ALTER cannot be done"),
    ("CREATE TABLE duckling_queue.t (a INTEGER)", "CREATE cannot be done"),
    ("CREATE TABLE duckling_queue.t AS FROM __swanlake_bound WITH NO DATA", "CREATE cannot"),
    ("COPY duckling_queue.t FROM 'file.csv'", "COPY cannot be done"),
    ("DROP VIEW duckling_queue.v", "DROP cannot be done"),
    ("DROP SCHEMA duckling_queue", "DROP cannot be done"),
    ("USE duckling_queue", "USE cannot be done"),
    ("CREATE VIEW v AS FROM duckling_queue.t", "view or macro"),
    (
        "CREATE OR REPLACE TEMP RECURSIVE VIEW v(a) AS SELECT a FROM duckling_queue.t",
        "view or macro",
    ),
    ("ATTACH ':memory:' AS duckling_queue", "No database"),
]


@pytest.fixture(scope="module")
def connection() -> duckdb.DuckDBPyConnection:
    return duckdb.connect()


def parsed(connection: duckdb.DuckDBPyConnection, sql: str) -> Statement:
    [statement] = parse(connection, sql)
    return statement


@pytest.mark.parametrize(("sql", "autocommit", "in_transaction"), ROUTES)
def test_statement_has_its_route(
    connection: duckdb.DuckDBPyConnection, sql: str, autocommit: Any, in_transaction: Any
) -> None:
    statement = parsed(connection, sql)
    assert type(route(statement, AUTOCOMMIT)) is autocommit
    assert type(route(statement, IN_TRANSACTION)) is in_transaction


@pytest.mark.parametrize(("sql", "autocommit", "in_transaction"), ROUTES)
def test_native_off_sends_native_statements_to_the_engine(
    connection: duckdb.DuckDBPyConnection, sql: str, autocommit: Any, in_transaction: Any
) -> None:
    expected = Engine if autocommit in (NativeRead, NativeWrite) else autocommit
    assert type(route(parsed(connection, sql), NATIVE_OFF)) is expected


@pytest.mark.parametrize("context", [LOCAL_STATE, CLIENT_ROWS, DISCARDED])
def test_native_read_needs_a_query_that_any_connection_can_run(
    connection: duckdb.DuckDBPyConnection, context: RouteContext
) -> None:
    assert route(parsed(connection, "SELECT a FROM t"), context) == Engine()
    assert type(route(parsed(connection, "DELETE FROM t"), context)) is NativeWrite


@pytest.mark.parametrize(("sql", "reason"), REFUSED)
def test_queue_refuses_statement(
    connection: duckdb.DuckDBPyConnection, sql: str, reason: str
) -> None:
    with pytest.raises(QueryError, match=reason) as raised:
        route(parsed(connection, sql), AUTOCOMMIT)
    assert raised.value.identifier == "QUEUE_REFUSED"


def test_unknown_procedure_is_an_error_with_a_suggestion(
    connection: duckdb.DuckDBPyConnection,
) -> None:
    with pytest.raises(QueryError, match="swanlake_catalogs"):
        route(parsed(connection, "CALL swanlake_catalog()"), AUTOCOMMIT)


def test_enqueue_carries_its_target(connection: duckdb.DuckDBPyConnection) -> None:
    sql = 'INSERT INTO duckling_queue.main."T" (a, b) VALUES (1, 2)'
    chosen = route(parsed(connection, sql), AUTOCOMMIT)
    assert isinstance(chosen, Enqueue)
    assert chosen.head.target == ("duckling_queue", "main", "T")
    assert chosen.head.columns == ("a", "b")
    assert not chosen.reads_queue
    assert chosen == Enqueue(chosen.head)


@pytest.mark.parametrize(
    ("sql", "reads_queue"),
    [
        ("INSERT INTO duckling_queue.t SELECT * FROM duckling_queue.u", True),
        ("WITH x AS (FROM duckling_queue.u) INSERT INTO duckling_queue.t FROM x", True),
        ("INSERT INTO duckling_queue.t VALUES ('duckling_queue.u')", False),
        ("INSERT INTO duckling_queue.t /* duckling_queue.u */ VALUES (1)", False),
    ],
)
def test_enqueue_says_whether_it_reads_the_queue(
    connection: duckdb.DuckDBPyConnection, sql: str, reads_queue: bool
) -> None:
    chosen = route(parsed(connection, sql), AUTOCOMMIT)
    assert isinstance(chosen, Enqueue)
    assert chosen.reads_queue is reads_queue


def test_queue_read_carries_the_tables(connection: duckdb.DuckDBPyConnection) -> None:
    sql = "SELECT * FROM duckling_queue.t JOIN duckling_queue.main.u USING (a)"
    chosen = route(parsed(connection, sql), AUTOCOMMIT)
    assert isinstance(chosen, QueueRead)
    names = [reference.parts for reference in chosen.reads]
    assert names == [("duckling_queue", "t"), ("duckling_queue", "main", "u")]


def test_enqueue_head_is_none_for_other_inserts(connection: duckdb.DuckDBPyConnection) -> None:
    assert enqueue_head(parsed(connection, "INSERT INTO t VALUES ('duckling_queue')")) is None
    assert enqueue_head(parsed(connection, "SELECT * FROM duckling_queue.t")) is None
