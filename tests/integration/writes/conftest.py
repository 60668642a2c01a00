"""A server and stock DuckDB for comparison."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import duckdb
import pytest

from swanlake.lake.lake import Lake
from tests.integration.writes.both_sides import (
    Ours,
    Stock,
    Transcript,
    Writes,
    play,
    set_inline_limit,
)
from tests.server_process import ServerProcess
from tests.stock_duckdb import stock_duckdb

#: The scripts that always run without native statements, too.
_WITHOUT_NATIVE = {"copy", "queries", "refusals", "rows", "subqueries and views", "types"}


@pytest.hookimpl(tryfirst=True)  # before slow tests are deselected
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Makes most scripts, and tests of inlined rows, slow tests without native statements.

    They compare what the stock extension does in a server with what it does in stock DuckDB.
    """
    for item in items:
        parameters = item.callspec.params if hasattr(item, "callspec") else {}
        if parameters.get("native") == "off" and (
            parameters.get("inline_limit")
            or parameters.get("subject", "rows") not in _WITHOUT_NATIVE
        ):
            item.add_marker(pytest.mark.slow)


@pytest.fixture(scope="module", params=["on", "off"])
def native(request: pytest.FixtureRequest) -> str:
    """The setting ``native_statements`` of the module's server; outcomes do not depend on it."""
    setting: str = request.param
    return setting


@pytest.fixture(scope="module")
def threads() -> str:
    """The number of DuckDB's threads in the module's server; a module may override it."""
    return "1"


@pytest.fixture(scope="module")
def writes(native: str, threads: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Writes]:
    home = tmp_path_factory.mktemp("writes") / "home"
    environment = {"SWANLAKE_NATIVE_STATEMENTS": native, "SWANLAKE_DUCKDB_THREADS": threads}
    with (
        ServerProcess(home, **environment) as server,
        Lake.open(home / "catalogs", home / "data") as lake,
    ):
        writes = Writes(server, lake, is_native=native == "on")
        yield writes
        writes.flight.close()


@pytest.fixture
def native_only(writes: Writes) -> None:
    """Skips a test of behaviour that only native statements have."""
    if not writes.is_native:
        pytest.skip("the extension does not do this")


@pytest.fixture(scope="module")
def stock(native: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stock]:
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
    """Stock DuckDB attached to the server's catalog."""
    path = writes.server.home / "catalogs" / "swanlake.sqlite"
    with stock_duckdb() as connection:
        connection.execute(f"ATTACH 'ducklake:sqlite:{path}' AS swanlake")
        yield connection


@pytest.fixture(scope="module")
def keeps_schemas() -> bool:
    """Whether the schemas of the server remain after their tests; a module may override it."""
    return False


@pytest.fixture
def schema(
    request: pytest.FixtureRequest, writes: Writes, ours: Ours, stock: Stock, keeps_schemas: bool
) -> Iterator[str]:
    """A schema for one test, in use on both sides. Files that the test leaves are deleted.

    It is dropped after the test: every statement of the extension reads the names of all tables.
    """
    name = re.sub(r"\W+", "_", request.node.name)
    for side in (stock, ours):
        for sql in ("CREATE SCHEMA IF NOT EXISTS swanlake.other", f"CREATE SCHEMA swanlake.{name}"):
            side.run(sql)
        side.run(f"USE swanlake.{name}")
    yield name
    for side in (stock,) if keeps_schemas else (stock, ours):
        for sql in ("ROLLBACK", "USE swanlake.main", f"DROP SCHEMA swanlake.{name} CASCADE"):
            side.run(sql)
    writes.delete_orphans()


@pytest.fixture(scope="session")
def transcripts() -> dict[tuple[str, ...], Transcript]:
    """What stock did with each script, by module, subject, inline limit and reads."""
    return {}


@pytest.fixture
def stock_transcript(
    request: pytest.FixtureRequest,
    transcripts: dict[tuple[str, ...], Transcript],
    stock: Stock,
    schema: str,
    tmp_path: Path,
) -> Callable[..., Transcript]:
    """Runs a script in stock DuckDB, or recalls the run: it does not depend on the server."""

    def run(subject: str, script: Sequence[str], limit: int, *, each_content: bool) -> Transcript:
        # Whether the content is read between two statements matters: see "shapes" of test_changes.
        key = (request.module.__name__, subject, str(limit), str(each_content))
        if key not in transcripts:
            set_inline_limit(stock, schema, limit)
            home = tmp_path / "stock"
            home.mkdir()
            names = {"{schema}": schema, "{home}": str(home)}
            transcripts[key] = play(stock, script, names, each_content=each_content)
        return transcripts[key]

    return run
