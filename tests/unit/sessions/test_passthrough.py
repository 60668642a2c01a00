"""Rows of literals become batches of the queue without DuckDB."""

from __future__ import annotations

from typing import Any

import duckdb
import pyarrow as pa
import pytest

from swanlake.lake.model.layout import Column, Default
from swanlake.sessions.queue.passthrough import ArrowPassthrough
from swanlake.sql.statement import parse
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
