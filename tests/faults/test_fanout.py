"""Many tasks write at once, through one server or several, alone or beside stock DuckDB."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import duckdb
import psycopg
import pytest

from swanlake.bench.fanout import Check, FanOut
from swanlake.bench.report import Step, holdings_of, summed_up
from swanlake.bench.runner import differences, fan_out, perform, prepare
from swanlake.client import connect
from swanlake.lake.lake import Lake
from swanlake.lake.location import LakeLocation
from tests.ducks import stock_duckdb
from tests.faults.crew import PATIENCE_SECONDS, Crew, Place, history
from tests.faults.stock import executing
from tests.faults.test_mixed_writers import CONFLICTS
from tests.server_process import ServerProcess

pytestmark = pytest.mark.timeout(1800)

CATALOG = "workbook"
#: Stock writers go on until ours are done.
ENDLESS = 1_000_000


@dataclass(frozen=True)
class Size:
    """How many servers, and how many tasks on all of them with how many statements."""

    servers: int
    tasks: int
    statements: int
    #: Up to how many rows of an insert the metadata keeps; 0: each insert is a file.
    inlined_rows: int = 10

    def __str__(self) -> str:
        kept = "" if self.inlined_rows else "-files"
        return f"{self.servers}x{self.tasks // self.servers}x{self.statements}{kept}"


def sizes(*some: Size) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Runs a test once for each; the large ones take their time."""
    return pytest.mark.parametrize(
        "size",
        [
            pytest.param(size, marks=[pytest.mark.slow] if size.tasks > 4 else [], id=str(size))
            for size in some
        ],
    )


@pytest.fixture
def postgres_log(postgres: str) -> Callable[[], str]:
    """What the database has logged since the test began."""
    with psycopg.connect(postgres) as connection:
        [(directory,)] = connection.execute("SHOW data_directory").fetchall()
    log = Path(directory) / "log"
    before = log.stat().st_size

    def read() -> str:
        with log.open("rb") as file:
            file.seek(before)
            return file.read().decode()

    return read


@contextmanager
def serving(place: Place, folder: Path, count: int) -> Iterator[list[str]]:
    """The URLs of servers that share the lake."""
    settings = {"SWANLAKE_DATA_PATH": place.data}
    if isinstance(place.metabase, str):
        settings["SWANLAKE_METABASE_URL"] = place.metabase
    servers = [ServerProcess(folder / f"home{number}", **settings) for number in range(count)]
    try:
        yield [server.start().url for server in servers]
    finally:
        for server in servers:
            server.kill()


def assert_sound(place: Place, *, times: bool = True) -> None:
    """The past has no gap, no duplicate, and nothing that goes backwards."""
    with Crew(1) as crew:
        crew.ask(history, place, CATALOG).assert_sound(times=times)


def assert_stock_agrees(place: Place, *checks: Check) -> None:
    """Stock DuckDB, which may only read, counts what was acknowledged."""
    with stock_duckdb() as duck:
        duck.execute(location(place).statement.replace("CREATE_IF_NOT_EXISTS false", "READ_ONLY"))
        assert differences(checks, executing(duck)) == []


def location(place: Place) -> LakeLocation:
    """Where the catalog is."""
    with Lake.open(place.metabase, place.data) as lake:
        return lake.location(lake.catalog(CATALOG).info)


def planned(plan: FanOut) -> list[Check]:
    """What is there in the end, if nothing failed."""
    return plan.checks([plan.task(number).holdings() for number in range(plan.tasks)])


def run_ours(size: Size, urls: list[str]) -> FanOut:
    """Runs the tasks; nothing may fail, and no count be wrong."""
    plan = FanOut("ours", CATALOG, size.tasks, size.statements, size.inlined_rows)
    report = fan_out(plan, urls, connect, keep=True)
    assert report.problem is None
    return plan


@sizes(Size(1, 4, 12), Size(2, 4, 12, 0), Size(1, 32, 50), Size(1, 32, 50, 0), Size(4, 32, 50))
def test_servers_on_postgresql(
    postgres_database: str, postgres_log: Callable[[], str], tmp_path: Path, size: Size
) -> None:
    place = Place(postgres_database, str(tmp_path / "data"))
    with serving(place, tmp_path, size.servers) as urls:
        plan = run_ours(size, urls)
    assert "ducklake_snapshot_pkey" not in postgres_log()
    assert_sound(place)
    assert_stock_agrees(place, *planned(plan))


@sizes(Size(1, 4, 12, 0), Size(1, 16, 50))
def test_a_server_on_sqlite(tmp_path: Path, size: Size) -> None:
    place = Place(tmp_path / "home0" / "catalogs", str(tmp_path / "data"))
    with serving(place, tmp_path, size.servers) as urls:
        plan = run_ours(size, urls)
    assert_sound(place)
    assert_stock_agrees(place, *planned(plan))


# ---- beside stock DuckDB -------------------------------------------------------------------------


def stock_task(where: LakeLocation, plan: FanOut, number: int, ours_are_done: Path) -> list[Step]:
    """A stock writer, in a process of its own."""
    steps = []
    with stock_duckdb() as duck:
        duck.execute("SET threads = 1")
        where.attach(duck)
        for step in perform(plan.task(number), executing(duck)):
            steps.append(step)
            if ours_are_done.exists():
                break
    return steps


@sizes(Size(2, 4, 12), Size(4, 32, 50))
def test_servers_beside_stock_writers_on_postgresql(
    postgres_database: str,
    postgres_log: Callable[[], str],
    tmp_path: Path,
    duck: duckdb.DuckDBPyConnection,
    size: Size,
) -> None:
    place = Place(postgres_database, str(tmp_path / "data"))
    with Lake.open(place.metabase, place.data) as lake:
        lake.create_catalog(CATALOG)
    theirs = FanOut("stock", CATALOG, 2, ENDLESS)
    location(place).attach(duck)
    prepare(theirs, executing(duck))
    duck.execute(f"DETACH {CATALOG}")
    done = tmp_path / "ours-are-done"
    with serving(place, tmp_path, size.servers) as urls, Crew(theirs.tasks) as crew:
        parts = [(location(place), theirs, number, done) for number in range(theirs.tasks)]
        running = crew.begin(stock_task, parts)
        plan = run_ours(size, urls)
        done.touch()
        tasks = running.get(PATIENCE_SECONDS)
    report = summed_up(tasks)
    assert report.wrong_counts == ()
    assert [f for f in report.failures if not any(known in f for known in CONFLICTS)] == []
    assert "ducklake_snapshot_pkey" not in postgres_log()
    # The stock extension dates a snapshot by the begin of its transaction.
    assert_sound(place, times=False)
    assert_stock_agrees(place, *planned(plan), *theirs.checks(holdings_of(tasks)))
