"""Inlined rows, as the values that a scan without DuckLake's extension gives to DuckDB."""

from __future__ import annotations

from collections.abc import Sequence
from decimal import Decimal
from functools import lru_cache
from typing import Any

from sqlalchemy import Executable, Select, bindparam, func, literal_column, select

from swanlake.lake.commit.queries import InList
from swanlake.lake.files.inlined_tables import OWN_COLUMNS, can_inline, inlined_table
from swanlake.lake.metastore.tables import CatalogTables
from swanlake.lake.model.layout import Column, Table
from swanlake.lake.model.table_state import InlinedScan, Value
from swanlake.lake.model.type_registry import find_type

#: Larger tables are left to the extension, which need not read rows as text.
MAX_ROWS = 1000


def may_be_inlined(table: Table) -> bool:
    """True if all rows of a table may be inlined, in types that can be scanned."""
    return bool(table.options.inlined_rows) and can_inline(table) and can_scan(table)


def can_scan(table: Table) -> bool:
    """True if a scan restores the inlined values of all columns exactly."""
    types = (find_type(column.type) for column in table.columns)
    return all(type_ is not None and type_.is_scannable for type_ in types)


def as_scan(table: Table, names: Sequence[str], rows: dict[str, Sequence[Any]]) -> InlinedScan:
    """The inlined rows of a table; ``rows`` has them by the name of their inlined table."""
    source = names[0] if names else None
    source_rows = rows[source] if source is not None else ()
    if not source_rows:
        return InlinedScan(table, source, (), [()] * len(table.columns))
    row_ids, *columns = zip(*source_rows, strict=True)
    values = columns[len(OWN_COLUMNS) - 1 :]
    return InlinedScan(
        table,
        source,
        row_ids,
        [
            column_values if _is_integer(column) else list(map(_value, column_values))
            for column, column_values in zip(table.columns, values, strict=True)
        ],
    )


def _is_integer(column: Column) -> bool:
    type_ = find_type(column.type)
    return type_ is not None and type_.inlined is not None and type_.inlined.is_integer


def _value(value: Any) -> Value:
    if isinstance(value, bytes):
        return value.decode()
    if isinstance(value, Decimal):
        return f"{value:f}"
    return value if value is None or isinstance(value, (int, str)) else str(value)


# Statements are built once.


@lru_cache(maxsize=256)
def inlined_tables(tables: CatalogTables) -> Executable:
    """The inlined tables of tables, and since when they have their columns."""
    known, versions = tables.inlined_data_tables, tables.schema_versions
    began = (
        select(func.max(versions.c.begin_snapshot))
        .where(
            versions.c.table_id == known.c.table_id,
            # The one created with the first rows has a schema version of its own.
            versions.c.schema_version <= known.c.schema_version,
        )
        .scalar_subquery()
    )
    return select(known.c.table_id, known.c.table_name, began.label("began")).where(
        InList(known.c.table_id, "ids")
    )


@lru_cache(maxsize=2048)
def live_rows(tables: CatalogTables, name: str) -> Select[Any]:
    """The live rows, by position: PostgreSQL may have folded column names to lower case."""
    rows = inlined_table(tables, name)
    return (
        select(literal_column("*"))
        .select_from(rows)
        .where(rows.c.end_snapshot.is_(None))
        .order_by(rows.c.row_id)
        .limit(bindparam("most"))
    )
