"""Rows of a query: few of them at once, many as they come, and what it fails with."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import duckdb
import pytest

from swanlake.sessions.arriving import ArrivingRows

_MANY = 250_000


@pytest.fixture
def database(tmp_path: Path) -> Iterator[duckdb.DuckDBPyConnection]:
    with duckdb.connect(tmp_path / "database") as connection:
        connection.execute("CREATE TABLE counted AS SELECT 1 AS a")
        yield connection


def counted(database: duckdb.DuckDBPyConnection, query: str, into: str = "count(*)") -> Any:
    """What another connection makes of the rows of a query that are more than ten."""
    database.execute(query)
    with database.cursor() as beside, ArrivingRows(database) as rows:
        assert rows.up_to(10) is None
        beside.register("arriving", rows.reader())
        return beside.execute(f"SELECT {into} FROM arriving").fetchone()


@pytest.mark.parametrize("count", [0, 1, 10])
def test_few_rows_are_there_at_once(database: duckdb.DuckDBPyConnection, count: int) -> None:
    database.execute(f"FROM range({count})")
    with ArrivingRows(database) as rows:
        few = rows.up_to(10)
    assert few is not None
    assert few.column(0).to_pylist() == list(range(count))


@pytest.mark.parametrize("count", [11, _MANY])
def test_many_rows_are_all_read_once(database: duckdb.DuckDBPyConnection, count: int) -> None:
    database.execute("CREATE SEQUENCE asked")
    query = f"SELECT nextval('asked') AS n FROM range({count})"
    assert counted(database, query, "count(*), min(n), max(n)") == (count, 1, count)


@pytest.mark.parametrize(
    ("value", "kind", "words"),
    [
        ("error('NOT NULL')", duckdb.InvalidInputException, "^Invalid Input Error: NOT NULL$"),
        ("('x' || range)::INTEGER", duckdb.Error, "^Conversion Error: Could not convert string"),
    ],
)
@pytest.mark.parametrize("at", [0, _MANY - 1])
def test_the_error_of_the_query_is_the_one(
    database: duckdb.DuckDBPyConnection, value: str, kind: type[Exception], words: str, at: int
) -> None:
    query = f"SELECT CASE WHEN range = {at} THEN {value} ELSE 1 END FROM range({_MANY})"
    with pytest.raises(kind, match=words):
        counted(database, query)


def test_another_error_ends_the_query(database: duckdb.DuckDBPyConnection) -> None:
    with pytest.raises(duckdb.BinderException, match="nothing"):
        counted(database, f"SELECT a FROM counted, range({_MANY})", "nothing")
    with database.cursor() as other:
        other.execute("CREATE OR REPLACE TABLE counted AS SELECT 2 AS a")
        other.execute("CHECKPOINT")  # refused while a transaction is open
