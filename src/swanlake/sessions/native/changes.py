"""UPDATE and DELETE of tables whose rows are all inlined, without the extension.

A query over the scanned rows finds those of the statement, and their new values, before any lock is
taken. The commit ends the old rows and inlines the new ones. First committer wins; the loser
retries.
"""

from __future__ import annotations

from collections.abc import Sequence

import duckdb
import pyarrow as pa

from swanlake.lake.files import inlining
from swanlake.lake.model.layout import Column, Table, folded
from swanlake.lake.model.operations import InlineDelete, InlineInsert, Operation
from swanlake.lake.model.table_state import InlinedScan
from swanlake.lake.model.types import duckdb_type
from swanlake.sessions.execution.names import TableName
from swanlake.sessions.native.context import FallBackToExtension, NativeContext, PreparedChange
from swanlake.sessions.native.reads import NativeQuery
from swanlake.sessions.native.table_rows import ROW_ID, RowParameters
from swanlake.sessions.results.stream import Outcome
from swanlake.sql.heads import ChangeHead
from swanlake.sql.quoting import identifier

#: The extension reports these errors for the statement as it was sent.
_STATEMENT_ERRORS = (
    duckdb.ProgrammingError,
    duckdb.DataError,
    duckdb.IntegrityError,
    duckdb.NotSupportedError,
)


def expressions_query(head: ChangeHead, name: TableName) -> str:
    """A query with the expressions of a statement, over its table."""
    values = [f"({value}\n)" for _, value in head.assignments or ()] or ["NULL"]
    return f"SELECT {', '.join(values)} FROM {_alias(head, name)}{_where(head)}"


def prepare(
    head: ChangeHead, name: TableName, context: NativeContext, scan: InlinedScan
) -> PreparedChange:
    """The change of a table's rows, on a scratch connection; raises FallBackToExtension."""
    if not _has_known_columns(head, scan.table):
        raise FallBackToExtension
    query = _query(head, name, context, scan)
    try:
        context.connection.execute(query.sql, query.parameters)
        rows = context.connection.to_arrow_table()
    except _STATEMENT_ERRORS:
        raise FallBackToExtension from None
    if not rows.num_rows:
        return PreparedChange(outcome=Outcome(affected=0))
    assert scan.source_table is not None  # there are rows
    row_ids = rows.column(0).to_pylist()
    operations: list[Operation] = [InlineDelete(scan.table, scan.source_table, tuple(row_ids))]
    if head.assignments is not None:
        operations.append(_replacement(scan.table, rows.remove_column(0), row_ids))
    return PreparedChange(tuple(operations), outcome=Outcome(affected=len(row_ids)))


def _has_known_columns(head: ChangeHead, table: Table) -> bool:
    names = {folded(column.name) for column in table.columns}
    assigned = [folded(name) for name, _ in head.assignments or ()]
    return ROW_ID not in names and len(set(assigned)) == len(assigned) and names >= set(assigned)


def _query(
    head: ChangeHead, name: TableName, context: NativeContext, scan: InlinedScan
) -> NativeQuery:
    """The query for the row ids of a statement's rows, and for their new values."""
    alias = _alias(head, name)
    bound = RowParameters(context.parameters)
    if not bound.match(_selection(head, alias, alias, scan.table)):
        raise FallBackToExtension
    source = f"({bound.rows_query(scan, with_row_ids=True)}) AS {alias}"
    return NativeQuery(bound.number(_selection(head, alias, source, scan.table)), bound.values)


def _selection(head: ChangeHead, alias: str, source: str, table: Table) -> str:
    # No aliases of ours: the statement could use them.
    selected = [f"{alias}.{ROW_ID}"]
    if head.assignments is not None:
        values = {folded(name): value for name, value in head.assignments}
        selected += [
            _value(column, values.get(folded(column.name)), alias) for column in table.columns
        ]
    return f"SELECT {', '.join(selected)} FROM {source}{_where(head)}"


def _alias(head: ChangeHead, name: TableName) -> str:
    return identifier(head.alias or name[-1])


def _where(head: ChangeHead) -> str:
    return "" if head.condition is None else f" WHERE {head.condition}\n"


def _value(column: Column, value: str | None, table: str) -> str:
    if value is None:
        return f"{table}.{identifier(column.name)}"
    return f"CAST(({value}\n) AS {duckdb_type(column)})"


def _replacement(table: Table, rows: pa.Table, row_ids: Sequence[int]) -> InlineInsert:
    """The new rows, inlined under the old row ids; raises FallBackToExtension if a file is due."""
    for column, values in zip(table.columns, rows.columns, strict=True):
        if not column.nullable and values.null_count:
            raise FallBackToExtension
    if len(row_ids) > (table.options.inlined_rows or 0):
        raise FallBackToExtension
    inlined = inlining.inline_rows(table, rows, row_ids=row_ids)
    if inlined is None:
        raise FallBackToExtension
    return inlined
