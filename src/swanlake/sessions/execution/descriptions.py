"""Descriptions of queries, kept as long as they are certainly still right.

DuckDB plans a query to describe it, which takes longer than most small queries run, and stock
clients prepare a text anew each time they run it. What a plain query returns depends on nothing but
its text and the columns of its tables.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from swanlake._internal.lru_cache import LruCache
from swanlake.errors import SwanLakeError
from swanlake.lake.model.layout import Column
from swanlake.sessions.execution.engine_session import EngineSession
from swanlake.sessions.execution.prepared import EMPTY_SCHEMA, inserted_parameters
from swanlake.sessions.native.analysis import StatementAnalysis
from swanlake.sql.reads import PlainQuery
from swanlake.sql.statement import Statement
from swanlake.sql.tokens import number_parameters


@dataclass(frozen=True)
class Description:
    """The columns of a query's result, and its parameters."""

    dataset_schema: Any
    parameter_schema: Any


@dataclass(frozen=True)
class _Entry:
    description: Description
    #: The columns that the tables of the query had.
    columns: list[tuple[Column, ...]]


class InsertedParameters:
    """The parameters of INSERTs of which each is a whole value; each text is looked at once."""

    def __init__(self) -> None:
        #: With the columns of the table for which they hold.
        self._schemas: LruCache[tuple[Any, Any]] = LruCache()

    def get(self, insert: Statement, columns: Any) -> Any | None:
        """The parameters with the types of their columns; None if DuckDB must infer a type."""
        if not insert.parameters:  # its literals make each text a new one
            return EMPTY_SCHEMA
        known = self._schemas.get(insert.text)
        if known is None or known[0] != columns:
            known = (columns, inserted_parameters(insert, columns))
            self._schemas.put(insert.text, known)
        return known[1]


class DescriptionCache:
    """The descriptions of one session's plain queries, by text.

    It is only for queries outside of a transaction, of a session without settings and temporary
    objects. Changes of tables by this server are noticed at once, those by others within a second.
    """

    def __init__(self, session: EngineSession, analysis: StatementAnalysis) -> None:
        self._session = session
        self._analysis = analysis
        self._table_cache = session.services.queue.table_cache
        self._entries: LruCache[_Entry] = LruCache()
        self._version = session.settings_version

    def get(self, query: Statement) -> Description | None:
        """The description of a query; None if it is not known, or may have changed."""
        if self._version != self._session.settings_version:
            self._version = self._session.settings_version
            self._entries.clear()
        entry = self._entries.get(query.body)
        is_current = entry is not None and entry.columns == self._columns(query)
        return entry.description if entry is not None and is_current else None

    def put(self, query: Statement, description: Description) -> bool:
        """Keeps a description that DuckDB has just given; False if it may change at any time."""
        columns = self._columns(query)
        if columns is not None:
            self._entries.put(query.body, _Entry(description, columns))
        return columns is not None

    def _columns(self, query: Statement) -> list[tuple[Column, ...]] | None:
        """The columns of each table of a plain query; None if more than these matters."""
        plain = self._analysis.plain_query(number_parameters(query.body))
        if plain is None:
            return None
        try:
            if plain.calls_functions and self._analysis.macros_may_hide_functions():
                return None
            return self._table_columns(plain)
        except SwanLakeError:  # DuckDB reports a missing table or database
            return None

    def _table_columns(self, plain: PlainQuery) -> list[tuple[Column, ...]] | None:
        columns = []
        for table in plain.tables:
            name = self._session.names.resolve_table(table.parts)
            if name is None:
                return None
            columns.append(self._table_cache.find(*name).layout.columns)
        is_known = plain.names_only(column.name for table in columns for column in table)
        return columns if is_known else None
