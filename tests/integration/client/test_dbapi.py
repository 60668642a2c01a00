"""The DB-API (PEP 249) against a real server."""

from __future__ import annotations

import datetime as dt
import threading
import uuid
from collections.abc import Callable, Iterator
from decimal import Decimal
from itertools import pairwise
from typing import Any

import pytest

from swanlake import dbapi
from swanlake.errors import QueryCancelled
from tests.queries import ENDLESS_QUERY, ENDLESS_ROWS
from tests.server_process import ServerProcess

Open = Callable[..., dbapi.Connection]


@pytest.fixture
def open_connection(server: ServerProcess) -> Iterator[Open]:
    """Opens connections and closes them after the test."""
    opened: list[dbapi.Connection] = []

    def open_one(**options: Any) -> dbapi.Connection:
        opened.append(dbapi.connect(server.url, **options))
        return opened[-1]

    yield open_one
    for connection in opened:
        connection.close()


@pytest.fixture
def connection(open_connection: Open) -> dbapi.Connection:
    return open_connection()


@pytest.fixture
def cursor(connection: dbapi.Connection) -> dbapi.Cursor:
    return connection.cursor()


def test_query_has_description_and_rows(cursor: dbapi.Cursor) -> None:
    assert cursor.description is None
    assert cursor.rowcount == -1
    done = cursor.execute("SELECT 1 AS i, 'x' AS s, 1.50::DECIMAL(10,2) AS d, DATE '2020-01-02' t")
    assert done is cursor
    assert cursor.description is not None
    assert [column[0] for column in cursor.description] == ["i", "s", "d", "t"]
    kinds = [dbapi.NUMBER, dbapi.STRING, dbapi.NUMBER, dbapi.DATETIME]
    assert [column[1] for column in cursor.description] == kinds
    assert cursor.description[2][4:6] == (10, 2)
    assert all(len(column) == 7 for column in cursor.description)
    assert cursor.fetchone() == (1, "x", Decimal("1.50"), dt.date(2020, 1, 2))
    assert cursor.fetchone() is None
    assert cursor.fetchall() == []
    assert cursor.query_id


def test_fetchone_fetchmany_and_fetchall(cursor: dbapi.Cursor) -> None:
    cursor.execute("FROM range(10)")
    assert cursor.fetchone() == (0,)
    assert cursor.fetchmany() == [(1,)]
    assert cursor.fetchmany(3) == [(2,), (3,), (4,)]
    cursor.arraysize = 2
    assert cursor.fetchmany() == [(5,), (6,)]
    assert next(cursor) == (7,)
    assert list(cursor) == [(8,), (9,)]
    assert cursor.fetchmany(5) == []


def test_large_result_is_fetched_incrementally(cursor: dbapi.Cursor) -> None:
    """The result is too large to be sent within the timeout of the test."""
    for _ in range(2):
        cursor.execute(ENDLESS_ROWS)
        assert cursor.fetchmany(3) == [(0,), (1,), (2,)]
    assert cursor.execute("SELECT 1").fetchall() == [(1,)]


def test_rows_of_many_batches_arrive_in_order(cursor: dbapi.Cursor) -> None:
    rows = [row[0] for row in cursor.execute("FROM range(300_000)")]
    assert len(rows) == 300_000
    assert all(one < next_one for one, next_one in pairwise(rows))


def test_two_cursors_of_one_connection(connection: dbapi.Connection) -> None:
    one, two = connection.cursor(), connection.cursor()
    one.execute("FROM range(500_000)")
    assert one.fetchone() == (0,)
    assert two.execute("SELECT 42").fetchall() == [(42,)]
    assert len(one.fetchall()) == 499_999


def test_fetch_as_arrow_and_pandas(cursor: dbapi.Cursor) -> None:
    table = cursor.execute("SELECT range AS i FROM range(200_000)").fetch_arrow_table()
    assert (table.num_rows, table.column_names) == (200_000, ["i"])
    assert cursor.execute("SELECT 7 AS i").fetch_df()["i"].to_list() == [7]
    cursor.execute("FROM range(10)").fetchone()
    with pytest.raises(dbapi.InterfaceError, match="one by one"):
        cursor.fetch_arrow_table()


