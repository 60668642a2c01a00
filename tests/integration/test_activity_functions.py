"""The server's table functions, read with stock clients: prepared, joined, filtered; KILL."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import adbc_driver_flightsql.dbapi as adbc
import pytest

from tests.conftest import AdbcConnections
from tests.contenders import BackgroundCall, Session
from tests.queries import ENDLESS_QUERY, rows
from tests.server_process import ServerProcess
from tests.waiting import eventually


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    home = tmp_path_factory.mktemp("functions") / "home"
    with ServerProcess(home, "--pipeline", "inline", "--max-sessions", "77") as server:
        yield server


@pytest.fixture(scope="module")
def cursor(server: ServerProcess) -> Iterator[Any]:
    with AdbcConnections(server.url) as connections, connections.open().cursor() as cursor:
        yield cursor


@pytest.mark.parametrize(
    "function",
    [
        "swanlake_queries",
        "swanlake_recent_queries",
        "swanlake_slow_queries",
        "swanlake_errors",
        "swanlake_sessions",
        "swanlake_flushes",
        "swanlake_settings",
        "swanlake_locks",
        "swanlake_functions",
        "swanlake_catalogs",
        "swanlake_snapshots",
        "swanlake_maintenance_history",
        "duckling_queue_status",
        "duckling_queue_segments",
        "duckling_queue_dead_letters",
    ],
)
def test_function_gives_the_same_columns_by_call_and_in_a_query(cursor: Any, function: str) -> None:
    cursor.execute(f"CALL {function}()")
    by_call = [column[:2] for column in cursor.description]
    cursor.execute(f"SELECT * FROM {function}()")
    assert [column[:2] for column in cursor.description] == by_call
    cursor.execute(f"FROM {function}() LIMIT 0")
    assert cursor.fetchall() == []


def test_function_is_a_table_of_a_query(cursor: Any) -> None:
    assert rows(
        cursor,
        "SELECT swanlake_settings.value, s.source FROM swanlake_settings() "
        "JOIN swanlake_settings() s USING (name) WHERE s.name = 'max_sessions'",
    ) == [("77", "--max-sessions")]
    assert rows(
        cursor, "SELECT count(*) FROM swanlake_catalogs() WHERE catalog_name = ?", ["swanlake"]
    ) == [(1,)]
    assert rows(
        cursor,
        "WITH c AS (SELECT * FROM Swanlake_Catalogs ( ) AS x), n AS (SELECT 1 AS one) "
        "SELECT (SELECT max(catalog_name) FROM c), one FROM n, swanlake_catalogs() y",
    ) == [("swanlake", 1)]
    assert rows(cursor, "SELECT count(*) > 3 FROM swanlake_snapshots('swanlake'), range(10)") == [
        (True,)
    ]
    assert rows(cursor, "SELECT 'FROM swanlake_catalogs()' AS x") == [("FROM swanlake_catalogs()",)]


def test_rows_of_a_function_are_kept_in_a_table(cursor: Any) -> None:
    cursor.execute("CREATE TABLE kept AS FROM swanlake_settings()")
    cursor.execute("INSERT INTO kept FROM swanlake_settings() WHERE name = 'port'")
    assert rows(cursor, "SELECT count(*) FROM kept WHERE name = 'port'") == [(2,)]
    cursor.execute("INSERT INTO duckling_queue.kept FROM swanlake_settings() WHERE name = 'port'")
    cursor.execute("CALL duckling_queue_flush()")
    cursor.fetchall()
    assert rows(cursor, "SELECT count(*) FROM kept WHERE name = 'port'") == [(3,)]
    [(table, state, count, error)] = rows(
        cursor, "SELECT table_name, state, rows, error FROM swanlake_flushes()"
    )
    assert (table, state, count, error) == ("kept", "done", 1, None)


def test_function_is_read_in_a_transaction(cursor: Any) -> None:
    cursor.execute("BEGIN")
    cursor.execute("CREATE TABLE in_transaction AS SELECT 1 AS i")
    assert rows(cursor, "SELECT in_transaction FROM swanlake_sessions()")
    assert rows(cursor, "FROM in_transaction") == [(1,)]
    cursor.execute("ROLLBACK")
    assert rows(cursor, "SELECT count(*) FROM swanlake_sessions()")


@pytest.mark.parametrize(
    ("sql", "error"),
    [
        ("FROM swanlake_kill_query('x')", "write CALL swanlake_kill_query"),
        ("CREATE VIEW v AS FROM swanlake_queries()", "FUNCTION_REFUSED"),
        ("CREATE MACRO m() AS TABLE FROM swanlake_queries()", "FUNCTION_REFUSED"),
        ("PREPARE p AS FROM swanlake_queries()", "FUNCTION_REFUSED"),
        ("FROM swanlake_snapshots(?)", "cannot be parameters"),
        ("FROM swanlake_queries(1)", "cannot take its argument"),
        ("SELECT swanlake_queries()", "swanlake_queries"),
        ("SELECT 1, swanlake_queries() FROM range(1)", "swanlake_queries"),
        ("FROM swanlake_no_such()", "swanlake_no_such"),
    ],
)
def test_misuse_is_refused(cursor: Any, sql: str, error: str) -> None:
    with pytest.raises(adbc.Error, match=error):
        rows(cursor, sql, ["swanlake"] if "?" in sql else None)


def test_parameters_of_a_statement_are_bound_around_functions(cursor: Any) -> None:
    assert rows(
        cursor,
        "SELECT name, ? AS x FROM swanlake_settings() WHERE name = ? OR name = ? ORDER BY name",
        ["text", "port", "home"],
    ) == [("home", "text"), ("port", "text")]


def test_own_statement_is_listed_as_running(cursor: Any) -> None:
    [(kind, state, user)] = rows(
        cursor, "SELECT kind, state, user FROM swanlake_queries() WHERE sql LIKE '%only me%'"
    )
    assert (kind, state, user) == ("SELECT", "executing", "anonymous")


def test_errors_and_groups_are_listed(cursor: Any) -> None:
    for number in range(3):
        with pytest.raises(adbc.Error):
            rows(cursor, f"SELECT {number} FROM no_such_table")
    errors = rows(
        cursor, "SELECT outcome FROM swanlake_errors(1000) WHERE sql LIKE '%no_such_table'"
    )
    assert {outcome for (outcome,) in errors} == {"CATALOG_ERROR"}
    [(text, errors_of_group)] = rows(
        cursor,
        "SELECT text, errors FROM swanlake_slow_queries(last => 1000) "
        "WHERE text LIKE '%no_such_table'",
    )
    assert text == "SELECT ? FROM no_such_table"
    assert errors_of_group >= 3


def test_tables_of_the_queue_are_shown(cursor: Any) -> None:
    cursor.execute("CREATE TABLE shown (i INTEGER)")
    cursor.execute("INSERT INTO duckling_queue.shown VALUES (1)")
    assert rows(cursor, "SHOW TABLES FROM duckling_queue") == [("shown",)]
    assert rows(cursor, "CALL duckling_queue_flush()")
    assert rows(cursor, "show tables from Duckling_Queue;") == []


def test_staging_tables_are_not_shown(cursor: Any) -> None:
    cursor.execute("CREATE TABLE staged (i INTEGER DEFAULT 1, s VARCHAR)")
    cursor.execute("INSERT INTO staged (s) VALUES (upper('x'))")
    cursor.execute("INSERT INTO duckling_queue.staged (s) VALUES (upper('x'))")
    for sql in ("SHOW TABLES", "SHOW ALL TABLES", "SELECT table_name FROM duckdb_tables()"):
        assert "__swanlake" not in str(rows(cursor, sql))
    cursor.execute("CALL duckling_queue_flush()")
    cursor.fetchall()


@pytest.mark.parametrize("sql", ["KILL QUERY 'victim'", "CALL swanlake_kill_query('victim')"])
def test_statement_is_killed(server: ServerProcess, cursor: Any, sql: str) -> None:
    victim = Session(server.url)
    call = victim.start(ENDLESS_QUERY, x_swanlake_query_id="victim")
    listed = "SELECT 1 FROM swanlake_queries() WHERE query_id = 'victim'"
    eventually(lambda: rows(cursor, listed))
    eventually(lambda: rows(cursor, sql)[0][0] == "victim")
    assert_ended(call, "cancelled")
    assert victim("SELECT 1") == [(1,)]
    with pytest.raises(adbc.Error, match="QUERY_NOT_FOUND"):
        rows(cursor, sql)
    victim.close()


def test_session_is_killed(server: ServerProcess, cursor: Any) -> None:
    victim = Session(server.url, "doomed")
    call = victim.start(ENDLESS_QUERY)
    eventually(lambda: rows(cursor, "FROM swanlake_queries() WHERE session_id = 'doomed'"))
    assert rows(cursor, "kill session 'doomed';") == [("doomed", 1)]
    assert_ended(call, "cancelled")
    assert rows(cursor, "FROM swanlake_sessions() WHERE session_id = 'doomed'") == []
    with pytest.raises(adbc.Error, match="SESSION_NOT_FOUND"):
        rows(cursor, "KILL SESSION ?", ["doomed"])
    victim.close()


def test_session_cannot_kill_itself(server: ServerProcess) -> None:
    session = Session(server.url, "suicidal")
    with pytest.raises(Exception, match="cannot kill itself"):
        session("KILL SESSION 'suicidal'")
    session.close()


def assert_ended(call: BackgroundCall, message: str) -> None:
    assert message in str(call.join().error)


def test_progress_of_a_long_query_is_shown(server: ServerProcess, cursor: Any) -> None:
    cursor.execute("CREATE TABLE big AS SELECT range::VARCHAR AS s FROM range(3000000)")
    session = Session(server.url)
    nested = "s"
    for _ in range(40):
        nested = f"md5({nested})"
    query = session.start(f"SELECT max({nested}) FROM big")

    def progress() -> float:
        cursor.execute("SELECT max(progress) FROM swanlake_queries() WHERE sql LIKE '%max(md5%'")
        [(value,)] = cursor.fetchall()
        return value or 0.0

    try:
        assert 0 < eventually(progress) <= 1
    finally:
        session.flight.close_session()
        query.join()
        session.close()
