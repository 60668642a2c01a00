"""A description is kept until something that it depends on may have changed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext
from types import SimpleNamespace
from typing import Any

import duckdb
import pyarrow as pa
import pytest

from swanlake.errors import CatalogUnreachable, NotFound
from swanlake.lake.model.layout import Column, Table
from swanlake.sessions.execution.descriptions import (
    Description,
    DescriptionCache,
    InsertedParameters,
)
from swanlake.sessions.native.analysis import StatementAnalysis
from swanlake.sql.statement import Statement, parse
from tests.unit.queue.samples import layout

DESCRIPTION = Description(pa.schema([("a", pa.int64())]), pa.schema([]))


class FakeLake:
    """A session of a lake with one table; in place of the metadata it has attributes."""

    def __init__(self, connection: duckdb.DuckDBPyConnection) -> None:
        self.table: Table | None = layout(Column(1, "a", "int64"))
        self.has_macros_now = False
        self.is_reachable = True
        self.settings_version = (0, 0)
        self.engine = SimpleNamespace(scratch_connection=lambda: nullcontext(connection))
        self.names = SimpleNamespace(
            resolve_table=lambda parts: None if parts[0] == "temp" else ("lake", "main", parts[-1]),
            macro_catalog=lambda: "lake",
        )
        self.services = SimpleNamespace(queue=SimpleNamespace(table_cache=self))

    def find(self, catalog: str, schema: str, name: str) -> Any:
        if not self.is_reachable:
            raise CatalogUnreachable("no metadata")
        if self.table is None or name != "t":
            raise NotFound(name)
        return SimpleNamespace(layout=self.table)

    def has_macros(self, catalog: str) -> bool:
        return self.has_macros_now


@pytest.fixture
def connection() -> Iterator[duckdb.DuckDBPyConnection]:
    with duckdb.connect() as connection:
        yield connection


@pytest.fixture
def lake(connection: duckdb.DuckDBPyConnection) -> Any:
    return FakeLake(connection)


@pytest.fixture
def cache(lake: Any) -> DescriptionCache:
    return DescriptionCache(lake, StatementAnalysis(lake))


def statement(connection: duckdb.DuckDBPyConnection, sql: str) -> Statement:
    [parsed] = parse(connection, sql)
    return parsed


@pytest.mark.parametrize(
    "sql",
    ["SELECT 42", "SELECT ? + 1, ?", "SELECT a FROM t WHERE a = ?", "SELECT count(*) FROM t x;"],
)
def test_plain_query_is_described_once(
    connection: duckdb.DuckDBPyConnection, cache: DescriptionCache, sql: str
) -> None:
    query = statement(connection, sql)
    assert cache.get(query) is None
    cache.put(query, DESCRIPTION)
    assert cache.get(statement(connection, query.text)) is DESCRIPTION


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT now()",
        "SELECT * FROM range(3)",
        "SELECT a FROM missing",
        "SELECT a FROM temp.t",
        "SELECT current_user",
        "SELECT b FROM t",
        "SELECT getvariable('x')",
        "SELECT 'a'::mood",
    ],
)
def test_query_that_depends_on_more_is_not_kept(
    connection: duckdb.DuckDBPyConnection, cache: DescriptionCache, sql: str
) -> None:
    query = statement(connection, sql)
    cache.put(query, DESCRIPTION)
    assert cache.get(query) is None


@pytest.mark.parametrize(
    "change",
    [
        {"table": layout(Column(1, "a", "int32"))},
        {"table": layout(Column(1, "a", "int64"), Column(2, "b", "int64"))},
        {"table": None},
        {"has_macros_now": True},
        {"is_reachable": False},
        {"settings_version": (1, 0)},
        {"settings_version": (0, 1)},
    ],
)
def test_change_ends_a_description(
    connection: duckdb.DuckDBPyConnection,
    lake: Any,
    cache: DescriptionCache,
    change: dict[str, Any],
) -> None:
    query = statement(connection, "SELECT sum(a) FROM t")
    cache.put(query, DESCRIPTION)
    vars(lake).update(change)
    assert cache.get(query) is None


def test_parameters_of_an_insert_have_the_types_of_their_columns(
    connection: duckdb.DuckDBPyConnection,
) -> None:
    inserted = InsertedParameters()
    columns = pa.schema([("a", pa.int64()), ("b", pa.bool8())])
    query = statement(connection, "INSERT INTO t (b, a) VALUES (?, ?)")
    expected = pa.schema([("1", pa.bool_()), ("2", pa.int64())])
    assert inserted.get(query, columns) == expected
    assert inserted.get(query, columns) is inserted.get(query, columns)
    altered = pa.schema([("a", pa.int32()), ("b", pa.string())])
    expected = pa.schema([("1", pa.string()), ("2", pa.int32())])
    assert inserted.get(query, altered) == expected
    expression = statement(connection, "INSERT INTO t VALUES (? + 1, ?)")
    assert inserted.get(expression, columns) is None
    assert inserted.get(statement(connection, "INSERT INTO t VALUES (1, true)"), columns) == (
        pa.schema([])
    )
