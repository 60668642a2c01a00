"""Rows of literals and rows of clients become batches of the queue without DuckDB."""

from __future__ import annotations

from typing import Any

import duckdb
import pyarrow as pa
import pytest

from swanlake.lake.model.layout import Column, Default, Table
from swanlake.sessions.execution.client_rows import CLIENT_ROWS
from swanlake.sessions.queue.passthrough import ArrowPassthrough, ClientRowPlans
from swanlake.sql.statement import Statement, parse
from tests.unit.queue.samples import layout

TABLE = layout(
    Column(1, "id", "int64", nullable=False),
    Column(2, "yes", "boolean"),
    Column(3, "note", "varchar", default=Default("none")),
    Column(4, "day", "date"),
)
#: As DuckDB exports the rows of a staging table.
SCHEMA = pa.schema(
    [("id", pa.int64()), ("yes", pa.bool8()), ("note", pa.string()), ("day", pa.date32())]
)


def rows_of(values: str) -> list[dict[str, Any]] | None:
    """The rows that go into the queue; None if DuckDB must evaluate them."""
    [statement] = parse(duckdb.connect(), f"INSERT INTO duckling_queue.t {values}")
    assert statement.insert_head is not None
    found = ArrowPassthrough.of_literals(statement, statement.insert_head, SCHEMA, TABLE)
    if found is None:
        return None
    batches = list(found)
    assert all(batch.schema == SCHEMA for batch in batches)
    return [row for batch in batches for row in batch.to_pylist()]


def test_literals_have_the_types_of_the_staging_table() -> None:
    [row, other] = rows_of("VALUES (1, true, 'a''b', '2024-02-29'), (-2, NULL, NULL, NULL)") or []
    assert [str(value) for value in row.values()] == ["1", "True", "a'b", "2024-02-29"]
    assert list(other.values()) == [-2, None, None, None]


def test_missing_columns_get_their_defaults() -> None:
    rows = rows_of("(yes, id) VALUES (false, 5)")
    assert rows == [{"id": 5, "yes": False, "note": "none", "day": None}]


@pytest.mark.parametrize(
    "values",
    [
        "VALUES (1 + 1, true, 'a', NULL)",
        "VALUES ('1', true, 'a', NULL)",
        "VALUES (1, 1, 'a', NULL)",
        "VALUES (1, true, now(), NULL)",
        "VALUES (NULL, true, 'a', NULL)",
        "VALUES (1, true, 'a', '2023-02-29')",
        "VALUES (1, true)",
        "SELECT 1, true, 'a', NULL",
        "VALUES (1, true, 'a', NULL) ON CONFLICT DO NOTHING",
    ],
)
def test_other_values_are_left_to_duckdb(values: str) -> None:
    assert rows_of(values) is None


CLIENT_INSERT = "INSERT INTO duckling_queue.t (note, id) SELECT {0}.c0, {0}.c1 FROM {0}"


@pytest.fixture
def insert() -> Statement:
    [statement] = parse(duckdb.connect(), CLIENT_INSERT.format(CLIENT_ROWS))
    return statement


def client_rows(insert: Statement, plans: ClientRowPlans, table: Table, **columns: Any) -> Any:
    """The rows of one client batch; None if DuckDB must evaluate the INSERT."""
    assert insert.insert_head is not None
    batch = pa.record_batch(columns)
    rows = pa.RecordBatchReader.from_batches(batch.schema, [batch])
    schema = pa.schema([SCHEMA.field(column.name) for column in table.columns])
    found = plans.plan(insert, insert.insert_head, rows, schema, table)
    return None if found is None else [row for one in found for row in one.to_pylist()]


def test_plan_of_client_rows_is_for_their_types_and_the_table(insert: Statement) -> None:
    table = layout(Column(1, "id", "int64"), Column(2, "note", "varchar"))
    other = layout(Column(2, "note", "varchar"), Column(1, "id", "int64"))
    plans = ClientRowPlans()
    for number in range(2):
        found = client_rows(insert, plans, table, c0=["a"], c1=[number])
        assert found == [{"id": number, "note": "a"}]
    assert client_rows(insert, plans, other, c0=["a"], c1=[5]) == [{"note": "a", "id": 5}]
    assert client_rows(insert, plans, table, c0=["a"], c1=["5"]) is None
    narrow = pa.array([7], pa.int8())
    assert client_rows(insert, plans, table, c0=["b"], c1=narrow) == [{"id": 7, "note": "b"}]
