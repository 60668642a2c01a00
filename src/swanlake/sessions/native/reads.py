"""Queries of small tables without the extension: their rows become parameters of the query.

A scan by DuckLake's extension costs ten milliseconds, even of a table of one row. If all rows of
the tables are inlined, one metadata query reads them as of one snapshot, and a scratch connection
runs the query over them.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from swanlake.engine.errors import may_invalidate
from swanlake.errors import SwanLakeError
from swanlake.lake.model.layout import Column
from swanlake.lake.model.type_registry import find_type
from swanlake.lake.model.types import duckdb_type
from swanlake.lake.read.inlined_scan import InlinedScan, ScanRefusal, may_be_inlined
from swanlake.lake.read.table_cache import CachedTable
from swanlake.sessions.execution.engine_session import STATEMENT_ERRORS, EngineSession
from swanlake.sessions.execution.names import TableName
from swanlake.sessions.native.analysis import StatementAnalysis
from swanlake.sessions.native.context import NativeContext
from swanlake.sessions.results.stream import Outcome
from swanlake.sql.quoting import identifier
from swanlake.sql.reads import PlainQuery
from swanlake.sql.tokens import find_parameters, number_parameters

#: Negative-cache TTL: how long a table that is not wholly inlined is not scanned again.
_NOT_INLINED_SECONDS = 5.0
_MAX_NOT_INLINED = 1000
#: The virtual column in which DuckLake has the id of a row.
ROW_ID = "rowid"
_PREFIX = "swanlake_inlined_"


@dataclass(frozen=True)
class InlinedQuery:
    """A query with all rows that it reads among its parameters."""

    sql: str
    parameters: Any
    #: False for a query of nothing but its parameters.
    reads_tables: bool = True


class RowParameters:
    """The parameters of a query, and the rows of its tables as additional parameters."""

    def __init__(self, parameters: Any) -> None:
        self._is_named = isinstance(parameters, dict)
        self.values: Any = dict(parameters) if self._is_named else list(parameters or ())

    def match(self, text: str) -> bool:
        """True if a text has exactly these parameters.

        DuckDB would bind rows to a parameter whose value is missing.
        """
        names = {parameter.name for parameter in find_parameters(text)}
        if any(name.startswith(_PREFIX) for name in names):
            return False
        bound = self.values if self._is_named else map(str, range(1, len(self.values) + 1))
        return names == set(bound)

    def number(self, text: str) -> str:
        """The text with ``$1`` for the first ``?``: DuckDB would also count the added ones."""
        return text if self._is_named else number_parameters(text)

    def rows_query(self, scan: InlinedScan, *, with_row_ids: bool = False) -> str:
        """A query for all rows of a table, as the extension would read them.

        ``with_row_ids`` adds the column ``ROW_ID``.
        """
        selected = [
            f"unnest({self._add_column(values, column)}) AS {identifier(column.name)}"
            for values, column in zip(scan.values, scan.table.columns, strict=True)
        ]
        if with_row_ids:
            selected.append(f"unnest({self._add(scan.row_ids, 'BIGINT')}) AS {ROW_ID}")
        return f"SELECT {', '.join(selected)}"

    def _add_column(self, values: Sequence[Any], column: Column) -> str:
        """Adds the values of a column; the expression is a list of the column's type."""
        bound_type, type_ = _bound_type(column.type), duckdb_type(column)
        added = self._add(values, bound_type)
        return added if bound_type == type_ else f"CAST({added} AS {type_}[])"

    def _add(self, values: Sequence[Any], type_: str) -> str:
        if self._is_named:
            name = f"{_PREFIX}{len(self.values)}"
            self.values[name] = list(values)
        else:
            self.values.append(list(values))
            name = str(len(self.values))
        return f"CAST(${name} AS {type_}[])"


def _bound_type(type_: str) -> str:
    """The type in which values are bound, before DuckDB casts them to their column's type."""
    if type_ == "boolean":
        return "BOOLEAN"
    known = find_type(type_)
    is_integer = known is not None and known.inlined is not None and known.inlined.is_integer
    return "BIGINT" if is_integer else "VARCHAR"


