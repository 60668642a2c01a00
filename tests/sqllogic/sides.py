"""The same statements in a session of a server and in stock DuckDB, with comparable outcomes."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import duckdb
import pyarrow as pa

from swanlake.engine.errors import translate
from swanlake.sessions.results.wire import WireFormat
from swanlake.sql.quoting import identifier, literal
from tests.contenders import CALL_ERRORS
from tests.flight import FlightSql
from tests.stock_duckdb import stock_duckdb

_QUERY = [duckdb.ExpectedResultType.QUERY_RESULT]
#: Columns of the result of a statement that returns no rows.
_REPORTS = (["Count"], ["Success"])


@dataclass(frozen=True)
class Outcome:
    """What became of a statement: an error, affected rows, or rows with their columns."""

    error: str | None = None
    #: Not compared: messages differ in positions and paths.
    message: str = ""
    count: int | None = None
    #: Names and Arrow types.
    columns: tuple[tuple[str, Any], ...] = ()
    #: Values as texts, a tab between two of them.
    rows: tuple[str, ...] = ()

    @classmethod
    def of_table(cls, table: Any) -> Outcome:
        """The outcome of a query."""
        columns = tuple((field.name, field.type) for field in table.schema)
        values = [_values(column) for column in table.columns]
        rows = zip(*values, strict=True)
        return cls(columns=columns, rows=tuple("\t".join(map(text, row)) for row in rows))

    def comparable(self, *, is_ordered: bool) -> tuple[Any, ...]:
        """What must be equal on both sides."""
        rows = self.rows if is_ordered else tuple(sorted(self.rows))
        return self.error, self.count, self.columns, rows

    def __str__(self) -> str:
        if self.error:
            return f"{self.error}: {self.message}"
        if not self.columns:
            return f"{self.count} rows affected"
        header = "\t".join(f"{name} {kind}" for name, kind in self.columns)
        return "\n".join([header, *self.rows])


def _values(column: Any) -> list[Any]:
    """The values of a column; as numbers where Python's types cannot represent one."""
    try:
        return list(column.to_pylist())
    except (OverflowError, ValueError):  # an infinite date, a year before 1
        return list(
            column.cast(pa.int64() if column.type.bit_width == 64 else pa.int32()).to_pylist()
        )


def text(value: Any) -> str:
    """A value as scripts write it."""
    if value is None:
        return "NULL"
    if isinstance(value, bool):
        return str(value).lower()
    return "(empty)" if value == "" else str(value)


class Session(Protocol):
    """A connection to one side."""

    def run(self, sql: str) -> Outcome:
        """The outcome of one statement."""

    def close(self) -> None: ...


class ServerSession:
    """A named session of a server."""

    def __init__(self, url: str, name: str) -> None:
        self._flight = FlightSql(url, x_swanlake_session_id=name)

    def run(self, sql: str) -> Outcome:
        try:
            info = self._flight.execute(sql)
            table = self._flight.fetch(info).read_all()
        except CALL_ERRORS as error:
            name, _, message = str(error).partition(": ")
            return Outcome(name, message)
        if table.schema.names:
            return Outcome.of_table(table)
        return Outcome(count=info.total_records if info.total_records >= 0 else None)

    def close(self) -> None:
        self._flight.close_session()
        self._flight.close()


class StockSession:
    """A connection of stock DuckDB."""

    def __init__(self, connection: duckdb.DuckDBPyConnection) -> None:
        self._connection = connection

    def run(self, sql: str) -> Outcome:
        try:
            # DuckDB makes several statements of some, such as PIVOT.
            for statement in self._connection.extract_statements(sql):
                table = self._connection.execute(statement).to_arrow_table()
        except duckdb.Error as error:
            refused = translate(error)
            return Outcome(refused.identifier, str(refused))
        if statement.expected_result_type != _QUERY and table.schema.names in _REPORTS:
            return Outcome(
                count=table["Count"][0].as_py()
                if "Count" in table.schema.names and len(table)
                else None
            )
        wire = WireFormat(table.schema)
        batches = [wire.convert(batch) for batch in table.to_batches()]
        return Outcome.of_table(pa.Table.from_batches(batches, wire.schema))

    def close(self) -> None:
        self._connection.close()


class StockLake:
    """Stock DuckDB, with catalogs of its own in SQLite files or in schemas of PostgreSQL."""

    def __init__(self, home: Path, postgres: str | None) -> None:
        self._home = home
        self._postgres = postgres
        self._connection = stock_duckdb(python_enable_replacements=False)
        # As in the server: types arrive without loss, times do not depend on the machine.
        self._connection.execute("SET GLOBAL arrow_lossless_conversion = true")
        self._connection.execute("SET GLOBAL TimeZone = 'UTC'")

    def create_catalog(self, name: str) -> None:
        """Creates an empty catalog and attaches it."""
        options = f"DATA_PATH {literal(str(self._home / name))}, DATA_INLINING_ROW_LIMIT 0"
        source = f"ducklake:sqlite:{self._home / name}.sqlite"
        if self._postgres is not None:
            source = f"ducklake:postgres:{self._postgres}"
            options += f", METADATA_SCHEMA {literal(f'stock_{name}')}"
        self._connection.execute(f"ATTACH {literal(source)} AS {identifier(name)} ({options})")

    def detach(self, name: str) -> None:
        self._connection.execute(f"DETACH {identifier(name)}")

    def session(self) -> StockSession:
        return StockSession(self._connection.cursor())

    def close(self) -> None:
        self._connection.close()
