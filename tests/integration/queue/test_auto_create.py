"""Tables that are created by their first rows, if the settings allow it."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pyarrow as pa
import pytest

from tests.integration.queue.queries import count, cursor_on, flush, ingested, refused, written
from tests.queries import rows
from tests.server_process import ServerProcess


@pytest.fixture(scope="module")
def generous(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A server that creates missing tables."""
    home = tmp_path_factory.mktemp("generous") / "home"
    with ServerProcess(home, SWANLAKE_DUCKLING_QUEUE_AUTO_CREATE_TABLES="true") as server:
        yield server


@pytest.fixture
def cursor(generous: ServerProcess) -> Iterator[Any]:
    with cursor_on(generous) as cursor:
        yield cursor


def columns(cursor: Any, table: str) -> list[tuple[str, str]]:
    return [row[:2] for row in rows(cursor, f"DESCRIBE {table}")]


@pytest.mark.parametrize(
    ("form", "made", "kept"),
    [
        ("(i, s) VALUES (1, 'a'), (2, NULL)", [("i", "INTEGER"), ("s", "VARCHAR")],
         [(1, "a"), (2, None)]),
        ("VALUES (1, 'a')", [("col0", "INTEGER"), ("col1", "VARCHAR")], [(1, "a")]),
        ("SELECT 1::UTINYINT AS i, [1.5] AS l", [("i", "UTINYINT"), ("l", "DECIMAL(2,1)[]")],
         [(1, [1.5])]),
        ("(a) SELECT range AS b FROM range(2)", [("a", "BIGINT")], [(0,), (1,)]),
        ("BY NAME SELECT true AS yes", [("yes", "BOOLEAN")], [(True,)]),
        ("FROM (SELECT 'x' AS s);", [("s", "VARCHAR")], [("x",)]),
        ("WITH one AS (SELECT 1 AS i) FROM one", [("i", "INTEGER")], [(1,)]),
        ('("a.b", "q""r") VALUES (1, 2)', [("a.b", "INTEGER"), ('q"r', "INTEGER")], [(1, 2)]),
    ],
)  # fmt: skip
def test_insert_creates_its_table(
    cursor: Any, name: str, form: str, made: list[Any], kept: list[Any]
) -> None:
    assert written(cursor, f"INSERT INTO duckling_queue.{name} {form}") == len(kept)
    assert columns(cursor, name) == made
    assert count(cursor, name) == 0
    assert rows(cursor, f"FROM duckling_queue.{name}") == kept
    assert written(cursor, f"INSERT INTO duckling_queue.{name} {form}") == len(kept)
    flush(cursor, name)
    assert rows(cursor, f"FROM {name} ORDER BY ALL") == sorted(kept * 2, key=str)


def test_insert_after_with_creates_its_table(cursor: Any, name: str) -> None:
    sql = f"WITH one AS (SELECT 1 AS i) INSERT INTO duckling_queue.{name} FROM one"
    assert written(cursor, sql) == 1
    assert columns(cursor, name) == [("i", "INTEGER")]


def test_insert_from_the_queue_creates_a_table(cursor: Any, name: str) -> None:
    cursor.execute(f"INSERT INTO duckling_queue.{name} (i, s) VALUES (1, 'a')")
    copied = f"INSERT INTO duckling_queue.{name}_copy FROM duckling_queue.{name}"
    assert written(cursor, copied) == 1
    assert columns(cursor, f"{name}_copy") == [("i", "INTEGER"), ("s", "VARCHAR")]


def test_prepared_insert_creates_its_table_on_execution(cursor: Any, name: str) -> None:
    sql = f"INSERT INTO duckling_queue.{name} (i, s) VALUES (?, ?)"
    cursor.executemany(sql, [(1, "a"), (2, "b")])
    assert cursor.rowcount == 2
    assert columns(cursor, name) == [("i", "BIGINT"), ("s", "VARCHAR")]
    assert written(cursor, sql, (3, "c")) == 1
    assert rows(cursor, f"FROM duckling_queue.{name}") == [(1, "a"), (2, "b"), (3, "c")]


def test_single_bound_row_creates_the_table(cursor: Any, name: str) -> None:
    assert written(cursor, f"INSERT INTO duckling_queue.{name} (i, n) VALUES (?, ?)", (1, 0.5)) == 1
    assert columns(cursor, name) == [("i", "BIGINT"), ("n", "DOUBLE")]


def test_ingestion_creates_its_table_from_the_arrow_schema(cursor: Any, name: str) -> None:
    data = pa.table(
        {
            "d": pa.array([None], pa.date32()),
            "l": [[{"a": 1}]],
            "t": pa.array([0], pa.timestamp("us", "UTC")),
        }
    )
    assert ingested(cursor, name, data) == 1
    assert columns(cursor, name) == [
        ("d", "DATE"),
        ("l", "STRUCT(a BIGINT)[]"),
        ("t", "TIMESTAMP WITH TIME ZONE"),
    ]
    flush(cursor, name)
    cursor.execute(f"FROM {name}")
    assert cursor.fetch_arrow_table().to_pylist() == data.to_pylist()


def test_failed_insert_creates_no_table(cursor: Any, name: str) -> None:
    with refused("INVALID_REQUEST", "2 columns", "has 1"):
        cursor.execute(f"INSERT INTO duckling_queue.{name} (a, b) VALUES (1)")
    with refused("BINDER_ERROR|CATALOG_ERROR"):
        cursor.execute(f"INSERT INTO duckling_queue.{name} FROM nowhere")
    with refused("TABLE_NOT_FOUND"):
        cursor.execute(f"FROM duckling_queue.{name}")
    assert rows(cursor, f"FROM duckdb_tables() WHERE table_name = '{name}'") == []


def test_concurrent_first_inserts_create_one_table(
    cursor: Any, generous: ServerProcess, name: str
) -> None:
    def insert(number: int) -> int:
        with cursor_on(generous) as own:
            return written(own, f"INSERT INTO duckling_queue.{name} (i) VALUES ({number})")

    with ThreadPoolExecutor(8) as pool:
        assert sum(pool.map(insert, range(8))) == 8
    flush(cursor, name)
    assert rows(cursor, f"FROM {name} ORDER BY i") == [(i,) for i in range(8)]
