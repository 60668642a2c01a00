"""Sample tables, layouts and rows."""

from __future__ import annotations

from typing import Any
from uuid import UUID

import pyarrow as pa

from swanlake.lake.model.layout import Column, Table
from swanlake.lake.model.table_ref import TableRef

CATALOG_ID = UUID(int=7)


def queue_table(name: str = "readings", table_id: int = 1) -> TableRef:
    return TableRef("swanlake", "main", name, CATALOG_ID, table_id)


def layout(*columns: Column, table_id: int = 1, name: str = "readings") -> Table:
    """A table layout; by default with one integer column."""
    return Table(table_id, "main", name, "/data/", columns or (Column(1, "i", "int64"),))


def numbers(*values: int) -> Any:
    """A batch of rows for a table of one column."""
    return pa.record_batch({"i": pa.array(values, pa.int64())})


def values_of(segment: Any) -> list[int]:
    """The integers in a segment, in order."""
    return [value for batch in segment.record_batches() for value in batch.column(0).to_pylist()]
