"""The same statements for a session and for stock DuckDB, and what both make of them."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import adbc_driver_flightsql.dbapi as adbc
import adbc_driver_manager
import duckdb

from swanlake.engine.errors import translate
from swanlake.lake.lake import Lake
from swanlake.sql.quoting import identifier
from tests.ducks import stock_duckdb
from tests.flight import FlightSql, eventually
from tests.server_process import ServerProcess

#: Rows, a number of rows, nothing, or the identifier and the words of a refusal.
Outcome = Any
#: What a server adds for its clients, and where in a text an error is.
_AROUND = re.compile(r"( when casting from source column .*)?(\n\nLINE .*|\. Detail: .*)?$", re.S)


class Stock:
    """A lake of the stock extension, called as ours is."""

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
        """What a text gives: that of its last statement."""
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
        """What a text gives, as ``Stock`` says it."""
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
    """A server with nothing else to do, and the lake it works on."""

    def __init__(self, server: ServerProcess, lake: Lake) -> None:
        self.server = server
        self.lake = lake
        self.flight = FlightSql(server.url)
        #: Of the write that something came between.
        self.outcome: Outcome = None

    @property
    def counts(self) -> dict[str, int]:
        found: dict[str, int] = self.flight.status()["lake_writes"]
        return found

    @contextmanager
    def counted(self) -> Iterator[dict[str, int]]:
        """How many writes went which way, once the block is over."""
        before, found = self.counts, dict[str, int]()
        yield found
        found.update({way: count - before[way] for way, count in self.counts.items()})

    @contextmanager
    def held(self) -> Iterator[None]:
        """Keeps every session from its commit."""
        location = self.lake.location(self.lake.catalog("swanlake").info)
        with self.lake.turn([location], "test", lambda: None):
            yield

    @contextmanager
    def meanwhile(self, write: Callable[[], object]) -> Iterator[None]:
        """A block that comes between the files of a write and its commit."""
        with ThreadPoolExecutor(1) as pool:
            with self.held():
                writing = pool.submit(write)
                eventually(lambda: self.flight.status()["writers"])
                yield
            self.outcome = writing.result()

    def files(self, schema: str) -> list[Path]:
        """All that is below the directory of a schema; directories may vanish meanwhile."""
        below = os.walk(self.server.home / "data" / "swanlake" / schema)
        return [Path(folder, name) for folder, _, names in below for name in names]

    def orphans(self, schema: str = "") -> list[str]:
        """Files that no catalog knows; in one schema, if its name is given."""
        found = self.lake.orphans(age=timedelta(0), dry_run=True)
        return [one.path for one in found if schema in one.path]


def content(side: Stock | Ours, schema: str) -> Any:
    """The columns of all tables of a schema and of the other one, and their rows as texts."""
    columns = side.run(
        "SELECT schema_name, table_name, column_name, data_type, is_nullable FROM duckdb_columns() "
        f"WHERE database_name = 'swanlake' AND schema_name IN ('{schema}', 'other') "
        "ORDER BY schema_name, table_name, column_index"
    )
    tables = {f"swanlake.{identifier(row[0])}.{identifier(row[1])}" for row in columns}
    rows = (f"SELECT '{number}', r::VARCHAR FROM {t} r" for number, t in enumerate(sorted(tables)))
    return columns, side.run(f"{' UNION ALL '.join(rows)} ORDER BY ALL")


def snapshots(side: Stock | Ours) -> int:
    ((newest,),) = side.run("SELECT max(snapshot_id) FROM ducklake_snapshots('swanlake')")
    return int(newest)


def same(ours: Ours, stock: Stock, sql: str) -> Outcome:
    """Runs it on both sides; what both say of it."""
    expected, found = stock.run(sql), ours.run(sql)
    assert (sql, found) == (sql, expected or None)
    return found


def keep_small(side: Stock | Ours, schema: str, rows: int) -> None:
    """From now on, inserts of up to so many rows are kept in the metadata."""
    side.run(f"CALL swanlake.set_option('data_inlining_row_limit', {rows}, schema => '{schema}')")
