"""Runs the same statements in a session and in stock DuckDB, and compares the outcomes."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import Any

import adbc_driver_flightsql.dbapi as adbc
import adbc_driver_manager
import duckdb

from swanlake.engine.errors import translate
from swanlake.lake.lake import Lake
from swanlake.sql.quoting import identifier
from tests.flight import FlightSql
from tests.server_process import ServerProcess
from tests.stock_duckdb import stock_duckdb
from tests.waiting import eventually

#: Rows, a number of rows, None, or the identifier and the message of an error.
Outcome = Any
#: Parts that only the server adds to a message, and the position in the statement.
_AROUND = re.compile(r"( when casting from source column .*)?(\n\nLINE .*|\. Detail: .*)?$", re.S)


class Stock:
    """A lake of the stock extension, with the interface of ``Ours``."""

    def __init__(self, home: Path) -> None:
        self._connection = stock_duckdb(python_enable_replacements=False)
        self._connection.execute(
            f"ATTACH 'ducklake:sqlite:{home / 'stock.db'}' AS swanlake "
            f"(DATA_PATH '{home / 'stock'}', DATA_INLINING_ROW_LIMIT 0)"
        )

    @classmethod
    def plain(cls) -> Stock:
        """DuckDB without a lake."""
        plain = cls.__new__(cls)
        plain._connection = duckdb.connect()
        return plain

    def run(self, sql: str, parameters: Any = None) -> Outcome:
        """The outcome of the last statement of a text."""
        outcome: Outcome = None
        try:
            for statement in self._connection.extract_statements(sql):
                self._connection.execute(statement, parameters)
                names = [column[0] for column in self._connection.description or ()]
                rows = self._connection.fetchall()
                outcome = rows or None
                if names == ["Count"]:
                    outcome = rows[0][0] if rows else None
        except duckdb.Error as error:
            said = translate(error)
            return said.identifier, _AROUND.sub("", str(said))
        return outcome

    def close(self) -> None:
        self._connection.close()


class Ours:
    """A session, as a stock client sees it."""

    def __init__(self, server: ServerProcess) -> None:
        self._connection = adbc.connect(server.url, autocommit=True)
        self.cursor = self._connection.cursor()

    def run(self, sql: str, parameters: Any = None) -> Outcome:
        """The outcome of a text, in the form of ``Stock.run``."""
        try:
            self.cursor.execute(sql, parameters)
            count = self.cursor.rowcount
            rows = self.cursor.fetchall() if self.cursor.description else []
        except adbc_driver_manager.Error as error:
            name, _, words = str(error).partition("[FlightSQL] ")[2].partition(": ")
            return name, _AROUND.sub("", words.partition(" (InvalidArgument; ")[0])
        return rows or (None if count in (-1, 0) else count)

    def close(self) -> None:
        self.cursor.close()
        self._connection.close()


class Writes:
    """A server without other load, and its lake."""

    def __init__(self, server: ServerProcess, lake: Lake, *, is_native: bool) -> None:
        self.server = server
        self.is_native = is_native
        self.lake = lake
        self.flight = FlightSql(server.url)
        #: The outcome of the write that was interrupted.
        self.outcome: Outcome = None

    @property
    def counts(self) -> dict[str, int]:
        found: dict[str, int] = self.flight.status()["lake_writes"]
        return found

    @contextmanager
    def counted(self) -> Iterator[dict[str, int]]:
        """Filled after the block with the number of writes by route."""
        before, found = self.counts, dict[str, int]()
        yield found
        found.update({way: count - before[way] for way, count in self.counts.items()})

    def expected(self, native: int, extension: int = 0, repeated: int = 0) -> dict[str, int]:
        """The expected counts; no native writes if the server runs none natively."""
        counts = {"native": native, "extension": extension, "repeated": repeated}
        return counts if self.is_native else dict.fromkeys(counts, 0)

    @contextmanager
    def held(self) -> Iterator[None]:
        """Blocks the commit of every session."""
        location = self.lake.location(self.lake.catalog("swanlake").info)
        with self.lake.exclusive_writer([location], "test", lambda: None):
            yield

    @contextmanager
    def meanwhile(self, write: Callable[[], object]) -> Iterator[None]:
        """Runs the block after a write wrote its files and before it commits."""
        with ThreadPoolExecutor(1) as pool:
            with self.held():
                writing = pool.submit(write)
                eventually(lambda: self.flight.status()["writers"])
                yield
            self.outcome = writing.result()

    def files(self, schema: str) -> list[Path]:
        """All paths below the directory of a schema; directories may vanish concurrently."""
        below = os.walk(self.server.home / "data" / "swanlake" / schema)
        return [Path(folder, name) for folder, _, names in below for name in names]

    def orphans(self, schema: str) -> list[str]:
        """Files below the directory of a schema that no catalog references.

        Empty without native writes: the extension leaves the files of a statement that fails.
        """
        if not self.is_native:
            return []
        found = self.lake.delete_orphans(age=timedelta(0), dry_run=True)
        return [orphan.path for orphan in found if schema in Path(orphan.path).parts]

    def delete_orphans(self) -> None:
        """Deletes the files that a test left. No write is running, so none of them is needed."""
        self.lake.delete_orphans(age=timedelta(0))


def content(side: Stock | Ours, schema: str) -> Any:
    """The columns and rows of all tables of a schema, and of those in the other with its name."""
    columns = side.run(
        "SELECT schema_name, table_name, column_name, data_type, is_nullable FROM duckdb_columns() "
        f"WHERE database_name = 'swanlake' AND (schema_name = '{schema}' "
        f"OR (schema_name = 'other' AND starts_with(table_name, '{schema}'))) "
        "ORDER BY schema_name, table_name, column_index"
    )
    if columns is None:
        return None
    tables = {f"swanlake.{identifier(row[0])}.{identifier(row[1])}" for row in columns}
    rows = (f"SELECT '{number}', r::VARCHAR FROM {t} r" for number, t in enumerate(sorted(tables)))
    return columns, side.run(f"{' UNION ALL '.join(rows)} ORDER BY ALL")


def snapshots(side: Stock | Ours) -> int:
    ((newest,),) = side.run("SELECT max(snapshot_id) FROM ducklake_snapshots('swanlake')")
    return int(newest)


def same(ours: Ours, stock: Stock, sql: str) -> Outcome:
    """Runs a statement on both sides and returns their equal outcome."""
    expected, found = stock.run(sql), ours.run(sql)
    assert (sql, found) == (sql, expected or None)
    return found


@dataclass(frozen=True)
class Step:
    """A statement, its outcome, and the content of the schema after it, if that was asked for."""

    sql: str
    outcome: Outcome
    content: Any = None


@dataclass(frozen=True)
class Transcript:
    """What a side did with the statements of a script."""

    steps: list[Step]
    #: The content of the schema at the end.
    content: Any
    #: The number of snapshots.
    snapshots: int

    @property
    def refused(self) -> int:
        """The number of statements that failed."""
        return sum(isinstance(step.outcome, tuple) for step in self.steps)


def play(
    side: Stock | Ours, script: Sequence[str], names: Mapping[str, str], *, each_content: bool
) -> Transcript:
    """Runs a script whose ``{placeholders}`` stand for names; they stand in the transcript too."""

    def described(value: Any) -> Any:
        if isinstance(value, (list, tuple)):
            return type(value)(map(described, value))
        if isinstance(value, str):
            for placeholder, name in names.items():
                value = value.replace(name, placeholder)
        return value

    before, steps = snapshots(side), []
    for line in script:
        sql = line
        for placeholder, name in names.items():
            sql = sql.replace(placeholder, name)
        outcome = described(side.run(sql) or None)
        found = described(content(side, names["{schema}"])) if each_content else None
        steps.append(Step(line, outcome, found))
    last = steps[-1].content if each_content else described(content(side, names["{schema}"]))
    return Transcript(steps, last, snapshots(side) - before)


def set_inline_limit(side: Stock | Ours, schema: str, rows: int) -> None:
    """Makes inserts of up to this many rows inlined."""
    side.run(f"CALL swanlake.set_option('data_inlining_row_limit', {rows}, schema => '{schema}')")
