"""Keeps DuckLake's extension from inlining structs, which it cannot read back.

It stores the struct of an inlined row as text without its quotes: texts change, and dates, times
and others make the table unreadable. Data files hold the same rows unchanged, so the extension
writes files for such tables as long as a statement of a session runs.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import duckdb
from duckdb import StatementType

from swanlake.errors import NotFound, Unsupported
from swanlake.lake.catalog import new_table
from swanlake.lake.model.layout import Table
from swanlake.lake.model.types import ColumnSpec, UnsupportedType
from swanlake.sessions.execution.engine_session import EngineSession
from swanlake.sessions.execution.names import TableName
from swanlake.sessions.run import Run
from swanlake.sql.heads import create_head
from swanlake.sql.quoting import identifier
from swanlake.sql.statement import Statement

_INLINES_ROWS = (
    StatementType.INSERT,
    StatementType.UPDATE,
    StatementType.MERGE_INTO,
    StatementType.COPY,
    StatementType.CREATE,
)


@contextmanager
def structs_in_files(session: EngineSession, run: Run, statement: Statement) -> Iterator[None]:
    """Around a statement on the extension: rows with structs are written to files.

    Raises Unsupported for such rows of a table that its own transaction creates: the extension
    takes options for committed tables only.
    """
    target = statement.written_table if statement.type in _INLINES_ROWS else None
    name = None if target is None else session.names.resolve_table(target)
    if name is None or (statement.type == StatementType.CREATE and not statement.creates_table):
        yield
        return
    try:
        table = session.services.queue.table_cache.find(*name).layout
    except NotFound:
        _check_new_table(session, statement, name)
        yield
        return
    limit = table.options.inlined_rows or 0
    engine, location = session.engine, session.names.catalog_location((name[0], name[1]))
    # A limit of the engine outlives the option from which it was set.
    is_inlined = limit > 0 or engine.has_inlining_limit(table.id)
    if location is None or not is_inlined or not has_struct(table):
        yield
        return
    with session.writer_lock(run, {location}):
        engine.set_inlining_limit(location, table, 0)
        try:
            yield
        finally:
            # An ALTER TABLE prepares the metadata for inlined rows of other programs.
            engine.set_inlining_limit(location, table, limit)


def has_struct(table: Table) -> bool:
    """True if a column of the table is or contains a struct."""
    return any(one.type == "struct" for column in table.columns for one in column.tree())


def _check_new_table(session: EngineSession, statement: Statement, name: TableName) -> None:
    head = create_head(statement)
    if head is not None and head.query is None:
        return
    described = ".".join(map(identifier, name)) if head is None else head.query
    try:
        columns = session.connection.execute(f"DESCRIBE {described}").fetchall()
        # Only the types matter: DuckDB tells columns of one name apart when it creates the table.
        specs = [ColumnSpec(f"c{number}", one[1]) for number, one in enumerate(columns)]
        operation = new_table(name[1], name[2], specs)
        table = session.services.queue.table_cache.catalog(name[0]).new_table(operation)
    except (duckdb.Error, NotFound, UnsupportedType):
        return  # the statement reports what is missing
    if table.options.inlined_rows and has_struct(table):
        raise Unsupported(
            f"DuckLake's extension would inline the first rows of {table.full_name}, which has a "
            "STRUCT, and could not read them again; commit its CREATE TABLE first, or set "
            "data_inlining_row_limit to 0."
        )
