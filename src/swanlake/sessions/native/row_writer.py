"""Puts new rows of a table into the metadata if they are few, and into files otherwise."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import duckdb
import pyarrow as pa

from swanlake.lake.files import datafile, inlining
from swanlake.lake.files.inlined_tables import can_inline
from swanlake.lake.model.layout import DataFile, Table, folded
from swanlake.lake.model.operations import CreateTable, Insert
from swanlake.lake.model.partitioning import partitions
from swanlake.sessions.native.context import FallBackToExtension, NativeContext, PreparedChange
from swanlake.sessions.native.peekable_reader import PeekableReader
from swanlake.sessions.results.stream import Outcome

_ROWS = "__swanlake_inserted"
_NOT_NULL = "NOT NULL constraint failed: "
_EXCERPT = "\n\nLINE "
_SOURCE = " when casting from source column "


def write_query(
    context: NativeContext,
    query: str,
    table: Table,
    *,
    new: CreateTable | None = None,
    blind: bool = False,
) -> PreparedChange:
    """Writes the rows of a query, whose number is not known before.

    ``new`` is the operation that creates the table. ``blind`` says that the rows do not depend on
    what the lake holds.
    """
    inlined_rows = table.options.inlined_rows or 0
    if inlined_rows < 1 or not can_inline(new or table):
        files = write_files(context, query, table, context.parameters or ())
        return insert_files(new or table, files, blind=blind)
    _check_inlining(context)
    partitions(table)  # refuses a table that cannot be written, before a row is read
    try:
        context.connection.execute(datafile.rows_sql(query, table), context.parameters)
        with PeekableReader(context.connection) as reader:
            few = reader.up_to(inlined_rows)
            rows = reader.reader() if few is None else few
            return write_rows(context, rows, table, new=new, blind=blind)
    except duckdb.Error as error:
        raise _explain(error, table) from None


def write_rows(
    context: NativeContext,
    rows: pa.Table | pa.RecordBatchReader,
    table: Table,
    *,
    new: CreateTable | None = None,
    blind: bool = False,
) -> PreparedChange:
    """Writes rows in memory, or rows that a query still produces; see ``write_query``."""
    if isinstance(rows, pa.Table) and rows.num_rows <= (table.options.inlined_rows or 0):
        _check_inlining(context)
        inlined = inlining.inline_rows(new or table, rows, blind=blind)
        if inlined is not None:
            operations = (inlined,) if rows.num_rows else ()
            return PreparedChange(operations, outcome=Outcome(affected=rows.num_rows))
    if isinstance(rows, pa.Table) and table.sort_keys:
        # The order may call macros, which only the session's search path finds.
        files = _write_registered(context.session.connection, rows, table)
    else:
        with context.zoned_scratch_connection() as scratch:
            files = _write_registered(scratch, rows, table)
    return insert_files(new or table, files, blind=blind)


def _write_registered(
    connection: duckdb.DuckDBPyConnection, rows: pa.Table | pa.RecordBatchReader, table: Table
) -> list[DataFile]:
    connection.register(_ROWS, rows)
    try:
        return datafile.write_files(connection, f"FROM temp.main.{_ROWS}", table)
    finally:
        connection.unregister(_ROWS)


def _check_inlining(context: NativeContext) -> None:
    if not context.session.services.native.inlining:
        raise FallBackToExtension


def write_files(
    context: NativeContext, query: str, table: Table, parameters: Any = ()
) -> list[DataFile]:
    """Writes the rows of a query to files of a table."""
    try:
        return datafile.write_files(context.connection, query, table, parameters=parameters)
    except duckdb.Error as error:
        raise _explain(error, table) from None


def insert_files(
    table: Table | CreateTable, files: Sequence[DataFile], *, blind: bool
) -> PreparedChange:
    """The change that adds files to a table."""
    operations = (Insert(table, tuple(files), blind=blind),) if files else ()
    affected = sum(file.record_count for file in files)
    return PreparedChange(operations, files, Outcome(affected=affected))


def _explain(error: duckdb.Error, table: Table) -> duckdb.Error:
    """An error of writing files in the words that DuckDB has for the INSERT."""
    message = str(error).partition(_EXCERPT)[0]
    _, is_null, column = message.partition(_NOT_NULL)
    if is_null and isinstance(error, duckdb.InvalidInputException):
        name = column.removeprefix(f"{table.schema}.")
        return duckdb.ConstraintException(f"Constraint Error: {_NOT_NULL}{name}")
    words, _, source = message.partition(_SOURCE)
    is_own_cast = any(folded(column.name) == folded(source) for column in table.columns)
    return type(error)(words if is_own_cast else message)
