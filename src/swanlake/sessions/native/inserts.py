"""INSERT and COPY FROM: writes the rows before any lock is taken."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace

import duckdb
import pyarrow as pa

from swanlake.engine.errors import may_invalidate
from swanlake.lake.model.layout import Table, folded
from swanlake.lake.read.table_cache import CachedTable
from swanlake.sessions.execution.engine_executor import collect_outcome
from swanlake.sessions.execution.engine_session import EngineSession
from swanlake.sessions.execution.names import TableName
from swanlake.sessions.execution.parser import StatementParser
from swanlake.sessions.native.analysis import StatementAnalysis, computes_defaults
from swanlake.sessions.native.context import (
    BIND_ERRORS,
    FallBackToExtension,
    NativeContext,
    PreparedChange,
)
from swanlake.sessions.native.insert_rows import literal_insert, match_columns
from swanlake.sessions.native.reads import NativeReader
from swanlake.sessions.native.row_writer import insert_files, write_files, write_query, write_rows
from swanlake.sessions.staging_tables import StagingTable, StagingTables, default_expression
from swanlake.sql.heads import CopyHead
from swanlake.sql.insert import InsertHead
from swanlake.sql.quoting import identifier, unquoted
from swanlake.sql.statement import Kind, Statement
from swanlake.sql.tokens import tokenize

_BATCH_ROWS = 100_000


class Inserter:
    """Prepares the INSERT and COPY FROM statements of one session."""

    def __init__(
        self,
        session: EngineSession,
        parser: StatementParser,
        reader: NativeReader,
        analysis: StatementAnalysis,
    ) -> None:
        self._parser = parser
        self._reader = reader
        self._analysis = analysis
        self._takes_literals = session.services.native.literals
        self._staging = StagingTables(session, "__swanlake_staging_", checks_storable=False)

    def prepare(
        self,
        table: TableName,
        head: InsertHead | CopyHead,
        context: NativeContext,
        target: CachedTable,
    ) -> PreparedChange:
        """Writes the rows of a statement; raises FallBackToExtension."""
        layout = target.layout
        rows = self._literal_rows(head, context, layout)
        if rows is not None:
            return write_rows(context, rows, layout, blind=True)
        if not self._analysis.has_builtin_defaults(layout):
            raise FallBackToExtension
        is_query = context.statement.kind is Kind.QUERY
        if isinstance(head, InsertHead) and not head.is_values and not is_query:
            return self._insert_query(head, context, layout)
        return self._insert_by_staging(table, head, context, target)

    def _literal_rows(
        self, head: InsertHead | CopyHead, context: NativeContext, table: Table
    ) -> pa.Table | None:
        if not self._takes_literals or context.parameters or not isinstance(head, InsertHead):
            return None
        return literal_insert(context.statement, head, table)

    def _insert_query(
        self, head: InsertHead, context: NativeContext, table: Table
    ) -> PreparedChange:
        query = _query(context.statement, head)
        inlined = None
        if not context.has_client_rows and not computes_defaults(table):
            inlined = self._reader.query(context.run, query, context.parameters)
        if inlined is not None:
            try:
                with context.on_scratch(inlined.parameters) as scratch:
                    return self._insert_rows_of(inlined.sql, head, scratch, table)
            except FallBackToExtension:
                pass
            except duckdb.Error as error:
                if context.run.is_stopped or may_invalidate(error):
                    raise
                # The error is reported for the query as the client sent it.
        return self._insert_rows_of(query, head, context, table)

    def _insert_rows_of(
        self, query: str, head: InsertHead, context: NativeContext, table: Table
    ) -> PreparedChange:
        context.session.drop_staging_tables()
        context.expose_client_rows()
        columns = [name for name, *_ in context.describe(query)]
        positions = match_columns(table, head, columns)
        if positions is None:
            raise FallBackToExtension
        values = (
            default_expression(column) if position is None else f"c{position}"
            for position, column in zip(positions, table.columns, strict=True)
        )
        names = ", ".join(f"c{position}" for position in range(len(columns)))
        rows = f"SELECT {', '.join(values)} FROM ({query}\n) AS given({names})"
        is_blind = context.has_client_rows and self._analysis.reads_no_table(query, table)
        return write_query(context, rows, table, blind=is_blind)

    def _insert_by_staging(
        self,
        table: TableName,
        head: InsertHead | CopyHead,
        context: NativeContext,
        target: CachedTable,
    ) -> PreparedChange:
        connection, statement, layout = context.connection, context.statement, target.layout
        staging = self._staging.get(table, target, table[2])
        is_blind = self._is_blind(statement, head, layout)
        context.expose_client_rows()
        try:
            if statement.kind is not Kind.QUERY and isinstance(head, InsertHead):
                rows = self._staged_rows(context, head, staging)
                return write_rows(context, rows, layout, blind=is_blind)
            connection.execute(f"TRUNCATE temp.main.{staging.name}")
            staged = self._on_staging(statement, head, staging)
            connection.execute(staged, context.parameters)
            outcome = collect_outcome(
                context.session, context.run, statement, keep_rows=context.keep_rows
            )
        except duckdb.Error as error:
            if isinstance(error, BIND_ERRORS) and statement.kind is not Kind.QUERY:
                raise FallBackToExtension from None
            raise staging.explain_error(error) from None
        files = write_files(context, f"FROM temp.main.{staging.name}", layout)
        with suppress(duckdb.Error):  # a cancelled statement fails before its commit
            connection.execute(f"TRUNCATE temp.main.{staging.name}")
        return replace(insert_files(layout, files, blind=is_blind), outcome=outcome)

    def _is_blind(self, statement: Statement, head: InsertHead | CopyHead, table: Table) -> bool:
        """True if the rows do not depend on what the lake holds."""
        if isinstance(head, CopyHead):
            return self._analysis.has_builtin_defaults(table)
        body = statement.body.encode()[head.body :].decode()
        return self._analysis.reads_no_table(body, table)

    def _staged_rows(
        self, context: NativeContext, head: InsertHead, staging: StagingTable
    ) -> pa.Table:
        connection = context.connection
        staged = self._on_staging(context.statement, head, staging, "\nRETURNING *")
        connection.execute(staged, context.parameters)
        rows = connection.to_arrow_reader(_BATCH_ROWS).read_all()
        staging.bytes_seen += rows.nbytes
        staging.truncate_if_full(connection)
        return rows

    def _on_staging(
        self,
        statement: Statement,
        head: InsertHead | CopyHead,
        staging: StagingTable,
        suffix: str = "",
    ) -> duckdb.Statement:
        """The statement with the staging table in place of its table."""
        text = statement.body.encode()
        start, end = text[: head.target_start].decode(), text[head.target_end :].decode()
        if isinstance(head, InsertHead) and not suffix:
            end = _rename_in_returning(end, head.target[-1], staging.name)
        sql = self._analysis.qualify_builtins(f"{start}temp.main.{staging.name}{end}")
        return self._parser.parse_one(sql + suffix).parsed


def _query(statement: Statement, head: InsertHead) -> str:
    """The query of an INSERT, with the WITH that stands before the INSERT."""
    text = statement.body.encode()
    before, body = text[: head.start].decode(), text[head.body :].decode()
    return f"{before}FROM ({body}\n)" if before.strip() else body


def _rename_in_returning(text: str, table: str, staging: str) -> str:
    """The end of an INSERT, whose RETURNING may name the table."""
    if "returning" not in text.lower():
        return text
    tokens = tokenize(text)
    clauses = [i for i, token in enumerate(tokens) if token.depth == 0 and token.is_kw("returning")]
    if not clauses:
        return text
    content = text.encode()
    for index in range(len(tokens) - 2, clauses[-1], -1):
        token = tokens[index]
        qualifies = tokens[index + 1].text == "." and tokens[index - 1].text != "."
        if qualifies and folded(unquoted(token.text)) == folded(table):
            content = content[: token.start] + identifier(staging).encode() + content[token.end :]
    return content.decode()