def test_parameters_by_position_and_by_name(cursor: dbapi.Cursor) -> None:
    assert cursor.execute("SELECT ? + ?", (1, 2)).fetchone() == (3,)
    assert cursor.execute("SELECT $b - $a", {"a": 1, "b": 2}).fetchone() == (1,)
    assert cursor.execute("SELECT 'a?b'", []).fetchone() == ("a?b",)
    with pytest.raises(dbapi.ProgrammingError, match="2 parameters"):
        cursor.execute("SELECT ? + ?", [1])


def test_question_marks_bind_in_order(cursor: dbapi.Cursor) -> None:
    """DuckDB does not number those of FROM and USING in textual order."""
    cursor.execute("CREATE TEMP TABLE counting AS SELECT i, 0 AS n FROM range(10) r(i)")
    cursor.execute(
        "UPDATE counting SET n = ? FROM (SELECT ? AS i) o WHERE o.i = counting.i", [7, 3]
    )
    assert cursor.execute("FROM counting WHERE n <> 0").fetchall() == [(3, 7)]
    using = "DELETE FROM counting USING (SELECT ? AS i) o WHERE o.i = counting.i AND n = ?"
    assert cursor.execute(using, [3, 7]).rowcount == 1
    assert cursor.executemany(using, [[1, 0], [2, 0], [0, 1]]).rowcount == 2


def test_bound_values_round_trip(cursor: dbapi.Cursor) -> None:
    name = uuid.uuid4()
    values: dict[str, Any] = {
        "BOOLEAN": True,
        "BIGINT": -(2**63),
        "HUGEINT": 2**100,
        "DOUBLE": 0.1,
        "DECIMAL(20,4)": Decimal("-12.3400"),
        "VARCHAR": "it's ü",
        "BLOB": b"\x00\xff",
        "DATE": dt.date(1999, 12, 31),
        "TIME": dt.time(1, 2, 3, 4),
        "TIMESTAMP": dt.datetime(2020, 1, 2, 3, 4, 5, 6),
        "TIMESTAMPTZ": dt.datetime(2020, 1, 2, 3, 4, 5, 6, dt.UTC),
        "INTEGER[]": [1, None, 3],
        "STRUCT(a INTEGER, b VARCHAR)": {"a": 1, "b": "x"},
    }
    for kind, value in values.items():
        assert cursor.execute(f"SELECT ?::{kind}", [value]).fetchone() == (value,), kind
        assert cursor.execute(f"SELECT ?::{kind}", [None]).fetchone() == (None,), kind
    assert cursor.execute("SELECT ?::UUID", [name]).fetchone() == (str(name),)


def test_change_has_rowcount_and_no_result(cursor: dbapi.Cursor) -> None:
    cursor.execute("CREATE TEMP TABLE counted (i INTEGER, s VARCHAR)")
    assert (cursor.description, cursor.rowcount) == (None, -1)
    cursor.execute("INSERT INTO counted VALUES (1, 'a'), (2, 'b')")
    assert (cursor.description, cursor.rowcount) == (None, 2)
    assert cursor.execute("UPDATE counted SET s = 'c' WHERE i > ?", [1]).rowcount == 1
    assert cursor.execute("DELETE FROM counted WHERE i = 99").rowcount == 0
    with pytest.raises(dbapi.ProgrammingError, match="no rows to fetch"):
        cursor.fetchone()
    cursor.close()
    assert cursor.rowcount == 0  # SQLAlchemy reads it after closing the cursor


