"""A server and stock DuckDB, side by side."""

from __future__ import annotations

import re
from collections.abc import Iterator

import duckdb
import pytest

from swanlake.lake.lake import Lake
from tests.ducks import stock_duckdb
from tests.integration.writes.sides import Ours, Stock, Writes
from tests.server_process import ServerProcess


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


@pytest.fixture(scope="module")
def other_program(writes: Writes) -> Iterator[duckdb.DuckDBPyConnection]:
    """Stock DuckDB on the catalog of the server."""
    path = writes.server.home / "catalogs" / "swanlake.sqlite"
    with stock_duckdb() as connection:
        connection.execute(f"ATTACH 'ducklake:sqlite:{path}' AS swanlake")
        yield connection


@pytest.fixture
def schema(request: pytest.FixtureRequest, ours: Ours, stock: Stock) -> str:
    """A schema of the test's own, in use on both sides."""
    name = re.sub(r"\W+", "_", request.node.name)
    for side in (stock, ours):
        for sql in ("CREATE SCHEMA IF NOT EXISTS swanlake.other", f"CREATE SCHEMA swanlake.{name}"):
            side.run(sql)
        side.run(f"USE swanlake.{name}")
    return name
