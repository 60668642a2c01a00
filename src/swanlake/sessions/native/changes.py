"""UPDATE and DELETE without the extension: which rows, and what they become, is asked for first.

DuckDB says of every row of the lake in which file it is, and where in it. So a SELECT finds the
rows that a statement means, outside of any lock, and a commit of ours takes them away and puts
others into their places. Whoever was faster has his commit, and the statement is begun anew.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Protocol

import duckdb
import pyarrow as pa

from swanlake.errors import CommitConflict
from swanlake.lake import datafile, inlining
from swanlake.lake.inlined_tables import can_inline, inlined_prefix, is_inlined_name
from swanlake.lake.kept_rows import KeptRows
from swanlake.lake.lake import Catalog
from swanlake.lake.layout import Column, DataFile, DeleteFile, Table, folded
from swanlake.lake.live_files import LiveFile
from swanlake.lake.operations import Delete, FileDelete, InlineDelete, Insert, Operation
from swanlake.lake.types import duckdb_type
from swanlake.sessions.lake_reads import PLACE, ROW_ID, KeptQuery, RowParameters
from swanlake.sessions.shadows import Name
from swanlake.sql.changes import ChangeHead
from swanlake.sql.quoting import identifier, qualified

#: More rows are the extension's, which need not have them in memory.
MOST_ROWS = 10_000
_ROWS = "__swanlake_changed"
#: What DuckDB may say of a statement; the extension says it of the statement that was sent.
_REFUSED = (
    duckdb.ProgrammingError,
    duckdb.DataError,
    duckdb.IntegrityError,
    duckdb.NotSupportedError,
)


class LeftToTheExtension(Exception):
    """Nothing was done: DuckLake's own code must do it, or say what is wrong with it."""


class Place(Protocol):
    """Where a statement is run."""

    @property
    def connection(self) -> duckdb.DuckDBPyConnection: ...
    @property
    def parameters(self) -> Any: ...
    def beside(self) -> AbstractContextManager[duckdb.DuckDBPyConnection]: ...


@dataclass(frozen=True)
class LakeChange:
    """What a statement does to the lake, once it is committed, and to how many rows."""

    operations: tuple[Operation, ...]
    files: Sequence[DataFile | DeleteFile]
    count: int


def prepare(
    head: ChangeHead,
    name: Name,
    place: Place,
    catalog: Catalog,
    table: Table,
    kept: KeptRows | None = None,
) -> LakeChange:
    """Finds the rows and writes what files are needed; raises LeftToTheExtension.

    All rows of the table may be known already; the place then needs no lake.
    """
    if not _can_change(table, head):
        raise LeftToTheExtension
    rows = _found(place, _query(head, name, table, place, kept), width=_width(table, head))
    if not rows.num_rows:
        return LakeChange((), (), 0)
    row_ids = rows.column(ROW_ID).to_pylist()
    if len(set(row_ids)) < len(row_ids):
        raise LeftToTheExtension
    written: list[DataFile | DeleteFile] = []
    try:
        with place.beside() as beside:
            operations = _removal(rows, beside, catalog, table, written)
            if head.assignments is not None:
                new = rows.drop_columns(list(PLACE))
                operations.append(_replacement(new, row_ids, beside, table, written))
    except BaseException:
        datafile.remove_files(table, written)
        raise
    return LakeChange(tuple(operations), tuple(written), len(row_ids))


def _can_change(table: Table, head: ChangeHead) -> bool:
    names = {folded(column.name) for column in table.columns}
    if table.encrypted or names & set(PLACE):
        return False
    if head.assignments is None:
        return True
    set_ = [folded(name) for name, _ in head.assignments]
    if len(set(set_)) < len(set_) or not names >= set(set_):
        return False
    # Others lose something on their way through Arrow, or must be sorted into files.
    return not table.partition_keys and can_inline(table)


def _width(table: Table, head: ChangeHead) -> int:
    return len(PLACE) + (0 if head.assignments is None else len(table.columns))


def _query(
    head: ChangeHead, name: Name, table: Table, place: Place, kept: KeptRows | None
) -> KeptQuery:
    called = identifier(head.alias or name[-1])
    if kept is None:
        source = qualified(*name) + (f" AS {called}" if head.alias else "")
        return KeptQuery(_selection(head, called, source, table), place.parameters)
    given = RowParameters(place.parameters)
    if not given.fit(_selection(head, called, called, table)):
        raise LeftToTheExtension
    source = f"({given.rows(kept, with_place=True)}) AS {called}"
    return KeptQuery(given.numbered(_selection(head, called, source, table)), given.all)


