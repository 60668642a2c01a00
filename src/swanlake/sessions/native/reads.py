"""Queries of tables without the extension.

A scan by DuckLake's extension begins with a dozen metadata queries, which take longer than a small
query itself. The snapshot cache knows where the rows of a table are, so a scratch connection reads
the files that the query needs, and gets the rows of the metadata as parameters.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from typing import Any

import duckdb

from swanlake._internal.lru_cache import LruCache
from swanlake.engine.errors import may_invalidate
from swanlake.engine.serial import SerialEngine
from swanlake.errors import SwanLakeError
from swanlake.lake.model.layout import Column, folded
from swanlake.lake.model.table_state import InlinedScan, ScanFile, TableState
from swanlake.lake.read.pruning import select_files
from swanlake.lake.read.snapshot_cache import CatalogRead, folded_name
from swanlake.sessions.execution.engine_session import STATEMENT_ERRORS, EngineSession
from swanlake.sessions.execution.names import TableName
from swanlake.sessions.native.analysis import StatementAnalysis
from swanlake.sessions.native.context import NativeContext
from swanlake.sessions.native.table_rows import RowParameters
from swanlake.sessions.results.stream import Outcome
from swanlake.sessions.run import Run
from swanlake.sql.filters import Filter
from swanlake.sql.reads import PlainQuery

#: Negative-cache TTL: how long a table is left to the extension before it is looked at again.
_UNREADABLE_SECONDS = 5.0
_MAX_UNREADABLE = 1000
#: More files are left to the extension: DuckDB would parse their names with every query.
_MAX_FILES = 200
#: Each file with deletes is a query of its own.
_MAX_FILES_WITH_DELETES = 16
#: DuckDB works on so many rows at a time: a query of fewer has no work for a second thread.
_SMALL_ROWS = 2048


@dataclass(frozen=True)
class NativeQuery:
    """A query that needs no extension: its text, and all that it is bound to."""

    sql: str
    parameters: Any
    #: What is counted when it has run; empty for a query without tables.
    counter: str = ""
    #: True if it reads no file, and so few rows that one thread is enough.
    is_small: bool = True


class NativeReader:
    """Reads tables of one session."""

    def __init__(self, session: EngineSession, analysis: StatementAnalysis) -> None:
        services = session.services
        self._analysis = analysis
        self._session = session
        self._table_cache = services.queue.table_cache
        self._snapshots = services.snapshots
        self._counts = services.reads
        self._is_on = services.native.reads
        #: Queries by their text, as the engine for small queries parsed them.
        self._parsed: LruCache[list[duckdb.Statement]] = LruCache()
        #: Until when tables are left to the extension.
        self._unreadable: dict[TableName, float] = {}

    def run(self, context: NativeContext) -> Outcome | None:
        """Runs a plain query; None, with nothing done, for every other query."""
        run = context.run
        query = self.query(run, context.statement.body, context.parameters)
        if query is None:
            return None
        serial = self._serial_engine(query)
        with ExitStack() as stack:
            try:
                if serial is None:
                    scratch = stack.enter_context(context.scratch_connection())
                else:
                    scratch = stack.enter_context(serial.connection())
                with run.interruptible(scratch):
                    scratch.execute(self._parse(query, scratch, serial), query.parameters)
                    stream = self._session.stream(run, scratch)
            except STATEMENT_ERRORS as error:
                if run.is_stopped:
                    raise
                if may_invalidate(error):
                    if serial is None:
                        raise
                    serial.close()
                # The engine reports the error of the query as it was sent.
                self._counts.increment("repeated")
                return None
            if stream.live:
                stream.keep(stack.pop_all())
                self._session.live = stream
        if query.counter:
            self._counts.increment(query.counter)
        return Outcome(stream)

    def _serial_engine(self, query: NativeQuery) -> SerialEngine | None:
        """The engine for small queries; None for a large one, or after a SET GLOBAL."""
        changed = self._session.engine.global_settings
        return self._session.services.host.serial if query.is_small and not changed else None

    def _parse(
        self,
        query: NativeQuery,
        connection: duckdb.DuckDBPyConnection,
        serial: SerialEngine | None,
    ) -> str | duckdb.Statement:
        """The query as DuckDB gets it; the settings of a serial engine never change its parse."""
        if serial is None:
            return query.sql
        [parsed] = self._parsed.get_or_compute(query.sql, connection.extract_statements)
        return parsed

    def query(self, run: Run, text: str, parameters: Any) -> NativeQuery | None:
        """A plain query with the rows of its tables; None if the extension must run it."""
        if not self._is_on or self._session.has_local_state:
            return None
        bound = RowParameters(parameters)
        if not bound.match(text):
            return None
        plain = self._analysis.plain_query(bound.number(text))
        if plain is None:
            return None
        if not plain.tables:
            return self._constant_query(plain, bound)
        names = [self._session.names.resolve_table(table.parts) for table in plain.tables]
        known = [name for name in names if name is not None]
        if len(known) < len(names):
            return None
        return self._table_query(run, plain, known, bound)

    def _constant_query(self, plain: PlainQuery, bound: RowParameters) -> NativeQuery | None:
        """A query without tables; None if it may depend on more than its parameters.

        On the session's connection, DuckDB looks each function up in the lake first.
        """
        try:
            is_hidden = plain.calls_functions and self._analysis.macros_may_hide_functions()
        except SwanLakeError:  # the extension reports a missing database
            return None
        if is_hidden or not plain.names_only(()):
            return None
        return NativeQuery(plain.text, bound.values)

    def _table_query(
        self, run: Run, plain: PlainQuery, names: Sequence[TableName], bound: RowParameters
    ) -> NativeQuery | None:
        read = self._read(run, names)
        if read is None:
            return None
        columns = (column.name for state in read.states for column in state.table.columns)
        if not plain.names_only(columns):
            return None
        # A SET GLOBAL may change the collation, by which texts are compared.
        skips_texts = bool(self._session.engine.global_settings)
        files = _Pruning(plain, read, skips_texts=skips_texts).select(bound)
        everything = [file for chosen in files for file in chosen]
        with_deletes = sum(file.has_deletes for file in everything)
        if len(everything) > _MAX_FILES or with_deletes > _MAX_FILES_WITH_DELETES:
            return None
        queries = [
            bound.all_rows_query(state.table, chosen, state.inlined)
            for state, chosen in zip(read.states, files, strict=True)
        ]
        sql = plain.replace_tables(queries)
        rows = sum(len(state.inlined.row_ids) for state in read.states if state.inlined)
        is_small = not everything and rows <= _SMALL_ROWS
        return NativeQuery(sql, bound.values, "files" if everything else "metadata", is_small)

    def scan(self, run: Run, name: TableName) -> InlinedScan | None:
        """All rows of a table that has only inlined ones; None if the extension must read it."""
        if not self._is_on or self._session.has_local_state:
            return None
        read = self._read(run, [name])
        if read is None or read.states[0].files:
            return None
        return read.states[0].inlined

    def forget(self, name: TableName) -> None:
        """Forgets what is cached of a table: its layout is not that of the table cache."""
        self._table_cache.invalidate(*name)
        with suppress(SwanLakeError):
            states = self._snapshots.catalog(self._table_cache.catalog(name[0]))
            states.forget(folded_name(*name[1:]))

    def _read(self, run: Run, names: Sequence[TableName]) -> CatalogRead | None:
        """Where the rows of these tables are; None if the extension must read one of them."""
        now = time.monotonic()
        if len({name[0] for name in names}) > 1:
            return None
        if any(now < self._unreadable.get(name, 0) for name in names):
            return None
        try:
            catalog = self._snapshots.catalog(self._table_cache.catalog(names[0][0]))
            read = catalog.read([folded_name(*name[1:]) for name in names], run.check)
        except SwanLakeError:  # the extension reports a missing database
            run.check_stopped()
            return None
        if read is not None and all(state.is_readable for state in read.states):
            return read
        if len(self._unreadable) >= _MAX_UNREADABLE:
            self._unreadable.clear()
        self._unreadable |= dict.fromkeys(names, now + _UNREADABLE_SECONDS)
        return None


class _Pruning:
    """Chooses the files of a query's tables that may have rows for it."""

    def __init__(self, plain: PlainQuery, read: CatalogRead, *, skips_texts: bool) -> None:
        self._plain = plain
        self._skips_texts = skips_texts
        self._states = read.states
        self._catalog = read.catalog

    def select(self, bound: RowParameters) -> list[Sequence[ScanFile]]:
        """The files of each table, in the order of the tables in the query."""
        if all(len(state.files) <= 1 for state in self._states) or not self._plain.filters:
            return [state.files for state in self._states]
        by_start = {
            table.start: state
            for table, state in zip(self._plain.tables, self._states, strict=True)
        }
        columns = {
            start: frozenset(column.name.lower() for column in state.table.columns)
            for start, state in by_start.items()
        }
        conditions: dict[int, list[tuple[str, Filter]]] = {}
        for filters in self._plain.filters:
            if filters.start in by_start:
                conditions[filters.start] = list(filters.of_table(columns))
        values = bound.by_name
        return [
            self._select(state, conditions.get(start, []), values)
            for start, state in by_start.items()
        ]

    def _select(
        self, state: TableState, conditions: Sequence[tuple[str, Filter]], values: Any
    ) -> Sequence[ScanFile]:
        if len(state.files) <= 1 or not conditions:
            return state.files
        by_name = {column.name.lower(): column for column in state.table.columns}
        name = folded(state.table.schema), folded(state.table.name)

        def bounds(column: Column) -> Any:
            return self._catalog.bounds(name, column.id)

        return select_files(
            state.files,
            [
                (by_name[column], condition)
                for column, condition in conditions
                if not (self._skips_texts and by_name[column].type == "varchar")
            ],
            bounds,
            values,
        )
