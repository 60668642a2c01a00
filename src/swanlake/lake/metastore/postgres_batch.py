"""Sends several statements to PostgreSQL in one round trip.

A psycopg cursor makes a system call for every statement and polls for results after each; libpq can
queue all of them first. Under the commit lock, every tenth of a millisecond delays all writers.
"""

from __future__ import annotations

from collections import OrderedDict, namedtuple
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

import psycopg
from psycopg import generators
from psycopg.abc import PQGen
from psycopg.adapt import PyFormat, Transformer
from psycopg.errors import error_from_result
from psycopg.pq import ExecStatus
from psycopg.pq.abc import PGresult
from sqlalchemy import Connection, Executable
from sqlalchemy.dialects.postgresql.psycopg import PGDialect_psycopg
from sqlalchemy.engine import Dialect
from sqlalchemy.sql.compiler import DDLCompiler

#: The pipeline talks to libpq, which has numbered placeholders.
_DIALECT: Dialect = PGDialect_psycopg(paramstyle="numeric_dollar")  # type: ignore[no-untyped-call]
_PREPARED, _ADAPTER = "swanlake_prepared", "swanlake_adapter"
#: Statements name the schema of their catalog, so a connection that serves many prepares many.
_MOST_PREPARED = 256


class StatementPipeline:
    """Statements for one connection; after a failure the connection is of no further use."""

    def __init__(self, connection: Connection) -> None:
        driver = connection.connection.driver_connection
        assert isinstance(driver, psycopg.Connection)
        self._driver = driver
        self._pgconn = driver.pgconn
        #: Caches how values of each type are loaded and dumped.
        self._adapter = connection.info.setdefault(_ADAPTER, Transformer(driver))
        self._statements: list[_Statement] = []
        #: The command status of the last statement.
        self.command_status: bytes | None = None
        #: The names of the connection's prepared statements, least recently used first.
        self._prepared: OrderedDict[bytes, bytes] = connection.info.setdefault(
            _PREPARED, OrderedDict()
        )

    def add_command(self, sql: bytes) -> None:
        """Adds a statement without values, such as COMMIT."""
        self._statements.append(_Statement(sql, None, is_prepared=False))

    def add_once(self, statement: Any) -> None:
        """Adds a statement with its own values that will not be repeated."""
        compiled = statement.compile(dialect=_DIALECT)
        if isinstance(compiled, DDLCompiler):
            self.add_command(str(compiled).encode())
            return
        expanded = compiled.construct_expanded_state()
        values = self._dumped(expanded.positional_parameters)
        self._statements.append(_Statement(expanded.statement.encode(), values, is_prepared=False))

    def add(self, statement: Executable, rows: Sequence[Mapping[str, Any]]) -> int:
        """Adds a prepared statement, once per row; returns the index of the last one's result."""
        text = _text(statement, tuple(rows[0]))
        for row in rows:
            parameters = {**text.constants, **row} if text.constants else row
            values = self._dumped([parameters[key] for key in text.keys])
            self._statements.append(_Statement(text.sql, values, is_prepared=True))
        return len(self._statements) - 1

    def run(self) -> Callable[..., list[Any]]:
        """Sends everything; returns a function that reads the rows of the result at an index.

        Without names the rows are plain tuples.
        """
        results = self._driver.wait(self._exchange())
        return lambda index, has_names=True: self._rows(results[index], has_names)

    def _exchange(self) -> PQGen[list[PGresult]]:
        self._pgconn.enter_pipeline_mode()
        sent = [self._send(statement) for statement in self._statements]
        self._pgconn.pipeline_sync()
        yield from generators.send(self._pgconn)
        results = []
        for count in sent:
            for _ in range(count):
                (result,) = yield from generators.fetch_many(self._pgconn)
                if result.status == ExecStatus.FATAL_ERROR:
                    raise error_from_result(result)
            results.append(result)
            self.command_status = result.command_status
        yield from generators.fetch_many(self._pgconn)  # the end of the pipeline
        self._pgconn.exit_pipeline_mode()
        return results

    def _send(self, statement: _Statement) -> int:
        """Queues a statement; returns the number of results, of which the last is its own."""
        if not statement.is_prepared:
            self._pgconn.send_query_params(statement.sql, statement.values)
            return 1
        results = 1
        name = self._prepared.get(statement.sql)
        if name is None:
            name = b"swanlake_%d" % len(self._prepared)
            if len(self._prepared) >= _MOST_PREPARED:
                _, name = self._prepared.popitem(last=False)
                self._pgconn.send_query_params(b"DEALLOCATE " + name, None)
                results += 1
            # Without parameter types: statements cast their values.
            self._pgconn.send_prepare(name, statement.sql)
            self._prepared[statement.sql] = name
            results += 1
        self._prepared.move_to_end(statement.sql)
        self._pgconn.send_query_prepared(name, statement.values)
        return results

    def _dumped(self, values: Sequence[Any]) -> Sequence[Any]:
        dumped: Sequence[Any] = self._adapter.dump_sequence(values, [PyFormat.TEXT] * len(values))
        return dumped

    def _rows(self, result: PGresult, has_names: bool) -> list[Any]:
        self._adapter.set_pgresult(result)
        make: Any = tuple
        if has_names:
            names = (result.fname(column) or b"" for column in range(result.nfields))
            make = _row_type(tuple(names))._make
        rows: list[Any] = self._adapter.load_rows(0, result.ntuples, make)
        return rows


class _Statement(NamedTuple):
    """One statement, with its values as they are sent."""

    sql: bytes
    values: Sequence[Any] | None
    #: Prepared, and executed by name.
    is_prepared: bool


@dataclass(frozen=True)
class _Text:
    """The text of a statement, and the names of its parameters in order."""

    sql: bytes
    keys: tuple[str, ...]
    #: Values that are part of the statement itself.
    constants: dict[str, Any]


# Compiling a statement takes longer than executing it.


@lru_cache(maxsize=8192)
def _text(statement: Any, columns: tuple[str, ...]) -> _Text:
    compiled = statement.compile(dialect=_DIALECT, column_keys=list(columns))
    constants = {key: value for key, value in compiled.params.items() if key not in columns}
    return _Text(compiled.string.encode(), tuple(compiled.positiontup), constants)


@lru_cache(maxsize=1024)
def _row_type(names: tuple[bytes, ...]) -> Any:
    return namedtuple("Row", [name.decode() for name in names])
