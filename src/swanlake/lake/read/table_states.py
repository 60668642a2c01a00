"""Reads where the rows of tables are, for scans without DuckLake's extension.

The head of a catalog, and what its newest snapshots changed, is one round trip. A state is read in
one transaction with the head.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

from sqlalchemy import (
    BigInteger,
    Connection,
    Executable,
    Row,
    Select,
    bindparam,
    exists,
    func,
    select,
)
from sqlalchemy import inspect as inspect_database

from swanlake.errors import NotFound
from swanlake.lake.files.inlined_tables import deletes_table
from swanlake.lake.metastore.store import CatalogStore, ErrorKind, Query
from swanlake.lake.metastore.tables import CatalogTables
from swanlake.lake.model.layout import Table, folded
from swanlake.lake.model.table_state import (
    Bounds,
    Head,
    HeadRead,
    InlinedScan,
    ScanFile,
    TableState,
)
from swanlake.lake.model.type_registry import decimal_size
from swanlake.lake.read import inlined_scan, metadata

#: More changes than this are not read: an older state is read as a whole.
_MAX_CHANGES = 1000
#: Types that Parquet stores exactly, and that a cast in a scan restores without loss.
_TYPES_IN_FILES = frozenset(
    "boolean int8 int16 int32 int64 uint8 uint16 uint32 uint64 float32 float64 date time timestamp "
    "timestamptz varchar blob uuid".split()
)
#: ``read_parquet`` adds columns with these names on request.
_OWN_NAMES = frozenset({"file_row_number", "filename"})
_TABLE, _SINCE = bindparam("table", type_=BigInteger()), bindparam("since", type_=BigInteger())


@dataclass(frozen=True)
class _ColumnChanges:
    """The snapshots of the last changes of a table's columns; 0 is none."""

    began: int
    ended: int

    @property
    def last(self) -> int:
        """The newest of them."""
        return max(self.began, self.ended)


@dataclass(frozen=True)
class StateRequest:
    """A table whose state is wanted."""

    #: Folded.
    schema: str
    name: str
    #: The known state, if the table only got rows since it was read.
    base: TableState | None = None
    #: True if the schema of the catalog changed, perhaps that of this table too.
    is_doubtful: bool = False


@dataclass(frozen=True)
class StatesRead:
    """The states of tables at the head; None for a table that does not exist."""

    head: HeadRead
    states: tuple[TableState | None, ...]


def read_head(store: CatalogStore, since: int, sources: Sequence[str] = ()) -> HeadRead:
    """The head, and the changes after a snapshot; -1 asks for none.

    If there are changes, the rows of these inlined tables are read too.
    """
    parameters = {"since": since}
    most = {"most": inlined_scan.MAX_ROWS + 1, **parameters}
    queries = [
        Query(_head(store.tables), {}),
        Query(_changes(store.tables), parameters),
        *(Query(_changed_rows(store.tables, name), most, has_names=False) for name in sources),
    ]
    try:
        with store.usable_connection() as connection:
            heads, changes, *rows = store.run_queries(
                connection, queries, is_first=True, is_last=True
            )
    except store.errors as error:
        # An expiry dropped an empty inlined table.
        if not sources or store.classify(error) is not ErrorKind.MISSING_TABLE:
            raise
        return read_head(store, since)
    read = _head_read(heads, changes, since)
    return replace(
        read,
        rows={name: list(map(tuple, batch)) for name, batch in zip(sources, rows, strict=True)},
    )


def read_states(
    connection: Connection,
    tables: CatalogTables,
    requests: Sequence[StateRequest],
    since: int,
) -> StatesRead:
    """The states of tables, with the head; the connection must see one state of the catalog."""
    heads = connection.execute(_head(tables)).all()
    changes = connection.execute(_changes(tables), {"since": since}).all()
    head = _head_read(heads, changes, since)
    has_macros = metadata.has_macros(connection, tables)
    states = [_state(connection, tables, request, head.head, has_macros) for request in requests]
    return StatesRead(head, tuple(states))


def read_bounds(
    connection: Connection, tables: CatalogTables, table_id: int, column_id: int, since: int
) -> dict[int, Bounds]:
    """The bounds of a column, by file, in the files with larger ids than ``since``."""
    rows = connection.execute(
        _bounds(tables), {"table": table_id, "column": column_id, "since": since}
    )
    return {
        row.data_file_id: Bounds(
            row.min_value, row.max_value, row.value_count, row.null_count, row.contains_nan
        )
        for row in rows
    }


