"""UPDATE and DELETE without the extension: a query finds the rows before any lock is taken.

DuckLake's virtual columns say in which file a row is, and where in it. A SELECT finds the rows of
the statement and their new values; the commit deletes them and inserts the new ones. The first
committer wins, and the loser starts again.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import duckdb
import pyarrow as pa

from swanlake.errors import CommitConflict
from swanlake.lake.catalog import Catalog
from swanlake.lake.files import datafile, inlining
from swanlake.lake.files.inlined_tables import can_inline, inlined_prefix, is_inlined_name
from swanlake.lake.model.layout import Column, DataFile, DeleteFile, Table, folded
from swanlake.lake.model.operations import Delete, FileDelete, InlineDelete, Insert, Operation
from swanlake.lake.model.table_files import LiveFile
from swanlake.lake.model.types import duckdb_type
from swanlake.lake.read.inlined_scan import InlinedScan
from swanlake.sessions.execution.names import TableName
from swanlake.sessions.native.context import FallBackToExtension, NativeContext, PreparedChange
from swanlake.sessions.native.reads import ROW_ID, ROW_LOCATION, InlinedQuery, RowParameters
from swanlake.sessions.results.stream import Outcome
from swanlake.sql.heads import ChangeHead
from swanlake.sql.quoting import identifier, qualified

#: The extension changes more rows than this, without holding them in memory.
MAX_ROWS = 10_000
_ROWS = "__swanlake_changed"
#: The extension reports these errors for the statement as it was sent.
_STATEMENT_ERRORS = (
    duckdb.ProgrammingError,
    duckdb.DataError,
    duckdb.IntegrityError,
    duckdb.NotSupportedError,
)


def prepare(
    head: ChangeHead,
    name: TableName,
    context: NativeContext,
    catalog: Catalog,
    table: Table,
    scan: InlinedScan | None = None,
) -> PreparedChange:
    """Finds the rows and writes the files of the change; raises FallBackToExtension.

    ``scan`` has all rows of the table; the context then needs no lake.
    """
    if not _can_change(table, head):
        raise FallBackToExtension
    width = len(ROW_LOCATION) + (0 if head.assignments is None else len(table.columns))
    rows = _find_rows(context, _query(head, name, table, context, scan), width)
    if not rows.num_rows:
        return PreparedChange(outcome=Outcome(affected=0))
    row_ids = rows.column(ROW_ID).to_pylist()
    if len(set(row_ids)) < len(row_ids):
        raise FallBackToExtension
    written: list[DataFile | DeleteFile] = []
    try:
        with context.scratch_connection() as scratch:
            replacement = _Replacement(scratch, catalog, table, written)
            operations = replacement.delete(rows)
            if head.assignments is not None:
                new = rows.drop_columns(list(ROW_LOCATION))
                operations.append(replacement.insert(new, row_ids))
    except BaseException:
        datafile.remove_files(table, written)
        raise
    return PreparedChange(tuple(operations), tuple(written), Outcome(affected=len(row_ids)))


def _can_change(table: Table, head: ChangeHead) -> bool:
    names = {folded(column.name) for column in table.columns}
    if table.encrypted or names & set(ROW_LOCATION):
        return False
    if head.assignments is None:
        return True
    assigned = [folded(name) for name, _ in head.assignments]
    if len(set(assigned)) < len(assigned) or not names >= set(assigned):
        return False
    # Arrow does not keep every value of other types; partitions need a file for each value.
    return not table.partition_keys and can_inline(table)


def _query(
    head: ChangeHead,
    name: TableName,
    table: Table,
    context: NativeContext,
    scan: InlinedScan | None,
) -> InlinedQuery:
    alias = identifier(head.alias or name[-1])
    if scan is None:
        source = qualified(*name) + (f" AS {alias}" if head.alias else "")
        return InlinedQuery(_selection(head, alias, source, table), context.parameters)
    bound = RowParameters(context.parameters)
    if not bound.match(_selection(head, alias, alias, table)):
        raise FallBackToExtension
    source = f"({bound.rows_query(scan, with_location=True)}) AS {alias}"
    return InlinedQuery(bound.number(_selection(head, alias, source, table)), bound.values)


def expressions_query(head: ChangeHead, name: TableName) -> str:
    """A query with the expressions of a statement, over its table."""
    values = [f"({value}\n)" for _, value in head.assignments or ()] or ["NULL"]
    where = "" if head.condition is None else f" WHERE {head.condition}\n"
    return f"SELECT {', '.join(values)} FROM {identifier(head.alias or name[-1])}{where}"


def _selection(head: ChangeHead, alias: str, source: str, table: Table) -> str:
    """The query for the locations of a statement's rows, and for their new values."""
    # No aliases of ours: the statement could use them.
    selected = [f"{alias}.{column}" for column in ROW_LOCATION]
    if head.assignments is not None:
        values = {folded(name): value for name, value in head.assignments}
        selected += [
            _value(column, values.get(folded(column.name)), alias) for column in table.columns
        ]
    where = "" if head.condition is None else f" WHERE {head.condition}\n"
    return f"SELECT {', '.join(selected)} FROM {source}{where} LIMIT {MAX_ROWS + 1}"