def test_executemany_sends_one_message(connection: dbapi.Connection) -> None:
    cursor = connection.cursor()
    cursor.execute("CREATE TABLE dbapi_many (i INTEGER, s VARCHAR, d DECIMAL(10,2))")
    rows = [(n, None if n % 2 else str(n), Decimal(n) / 4) for n in range(10_000)]
    cursor.executemany("INSERT INTO dbapi_many VALUES (?, ?, ?)", rows)
    assert cursor.rowcount == 10_000
    assert cursor.execute("FROM dbapi_many ORDER BY i").fetchall() == rows
    cursor.executemany("UPDATE dbapi_many SET s = $s WHERE i = $i", [{"i": 1, "s": "x"}] * 2)
    assert cursor.rowcount == 2
    assert cursor.executemany("DELETE FROM dbapi_many WHERE i = ?", []).rowcount == 0
    cursor.executemany("INSERT INTO dbapi_many DEFAULT VALUES", [(), ()])
    assert cursor.rowcount == 2
    assert cursor.execute("SELECT count(*) FROM dbapi_many").fetchone() == (10_002,)


def test_executemany_is_atomic(connection: dbapi.Connection) -> None:
    connection.autocommit = True
    cursor = connection.cursor()
    cursor.execute("CREATE TABLE dbapi_none (i INTEGER NOT NULL)")
    with pytest.raises(dbapi.IntegrityError):
        cursor.executemany("INSERT INTO dbapi_none VALUES (?)", [(1,), (None,)])
    assert cursor.execute("FROM dbapi_none").fetchall() == []


def test_changes_are_invisible_before_commit(open_connection: Open) -> None:
    writer, reader = open_connection().cursor(), open_connection(autocommit=True).cursor()
    reader.execute("CREATE TABLE dbapi_commit (i INTEGER)")
    writer.execute("INSERT INTO dbapi_commit VALUES (1)")
    assert reader.execute("FROM dbapi_commit").fetchall() == []
    writer.connection.rollback()
    writer.execute("INSERT INTO dbapi_commit VALUES (2)")
    writer.connection.commit()
    assert reader.execute("FROM dbapi_commit").fetchall() == [(2,)]
    for connection in (writer.connection, reader.connection):
        connection.commit()
        connection.rollback()  # does nothing without a transaction


def test_rollback_after_failed_statement(cursor: dbapi.Cursor) -> None:
    cursor.execute("CREATE TEMP TABLE twice (i INTEGER PRIMARY KEY)")
    cursor.connection.commit()
    cursor.execute("INSERT INTO twice VALUES (1)")
    with pytest.raises(dbapi.IntegrityError):
        cursor.execute("INSERT INTO twice VALUES (1)")
    with pytest.raises(dbapi.InternalError, match="ROLLBACK"):
        cursor.execute("SELECT 1")
    cursor.connection.rollback()
    assert cursor.execute("FROM twice").fetchall() == []


def test_autocommit_cannot_change_in_transaction(connection: dbapi.Connection) -> None:
    connection.cursor().execute("SELECT 1")
    with pytest.raises(dbapi.ProgrammingError, match="transaction is open"):
        connection.autocommit = True
    connection.rollback()
    connection.autocommit = True
    connection.cursor().execute("SELECT 1")
    assert not connection.client.in_transaction


def test_block_commits_or_rolls_back_and_closes(open_connection: Open) -> None:
    look = open_connection(autocommit=True).cursor()
    look.execute("CREATE TABLE dbapi_block (i INTEGER)")
    with open_connection() as connection, connection.cursor() as cursor:
        cursor.execute("INSERT INTO dbapi_block VALUES (1)")
    with pytest.raises(dbapi.InterfaceError):
        connection.cursor()

    def fail() -> None:
        with open_connection() as connection:
            connection.cursor().execute("INSERT INTO dbapi_block VALUES (2)")
            raise LookupError

    with pytest.raises(LookupError):
        fail()
    assert look.execute("FROM dbapi_block").fetchall() == [(1,)]


def test_closed_objects_raise(connection: dbapi.Connection) -> None:
    cursor, other = connection.cursor(), connection.cursor()
    cursor.execute("SELECT 1")
    cursor.close()
    cursor.close()
    with pytest.raises(dbapi.InterfaceError):
        cursor.fetchone()
    with pytest.raises(dbapi.InterfaceError):
        cursor.execute("SELECT 1")
    other.execute(ENDLESS_ROWS)
    connection.close()
    connection.close()
    for use in (other.fetchall, connection.cursor, connection.commit, connection.rollback):
        with pytest.raises(dbapi.InterfaceError):
            use()
    other.close()


