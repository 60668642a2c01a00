"""INSERT into the queue: all forms of the statement and of table names."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from swanlake.lake.lake import Lake
from swanlake.lake.model.types import ColumnSpec
from swanlake.protocol import messages
from tests.flight import FlightSql
from tests.integration.queue.queries import (
    Connect,
    Start,
    count,
    cursor_on,
    flush,
    quoted,
    refused,
    status,
    written,
)
from tests.integration.test_ingest import HOSTILE_NAMES
from tests.queries import rows

FORMS: list[tuple[str, list[tuple[Any, ...]]]] = [
    ("VALUES (1, 'a', 0.5)", [(1, "a", 0.5)]),
    ("VALUES (1, 'a', 0.5), (2, NULL, NULL)", [(1, "a", 0.5), (2, None, None)]),
    ("VALUES (1, 'a', 0.5);", [(1, "a", 0.5)]),
    ("VALUES (1, 'a', 0.5) -- a remark", [(1, "a", 0.5)]),
    ("VALUES (1, 'a', 0.5); -- a remark; with a semicolon", [(1, "a", 0.5)]),
    ("VALUES (1, 'a', 0.5) /* a remark */ ;", [(1, "a", 0.5)]),
    ("(s, i) VALUES ('a', 1)", [(1, "a", None)]),
    ("(i) VALUES (1)", [(1, "unknown", None)]),
    ('("I") VALUES (1)', [(1, "unknown", None)]),
    ("BY NAME SELECT 0.5 AS n, 1 AS i", [(1, "unknown", 0.5)]),
    ("BY POSITION SELECT 1, 'a', 0.5", [(1, "a", 0.5)]),
    ("SELECT 1, 'a', 0.5", [(1, "a", 0.5)]),
    ("(i, n) SELECT range, range / 2 FROM range(2)", [(0, "unknown", 0.0), (1, "unknown", 0.5)]),
    ("FROM (VALUES (1, 'a', 0.5))", [(1, "a", 0.5)]),
    ("(SELECT 1, 'a', 0.5)", [(1, "a", 0.5)]),
    ("(i) (VALUES (1))", [(1, "unknown", None)]),
    ("(i) WITH one AS (SELECT 1 AS i) SELECT i FROM one", [(1, "unknown", None)]),
    ("AS alias VALUES (1, 'a', 0.5)", [(1, "a", 0.5)]),
    ("VALUES (1, DEFAULT, DEFAULT)", [(1, "unknown", None)]),
    ("DEFAULT VALUES", [(None, "unknown", None)]),
    ("(i, s) VALUES (1 + 1, upper('a') || lower('B'))", [(2, "Ab", None)]),
    ("(i) VALUES ((SELECT max(range) FROM range(5)))", [(4, "unknown", None)]),
    ("(i, s) VALUES ('1', 1.5)", [(1, "1.5", None)]),
    ("(i) SELECT 1 WHERE false", []),
    ("(s) VALUES ('__duckling_queue_staging_0')", [(None, "__duckling_queue_staging_0", None)]),
    ("(s) VALUES ('__duckling_queue_rows_9')", [(None, "__duckling_queue_rows_9", None)]),
    ("(s) VALUES ('FROM duckling_queue.nowhere')", [(None, "FROM duckling_queue.nowhere", None)]),
    ("(s) VALUES ('it''s; \"quoted\" 🦢')", [(None, 'it\'s; "quoted" 🦢', None)]),
]


@pytest.fixture
def swans(cursor: Any, name: str) -> str:
    cursor.execute(f"CREATE TABLE {name} (i INTEGER, s VARCHAR DEFAULT 'unknown', n DOUBLE)")
    return name


def test_all_forms_of_insert_reach_the_table(cursor: Any, swans: str) -> None:
    everything: list[Any] = []
    for form, expected in FORMS:
        affected = written(cursor, f"INSERT INTO duckling_queue.{swans} {form}")
        assert (form, affected) == (form, len(expected))
        everything += expected
        kept = rows(cursor, f"FROM duckling_queue.{swans}")
        assert (form, kept) == (form, everything)
    assert count(cursor, swans) == 0
    flush(cursor, swans)
    assert count(cursor, f"duckling_queue.{swans}") == 0
    reached = f"FROM {swans} ORDER BY ALL"
    assert rows(cursor, reached) == sorted(everything, key=_with_nulls_last)


def _with_nulls_last(row: tuple[Any, ...]) -> list[tuple[bool, Any]]:
    return [(value is None, value) for value in row]


def test_with_before_the_insert(cursor: Any, swans: str) -> None:
    statement = f"WITH two AS (FROM range(2)) INSERT INTO duckling_queue.{swans} (i) FROM two"
    assert written(cursor, statement) == 2
    assert rows(cursor, f"SELECT i FROM duckling_queue.{swans}") == [(0,), (1,)]


@pytest.mark.parametrize(
    "form",
    [
        "INSERT INTO duckling_queue.{t} (i) SELECT i + 1 FROM duckling_queue.{t}",
        "WITH old AS (FROM duckling_queue.{t}) INSERT INTO duckling_queue.{t} (i) "
        "SELECT i + 1 FROM old",
        "INSERT INTO duckling_queue.{t} (i) WITH old AS (FROM duckling_queue.{t}) "
        "SELECT i + 1 FROM old",
    ],
)
def test_insert_can_select_from_the_queue(cursor: Any, swans: str, form: str) -> None:
    cursor.execute(f"INSERT INTO duckling_queue.{swans} (i) VALUES (1)")
    assert written(cursor, form.format(t=swans)) == 1
    assert rows(cursor, f"SELECT i FROM duckling_queue.{swans} ORDER BY i") == [(1,), (2,)]


def test_rows_of_the_lake_can_be_queued(cursor: Any, swans: str) -> None:
    cursor.execute(f"INSERT INTO {swans} (i) VALUES (1), (2)")
    assert written(cursor, f"INSERT INTO duckling_queue.{swans} FROM {swans}") == 2
    assert written(cursor, f"INSERT INTO duckling_queue.{swans} TABLE {swans}") == 2


def test_temporary_tables_and_files_can_be_queued(cursor: Any, swans: str, tmp_path: Path) -> None:
    cursor.execute("CREATE TEMP TABLE mine AS SELECT 1 AS i")
    cursor.execute(f"COPY (SELECT 2 AS i) TO {quoted(str(tmp_path / 'swans.parquet'))}")
    assert written(cursor, f"INSERT INTO duckling_queue.{swans} (i) FROM mine") == 1
    file = quoted(str(tmp_path / "swans.parquet"))
    assert written(cursor, f"INSERT INTO duckling_queue.{swans} (i) FROM {file}") == 1
    assert rows(cursor, f"SELECT i FROM duckling_queue.{swans} ORDER BY i") == [(1,), (2,)]


def test_volatile_functions_are_evaluated_at_enqueue(cursor: Any, name: str) -> None:
    cursor.execute(f"CREATE TABLE {name} (t TIMESTAMPTZ DEFAULT now(), id UUID)")
    [(before,)] = rows(cursor, "SELECT now()")
    cursor.execute(f"INSERT INTO duckling_queue.{name} (id) SELECT uuid() FROM range(3)")
    cursor.execute(f"INSERT INTO duckling_queue.{name} VALUES (now(), uuid())")
    [(after,)] = rows(cursor, "SELECT now()")
    kept = rows(cursor, f"FROM duckling_queue.{name} ORDER BY ALL")
    assert len({id_ for _, id_ in kept}) == 4
    assert all(isinstance(at, datetime) and before <= at <= after for at, _ in kept)
    flush(cursor, name)
    assert rows(cursor, f"FROM {name} ORDER BY ALL") == kept


def test_sequence_advances_once_per_row(cursor: Any, swans: str) -> None:
    cursor.execute(f"CREATE SEQUENCE memory.main.seq_{swans}")
    cursor.execute(
        f"INSERT INTO duckling_queue.{swans} (i) SELECT nextval('memory.main.seq_{swans}') "
        "FROM range(3)"
    )
    assert rows(cursor, f"SELECT i FROM duckling_queue.{swans}") == [(1,), (2,), (3,)]
    assert rows(cursor, f"SELECT nextval('memory.main.seq_{swans}')") == [(4,)]


def test_insert_of_megabytes_of_text(cursor: Any, swans: str) -> None:
    values = ", ".join(f"({i}, 'row number {i}', {i}.5)" for i in range(50_000))
    assert written(cursor, f"INSERT INTO duckling_queue.{swans} VALUES {values}") == 50_000
    assert flush(cursor, swans)
    sql = f"SELECT count(DISTINCT i), count(DISTINCT s), sum(n)::BIGINT FROM {swans}"
    assert rows(cursor, sql) == [(50_000, 50_000, sum(range(50_000)) + 25_000)]


def test_insert_larger_than_the_buffer(cursor: Any, swans: str) -> None:
    statement = (
        f"INSERT INTO duckling_queue.{swans} SELECT range, 's' || range, 0 FROM range(1000000)"
    )
    assert written(cursor, statement) == 1_000_000
    flush(cursor, swans)
    assert rows(cursor, f"SELECT count(DISTINCT i) FROM {swans}") == [(1_000_000,)]


def test_several_statements_in_one_text(cursor: Any, swans: str) -> None:
    text = f"INSERT INTO duckling_queue.{swans} (i) VALUES "
    assert written(cursor, f"{text} (1); {text} (2), (3)") == 2
    assert rows(cursor, f"SELECT i FROM duckling_queue.{swans}") == [(1,), (2,), (3,)]


# ---- names ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "written_as", ["DUCKLING_QUEUE.{}", '"duckling_queue"."{}"', "Duckling_Queue . {}"]
)
def test_names_are_case_insensitive(cursor: Any, swans: str, written_as: str) -> None:
    table = written_as.format(swans.upper())
    assert written(cursor, f"INSERT INTO {table} (i) VALUES (1)") == 1
    assert rows(cursor, f"SELECT i FROM {table}") == [(1,)]
    flush(cursor, swans.upper())
    assert count(cursor, swans) == 1


@pytest.mark.parametrize(
    "hostile", [*HOSTILE_NAMES, "dot.", '"', "back\\slash", "per%20cent", "n" * 200]
)
def test_hostile_names(cursor: Any, name: str, hostile: str) -> None:
    cursor.execute(f"CREATE SCHEMA {name}")
    quoted_name = '"' + hostile.replace('"', '""') + '"'
    table = f"{name}.{quoted_name}"
    cursor.execute(f"CREATE TABLE {table} ({quoted_name} INTEGER, other INTEGER DEFAULT 7)")
    assert written(cursor, f"INSERT INTO duckling_queue.{table} ({quoted_name}) VALUES (1)") == 1
    assert written(cursor, f"INSERT INTO duckling_queue.{table} VALUES (?, ?)", (2, 8)) == 1
    assert rows(cursor, f"FROM duckling_queue.{table} ORDER BY ALL") == [(1, 7), (2, 8)]
    [report] = flush(cursor, table)
    assert (report["table_name"], report["rows"]) == (hostile, 2)
    assert rows(cursor, f"FROM {table} ORDER BY ALL") == [(1, 7), (2, 8)]


def test_names_with_similar_paths_stay_apart(cursor: Any, name: str) -> None:
    tables = [f'"{name}.a"', f'"{name}%2Ea"', f'"{"x" * 120}1{name}"', f'"{"x" * 120}2{name}"']
    for number, table in enumerate(tables):
        cursor.execute(f"CREATE TABLE {table} (i INTEGER)")
        cursor.execute(f"INSERT INTO duckling_queue.{table} VALUES ({number})")
    flush(cursor)
    assert [rows(cursor, f"FROM {table}") for table in tables] == [[(0,)], [(1,)], [(2,)], [(3,)]]


# ---- where the rows go ---------------------------------------------------------------------------


def test_schema_by_name_or_by_use(cursor: Any, name: str) -> None:
    cursor.execute(f"CREATE SCHEMA pond_{name}")
    cursor.execute(f"CREATE TABLE pond_{name}.{name} (i INTEGER)")
    cursor.execute(f"CREATE TABLE {name} (i INTEGER)")
    cursor.execute(f"INSERT INTO duckling_queue.pond_{name}.{name} VALUES (1)")
    cursor.execute(f"USE swanlake.pond_{name}")
    cursor.execute(f"INSERT INTO duckling_queue.{name} VALUES (2)")
    cursor.execute(f"INSERT INTO duckling_queue.main.{name} VALUES (3)")
    assert rows(cursor, f"FROM duckling_queue.{name} ORDER BY i") == [(1,), (2,)]
    flush(cursor, name)
    assert rows(cursor, f"FROM swanlake.pond_{name}.{name} ORDER BY i") == [(1,), (2,)]
    assert rows(cursor, f"FROM swanlake.main.{name}") == [(3,)]


def test_insert_uses_the_catalog_of_the_session(
    connect: Connect, cursor: Any, flight_sql: Callable[..., FlightSql], name: str
) -> None:
    cursor.execute(f"CALL swanlake_create_catalog('{name}')")
    for place in (f"{name}.main", "swanlake.main"):
        cursor.execute(f"CREATE TABLE {place}.{name} (i INTEGER)")
    cursor.execute(f"INSERT INTO duckling_queue.{name} VALUES (1)")
    cursor.execute(f"USE {name}")
    cursor.execute(f"INSERT INTO duckling_queue.{name} VALUES (2)")
    by_driver = connect()
    by_driver.adbc_current_catalog = name
    with by_driver.cursor() as elsewhere:
        elsewhere.execute(f"INSERT INTO duckling_queue.{name} VALUES (3)")
    by_option = flight_sql()
    request = messages.SetSessionOptionsRequest()
    request.session_options["catalog"].string_value = name
    by_option.action("SetSessionOptions", request, bare=True)
    by_option.execute(f"INSERT INTO duckling_queue.{name} VALUES (4)")
    assert rows(cursor, f"FROM duckling_queue.{name} ORDER BY i") == [(2,), (3,), (4,)]
    assert len(flush(cursor, name)) == 2
    assert rows(cursor, f"FROM {name}.main.{name} ORDER BY i") == [(2,), (3,), (4,)]
    assert rows(cursor, f"FROM swanlake.main.{name}") == [(1,)]


def test_use_before_insert_changes_the_target(cursor: Any, name: str) -> None:
    cursor.execute(f"CALL swanlake_create_catalog('{name}')")
    for place in (f"{name}.main", "swanlake.main"):
        cursor.execute(f"CREATE TABLE {place}.{name} (i INTEGER)")
    cursor.execute(f"USE {name}; INSERT INTO duckling_queue.{name} VALUES (1)")
    flush(cursor, name)
    assert rows(cursor, f"FROM {name}.main.{name}") == [(1,)]


def test_create_and_insert_in_one_text(cursor: Any, name: str) -> None:
    text = f"CREATE TABLE {name} (i INTEGER); INSERT INTO duckling_queue.{name} VALUES (1)"
    assert written(cursor, text) == 1


def test_default_target_catalog_outside_the_lake(cursor: Any, swans: str) -> None:
    cursor.execute("USE memory")
    assert written(cursor, f"INSERT INTO duckling_queue.{swans} (i) VALUES (1)") == 1
    assert rows(cursor, f"SELECT i FROM duckling_queue.{swans}") == [(1,)]
    flush(cursor, swans)
    assert count(cursor, f"swanlake.main.{swans}") == 1


def test_target_catalog_setting(start_server: Start, tmp_path: Path) -> None:
    home = tmp_path / "home"
    with Lake.open(home / "catalogs", home / "data") as lake:
        lake.create_catalog("sales").create_table("main", "orders", [ColumnSpec("i", "INTEGER")])
    server = start_server(home=home, DUCKLING_QUEUE_TARGET_CATALOG="sales")
    with cursor_on(server) as cursor:  # of a server that has not met the catalog yet
        cursor.execute("USE memory")
        assert written(cursor, "INSERT INTO duckling_queue.orders VALUES (1)") == 1
        assert rows(cursor, "FROM duckling_queue.orders") == [(1,)]
        [report] = flush(cursor)
        assert (report["catalog_name"], report["rows"]) == ("sales", 1)
        assert rows(cursor, "FROM sales.main.orders") == [(1,)]
        cursor.execute("USE swanlake")
        with refused("TABLE_NOT_FOUND", "orders"):
            cursor.execute("INSERT INTO duckling_queue.orders VALUES (1)")


def test_rows_stay_queued_until_flushed(cursor: Any, swans: str) -> None:
    cursor.execute(f"INSERT INTO duckling_queue.{swans} (i) VALUES (1), (2)")
    cursor.execute(f"INSERT INTO duckling_queue.{swans} (i) VALUES (3)")
    found = status(cursor, swans)
    assert found is not None
    assert (found["state"], found["rows"], found["segments"]) == ("open", 3, 1)
    flush(cursor, swans)
    assert status(cursor, swans) is None