def _value(column: Column, value: str | None, table: str) -> str:
    if value is None:
        return f"{table}.{identifier(column.name)}"
    return f"CAST(({value}\n) AS {duckdb_type(column)})"


def _find_rows(context: NativeContext, query: InlinedQuery, width: int) -> pa.Table:
    try:
        context.connection.execute(query.sql, query.parameters)
        rows = context.connection.to_arrow_table()
    except _STATEMENT_ERRORS:
        raise FallBackToExtension from None
    if rows.num_columns != width or rows.num_rows > MAX_ROWS:
        raise FallBackToExtension
    values = (f"value_{index}" for index in range(width - len(ROW_LOCATION)))
    return rows.rename_columns([*ROW_LOCATION, *values])


@dataclass(frozen=True)
class _Replacement:
    """Deletes rows of a table and inserts new ones; lists the files that it writes for that."""

    scratch: duckdb.DuckDBPyConnection
    catalog: Catalog
    table: Table
    written: list[DataFile | DeleteFile]

    def delete(self, rows: pa.Table) -> list[Operation]:
        """Deletes the rows at these locations."""
        inlined: dict[str, list[int]] = defaultdict(list)
        in_files: dict[str, list[int]] = defaultdict(list)
        locations = (rows.column(name).to_pylist() for name in ROW_LOCATION)
        for row_id, file, position in zip(*locations, strict=True):
            if is_inlined_name(file):
                if not file.startswith(inlined_prefix(self.table.id)):
                    raise self._conflict()  # another table has its name now
                inlined[file].append(row_id)
            else:
                in_files[file].append(position)
        operations: list[Operation] = [
            InlineDelete(self.table, name, tuple(row_ids)) for name, row_ids in inlined.items()
        ]
        return [*operations, self._delete_from_files(in_files)] if in_files else operations

    def _delete_from_files(self, positions: dict[str, list[int]]) -> Delete:
        files = self.catalog.find_files(self.table, positions)
        deletes: list[FileDelete] = []
        dropped: list[int] = []
        for path, deleted_now in positions.items():
            file = files.get(path)
            if file is None:
                raise self._conflict()
            if file.inlined_deletes:
                # The stock extension takes an ended delete file to be older than inlined deletes.
                raise FallBackToExtension
            deleted = sorted({*self._deleted_before(file), *deleted_now})
            if len(deleted) == file.record_count:
                dropped.append(file.id)
                continue
            delete_file = datafile.write_delete_file(self.scratch, self.table, path, deleted)
            self.written.append(delete_file)
            current = file.current_deletes
            deletes.append(FileDelete(file.id, delete_file, current.id if current else None))
        return Delete(self.table, tuple(deletes), tuple(dropped), excludes_inlined=True)

    def _deleted_before(self, file: LiveFile) -> list[int]:
        current = file.current_deletes
        if current is None:
            return []
        if current.format != "parquet":
            raise FallBackToExtension
        rows = self.scratch.execute("SELECT pos FROM read_parquet(?)", [current.path]).fetchall()
        return [position for (position,) in rows]

    def insert(self, rows: pa.Table, row_ids: Sequence[int]) -> Operation:
        """Inserts new rows under the old row ids: inlined if they are few, or in a file."""
        table, scratch = self.table, self.scratch
        for column, values in zip(table.columns, rows.columns, strict=True):
            if not column.nullable and values.null_count:
                raise FallBackToExtension
        if len(row_ids) <= (table.options.inlined_rows or 0):
            inlined = inlining.inline_rows(table, rows, row_ids=row_ids)
            if inlined is not None:
                return inlined
        scratch.register(_ROWS, rows.append_column(datafile.ROW_ID, pa.array(row_ids, pa.int64())))
        selected = ", ".join(
            f"CAST({name} AS {duckdb_type(column)}) AS {identifier(column.name)}"
            for name, column in zip(rows.column_names, table.columns, strict=True)
        )
        query = f"SELECT {selected}, {datafile.ROW_ID} FROM {_ROWS}"
        plain = datafile.write_plain_file(scratch, query, table, internal=(datafile.ROW_ID,))
        scratch.unregister(_ROWS)
        assert plain is not None  # there are rows
        self.written.append(plain.file)
        return Insert(table, (plain.file,))

    def _conflict(self) -> CommitConflict:
        return CommitConflict(
            f"The table {self.table.full_name} changed while the statement ran. Run the statement "
            "again."
        )
