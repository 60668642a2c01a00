"""Procedures that only read, as table functions: ``SELECT … FROM swanlake_queries() WHERE …``.

The rows of a call are computed before its statement runs, and are a temporary view for it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import duckdb
from duckdb import StatementType

from swanlake.errors import AccessDenied, CatalogUnreachable, Code, InvalidRequest, QueryError
from swanlake.sessions.execution.engine_session import EngineSession
from swanlake.sessions.execution.parser import StatementParser
from swanlake.sessions.procedures.registry import PROCEDURES, procedure_rows
from swanlake.sessions.run import Run
from swanlake.sql.statement import Statement
from swanlake.sql.table_functions import FunctionCall, find_calls, with_tables
from swanlake.sql.tokens import find_parameters

_VIEW = "__swanlake_function_"


class TableFunctions:
    """The procedures that statements of one session read in a FROM."""

    def __init__(self, session: EngineSession, parser: StatementParser) -> None:
        self._session = session
        self._parser = parser

    def find(self, statement: Statement) -> Sequence[FunctionCall]:
        """The calls of a statement; raises for a statement that would outlive their rows."""
        if statement.type == StatementType.CALL:
            return ()
        if not statement.may_call_procedures:
            return ()
        calls = find_calls(statement.text, PROCEDURES)
        if not calls:
            return ()
        for call in calls:
            if not PROCEDURES[call.call.name].reads:
                raise InvalidRequest(
                    f"{call.call.name} changes something: write CALL {call.call.name}(…)."
                )
        _refuse_lasting(statement)
        return calls

    @contextmanager
    def visible(
        self, run: Run, statement: Statement, calls: Sequence[FunctionCall]
    ) -> Iterator[Statement]:
        """The statement with views in place of its calls, which exist for the block."""
        tables = [
            procedure_rows(
                self._session, run, PROCEDURES[call.call.name], _constant(call).call, None
            )
            for call in calls
        ]
        with self._registered(statement, calls, tables) as rewritten:
            yield rewritten

    @contextmanager
    def described(self, statement: Statement, calls: Sequence[FunctionCall]) -> Iterator[Statement]:
        """The same with views that have no rows, to describe the statement."""
        tables = [PROCEDURES[_constant(call).call.name].schema.empty_table() for call in calls]
        with self._registered(statement, calls, tables) as rewritten:
            yield rewritten

    @contextmanager
    def _registered(
        self, statement: Statement, calls: Sequence[FunctionCall], tables: Sequence[Any]
    ) -> Iterator[Statement]:
        session = self._session
        # First: it may move the session to another connection. The statement says what is missing.
        with suppress(CatalogUnreachable, AccessDenied):
            session.attach_catalogs(statement, session.engine.attach_count)
        connection = session.connection
        views = [f"{_VIEW}{number}" for number in range(len(tables))]
        text = with_tables(
            statement.text, calls, lambda number: f"temp.main.{views[number]}", self._is_sql
        )
        rewritten = self._parser.parse_one(text)
        try:
            for view, table in zip(views, tables, strict=True):
                connection.register(view, table)
            yield rewritten
        finally:
            for view in views:
                with suppress(duckdb.Error):  # an aborted transaction takes the view with it
                    connection.unregister(view)

    def _is_sql(self, sql: str) -> bool:
        try:
            self._session.connection.extract_statements(sql)
        except duckdb.Error:
            return False
        return True


def _constant(call: FunctionCall) -> FunctionCall:
    if any(find_parameters(argument.expression) for argument in call.call.arguments):
        raise InvalidRequest(
            f"In a FROM, the arguments of {call.call.name} cannot be parameters. Write "
            f"CALL {call.call.name}(…), or constants."
        )
    return call


def _refuse_lasting(statement: Statement) -> None:
    """Raises for a statement that keeps its query: PREPARE, CREATE VIEW and CREATE MACRO."""
    is_lasting = statement.type == StatementType.PREPARE or (
        statement.type == StatementType.CREATE
        and any(token.is_word("view", "macro", "function") for token in statement.tokens[:6])
    )
    if is_lasting:
        raise QueryError(
            "A view, a macro or a prepared statement of SQL cannot read what the server computes "
            "for each statement. Write the query itself, or keep its rows in a table.",
            identifier="FUNCTION_REFUSED",
            code=Code.INVALID_ARGUMENT,
        )
