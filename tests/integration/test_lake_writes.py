"""Writes of sessions that need no extension do what the stock extension does, and leave no trace
of what failed."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from threading import Thread
from typing import Any

import adbc_driver_flightsql.dbapi as adbc
import adbc_driver_manager
import duckdb
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest

from swanlake.engine.errors import translate
from swanlake.engine.extensions import load_extensions
from swanlake.lake.lake import Lake
from swanlake.sql.quoting import identifier
from tests.flight import FlightSql, eventually
from tests.integration.write_scripts import SCRIPTS
from tests.server_process import ServerProcess

#: Rows, a number of rows, nothing, or the identifier and the words of a refusal.
Outcome = Any
#: What a server adds for its clients, and where in a text an error is.
_AROUND = re.compile(r"( when casting from source column .*)?(\n\nLINE .*|\. Detail: .*)?$", re.S)
_ENDLESS = "SELECT count(*) FROM range(100_000_000_000) a, range(1000) b WHERE a.range + b.range < 0"
_WRITES_FOR_LONG = "SELECT sum(range) OVER (ORDER BY hash(range)) FROM range(1_000_000_000_000)"


class Stock:
    """A lake of the stock extension, called as ours is."""

    def __init__(self, home: Path) -> None:
        self._connection = duckdb.connect(config={"python_enable_replacements": False})
        load_extensions(self._connection)
        self._connection.execute(
            f"ATTACH 'ducklake:sqlite:{home / 'stock.db'}' AS swanlake "
            f"(DATA_PATH '{home / 'stock'}', DATA_INLINING_ROW_LIMIT 0)"
        )

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

    def is_waited_for(self) -> bool:
        """True if a session has written its files and waits for the catalog."""
        return bool(self.flight.status()["writers"])

    def orphans(self) -> list[str]:
        """Files that no catalog knows."""
        return [one.path for one in self.lake.orphans(age=timedelta(0), dry_run=True)]


@pytest.fixture(scope="module")
def writes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Writes]:
    home = tmp_path_factory.mktemp("writes") / "home"
    with (
        ServerProcess(home) as server,
        Lake.open(home / "catalogs", home / "data") as lake,
    ):
        writes = Writes(server, lake)
        yield writes
        writes.flight.close()


@pytest.fixture(scope="module")
def stock(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stock]:
    stock = Stock(tmp_path_factory.mktemp("stock"))
    yield stock
    stock.close()


@pytest.fixture
def ours(writes: Writes) -> Iterator[Ours]:
    ours = Ours(writes.server)
    yield ours
    ours.close()


@pytest.fixture
def schema(request: pytest.FixtureRequest, ours: Ours, stock: Stock) -> str:
    """A schema of the test's own, in use on both sides."""
    name = re.sub(r"\W+", "_", request.node.name)
    for side in (stock, ours):
        for sql in ("CREATE SCHEMA IF NOT EXISTS swanlake.other", f"CREATE SCHEMA swanlake.{name}"):
            side.run(sql)
        side.run(f"USE swanlake.{name}")
    return name


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


# ---- the same as stock ---------------------------------------------------------------------------


@pytest.mark.parametrize("subject", SCRIPTS)
def test_the_same_as_stock(
    writes: Writes, ours: Ours, stock: Stock, schema: str, tmp_path: Path, subject: str
) -> None:
    refused = 0
    made = snapshots(ours) - snapshots(stock)
    with writes.counted() as counted:
        for line in SCRIPTS[subject]:
            sql = line.replace("{schema}", schema).replace("{home}", str(tmp_path))
            refused += isinstance(same(ours, stock, sql), tuple)
    assert snapshots(ours) - snapshots(stock) == made
    assert content(ours, schema) == content(stock, schema)
    # What is refused is left to the extension for its words; nothing else is.
    assert counted["extension"] <= refused
    assert counted["repeated"] == 0
    assert writes.orphans() == []
