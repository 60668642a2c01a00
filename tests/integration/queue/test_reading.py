"""SELECT from the queue: rows that are not in the lake yet, each visible exactly once."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pyarrow as pa
import pytest

from swanlake.protocol import messages
from tests.flight import FlightSql
from tests.integration.queue.queries import Connect, count, cursor_on, flush, quoted, written
from tests.queries import rows
from tests.server_process import ServerProcess


@pytest.fixture
def swans(cursor: Any, name: str) -> str:
    """A table with one row in the lake and two in the queue."""
    cursor.execute(f"CREATE TABLE {name} (i INTEGER, s VARCHAR)")
    cursor.execute(f"INSERT INTO {name} VALUES (1, 'lake')")
    cursor.execute(f"INSERT INTO duckling_queue.{name} VALUES (2, 'queue'), (3, 'queue')")
    return name


QUERIES: list[tuple[str, list[tuple[Any, ...]]]] = [
    ("FROM duckling_queue.{t}", [(2, "queue"), (3, "queue")]),
    ("SELECT {t}.i FROM duckling_queue.{t}", [(2,), (3,)]),
    ("SELECT duckling_queue.{t}.i FROM duckling_queue.{t}", [(2,), (3,)]),
    ("SELECT duckling_queue.main.{t}.i FROM duckling_queue.main.{t}", [(2,), (3,)]),
    ("SELECT q.i FROM duckling_queue.{t} AS q WHERE q.s = 'queue'", [(2,), (3,)]),
    ("SELECT q.a FROM duckling_queue.{t} q(a, b)", [(2,), (3,)]),
    ("SELECT * EXCLUDE s FROM duckling_queue.{t}", [(2,), (3,)]),
    ("SELECT {t}.* FROM duckling_queue.{t}", [(2, "queue"), (3, "queue")]),
    ("SELECT COLUMNS('i') FROM duckling_queue.{t}", [(2,), (3,)]),
    ("SELECT a.i, b.i FROM duckling_queue.{t} a JOIN duckling_queue.{t} b ON a.i < b.i", [(2, 3)]),
    ("SELECT q.i, l.i FROM duckling_queue.{t} q LEFT JOIN {t} l USING (i)", [(2, None), (3, None)]),
    ("SELECT a.i FROM {t} AS a, duckling_queue.{t} AS b WHERE b.i = a.i + 1", [(1,)]),
    ("FROM {t} UNION ALL FROM duckling_queue.{t}", [(1, "lake"), (2, "queue"), (3, "queue")]),
    ("SELECT i FROM {t} WHERE i + 1 IN (SELECT i FROM duckling_queue.{t})", [(1,)]),
    ("SELECT i FROM {t} WHERE EXISTS (FROM duckling_queue.{t} q WHERE q.i = {t}.i + 2)", [(1,)]),
    ("SELECT (SELECT max(i) FROM duckling_queue.{t})", [(3,)]),
    ("WITH q AS (FROM duckling_queue.{t}) SELECT a.i, b.i FROM q a, q b WHERE a.i > b.i", [(3, 2)]),
    ("WITH q AS MATERIALIZED (FROM duckling_queue.{t}) SELECT count(*) FROM q, q AS r", [(4,)]),
    ("SELECT s, count(*), sum(i)::INTEGER FROM duckling_queue.{t} GROUP BY s", [("queue", 2, 5)]),
    ("SELECT i, row_number() OVER (ORDER BY i DESC) FROM duckling_queue.{t}", [(2, 2), (3, 1)]),
    ("FROM duckling_queue.{t} ORDER BY i DESC LIMIT 1", [(3, "queue")]),
    ("TABLE duckling_queue.{t}", [(2, "queue"), (3, "queue")]),
    ("SELECT i FROM (SELECT * FROM duckling_queue.{t}) WHERE i > 2", [(3,)]),
    ("SELECT 'duckling_queue.{t}' AS text, 1 AS duckling_queue", [("duckling_queue.{t}", 1)]),
    ('SELECT "{t}".i FROM "DUCKLING_QUEUE"."{t}" -- duckling_queue.nowhere', [(2,), (3,)]),
]  # fmt: skip


def test_queries_of_every_kind(cursor: Any, swans: str) -> None:
    for query, expected in QUERIES:
        found = sorted(rows(cursor, query.format(t=swans)), key=str)
        assert (query, found) == (query, _named(expected, swans))


def _named(expected: list[tuple[Any, ...]], table: str) -> list[tuple[Any, ...]]:
    named = [
        tuple(value.format(t=table) if isinstance(value, str) else value for value in row)
        for row in expected
    ]
    return sorted(named, key=str)


def test_prepared_queries(flight_sql: Callable[..., FlightSql], cursor: Any, swans: str) -> None:
    sql = f"SELECT i FROM duckling_queue.{swans} WHERE i > ? ORDER BY i"
    assert rows(cursor, sql, (2,)) == [(3,)]
    cursor.execute(f"INSERT INTO duckling_queue.{swans} VALUES (4, 'later')")
    client = flight_sql()
    request = messages.ActionCreatePreparedStatementRequest(
        query=f"FROM duckling_queue.{swans} ORDER BY i"
    )
    handle = client.action_result("CreatePreparedStatement", request).prepared_statement_handle
    command = messages.CommandPreparedStatementQuery(prepared_statement_handle=handle)
    for expected in ([2, 3, 4], []):
        assert client.fetch(client.info(command)).read_all()["i"].to_pylist() == expected
        flush(cursor, swans)


def test_queue_has_the_columns_of_the_table(cursor: Any, swans: str) -> None:
    described = [row[:2] for row in rows(cursor, f"DESCRIBE duckling_queue.{swans}")]
    assert described == [row[:2] for row in rows(cursor, f"DESCRIBE {swans}")]
    cursor.execute(f"FROM {swans} LIMIT 0")
    expected = cursor.fetch_arrow_table().schema
    for where in ("", "WHERE false"):
        cursor.execute(f"FROM duckling_queue.{swans} {where}")
        assert cursor.fetch_arrow_table().schema == expected
    assert cursor.adbc_prepare(f"FROM duckling_queue.{swans} WHERE i = ?") is not None
    assert len(rows(cursor, f"SUMMARIZE duckling_queue.{swans}")) == 2
    assert rows(cursor, f"EXPLAIN FROM duckling_queue.{swans}")


def test_queued_rows_can_be_inserted_elsewhere(cursor: Any, swans: str, tmp_path: Any) -> None:
    queued = f"duckling_queue.{swans}"
    assert written(cursor, f"CREATE TABLE {swans}_copy AS FROM {queued}") == 2
    assert written(cursor, f"CREATE TEMP TABLE mine AS FROM {queued}") == 2
    assert written(cursor, f"INSERT INTO {swans}_copy FROM {queued} WHERE i = 3") == 1
    assert written(cursor, f"COPY {queued} TO {quoted(str(tmp_path / 'a.csv'))}") == 2
    assert written(cursor, f"COPY (FROM {queued}) TO {quoted(str(tmp_path / 'b.csv'))}") == 2
    sql = f"UPDATE {swans} SET s = 'seen' WHERE i + 1 IN (SELECT i FROM {queued})"
    assert written(cursor, sql) == 1
    assert written(cursor, f"DELETE FROM {swans}_copy USING {queued} q WHERE q.i = 3") == 3
    merge = f"MERGE INTO {swans} USING {queued} q ON {swans}.i = q.i"
    assert written(cursor, f"{merge} WHEN NOT MATCHED THEN INSERT BY NAME") == 2
    assert rows(cursor, f"FROM {swans} ORDER BY i") == [(1, "seen"), (2, "queue"), (3, "queue")]
    assert count(cursor, queued) == 2


def test_transaction_reads_the_current_queue(connect: Connect, cursor: Any, swans: str) -> None:
    both = f"SELECT count(*) FROM (FROM {swans} UNION ALL FROM duckling_queue.{swans})"
    connection = connect(autocommit=False)
    with connection.cursor() as inside:
        assert rows(inside, both) == [(3,)]
        flush(cursor, swans)  # which this transaction does not see in the lake
        assert rows(inside, f"SELECT count(*) FROM {swans}") == [(1,)]
        connection.rollback()
        assert rows(inside, both) == [(3,)]
        assert rows(inside, f"SELECT count(*) FROM {swans}") == [(3,)]
        connection.commit()


def test_flush_during_a_transaction_hides_no_row(connect: Connect, cursor: Any, swans: str) -> None:
    both = f"SELECT count(*) FROM (FROM {swans} UNION ALL FROM duckling_queue.{swans})"
    connection = connect(autocommit=False)
    with connection.cursor() as inside:
        assert rows(inside, both) == [(3,)]
        flush(cursor, swans)
        found = rows(inside, both)
        connection.rollback()
    assert found == [(3,)]


def test_late_fetched_result_is_complete(
    flight_sql: Callable[..., FlightSql], cursor: Any, name: str
) -> None:
    cursor.execute(f"CREATE TABLE {name} (i INTEGER)")
    client = flight_sql()
    rows(cursor, "CALL duckling_queue_pause()")  # so many rows are flushed at once otherwise
    try:
        cursor.execute(f"INSERT INTO duckling_queue.{name} FROM range(300000)")
        info = client.execute(f"FROM duckling_queue.{name}")
    finally:
        rows(cursor, "CALL duckling_queue_resume()")
    flush(cursor, name)
    numbers = client.fetch(info).read_all()["i"]
    assert pa.compute.count_distinct(numbers).as_py() == 300_000


def test_row_is_visible_once_during_a_flush(server: ServerProcess, cursor: Any, name: str) -> None:
    """Under constant inserts and flushes, the union never misses or duplicates a row."""
    cursor.execute(f"CREATE TABLE {name} (i INTEGER)")
    inserts, done = 150, threading.Event()
    acknowledged = looks = 0

    def insert() -> None:
        nonlocal acknowledged
        try:
            with cursor_on(server) as own:
                while acknowledged < inserts or looks < 2:
                    own.execute(f"INSERT INTO duckling_queue.{name} VALUES ({acknowledged})")
                    acknowledged += 1
        finally:
            done.set()

    def flush_on() -> None:
        with cursor_on(server) as own:
            while not done.is_set():
                flush(own, name)

    union = f"SELECT i FROM {name} UNION ALL SELECT i FROM duckling_queue.{name}"
    with ThreadPoolExecutor(2) as pool:
        work = [pool.submit(insert), pool.submit(flush_on)]
        while not done.is_set():
            at_least = acknowledged
            found = [i for (i,) in rows(cursor, union)]
            at_most = acknowledged + 1  # one may be kept whose answer is still on its way
            assert sorted(found) == list(range(len(found)))
            assert at_least <= len(found) <= at_most
            looks += 1
        for one in work:
            one.result()
    flush(cursor, name)
    stored = rows(cursor, f"SELECT count(*), count(DISTINCT i) FROM {name}")
    assert stored == [(acknowledged, acknowledged)]