def _head_read(heads: Sequence[Any], changes: Sequence[Any], since: int) -> HeadRead:
    [row] = heads
    head = Head(int(row.snapshot_id), int(row.schema_version))
    # A snapshot that expired, or an id that was never used, leaves a gap.
    if since < 0 or len(changes) != head.snapshot_id - since:
        return HeadRead(head, None)
    return HeadRead(head, tuple(change.changes_made or "" for change in changes))


def _state(
    connection: Connection,
    tables: CatalogTables,
    request: StateRequest,
    head: Head,
    has_macros: bool,
) -> TableState | None:
    base = request.base
    if (
        base is not None
        and request.is_doubtful
        and (has_macros or not _has_layout(connection, tables, request, base.table))
    ):
        base = None
    if base is None:
        try:
            table = metadata.read_table(
                connection, tables, request.schema, request.name, head.snapshot_id
            )
        except NotFound:
            return None
        # A macro of the catalog may have the name of one of DuckDB's functions.
        if has_macros or table.encrypted or not _has_plain_columns(table):
            return TableState(table, is_readable=False)
    else:
        table = base.table
    changes = _column_changes(connection, tables, table.id)
    inlined = _inlined(connection, tables, table, changes.last)
    since = base.files[-1].id if base is not None and base.files else -1
    files = _files(connection, tables, table, changes, since)
    if inlined is None or files is None:
        return TableState(table, is_readable=False)
    known = () if base is None else base.files
    if (known or files) and not can_read_files(table):
        return TableState(table, is_readable=False)
    return TableState(table, (*known, *files), inlined)


def _has_layout(
    connection: Connection, tables: CatalogTables, request: StateRequest, known: Table
) -> bool:
    """True if a table still has the name and the columns that it had when it was read."""
    which = {"table": known.id}
    row = connection.execute(_named(tables), which).first()
    if row is None or row.begin_snapshot > known.snapshot_id:
        return False
    if (folded(row.schema_name), folded(row.table_name)) != (request.schema, request.name):
        return False
    return _column_changes(connection, tables, known.id).last <= known.snapshot_id


def _column_changes(connection: Connection, tables: CatalogTables, table_id: int) -> _ColumnChanges:
    row = connection.execute(_changed_columns(tables), {"table": table_id}).one()
    return _ColumnChanges(int(row.began), int(row.ended))


def _has_plain_columns(table: Table) -> bool:
    return not any(column.children for column in table.columns)


def can_read_files(table: Table) -> bool:
    """True if files have exactly the values of all columns, and are quick to open.

    In an object store the extension spares a request for each file: it knows the sizes.
    """
    return "://" not in table.directory and all(
        (column.type in _TYPES_IN_FILES or decimal_size(column.type) is not None)
        and column.name.lower() not in _OWN_NAMES
        for column in table.columns
    )


def _files(
    connection: Connection,
    tables: CatalogTables,
    table: Table,
    changes: _ColumnChanges,
    since: int,
) -> list[ScanFile] | None:
    """The live files with larger ids than ``since``; None if one is not a plain file."""
    rows = connection.execute(_files_of(tables), {"table": table.id, "since": since}).all()
    if not all(_is_plain(row, changes) for row in rows):
        return None
    positions: dict[int, list[int]] = {}
    inlined = deletes_table(tables, table.id)
    if rows and inspect_database(connection).has_table(inlined.name, inlined.schema):
        for row in connection.execute(select(inlined).order_by(inlined.c.row_id)):
            positions.setdefault(row.file_id, []).append(row.row_id)
    return [
        ScanFile(
            row.data_file_id,
            _path(table, row.path, row.path_is_relative),
            row.record_count,
            None
            if row.delete_path is None
            else _path(table, row.delete_path, row.delete_path_is_relative),
            tuple(positions.get(row.data_file_id, ())),
        )
        for row in rows
    ]


def _path(table: Table, path: str, is_relative: bool) -> str:
    return f"{table.directory}{path}" if is_relative else path


def _is_plain(row: Row[Any], changes: _ColumnChanges) -> bool:
    """True if a file has the table's columns with their names, and so have its deletes.

    A transaction may write a file and then rename its columns: the file has the names of before.
    """
    return (
        row.file_format == "parquet"
        and "://" not in row.path
        and row.mapping_id is None
        and row.encryption_key is None
        and row.begin_snapshot >= changes.began
        and row.begin_snapshot > changes.ended
        and (row.delete_path is None or row.delete_format == "parquet")
        and row.delete_encryption_key is None
    )