@pytest.mark.parametrize(
    ("sql", "kind"),
    [
        ("SELEC 1", dbapi.ProgrammingError),
        ("SELECT nowhere", dbapi.ProgrammingError),
        ("FROM nowhere", dbapi.ProgrammingError),
        ("", dbapi.ProgrammingError),
        ("SELECT 'x'::INTEGER", dbapi.DataError),
        ("SELECT 300::TINYINT", dbapi.DataError),
        ("CREATE TABLE dbapi_key (i INTEGER PRIMARY KEY)", dbapi.NotSupportedError),
        ("FROM '/nowhere/at/all.parquet'", dbapi.OperationalError),
    ],
)
def test_errors_have_pep_249_classes(
    cursor: dbapi.Cursor, sql: str, kind: type[dbapi.Error]
) -> None:
    with pytest.raises(kind) as raised:
        cursor.execute(sql)
    assert isinstance(raised.value, dbapi.Error)
    assert raised.value.query_id
    assert not raised.value.retryable


def test_timeout_is_operational_error(open_connection: Open) -> None:
    cursor = open_connection(timeout=0.3).cursor()
    with pytest.raises(dbapi.OperationalError, match="limit"):
        cursor.execute(ENDLESS_QUERY)


def test_missing_server_is_operational_error(start_server: Callable[..., ServerProcess]) -> None:
    server = start_server()
    connection = dbapi.connect(server.url)
    server.kill()
    with pytest.raises(dbapi.OperationalError):
        connection.cursor().execute("SELECT 1")
    connection.close()
    with pytest.raises(dbapi.OperationalError):
        dbapi.connect(server.url, connect_timeout=1)


def test_cancel_from_another_thread_in_dbapi(cursor: dbapi.Cursor) -> None:
    outcome: list[BaseException] = []
    begun = threading.Event()

    def run() -> None:
        cursor.connection.begin()
        begun.set()
        try:
            cursor.execute(ENDLESS_QUERY)
        except dbapi.Error as error:
            outcome.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    begun.wait()
    while thread.is_alive():
        cursor.cancel()
        thread.join(0.01)
    assert isinstance(outcome[0], QueryCancelled)
    assert isinstance(outcome[0], dbapi.OperationalError)
    cursor.connection.rollback()
    assert cursor.execute("SELECT 1").fetchone() == (1,)


def test_rollback_ends_transaction_begun_in_sql(open_connection: Open) -> None:
    """SQLAlchemy's pool rolls back before the next checkout of the connection."""
    connection, other = open_connection(autocommit=True), open_connection(autocommit=True)
    cursor, observer = connection.cursor(), other.cursor()
    cursor.execute("CREATE OR REPLACE TABLE rolled_back (i INTEGER)")
    for _ in range(2):
        cursor.execute("BEGIN")  # refused inside another transaction
        cursor.execute("INSERT INTO rolled_back VALUES (1)")
        connection.rollback()
        connection.rollback()
        assert cursor.execute("FROM rolled_back").fetchall() == []
    cursor.execute("INSERT INTO rolled_back VALUES (2)")
    assert observer.execute("FROM rolled_back").fetchall() == [(2,)]


def test_rollback_without_a_transaction_does_nothing(open_connection: Open) -> None:
    connection, other = open_connection(autocommit=True), open_connection(autocommit=True)
    cursor, observer = connection.cursor(), other.cursor()
    cursor.execute("CREATE OR REPLACE TABLE not_rolled_back AS SELECT 1 AS i")
    # The word makes the client ask the server, which has no transaction to roll back.
    assert cursor.execute("SELECT 'begin'").fetchall() == [("begin",)]
    connection.rollback()
    cursor.execute("INSERT INTO not_rolled_back VALUES (2)")
    found = observer.execute("FROM not_rolled_back ORDER BY i").fetchall()
    assert found == [(1,), (2,)]
