"""PeekableReader gives few rows as a table, many as a stream, and the query's errors."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import duckdb
import pytest

from swanlake.sessions.native.peekable_reader import PeekableReader

_MANY = 250_000


@pytest.fixture
def database(tmp_path: Path) -> Iterator[duckdb.DuckDBPyConnection]:
    with duckdb.connect(tmp_path / "database") as connection:
        connection.execute("CREATE TABLE counted AS SELECT 1 AS a")
        yield connection


def counted(database: duckdb.DuckDBPyConnection, query: str, into: str = "count(*)") -> Any:
    """The aggregate that another connection computes over a query of more than ten rows."""
    database.execute(query)
    with database.cursor() as consumer, PeekableReader(database) as rows:
        assert rows.up_to(10) is None
        consumer.register("streamed", rows.reader())
        return consumer.execute(f"SELECT {into} FROM streamed").fetchone()


@pytest.mark.parametrize("count", [0, 1, 10])
def test_few_rows_are_returned_as_a_table(database: duckdb.DuckDBPyConnection, count: int) -> None:
    database.execute(f"FROM range({count})")
    with PeekableReader(database) as rows:
        few = rows.up_to(10)
    assert few is not None
    assert few.column(0).to_pylist() == list(range(count))


@pytest.mark.parametrize("count", [11, _MANY])
def test_many_rows_are_each_read_once(database: duckdb.DuckDBPyConnection, count: int) -> None:
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
def test_error_of_the_query_is_raised(
    database: duckdb.DuckDBPyConnection, value: str, kind: type[Exception], words: str, at: int
) -> None:
    query = f"SELECT CASE WHEN range = {at} THEN {value} ELSE 1 END FROM range({_MANY})"
    with pytest.raises(kind, match=words):
        counted(database, query)


def test_error_of_the_consumer_ends_the_query(database: duckdb.DuckDBPyConnection) -> None:
    with pytest.raises(duckdb.BinderException, match="nothing"):
        counted(database, f"SELECT a FROM counted, range({_MANY})", "nothing")
    with database.cursor() as other:
        other.execute("CREATE OR REPLACE TABLE counted AS SELECT 2 AS a")
        other.execute("CHECKPOINT")  # refused while a transaction is open
