"""Tables that are nothing but rows in the metadata, read without DuckLake's extension.

It plans and runs a dozen queries of its own for every scan, whatever it finds. Of a table that has
no file yet, and few rows, two questions give everything: what it is now, and its rows.
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

from swanlake.lake.inlined_tables import OWN_COLUMNS, can_inline, inlined_table
from swanlake.lake.layout import Column, Table
from swanlake.lake.state import Among
from swanlake.lake.store import CatalogStore, Question, Trouble
from swanlake.lake.tables import CatalogTables

#: More are left to the extension, which need not have them as text.
MOST_ROWS = 1000
#: What is known may be wrong; who finds it so once more finds the table changing.
_LOOKS = 3
_MOST_KNOWN = 10_000
#: Of these, drivers have types that cannot hold all that DuckDB's can, or other texts.
_UNREADABLE = frozenset({"blob", "json", "time"})

#: What DuckDB can cast to the type of a column, or a number, or None.
Value = str | int | None


@dataclass(frozen=True)
class KeptRows:
    """A table, and all its rows."""

    table: Table
    #: The table of the metadata that has them; None if there never were any.
    place: str | None
    row_ids: Sequence[int]
    #: What is in each column of the table, for these rows.
    values: Sequence[Sequence[Value]]


class NotKept(Enum):
    """Why rows cannot be read in this way."""

    #: The table is no longer what it was when it was looked up.
    CHANGED = auto()
    #: Some are in files, or are as the table was before its columns changed, or they are many; or
    #: the catalog has macros, which may be called like a function of DuckDB's.
    ELSEWHERE = auto()


def may_be_kept(table: Table) -> bool:
    """True if all rows of a table may be in the metadata, and are read here."""
    keeps = (table.options.inlined_rows or 0) > 0
    readable = all(column.type not in _UNREADABLE for column in table.columns)
    return keeps and readable and can_inline(table)


def read_kept_rows(
    store: CatalogStore, tables: Sequence[Table], known: dict[int, list[str]]
) -> list[KeptRows] | NotKept:
    """The rows of tables of one catalog, all as of one moment.

    Each must be one that ``may_be_kept``, as it was looked up a moment ago. ``known`` says where
    the rows of tables were the last time: then all is asked at once.
    """
    for _ in range(_LOOKS):
        try:
            found = _look(store, tables, known)
        except store.errors as error:
            was_known = [known.pop(table.id, None) for table in tables]
            if not any(was_known) or store.trouble(error) is not Trouble.MISSING_TABLE:
                raise
            continue  # who expires snapshots takes a table of the metadata away that has no rows
        if found is not None:
            return found
    return NotKept.CHANGED


def _look(
    store: CatalogStore, tables: Sequence[Table], known: dict[int, list[str]]
) -> list[KeptRows] | NotKept | None:
    """The same; None if the rows are not where they were known to be, and now it is known where."""
    ids = {"ids": [table.id for table in tables]}
    is_known = all(table.id in known for table in tables)
    asked = [name for table in tables for name in known[table.id]] if is_known else []
    with store.moment() as moment:
        now, kept, *rows = moment.ask(
            Question(_tables_now(store.tables), ids),
            Question(_places(store.tables), ids),
            *(_rows_of(store, name) for name in asked),
            is_last=is_known,
        )
        found = {row.table_id: row for row in now}
        places: dict[int, list[Any]] = defaultdict(list)
        for row in kept:
            places[row.table_id].append(row)
        for table in tables:
            if obstacle := _obstacle(table, found.get(table.id), places[table.id]):
                return obstacle
        if len(known) >= _MOST_KNOWN:
            known.clear()
        known |= {table.id: [place.table_name for place in places[table.id]] for table in tables}
        names = [place.table_name for table in tables for place in places[table.id]]
        if not is_known:
            rows = moment.ask(*(_rows_of(store, name) for name in names), is_last=True)
        elif names != asked:
            return None
    if any(len(some) > MOST_ROWS for some in rows):
        return NotKept.ELSEWHERE
    by_name = dict(zip(names, rows, strict=True))
    return [
        _kept(table, [place.table_name for place in places[table.id]], by_name) for table in tables
    ]


def _rows_of(store: CatalogStore, name: str) -> Question:
    return Question(_rows(store.tables, name), {"most": MOST_ROWS + 1}, has_names=False)


def _obstacle(table: Table, now: Any, places: Sequence[Any]) -> NotKept | None:
    if now is None or max(now.named_at, now.added_at, now.removed_at) > table.snapshot_id:
        return NotKept.CHANGED
    if now.has_files or now.has_macros or len(places) > 1:
        return NotKept.ELSEWHERE
    for place in places:
        if place.began is None or max(now.added_at, now.removed_at) > place.began:
            return NotKept.ELSEWHERE
    return None


def _kept(table: Table, names: Sequence[str], rows: dict[str, Sequence[Any]]) -> KeptRows:
    place = names[0] if names else None
    found = rows[place] if place is not None else ()
    if not found:
        return KeptRows(table, place, (), [()] * len(table.columns))
    row_ids, *others = zip(*found, strict=True)
    values = others[len(OWN_COLUMNS) - 1 :]
    return KeptRows(
        table,
        place,
        row_ids,
        [
            some if _is_number(column) else list(map(_value, some))
            for column, some in zip(table.columns, values, strict=True)
        ],
    )


def _is_number(column: Column) -> bool:
    return column.type.startswith("int")


def _value(value: Any) -> Value:
    if isinstance(value, bytes):
        return value.decode()
    if isinstance(value, Decimal):
        return f"{value:f}"
    return value if value is None or isinstance(value, (int, str)) else str(value)


# ---- what is asked -------------------------------------------------------------------------------
# Statements are built once and kept.


@lru_cache(maxsize=256)
def _tables_now(tables: CatalogTables) -> Executable:
    """Tables that exist: since when they have their names and columns, whether they have files, and
    whether there are macros.

    Nobody gives a schema another name.
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
    ).where(Among(table.c.table_id, "ids"), table.c.end_snapshot.is_(None))


@lru_cache(maxsize=256)
def _places(tables: CatalogTables) -> Executable:
    """The tables of the metadata that have rows, and since when they have the columns they have."""
    known, versions = tables.inlined_data_tables, tables.schema_versions
    began = (
        select(func.max(versions.c.begin_snapshot))
        .where(
            versions.c.table_id == known.c.table_id,
            # One that was made for the first rows has a version of the schema to itself.
            versions.c.schema_version <= known.c.schema_version,
        )
        .scalar_subquery()
    )
    return select(known.c.table_id, known.c.table_name, began.label("began")).where(
        Among(known.c.table_id, "ids")
    )


@lru_cache(maxsize=2048)
def _rows(tables: CatalogTables, name: str) -> Executable:
    """The rows that are there now, by the places of their values: names may be in lower case."""
    rows = inlined_table(tables, name)
    return (
        select(literal_column("*"))
        .select_from(rows)
        .where(rows.c.end_snapshot.is_(None))
        .order_by(rows.c.row_id)
        .limit(bindparam("most"))
    )
