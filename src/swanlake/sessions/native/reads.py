"""Queries of small tables without the extension: their rows are asked for, and put into the query.

A scan by DuckLake's extension costs ten milliseconds of work, for a table of one row as well. Of
tables that are nothing but a few rows in the metadata, one look at it gives all rows, as of one
moment, and DuckDB then needs no lake at all.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import duckdb

from swanlake.engine.errors import ENGINE_ERRORS, may_invalidate
from swanlake.errors import SwanLakeError
from swanlake.lake.kept_rows import KeptRows, NotKept, may_be_kept
from swanlake.lake.layout import Column
from swanlake.lake.types import duckdb_type
from swanlake.queue.targets import Target
from swanlake.sessions.lake_names import LakeNames
from swanlake.sessions.recent import Recent
from swanlake.sessions.results import Outcome, ResultStream
from swanlake.sessions.runs import Run
from swanlake.sessions.services import SessionServices
from swanlake.sessions.shadows import Name
from swanlake.sql.quoting import identifier, literal
from swanlake.sql.reads import PlainQuery, plain_query
from swanlake.sql.tokens import find_parameters, substitute_parameters

_ERRORS: tuple[type[Exception], ...] = (*ENGINE_ERRORS, SwanLakeError)
#: How long a table is not asked for again that had rows elsewhere: it seldom changes its mind.
_ELSEWHERE_SECONDS = 5.0
_MOST_REMEMBERED = 1000
#: What DuckLake knows of a row besides its columns.
ROW_ID, FILE, POSITION = PLACE = ("rowid", "filename", "file_row_number")
_ASKS = re.compile(r"[?$]")
_ADDED = "swanlake_kept_"


@dataclass(frozen=True)
class KeptQuery:
    """A query that has all rows it reads among its parameters."""

    sql: str
    parameters: Any


class RowParameters:
    """The parameters of a query, to which the rows of tables are added as more of them."""

    def __init__(self, parameters: Any) -> None:
        self._is_named = isinstance(parameters, dict)
        self.all: Any = dict(parameters) if self._is_named else list(parameters or ())

    def fit(self, text: str) -> bool:
        """True if these are just the parameters that a text asks for.

        Of any other text DuckDB would take rows for the parameters that are missing.
        """
        asked = {one.name for one in find_parameters(text)} if _ASKS.search(text) else set()
        if any(name.startswith(_ADDED) for name in asked):
            return False
        given = self.all if self._is_named else map(str, range(1, len(self.all) + 1))
        return asked == set(given)

    def numbered(self, text: str) -> str:
        """The text with numbers in place of question marks, which would count those of rows."""
        if self._is_named or "?" not in text:
            return text
        return substitute_parameters(text, lambda name: f"${name}")

    def rows(self, kept: KeptRows, *, with_place: bool = False) -> str:
        """A query for all rows of a table, as the extension would read them.

        With their place they have the columns in which DuckLake says where a row is.
        """
        chosen = [
            f"unnest({self._added(values, column)}) AS {identifier(column.name)}"
            for values, column in zip(kept.values, kept.table.columns, strict=True)
        ]
        if with_place:
            at = "NULL" if kept.place is None else literal(kept.place)
            chosen += [
                f"unnest({self._given(kept.row_ids, 'BIGINT')}) AS {ROW_ID}",
                f"CAST({at} AS VARCHAR) AS {FILE}",
                f"CAST(NULL AS BIGINT) AS {POSITION}",
            ]
        return f"SELECT {', '.join(chosen)}"

    def _added(self, values: Sequence[Any], column: Column) -> str:
        """A list of the values of a column."""
        given, type_ = _given_type(column.type), duckdb_type(column)
        added = self._given(values, given)
        return added if given == type_ else f"CAST({added} AS {type_}[])"

    def _given(self, values: Sequence[Any], type_: str) -> str:
        if self._is_named:
            name = f"{_ADDED}{len(self.all)}"
            self.all[name] = list(values)
        else:
            self.all.append(list(values))
            name = str(len(self.all))
        return f"CAST(${name} AS {type_}[])"


def _given_type(type_: str) -> str:
    """What DuckDB makes of values before it makes the column of them."""
    if type_ == "boolean":
        return "BOOLEAN"
    is_number = type_ != "uint64" and type_.startswith(("int", "uint"))
    return "BIGINT" if is_number else "VARCHAR"


class LakeReads:
    """One session's way to rows in the metadata."""

    def __init__(
        self, services: SessionServices, names: LakeNames, is_allowed: Callable[[], bool]
    ) -> None:
        """``is_allowed`` says whether the session has nothing that others have not."""
        self._lake = services.lake
        self._targets = services.queue.targets
        self._counts = services.reads
        self._names = names
        self._is_allowed = is_allowed
        self._elsewhere: dict[Name, float] = {}
        self._plain: Recent[PlainQuery | None] = Recent()

    def run(
        self,
        text: str,
        parameters: Any,
        run: Run,
        beside: Callable[[], AbstractContextManager[duckdb.DuckDBPyConnection]],
        stream_of: Callable[[Run, duckdb.DuckDBPyConnection], ResultStream],
    ) -> Outcome | None:
        """Runs a query that needs no lake, on a connection beside it; None for all others."""
        query = self.query(text, parameters)
        if query is None:
            return None
        try:
            with beside() as connection, run.engaged(connection):
                connection.execute(query.sql, query.parameters)
                stream = stream_of(run, connection)
        except _ERRORS as error:
            if run.is_stopped or may_invalidate(error):
                raise
            stream = None  # what is wrong with it is said of the query as it was sent
        if stream is not None and not stream.live:
            self._counts.count("metadata")
            return Outcome(stream)
        if stream is not None:
            stream.close()  # too many rows to be kept until they are fetched
        self._counts.count("repeated")
        return None

    def query(self, text: str, parameters: Any) -> KeptQuery | None:
        """A query with the rows in it, if it reads nothing else and depends on nothing else."""
        if not self._is_allowed():
            return None
        given = RowParameters(parameters)
        if not given.fit(text):
            return None
        plain = self._plain.of(given.numbered(text), plain_query)
        # A name that begins with a catalog would be looked for in the lake.
        if plain is None or any(map(self._names.is_catalog, plain.qualifiers)):
            return None
        names = [self._names.table(table.parts) for table in plain.tables]
        kept = self._rows([name for name in names if name]) if all(names) else None
        if kept is None:
            return None
        return KeptQuery(plain.over([given.rows(one) for one in kept]), given.all)

    def rows(self, name: Name) -> KeptRows | None:
        """All rows of a table; None if the extension must read it."""
        kept = self._rows([name]) if self._is_allowed() else None
        return kept[0] if kept else None

    def _rows(self, names: Sequence[Name]) -> list[KeptRows] | None:
        """All rows of these tables as of one moment; None if the extension must read them."""
        now = time.monotonic()
        if any(now < self._elsewhere.get(name, 0) for name in names):
            return None
        for _ in range(2):
            found = self._read(names)
            if found is not NotKept.CHANGED:
                break
            for name in names:
                self._targets.forget_one(*name)
        if not isinstance(found, NotKept):
            return found
        if len(self._elsewhere) >= _MOST_REMEMBERED:
            self._elsewhere.clear()
        self._elsewhere |= dict.fromkeys(names, now + _ELSEWHERE_SECONDS)
        return None

    def _read(self, names: Sequence[Name]) -> list[KeptRows] | NotKept:
        if len({name[0] for name in names}) > 1:
            return NotKept.ELSEWHERE
        try:
            targets: list[Target] = []
            for name in names:
                targets.append(self._targets.find(*name, checked=True))
                if not may_be_kept(targets[-1].layout):
                    return NotKept.ELSEWHERE
            catalog = self._lake.opened(targets[0].table.catalog_id)
            if catalog is None:
                return NotKept.ELSEWHERE
            return catalog.kept_rows([target.layout for target in targets])
        except SwanLakeError:  # no such table, or no database: the extension will say so
            return NotKept.ELSEWHERE
