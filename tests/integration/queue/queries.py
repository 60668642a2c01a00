"""Shorthands for statements of the queue tests."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import adbc_driver_flightsql.dbapi as adbc
import adbc_driver_manager
import pytest

from tests.queries import rows
from tests.server_process import ServerProcess

Start = Callable[..., ServerProcess]
Connect = Callable[..., Any]


def count(cursor: Any, table: str) -> int:
    """The number of rows of a table."""
    number: int = rows(cursor, f"SELECT count(*) FROM {table}")[0][0]
    return number


def written(cursor: Any, sql: str, parameters: Any = None) -> int:
    """The number of rows that a change reports."""
    cursor.execute(sql, parameters)
    affected: int = cursor.rowcount
    return affected


def ingested(
    cursor: Any, table: str, data: Any, mode: str = "append", schema: str | None = None
) -> int:
    """Bulk ingestion into the queue, on a new cursor: a cursor remembers its target."""
    with cursor.connection.cursor() as own:
        affected: int = own.adbc_ingest(
            table, data, mode=mode, catalog_name="duckling_queue", db_schema_name=schema
        )
        return affected


def flush(cursor: Any, table: str = "") -> list[dict[str, Any]]:
    """The reports of a flush, per table."""
    cursor.execute(f"CALL duckling_queue_flush({quoted(table) if table else ''})")
    reports: list[dict[str, Any]] = cursor.fetch_arrow_table().to_pylist()
    return reports


def status(cursor: Any, table: str) -> dict[str, Any] | None:
    """The status of a table; None if the queue holds no rows of it."""
    cursor.execute("CALL duckling_queue_status()")
    found = cursor.fetch_arrow_table().to_pylist()
    return next((row for row in found if row["table_name"] == table), None)


def dead_letters(cursor: Any, table: str) -> list[dict[str, Any]]:
    """The dead letters of a table."""
    cursor.execute("CALL duckling_queue_dead_letters()")
    found = cursor.fetch_arrow_table().to_pylist()
    return [row for row in found if row["table_name"] == table]


@contextmanager
def refused(identifier: str, *words: str) -> Iterator[None]:
    """Asserts that the block fails with this identifier and these words, without a traceback."""
    with pytest.raises(adbc_driver_manager.Error, match=f"{identifier}: ") as caught:
        yield
    message = str(caught.value)
    assert "Traceback" not in message
    assert "__duckling_queue" not in message
    for word in words:
        assert word in message


@contextmanager
def cursor_on(server: ServerProcess, **options: str) -> Iterator[Any]:
    """A stock cursor in autocommit mode on a server."""
    with (
        adbc.connect(server.url, db_kwargs=options, autocommit=True) as connection,
        connection.cursor() as cursor,
    ):
        yield cursor


def quoted(text: str) -> str:
    """A string constant."""
    return "'" + text.replace("'", "''") + "'"
