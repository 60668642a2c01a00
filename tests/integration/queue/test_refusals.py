"""What the queue refuses: with a clear message, and without writing anything."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import adbc_driver_manager
import pyarrow.flight as flight
import pytest

from tests.flight import FlightSql
from tests.integration.queue.queries import Connect, count, cursor_on, ingested, refused, written
from tests.integration.queue.test_bound import SWANS
from tests.queries import ENDLESS_ROWS, rows
from tests.server_process import ServerProcess


@pytest.fixture
def swans(cursor: Any, name: str) -> str:
    cursor.execute(f"CREATE TABLE {name} (i INTEGER, s VARCHAR)")
    cursor.execute(f"INSERT INTO duckling_queue.{name} VALUES (1, 'kept')")
    return name


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE duckling_queue.{t} SET i = 2",
        'UPDATE "duckling_queue".main.{t} SET i = 2',
        "DELETE FROM duckling_queue.{t}",
        "DELETE FROM duckling_queue.main.{t} WHERE i = 1",
        "TRUNCATE duckling_queue.{t}",
        "TRUNCATE TABLE duckling_queue.{t}",
        "MERGE INTO duckling_queue.{t} USING (SELECT 1 AS i) n ON false "
        "WHEN NOT MATCHED THEN INSERT (i) VALUES (n.i)",
        "INSERT OR REPLACE INTO duckling_queue.{t} VALUES (2, 'x')",
        "INSERT OR IGNORE INTO duckling_queue.{t} VALUES (2, 'x')",
        "INSERT INTO duckling_queue.{t} VALUES (2, 'x') ON CONFLICT DO NOTHING",
        "INSERT INTO duckling_queue.{t} VALUES (2, 'x') ON CONFLICT (i) DO UPDATE SET s = 'y'",
        "INSERT INTO duckling_queue.{t} VALUES (2, 'x') RETURNING i",
        "INSERT INTO duckling_queue.{t} SELECT 2, 'x' RETURNING *",
        "DROP TABLE duckling_queue.{t}",
        "DROP TABLE IF EXISTS duckling_queue.{t}",
        "ALTER TABLE duckling_queue.{t} ADD COLUMN n INTEGER",
        "ALTER TABLE duckling_queue.{t} RENAME TO other",
        "CREATE TABLE duckling_queue.other (i INTEGER)",
        "CREATE TABLE IF NOT EXISTS duckling_queue.other AS SELECT 1 AS i",
        "CREATE OR REPLACE TABLE duckling_queue.{t} AS SELECT 1 AS i",
        "CREATE SCHEMA duckling_queue",
        "CREATE SCHEMA duckling_queue.pond",
        "CREATE VIEW looks AS FROM duckling_queue.{t}",
        "CREATE TEMP VIEW looks AS FROM duckling_queue.{t}",
        "CREATE MACRO looks() AS TABLE FROM duckling_queue.{t}",
        "COPY duckling_queue.{t} FROM 'file.csv'",
        "COMMENT ON TABLE duckling_queue.{t} IS 'no'",
        "ATTACH ':memory:' AS duckling_queue",
        "USE duckling_queue",
        "USE duckling_queue.main",
    ],
)
def test_only_insert_and_select_are_accepted(cursor: Any, swans: str, statement: str) -> None:
    with refused("QUEUE_REFUSED"):
        cursor.execute(statement.format(t=swans))
    assert rows(cursor, f"FROM duckling_queue.{swans}") == [(1, "kept")]


@pytest.mark.parametrize(
    ("statement", "identifier", "words"),
    [
        ("INTO duckling_queue.nowhere VALUES (1)", "TABLE_NOT_FOUND", ["nowhere"]),
        ("INTO duckling_queue.nowhere.{t} VALUES (1)", "TABLE_NOT_FOUND", ["nowhere"]),
        ("INTO duckling_queue.{t} (nothing) VALUES (1)", "BINDER_ERROR", ["nothing", "{t}"]),
        ("INTO duckling_queue.{t} VALUES (1)", "BINDER_ERROR", ["2 columns", "1 values", "{t}"]),
        ("INTO duckling_queue.{t} VALUES (1, 'a', 2)", "BINDER_ERROR", ["2 columns", "{t}"]),
        ("INTO duckling_queue.{t} VALUES ('swan', 'a')", "CONVERSION_ERROR", ["swan"]),
        ("INTO duckling_queue.{t} VALUES ('CONFLICT', 'a')", "CONVERSION_ERROR", ["CONFLICT"]),
        ("INTO duckling_queue.{t} VALUES (3000000000, 'a')", "CONVERSION_ERROR", ["3000000000"]),
        ("INTO duckling_queue.{t} (i) FROM missing", "CATALOG_ERROR", ["missing"]),
        ("INTO duckling_queue.{t} (i) FROM duckling_queue.missing", "TABLE_NOT_FOUND", ["missing"]),
        ("INTO duckling_queue.{t} (i) SELECT error('swan')", "INVALID_INPUT_ERROR", ["swan"]),
        ("INTO duckling_queue.{t} VALEUS (1)", "PARSER_ERROR", ["VALEUS"]),
        ("INTO duckling_queue.{t} (i) SELECT CASE range WHEN 2999 THEN 'last' ELSE '1' END "
         "FROM range(3000)", "CONVERSION_ERROR", ["last"]),
    ],
)  # fmt: skip
def test_invalid_insert_is_refused_and_writes_nothing(
    cursor: Any, swans: str, statement: str, identifier: str, words: list[str]
) -> None:
    with refused(identifier, *[word.format(t=swans) for word in words]):
        cursor.execute(f"INSERT {statement.format(t=swans)}")
    assert rows(cursor, f"FROM duckling_queue.{swans}") == [(1, "kept")]


def test_select_from_a_missing_table_is_refused(cursor: Any, swans: str) -> None:
    for table in ("nowhere", "nowhere.t", "main.nowhere"):
        with refused("TABLE_NOT_FOUND", "There is no table"):
            cursor.execute(f"FROM duckling_queue.{table}")
    with pytest.raises(adbc_driver_manager.ProgrammingError, match=r"BINDER_ERROR: .*nothing"):
        cursor.execute(f"SELECT nothing FROM duckling_queue.{swans}")


def test_internal_names_are_plain_text_in_literals(cursor: Any) -> None:
    for text in ("duckling_queue", "__duckling_queue_staging_0", "__duckling_queue_rows_99"):
        assert rows(cursor, f"SELECT '{text}' AS t") == [(text,)]
        assert rows(cursor, "SELECT ? AS t", (text,)) == [(text,)]


def test_cancelled_insert_writes_nothing(
    flight_sql: Callable[..., FlightSql], cursor: Any, swans: str
) -> None:
    endless = f"INSERT INTO duckling_queue.{swans} (i) SELECT range % 7 {ENDLESS_ROWS}"
    with pytest.raises(flight.FlightTimedOutError, match="QUERY_TIMEOUT"):
        flight_sql().execute(endless, x_swanlake_query_timeout_seconds="0.5")
    assert rows(cursor, f"FROM duckling_queue.{swans}") == [(1, "kept")]


# ---- transactions --------------------------------------------------------------------------------


def test_insert_in_a_transaction_is_refused(connect: Connect, cursor: Any, swans: str) -> None:
    connection = connect(autocommit=False)
    with connection.cursor() as inside:
        inside.execute(f"INSERT INTO {swans} VALUES (2, 'mine')")
        with refused("QUEUE_IN_TRANSACTION", "not part of a transaction", "autocommit"):
            inside.execute(f"INSERT INTO duckling_queue.{swans} VALUES (3, 'no')")
        with refused("QUEUE_IN_TRANSACTION"):
            inside.executemany(f"INSERT INTO duckling_queue.{swans} VALUES (?, ?)", [(3, "no")])
        with refused("QUEUE_IN_TRANSACTION"):
            ingested(inside, swans, SWANS)
        connection.commit()  # the transaction is as good as before
    assert rows(cursor, f"FROM {swans}") == [(2, "mine")]
    assert rows(cursor, f"FROM duckling_queue.{swans}") == [(1, "kept")]


def test_insert_in_a_multi_statement_transaction_is_refused(cursor: Any, swans: str) -> None:
    with refused("QUEUE_IN_TRANSACTION"):
        cursor.execute(f"BEGIN; INSERT INTO duckling_queue.{swans} VALUES (2, 'x'); COMMIT")
    cursor.execute("ROLLBACK")
    assert count(cursor, f"duckling_queue.{swans}") == 1


def test_session_can_insert_after_rollback(connect: Connect, name: str) -> None:
    connection = connect()
    with connection.cursor() as cursor:
        cursor.execute(f"CREATE TABLE {name} (i INTEGER)")
        cursor.execute("BEGIN")
        with refused("QUEUE_IN_TRANSACTION"):
            cursor.execute(f"INSERT INTO duckling_queue.{name} VALUES (1)")
        cursor.execute("ROLLBACK")
        assert written(cursor, f"INSERT INTO duckling_queue.{name} VALUES (2)") == 1


@pytest.fixture(scope="module")
def permissive(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A server whose queue accepts rows in transactions."""
    home = tmp_path_factory.mktemp("permissive") / "home"
    with ServerProcess(home, DUCKLING_QUEUE_IN_TRANSACTION="immediate") as server:
        yield server