class NativeReader:
    """Reads tables of one session that have only inlined rows."""

    def __init__(self, session: EngineSession, analysis: StatementAnalysis) -> None:
        services = session.services
        self._analysis = analysis
        self._session = session
        self._lake = services.lake
        self._table_cache = services.queue.table_cache
        self._counts = services.reads
        self._is_on = services.native.reads
        #: Until when tables are taken to be not wholly inlined.
        self._not_inlined: dict[TableName, float] = {}

    def run(self, context: NativeContext) -> Outcome | None:
        """Runs a query of inlined rows; None, with nothing done, for every other query."""
        run = context.run
        query = self.query(context.statement.body, context.parameters)
        if query is None:
            return None
        try:
            with context.on_scratch(query.parameters) as scratch:
                scratch.connection.execute(query.sql, query.parameters)
                stream = self._session.stream(run, scratch.connection)
        except STATEMENT_ERRORS as error:
            if run.is_stopped or may_invalidate(error):
                raise
            stream = None  # the engine reports the error of the query as it was sent
        if stream is not None and not stream.live:
            if query.reads_tables:
                self._counts.increment("metadata")
            return Outcome(stream)
        if stream is not None:
            stream.close()  # too many rows to buffer until they are fetched
        self._counts.increment("repeated")
        return None

    def query(self, text: str, parameters: Any) -> InlinedQuery | None:
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
        scans = self._scan([name for name in names if name]) if all(names) else None
        if scans is None:
            return None
        if not plain.names_only(column.name for scan in scans for column in scan.table.columns):
            return None
        queries = [bound.rows_query(scan) for scan in scans]
        return InlinedQuery(plain.replace_tables(queries), bound.values)

    def _constant_query(self, plain: PlainQuery, bound: RowParameters) -> InlinedQuery | None:
        """A query without tables; None if it may depend on more than its parameters.

        On the session's connection, DuckDB looks each function up in the lake first.
        """
        try:
            is_hidden = plain.calls_functions and self._analysis.macros_may_hide_functions()
        except SwanLakeError:  # the extension reports a missing database
            return None
        if is_hidden or not plain.names_only(()):
            return None
        return InlinedQuery(plain.text, bound.values, reads_tables=False)

    def scan(self, name: TableName) -> InlinedScan | None:
        """All rows of a table; None if the extension must read it."""
        if not self._is_on or self._session.has_local_state:
            return None
        scans = self._scan([name])
        return scans[0] if scans else None

    def _scan(self, names: Sequence[TableName]) -> list[InlinedScan] | None:
        """All rows of these tables as of one snapshot; None if the extension must read them."""
        now = time.monotonic()
        if any(now < self._not_inlined.get(name, 0) for name in names):
            return None
        for _ in range(2):
            scans = self._try_scan(names)
            if scans is not ScanRefusal.CHANGED:
                break
            for name in names:
                self._table_cache.invalidate(*name)
        if not isinstance(scans, ScanRefusal):
            return scans
        if len(self._not_inlined) >= _MAX_NOT_INLINED:
            self._not_inlined.clear()
        self._not_inlined |= dict.fromkeys(names, now + _NOT_INLINED_SECONDS)
        return None

    def _try_scan(self, names: Sequence[TableName]) -> list[InlinedScan] | ScanRefusal:
        if len({name[0] for name in names}) > 1:
            return ScanRefusal.NOT_INLINED
        try:
            targets: list[CachedTable] = []
            for name in names:
                targets.append(self._table_cache.find(*name, commit_checks=True))
                if not may_be_inlined(targets[-1].layout):
                    return ScanRefusal.NOT_INLINED
            catalog = self._lake.find_open(targets[0].table.catalog_id)
            if catalog is None:
                return ScanRefusal.NOT_INLINED
            return catalog.scan_inlined([target.layout for target in targets])
        except SwanLakeError:  # the extension reports a missing table or database
            return ScanRefusal.NOT_INLINED
