"""Statements that go to PostgreSQL together, and whose answers are waited for once.

A cursor sends every statement with a call to the system of its own and looks for answers after
each; libpq can be handed all of them first. Under the commit lock every tenth of a millisecond is
one that all others wait.
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

#: A batch speaks to the server itself, and not through a driver with placeholders of its own.
_DIALECT: Dialect = PGDialect_psycopg(paramstyle="numeric_dollar")  # type: ignore[no-untyped-call]
_PREPARED, _ADAPTER = "swanlake_prepared", "swanlake_adapter"
#: Statements name the schema of their catalog: a connection that serves many comes to know many.
_MOST_PREPARED = 256


class Batch:
    """Statements for one connection. If one fails the connection is of no further use."""

    def __init__(self, connection: Connection) -> None:
        driver = connection.connection.driver_connection
        assert isinstance(driver, psycopg.Connection)
        self._driver = driver
        self._pgconn = driver.pgconn
        #: It remembers how values of every type are read and written.
        self._adapter = connection.info.setdefault(_ADAPTER, Transformer(driver))
        self._statements: list[_Statement] = []
        #: What the server says that the last statement did.
        self.did: bytes | None = None
        #: The names of statements that this connection has prepared, those used last at the end.
        self._prepared: OrderedDict[bytes, bytes] = connection.info.setdefault(
            _PREPARED, OrderedDict()
        )

    def command(self, sql: bytes) -> None:
        """Adds a statement without values, such as COMMIT."""
        self._statements.append(_Statement(sql, None, comes_again=False))

    def once(self, statement: Any) -> None:
        """Adds a statement that holds its own values and will not come again."""
        compiled = statement.compile(dialect=_DIALECT)
        if isinstance(compiled, DDLCompiler):
            self.command(str(compiled).encode())
            return
        expanded = compiled.construct_expanded_state()
        values = self._dumped(expanded.positional_parameters)
        self._statements.append(_Statement(expanded.statement.encode(), values, comes_again=False))

    def add(self, statement: Executable, rows: Sequence[Mapping[str, Any]]) -> int:
        """Adds a statement for each of some rows; gives the place of the last one's answer.

        It is prepared, and costs the server and us less the next time.
        """
        text = _text(statement, tuple(rows[0]))
        for row in rows:
            known = {**text.constants, **row} if text.constants else row
            values = self._dumped([known[key] for key in text.keys])
            self._statements.append(_Statement(text.sql, values, comes_again=True))
        return len(self._statements) - 1

    def run(self) -> Callable[..., list[Any]]:
        """Sends everything, and gives what reads the rows of the answer at a place.

        Without names they are plain tuples.
        """
        results = self._driver.wait(self._exchange())
        return lambda place, has_names=True: self._rows(results[place], has_names)

    def _exchange(self) -> PQGen[list[PGresult]]:
        self._pgconn.enter_pipeline_mode()
        sent = [self._send(statement) for statement in self._statements]
        self._pgconn.pipeline_sync()
        yield from generators.send(self._pgconn)
        results = []
        for answers in sent:
            for _ in range(answers):
                (result,) = yield from generators.fetch_many(self._pgconn)
                if result.status == ExecStatus.FATAL_ERROR:
                    raise error_from_result(result)
            results.append(result)
            self.did = result.command_status
        yield from generators.fetch_many(self._pgconn)  # the end of the pipeline
        self._pgconn.exit_pipeline_mode()
        return results

    def _send(self, statement: _Statement) -> int:
        """Hands a statement to libpq; gives the number of answers, of which the last is its own."""
        if not statement.comes_again:
            self._pgconn.send_query_params(statement.sql, statement.values)
            return 1
        answers = 1
        name = self._prepared.get(statement.sql)
        if name is None:
            name = b"swanlake_%d" % len(self._prepared)
            if len(self._prepared) >= _MOST_PREPARED:
                _, name = self._prepared.popitem(last=False)
                self._pgconn.send_query_params(b"DEALLOCATE " + name, None)
                answers += 1
            # Without types of ours: statements cast their values, and all numbers are sent alike.
            self._pgconn.send_prepare(name, statement.sql)
            self._prepared[statement.sql] = name
            answers += 1
        self._prepared.move_to_end(statement.sql)
        self._pgconn.send_query_prepared(name, statement.values)
        return answers

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
    """One statement of a batch, with its values as they are sent."""

    sql: bytes
    values: Sequence[Any] | None
    #: It is prepared, and executed by its name.
    comes_again: bool


@dataclass(frozen=True)
class _Text:
    """A statement as the server takes it, and what it calls the values of its places."""

    sql: bytes
    keys: tuple[str, ...]
    #: Values that are part of the statement itself.
    constants: dict[str, Any]


# Statements are built once and kept, and to compile one takes longer than to execute it.


@lru_cache(maxsize=8192)
def _text(statement: Any, columns: tuple[str, ...]) -> _Text:
    compiled = statement.compile(dialect=_DIALECT, column_keys=list(columns))
    constants = {key: value for key, value in compiled.params.items() if key not in columns}
    return _Text(compiled.string.encode(), tuple(compiled.positiontup), constants)


@lru_cache(maxsize=1024)
def _row_type(names: tuple[bytes, ...]) -> Any:
    return namedtuple("Row", [name.decode() for name in names])