@pytest.fixture
def immediate(permissive: ServerProcess) -> Iterator[Any]:
    with cursor_on(permissive) as cursor:
        cursor.execute("CREATE OR REPLACE TABLE t (i INTEGER)")
        cursor.execute("INSERT INTO duckling_queue.t VALUES (0)")
        yield cursor


def test_immediate_rows_survive_a_rollback(immediate: Any) -> None:
    for number, end in enumerate(["COMMIT", "ROLLBACK"], start=1):
        immediate.execute("BEGIN")
        immediate.execute(f"INSERT INTO t VALUES ({number * 10})")
        assert written(immediate, f"INSERT INTO duckling_queue.t VALUES ({number})") == 1
        sql = "INSERT INTO duckling_queue.t SELECT i + 100 FROM duckling_queue.t WHERE i = ?"
        assert written(immediate, sql, (number,)) == 1
        immediate.execute(end)
    kept = [(0,), (1,), (101,), (2,), (102,)]
    assert rows(immediate, "FROM duckling_queue.t") == kept
    immediate.execute("CALL duckling_queue_flush()")
    assert rows(immediate, "FROM t ORDER BY i") == sorted([*kept, (10,)])


def test_bad_row_does_not_abort_the_transaction(immediate: Any) -> None:
    immediate.execute("BEGIN")
    with refused("BINDER_ERROR"):
        immediate.execute("INSERT INTO duckling_queue.t VALUES (1, 2)")
    assert written(immediate, "INSERT INTO duckling_queue.t VALUES (1)") == 1
    immediate.execute("COMMIT")
    assert count(immediate, "duckling_queue.t") == 2