def _selection(head: ChangeHead, called: str, source: str, table: Table) -> str:
    """The query for the rows of a statement, where they are, and what they become."""
    # Without names of our own, which the statement could use.
    chosen = [f"{called}.{column}" for column in PLACE]
    if head.assignments is not None:
        values = {folded(name): value for name, value in head.assignments}
        chosen += [
            _value(column, values.get(folded(column.name)), called) for column in table.columns
        ]
    where = "" if head.condition is None else f" WHERE {head.condition}\n"
    return f"SELECT {', '.join(chosen)} FROM {source}{where} LIMIT {MOST_ROWS + 1}"


def _value(column: Column, value: str | None, table: str) -> str:
    if value is None:
        return f"{table}.{identifier(column.name)}"
    return f"CAST(({value}\n) AS {duckdb_type(column)})"


def _found(place: Place, query: KeptQuery, width: int) -> pa.Table:
    """The rows of the query, all of them."""
    try:
        place.connection.execute(query.sql, query.parameters)
        rows = place.connection.to_arrow_table()
    except _REFUSED:
        raise LeftToTheExtension from None
    if rows.num_columns != width or rows.num_rows > MOST_ROWS:
        raise LeftToTheExtension
    values = (f"value_{place}" for place in range(width - len(PLACE)))
    return rows.rename_columns([*PLACE, *values])


# ---- rows that go --------------------------------------------------------------------------------


def _removal(
    rows: pa.Table,
    beside: duckdb.DuckDBPyConnection,
    catalog: Catalog,
    table: Table,
    written: list[DataFile | DeleteFile],
) -> list[Operation]:
    inlined: dict[str, list[int]] = defaultdict(list)
    in_files: dict[str, list[int]] = defaultdict(list)
    places = (rows.column(name).to_pylist() for name in PLACE)
    for row_id, file, position in zip(*places, strict=True):
        if is_inlined_name(file):
            if not file.startswith(inlined_prefix(table.id)):
                raise _changed(table)  # another one has its name by now
            inlined[file].append(row_id)
        else:
            in_files[file].append(position)
    operations: list[Operation] = [
        InlineDelete(table, name, tuple(row_ids)) for name, row_ids in inlined.items()
    ]
    if in_files:
        operations.append(_removal_from_files(in_files, beside, catalog, table, written))
    return operations


def _removal_from_files(
    positions: dict[str, list[int]],
    beside: duckdb.DuckDBPyConnection,
    catalog: Catalog,
    table: Table,
    written: list[DataFile | DeleteFile],
) -> Delete:
    files = catalog.files_at(table, positions)
    deletes: list[FileDelete] = []
    dropped: list[int] = []
    for path, gone in positions.items():
        file = files.get(path)
        if file is None:
            raise _changed(table)
        if file.inlined_deletes:
            # The stock extension takes a file of deletes that has ended for one of before these.
            raise LeftToTheExtension
        deleted = sorted({*_positions(beside, file), *gone})
        if len(deleted) == file.record_count:
            dropped.append(file.id)
            continue
        delete_file = datafile.write_delete_file(beside, table, path, deleted)
        written.append(delete_file)
        current = file.current_deletes
        deletes.append(FileDelete(file.id, delete_file, current.id if current else None))
    return Delete(table, tuple(deletes), tuple(dropped), excludes_inlined=True)


def _changed(table: Table) -> CommitConflict:
    return CommitConflict(
        f"The table {table.full_name} is not what it was a moment ago. Run the statement again."
    )


def _positions(beside: duckdb.DuckDBPyConnection, file: LiveFile) -> list[int]:
    """The rows of a file that its file of deleted rows names."""
    current = file.current_deletes
    if current is None:
        return []
    if current.format != "parquet":
        raise LeftToTheExtension
    found = beside.execute("SELECT pos FROM read_parquet(?)", [current.path]).fetchall()
    return [position for (position,) in found]


# ---- rows that come ------------------------------------------------------------------------------


def _replacement(
    rows: pa.Table,
    row_ids: Sequence[int],
    beside: duckdb.DuckDBPyConnection,
    table: Table,
    written: list[DataFile | DeleteFile],
) -> Operation:
    """New rows under the ids of old ones: in the metadata, if so few are kept there, or a file."""
    for column, values in zip(table.columns, rows.columns, strict=True):
        if not column.nullable and values.null_count:
            raise LeftToTheExtension
    if len(row_ids) <= (table.options.inlined_rows or 0):
        small = inlining.inlined(table, rows, row_ids=row_ids)
        if small is not None:
            return small
    beside.register(_ROWS, rows.append_column(datafile.ROW_ID, pa.array(row_ids, pa.int64())))
    chosen = ", ".join(
        f"CAST({name} AS {duckdb_type(column)}) AS {identifier(column.name)}"
        for name, column in zip(rows.column_names, table.columns, strict=True)
    )
    query = f"SELECT {chosen}, {datafile.ROW_ID} FROM {_ROWS}"
    plain = datafile.write_plain_file(beside, query, table, internal=(datafile.ROW_ID,))
    beside.unregister(_ROWS)
    assert plain is not None  # there are rows
    written.append(plain.file)
    return Insert(table, (plain.file,))