def _inlined(
    connection: Connection, tables: CatalogTables, table: Table, changed_at: int
) -> InlinedScan | None:
    """The inlined rows; None if they are too many, or some have other columns."""
    parameters = {"ids": [table.id]}
    sources = connection.execute(inlined_scan.inlined_tables(tables), parameters).all()
    names = [source.table_name for source in sources]
    rows = {}
    for source in sources:
        query = inlined_scan.live_rows(tables, source.table_name)
        most = {"most": inlined_scan.MAX_ROWS + 1}
        rows[source.table_name] = connection.execute(query, most).all()
        is_current = source.began is not None and source.began >= changed_at
        if rows[source.table_name] and not is_current:
            return None
        if not is_current:
            names.remove(source.table_name)
    if len(names) > 1 or any(len(batch) > inlined_scan.MAX_ROWS for batch in rows.values()):
        return None
    if any(rows.values()) and not inlined_scan.can_scan(table):
        return None
    return inlined_scan.as_scan(table, names, rows)


# Statements are built once.


@lru_cache(maxsize=2048)
def _changed_rows(tables: CatalogTables, name: str) -> Executable:
    """The live rows of an inlined table, if there are newer snapshots."""
    snapshot = tables.snapshot
    is_newer = exists().where(snapshot.c.snapshot_id > _SINCE)
    return inlined_scan.live_rows(tables, name).where(is_newer)


@lru_cache(maxsize=256)
def _head(tables: CatalogTables) -> Select[Any]:
    snapshot = tables.snapshot
    newest = select(func.max(snapshot.c.snapshot_id)).scalar_subquery()
    return select(snapshot.c.snapshot_id, snapshot.c.schema_version).where(
        snapshot.c.snapshot_id == newest
    )


@lru_cache(maxsize=256)
def _changes(tables: CatalogTables) -> Executable:
    changes = tables.snapshot_changes
    return (
        select(changes.c.snapshot_id, changes.c.changes_made)
        .where(changes.c.snapshot_id > _SINCE, _SINCE >= 0)
        .order_by(changes.c.snapshot_id)
        .limit(_MAX_CHANGES + 1)
    )


@lru_cache(maxsize=256)
def _named(tables: CatalogTables) -> Select[Any]:
    """The name of a table, and since when it has it."""
    table, schemas = tables.table, tables.schema
    return (
        select(table.c.begin_snapshot, table.c.table_name, schemas.c.schema_name)
        .join(schemas, schemas.c.schema_id == table.c.schema_id)
        .where(
            table.c.table_id == _TABLE,
            table.c.end_snapshot.is_(None),
            schemas.c.end_snapshot.is_(None),
        )
    )


@lru_cache(maxsize=256)
def _changed_columns(tables: CatalogTables) -> Select[Any]:
    """The snapshots of the last changes of a table's columns."""
    column = tables.column
    began, ended = (
        func.coalesce(func.max(which), 0)
        for which in (column.c.begin_snapshot, column.c.end_snapshot)
    )
    return select(began.label("began"), ended.label("ended")).where(column.c.table_id == _TABLE)


@lru_cache(maxsize=256)
def _files_of(tables: CatalogTables) -> Select[Any]:
    data, deletes = tables.data_file, tables.delete_file
    live_deletes = (deletes.c.data_file_id == data.c.data_file_id) & deletes.c.end_snapshot.is_(
        None
    )
    return (
        select(
            data.c.data_file_id,
            data.c.path,
            data.c.path_is_relative,
            data.c.record_count,
            data.c.begin_snapshot,
            data.c.file_format,
            data.c.mapping_id,
            data.c.encryption_key,
            deletes.c.path.label("delete_path"),
            deletes.c.path_is_relative.label("delete_path_is_relative"),
            deletes.c.format.label("delete_format"),
            deletes.c.encryption_key.label("delete_encryption_key"),
        )
        .join(deletes, live_deletes, isouter=True)
        .where(
            data.c.table_id == _TABLE,
            data.c.end_snapshot.is_(None),
            data.c.data_file_id > _SINCE,
        )
        .order_by(data.c.data_file_id)
    )


@lru_cache(maxsize=256)
def _bounds(tables: CatalogTables) -> Select[Any]:
    stats = tables.file_column_stats
    return select(
        stats.c.data_file_id,
        stats.c.min_value,
        stats.c.max_value,
        stats.c.value_count,
        stats.c.null_count,
        stats.c.contains_nan,
    ).where(
        stats.c.table_id == _TABLE,
        stats.c.column_id == bindparam("column", type_=BigInteger()),
        stats.c.data_file_id > _SINCE,
    )