def test_session_that_began_with_a_transaction_can_insert_later(immediate: Any) -> None:
    with immediate.connection.cursor() as cursor:
        cursor.execute("CREATE OR REPLACE TABLE u (i INTEGER)")
        cursor.execute("BEGIN")
        assert written(cursor, "INSERT INTO duckling_queue.u VALUES (1)") == 1
        cursor.execute("ROLLBACK")
        assert written(cursor, "INSERT INTO duckling_queue.u VALUES (2)") == 1


def test_rows_of_a_table_with_a_long_name_are_stored(cursor: Any, name: str) -> None:
    long = name.ljust(300, "x")
    cursor.execute(f"CREATE TABLE {long} (i INTEGER)")
    cursor.execute(f"INSERT INTO duckling_queue.{long} VALUES (1)")
    cursor.execute(f"CALL duckling_queue_flush('swanlake.main.{long}')")
    assert rows(cursor, f"SELECT i FROM {long}") == [(1,)]


def test_rows_that_can_never_be_flushed_are_refused(cursor: Any, name: str) -> None:
    long = name.ljust(300, "x")
    # In a transaction the extension creates the table, in a directory of its name.
    for statement in ("BEGIN", f"CREATE TABLE {long} (i INTEGER)", "COMMIT"):
        cursor.execute(statement)
    with refused("NAME_TOO_LONG"):
        cursor.execute(f"INSERT INTO duckling_queue.{long} VALUES (1)")
