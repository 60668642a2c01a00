"""CREATE TABLE, with a list of columns or with a query."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import partial

from swanlake._internal.lru_cache import LruCache
from swanlake.errors import NotFound
from swanlake.lake.catalog import new_table
from swanlake.lake.files.inlined_tables import OWN_COLUMNS
from swanlake.lake.model.layout import folded
from swanlake.lake.model.operations import DropTable, Operation
from swanlake.lake.model.types import ColumnSpec
from swanlake.lake.read.table_cache import CachedTable, TableCache
from swanlake.sessions.execution.names import TableName
from swanlake.sessions.native.analysis import StatementAnalysis
from swanlake.sessions.native.context import (
    BIND_ERRORS,
    FallBackToExtension,
    NativeContext,
    PreparedChange,
    PreparedCommit,
)
from swanlake.sessions.native.row_writer import write_query
from swanlake.sessions.results.stream import Outcome
from swanlake.sql.heads import CreateHead

_COLUMNS = "__swanlake_columns"


class TableCreator:
    """Prepares the CREATE TABLE statements of one session."""

    def __init__(self, table_cache: TableCache, analysis: StatementAnalysis) -> None:
        self._table_cache = table_cache
        self._analysis = analysis
        #: Column lists mean the same on every scratch connection.
        self._columns: LruCache[list[ColumnSpec]] = LruCache()

    def find(self, table: TableName) -> CachedTable | None:
        """The table of that name, if there is one."""
        try:
            return self._table_cache.find(*table)
        except NotFound:
            return None

    def prepare(self, table: TableName, head: CreateHead, context: NativeContext) -> PreparedCommit:
        """Writes the rows of the new table; raises FallBackToExtension."""
        catalog = self._table_cache.catalog(table[0])
        if catalog.requires_message():
            raise FallBackToExtension  # which refuses it: only a transaction has a message
        if head.columns is not None and not (head.or_replace or head.if_not_exists):
            # Nothing is written before the commit, which finds an existing table.
            operation = new_table(table[1], table[2], self._new_columns(head, context))
            return PreparedCommit(catalog, PreparedChange((operation,)))
        existing = self.find(table)
        if existing is not None and head.if_not_exists:
            return PreparedCommit(catalog, PreparedChange())
        if existing is not None and not head.or_replace:
            raise FallBackToExtension
        # DuckLake refuses collations, which DuckDB does not describe.
        if head.query is not None and not self._analysis.has_no_collation(head.query):
            raise FallBackToExtension
        operation = new_table(table[1], table[2], self._new_columns(head, context))
        layout = catalog.new_table(operation)
        added = PreparedChange()
        if head.query is not None:
            added = PreparedChange(outcome=Outcome(affected=0))
            if head.with_data:
                context.session.drop_staging_tables()
                added = write_query(context, head.query, layout, new=operation)
        replaced: tuple[Operation, ...] = ()
        if existing is not None:
            replaced = (DropTable(existing.layout.schema, existing.layout.name),)
        operations = (*replaced, operation, *added.operations)
        return PreparedCommit(catalog, replace(added, operations=operations), layout)

    def _new_columns(self, head: CreateHead, context: NativeContext) -> list[ColumnSpec]:
        if head.query is not None:
            context.expose_client_rows()
            columns = _column_specs(context.describe(head.query), may_forbid_null=False)
        else:
            assert head.columns is not None
            columns = self._columns.get_or_compute(
                head.columns, partial(_declared_columns, context)
            )
        # The extension refuses these names if rows of the table would be inlined.
        if any(folded(column.name) in OWN_COLUMNS for column in columns):
            raise FallBackToExtension
        return columns


def _declared_columns(context: NativeContext, columns: str) -> list[ColumnSpec]:
    with context.scratch_connection() as scratch:
        try:
            scratch.execute(f"CREATE OR REPLACE TEMP TABLE {_COLUMNS} {columns}")
        except BIND_ERRORS:
            raise FallBackToExtension from None  # a type of the session, or a mistake
        described = scratch.execute(f"DESCRIBE {_COLUMNS}").fetchall()
        scratch.execute(f"DROP TABLE {_COLUMNS}")
    return _column_specs(described, may_forbid_null=True)


def _column_specs(described: Iterable[Sequence[str]], *, may_forbid_null: bool) -> list[ColumnSpec]:
    """The columns that DuckDB gives a new table for columns that it describes."""
    specs: list[ColumnSpec] = []
    taken: set[str] = set()
    for name, type_, null, *_ in described:
        unique, number = name, 0
        while folded(unique) in taken:
            number += 1
            unique = f"{name}_{number}"
        taken.add(folded(unique))
        # A column of nothing but NULL has no type; DuckDB chooses INTEGER.
        type_ = "INTEGER" if type_ == '"NULL"' else type_
        specs.append(ColumnSpec(unique, type_, nullable=null == "YES" or not may_forbid_null))
    return specs
