"""Scans of tables whose rows are all inlined, without DuckLake's extension.

The extension runs a dozen queries for every scan. A small table without files needs two: for its
current columns, and for its rows.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from decimal import Decimal
from enum import Enum, auto
from functools import lru_cache
from typing import Any

from sqlalchemy import Executable, bindparam, exists, func, literal_column, select

from swanlake.lake.commit.queries import InList
from swanlake.lake.files.inlined_tables import OWN_COLUMNS, can_inline, inlined_table
from swanlake.lake.metastore.store import CatalogStore, ErrorKind, Query
from swanlake.lake.metastore.tables import CatalogTables
from swanlake.lake.model.layout import Column, Table
from swanlake.lake.model.type_registry import find_type

#: Larger tables are left to the extension, which need not read rows as text.
MAX_ROWS = 1000
#: Gives up after three stale reads: the table keeps changing.
_MAX_ATTEMPTS = 3
_MAX_KNOWN = 10_000

#: A number, or a text that DuckDB can cast to the column's type.
Value = str | int | None


@dataclass(frozen=True)
class InlinedScan:
    """A table and all its rows."""

    table: Table
    #: The inlined table that has them; None if there never were any.
    source_table: str | None
    row_ids: Sequence[int]
    #: By column of the table.
    values: Sequence[Sequence[Value]]


class ScanRefusal(Enum):
    """Why rows cannot be scanned."""

    #: The table changed since it was looked up.
    CHANGED = auto()
    #: Rows are in files, or have older columns, or are too many; or the catalog has macros, which
    #: may have the name of a DuckDB function.
    NOT_INLINED = auto()


def may_be_inlined(table: Table) -> bool:
    """True if all rows of a table may be inlined, in types that can be scanned."""
    if not table.options.inlined_rows or not can_inline(table):
        return False
    types = (find_type(column.type) for column in table.columns)
    return all(type_ is not None and type_.is_scannable for type_ in types)


def scan_inlined(
    store: CatalogStore, tables: Sequence[Table], known: dict[int, list[str]]
) -> list[InlinedScan] | ScanRefusal:
    """The rows of tables of one catalog, read in one transaction.

    ``may_be_inlined`` must be true of each. ``known`` remembers the inlined tables of a table, so
    that one round trip is enough the next time.
    """
    for _ in range(_MAX_ATTEMPTS):
        try:
            result = _scan(store, tables, known)
        except store.errors as error:
            was_known = [known.pop(table.id, None) for table in tables]
            if not any(was_known) or store.classify(error) is not ErrorKind.MISSING_TABLE:
                raise
            continue  # an expiry dropped an empty inlined table
        if result is not None:
            return result
    return ScanRefusal.CHANGED


def _scan(
    store: CatalogStore, tables: Sequence[Table], known: dict[int, list[str]]
) -> list[InlinedScan] | ScanRefusal | None:
    """One attempt; None if the inlined tables were not the known ones, which are updated."""
    ids = {"ids": [table.id for table in tables]}
    is_known = all(table.id in known for table in tables)
    asked = [name for table in tables for name in known[table.id]] if is_known else []
    with store.usable_connection() as connection:
        queries = [
            Query(_tables_now(store.tables), ids),
            Query(_inlined_tables(store.tables), ids),
            *(_rows_query(store, name) for name in asked),
        ]
        now, sources, *rows = store.run_queries(
            connection, queries, is_first=True, is_last=is_known
        )
        current = {row.table_id: row for row in now}
        by_table: dict[int, list[Any]] = defaultdict(list)
        for row in sources:
            by_table[row.table_id].append(row)
        for table in tables:
            if refusal := _refusal(table, current.get(table.id), by_table[table.id]):
                return refusal
        if len(known) >= _MAX_KNOWN:
            known.clear()
        known |= {
            table.id: [source.table_name for source in by_table[table.id]] for table in tables
        }
        names = [source.table_name for table in tables for source in by_table[table.id]]
        if not is_known:
            queries = [_rows_query(store, name) for name in names]
            rows = store.run_queries(connection, queries, is_first=False, is_last=True)
        elif names != asked:
            return None
    if any(len(batch) > MAX_ROWS for batch in rows):
        return ScanRefusal.NOT_INLINED
    by_name = dict(zip(names, rows, strict=True))
    return [
        _inlined_scan(table, [source.table_name for source in by_table[table.id]], by_name)
        for table in tables
    ]


def _rows_query(store: CatalogStore, name: str) -> Query:
    return Query(_rows(store.tables, name), {"most": MAX_ROWS + 1}, has_names=False)


def _refusal(table: Table, now: Any, sources: Sequence[Any]) -> ScanRefusal | None:
    if now is None or max(now.named_at, now.added_at, now.removed_at) > table.snapshot_id:
        return ScanRefusal.CHANGED
    if now.has_files or now.has_macros or len(sources) > 1:
        return ScanRefusal.NOT_INLINED
    for source in sources:
        if source.began is None or max(now.added_at, now.removed_at) > source.began:
            return ScanRefusal.NOT_INLINED
    return None


def _inlined_scan(
    table: Table, names: Sequence[str], rows: dict[str, Sequence[Any]]
) -> InlinedScan:
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
def _tables_now(tables: CatalogTables) -> Executable:
    """Live tables: since when they have their names and columns; whether files or macros exist.

    DuckLake cannot rename a schema.
    """
    table, column, file = tables.table, tables.column, tables.data_file
    of_table = column.c.table_id == table.c.table_id
    began, ended = (
        select(func.coalesce(func.max(which), 0)).where(of_table).scalar_subquery()
        for which in (column.c.begin_snapshot, column.c.end_snapshot)
    )
    macro = tables.macro
    has_macros = exists().where(macro.c.end_snapshot.is_(None))
    has_files = exists().where(file.c.table_id == table.c.table_id, file.c.end_snapshot.is_(None))
    return select(
        table.c.table_id,
        table.c.begin_snapshot.label("named_at"),
        began.label("added_at"),
        ended.label("removed_at"),
        has_files.label("has_files"),
        has_macros.label("has_macros"),
    ).where(InList(table.c.table_id, "ids"), table.c.end_snapshot.is_(None))


@lru_cache(maxsize=256)
def _inlined_tables(tables: CatalogTables) -> Executable:
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
def _rows(tables: CatalogTables, name: str) -> Executable:
    """The live rows, by position: PostgreSQL may have folded column names to lower case."""
    rows = inlined_table(tables, name)
    return (
        select(literal_column("*"))
        .select_from(rows)
        .where(rows.c.end_snapshot.is_(None))
        .order_by(rows.c.row_id)
        .limit(bindparam("most"))
    )
