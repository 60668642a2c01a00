"""Statements through stock ADBC: executed once, with correct rows, counts and errors."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import adbc_driver_manager
import pytest

from swanlake.engine.database import extension_path
from swanlake.protocol import messages
from tests.queries import rows


def test_ddl_by_cursor_execute_takes_effect(cursor: Any) -> None:
    cursor.execute("CREATE TABLE ddl_works (i INTEGER)")
    cursor.execute("INSERT INTO ddl_works VALUES (1), (2)")
    assert rows(cursor, "SELECT i FROM ddl_works ORDER BY i") == [(1,), (2,)]


def test_each_statement_runs_exactly_once(cursor: Any) -> None:
    cursor.execute("CREATE TABLE once (i INTEGER)")
    cursor.execute("INSERT INTO once VALUES (1)")
    cursor.execute("WITH one AS (SELECT 2 AS i) INSERT INTO once SELECT i FROM one")
    cursor.execute("INSERT INTO once BY NAME SELECT 3 AS i")
    cursor.execute("EXPLAIN ANALYZE INSERT INTO once VALUES (4)")
    assert rows(cursor, "SELECT i FROM once ORDER BY i") == [(1,), (2,), (3,), (4,)]


def test_volatile_function_is_called_once_per_row(cursor: Any) -> None:
    cursor.execute("CREATE SEQUENCE memory.main.once_seq")
    assert rows(cursor, "SELECT nextval('memory.main.once_seq')") == [(1,)]
    assert rows(cursor, "SELECT nextval('memory.main.once_seq')") == [(2,)]


def test_several_statements_return_the_last_result(cursor: Any) -> None:
    text = """
        CREATE TABLE several (i INTEGER); -- a comment; with a semicolon
        INSERT INTO several VALUES (1), (2), (3);
        SELECT sum(i)::INTEGER FROM several;
    """
    assert rows(cursor, text) == [(6,)]
    assert rows(cursor, "SELECT count(*) FROM several") == [(3,)]


def test_rowcount_is_the_number_of_affected_rows(cursor: Any) -> None:
    cursor.execute("CREATE TABLE counted AS SELECT range AS i FROM range(10)")
    assert cursor.rowcount == 10
    cursor.execute("INSERT INTO counted VALUES (10), (11)")
    assert cursor.rowcount == 2
    cursor.execute("UPDATE counted SET i = i + 100 WHERE i < 3")
    assert cursor.rowcount == 3
    cursor.execute("DELETE FROM counted WHERE i >= 100")
    assert cursor.rowcount == 3
    cursor.execute("DELETE FROM counted WHERE i = -1")
    assert cursor.rowcount == 0


def test_execute_update_returns_the_affected_rows(connect: Callable[..., Any]) -> None:
    connection = connect()
    statement = adbc_driver_manager.AdbcStatement(connection.adbc_connection)
    for sql, affected in [
        ("CREATE TABLE updated (i INTEGER)", 0),
        ("INSERT INTO updated VALUES (1), (2), (3)", 3),
        ("DELETE FROM updated WHERE i > 1", 2),
    ]:
        statement.set_sql_query(sql)
        assert statement.execute_update() == affected
    statement.close()


def test_returning_gives_its_rows_once(cursor: Any) -> None:
    cursor.execute("CREATE TEMP TABLE returned (i INTEGER, s VARCHAR)")
    returned = rows(
        cursor, "INSERT INTO returned VALUES (1, 'a'), (2, 'b') RETURNING i * 10 AS x, s"
    )
    assert returned == [(10, "a"), (20, "b")]
    assert rows(cursor, "UPDATE returned SET s = 'c' WHERE i = 1 RETURNING s") == [("c",)]
    assert rows(cursor, "DELETE FROM returned RETURNING i") == [(1,), (2,)]
    assert rows(cursor, "SELECT count(*) FROM returned") == [(0,)]


@pytest.mark.parametrize(
    "sql",
    [
        "CALL pragma_version()",
        "PRAGMA version",
        "SHOW TABLES",
        "DESCRIBE SELECT 1 AS a",
        "SUMMARIZE SELECT 1 AS a",
        "FROM range(3)",
        "VALUES (1), (2)",
        "EXPLAIN SELECT 1",
        "PIVOT (SELECT 'x' AS k, 1 AS v) ON k USING sum(v)",
    ],
)
def test_statement_kinds_that_return_rows(cursor: Any, sql: str) -> None:
    cursor.execute("CREATE TEMP TABLE IF NOT EXISTS something (i INTEGER)")
    assert rows(cursor, sql)


def test_empty_result_keeps_its_columns(cursor: Any) -> None:
    cursor.execute("SELECT 1 AS a, 'x' AS b WHERE false")
    table = cursor.fetch_arrow_table()
    assert table.num_rows == 0
    assert table.schema.names == ["a", "b"]


def test_lake_is_the_default_catalog(cursor: Any) -> None:
    assert rows(cursor, "SELECT current_catalog(), current_schema()") == [("swanlake", "main")]


@pytest.mark.parametrize(
    ("sql", "identifier", "exception"),
    [
        ("SELEC 1", "PARSER_ERROR", adbc_driver_manager.ProgrammingError),
        ("SELECT * FROM no_such_table", "CATALOG_ERROR", adbc_driver_manager.ProgrammingError),
        ("SELECT no_such_column", "BINDER_ERROR", adbc_driver_manager.ProgrammingError),
        ("SELECT 'x'::INTEGER", "CONVERSION_ERROR", adbc_driver_manager.ProgrammingError),
        ("-- nothing", "EMPTY_STATEMENT", adbc_driver_manager.ProgrammingError),
        ("INSERT INTO pk VALUES (1)", "CONSTRAINT_ERROR", adbc_driver_manager.ProgrammingError),
        ("FROM read_csv('/nonexistent/x.csv')", "IO_ERROR", adbc_driver_manager.InternalError),
        (
            "DELETE FROM no_returning RETURNING i",
            "BINDER_ERROR",
            adbc_driver_manager.ProgrammingError,
        ),
    ],
)
def test_errors_have_an_identifier_a_code_and_no_traceback(
    cursor: Any, sql: str, identifier: str, exception: type[Exception]
) -> None:
    cursor.execute("CREATE TABLE IF NOT EXISTS no_returning (i INTEGER)")
    cursor.execute("CREATE TEMP TABLE pk (i INTEGER PRIMARY KEY)")
    cursor.execute("INSERT INTO pk VALUES (1)")
    with pytest.raises(exception) as caught:
        rows(cursor, sql)
    message = str(caught.value)
    assert f"{identifier}: " in message
    assert "Traceback" not in message
    assert ".py" not in message
    assert rows(cursor, "SELECT 42") == [(42,)], "the session is usable after an error"


def test_quoted_identifiers_with_special_characters(cursor: Any) -> None:
    cursor.execute(
        'CREATE TABLE "test""injection; DROP" ("First Column" INTEGER, "col;drop" VARCHAR, '
        '"col -- comment" VARCHAR)'
    )
    cursor.execute("""INSERT INTO "test""injection; DROP" VALUES (1, 'a;b', 'c -- d')""")
    assert rows(cursor, 'SELECT * FROM "test""injection; DROP"') == [(1, "a;b", "c -- d")]
    assert cursor.description[0][0] == "First Column"


def test_partial_insert_uses_column_defaults(cursor: Any) -> None:
    cursor.execute("CREATE TABLE partial (i INTEGER, s VARCHAR DEFAULT 'none', t TIMESTAMPTZ)")
    cursor.execute("INSERT INTO partial (i) VALUES (1)")
    assert rows(cursor, "SELECT * FROM partial") == [(1, "none", None)]


def test_tables_survive_a_restart(start_server: Callable[..., Any], connect: Any) -> None:
    first = start_server()
    connection = connect(first.url)
    with connection.cursor() as cursor:
        cursor.execute("CREATE TABLE durable AS SELECT 1 AS i, DATE '2024-02-29' AS d")
    first.kill()
    second = start_server(home=first.home)
    with connect(second.url).cursor() as cursor:
        cursor.execute("SELECT count(*) FROM durable")
        assert cursor.fetchall() == [(1,)]


def test_affected_rows_of_an_insert_returning(flight_sql: Callable[..., Any]) -> None:
    connection = flight_sql()
    connection.query("CREATE TEMP TABLE returned_too (i INTEGER)")
    sql = "INSERT INTO returned_too VALUES (1), (2) RETURNING i"
    answer = connection.put(messages.CommandStatementUpdate(query=sql))
    assert messages.DoPutUpdateResult.FromString(answer).record_count == 2


def test_unsigned_extension_cannot_be_loaded(cursor: Any, tmp_path: Path) -> None:
    """The server loads those of its installation without a check of their signatures."""
    signed = bytearray(extension_path("aws").read_bytes())
    signed[1000] ^= 1
    changed = tmp_path / "changed.duckdb_extension"
    changed.write_bytes(signed)
    for attempt in ("SELECT 1", "RESET allow_unsigned_extensions"):
        cursor.execute(attempt)
        with pytest.raises(adbc_driver_manager.Error, match="signature is either missing or"):
            cursor.execute(f"LOAD '{changed}'")
    with pytest.raises(adbc_driver_manager.Error, match="Cannot change allow_unsigned_extensions"):
        cursor.execute("SET GLOBAL allow_unsigned_extensions = true")
