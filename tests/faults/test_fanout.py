"""Many tasks write at once, through one server or several, with and without stock DuckDB."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import duckdb
import psycopg
import pytest

from swanlake.bench.fanout import CountCheck, FanOut
from swanlake.bench.report import StatementOutcome, final_states, summarize
from swanlake.bench.runner import find_differences, prepare, run_fanout, run_task
from swanlake.client import connect
from swanlake.lake.lake import Lake
from swanlake.lake.metastore.location import LakeLocation
from tests.faults.stock_executor import stock_executor
from tests.faults.test_mixed_writers import CONFLICTS
from tests.faults.workers import TIMEOUT_SECONDS, LakeAddress, WorkerPool, read_history
from tests.server_process import ServerProcess
from tests.stock_duckdb import stock_duckdb

pytestmark = pytest.mark.timeout(1800)

CATALOG = "workbook"
#: Stock writers run until the servers' tasks are done.
UNLIMITED = 1_000_000


@dataclass(frozen=True)
class Size:
    """Number of servers, of tasks on all of them, and of statements per task."""

    servers: int
    tasks: int
    statements: int
    #: The inlining limit; 0 makes a file for every insert.
    inlined_rows: int = 10

    def __str__(self) -> str:
        files = "" if self.inlined_rows else "-files"
        return f"{self.servers}x{self.tasks // self.servers}x{self.statements}{files}"


def parametrize_sizes(*sizes: Size) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Runs a test for each size; the large ones are marked as slow."""
    return pytest.mark.parametrize(
        "size",
        [
            pytest.param(size, marks=[pytest.mark.slow] if size.tasks > 4 else [], id=str(size))
            for size in sizes
        ],
    )


@pytest.fixture
def postgres_log(postgres: str) -> Callable[[], str]:
    """Returns what the database has logged since the start of the test."""
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
def run_servers(address: LakeAddress, folder: Path, count: int) -> Iterator[list[str]]:
    """Runs servers that share the lake; yields their URLs."""
    settings = {"SWANLAKE_DATA_PATH": address.data}
    if isinstance(address.metabase, str):
        settings["SWANLAKE_METABASE_URL"] = address.metabase
    servers = [ServerProcess(folder / f"home{number}", **settings) for number in range(count)]
    try:
        yield [server.start().url for server in servers]
    finally:
        for server in servers:
            server.kill()


def assert_sound(address: LakeAddress, *, times: bool = True) -> None:
    """Checks the catalog's history: no gap, no duplicate, nothing that decreases."""
    with WorkerPool(1) as workers:
        workers.call(read_history, address, CATALOG).assert_sound(times=times)


def assert_stock_agrees(address: LakeAddress, *checks: CountCheck) -> None:
    """Checks the counts in stock DuckDB, attached read-only."""
    with stock_duckdb() as duck:
        duck.execute(location(address).statement.replace("CREATE_IF_NOT_EXISTS false", "READ_ONLY"))
        assert find_differences(checks, stock_executor(duck)) == []


def location(address: LakeAddress) -> LakeLocation:
    """The location of the catalog."""
    with Lake.open(address.metabase, address.data) as lake:
        return lake.location(lake.catalog(CATALOG).info)


def expected_counts(plan: FanOut) -> list[CountCheck]:
    """The counts at the end of a run without failures."""
    return plan.checks([plan.task(number).final_state() for number in range(plan.tasks)])


def run_on_servers(size: Size, urls: list[str]) -> FanOut:
    """Runs the tasks on servers; checks that nothing failed and every count is right."""
    plan = FanOut("ours", CATALOG, size.tasks, size.statements, size.inlined_rows)
    report = run_fanout(plan, urls, connect, keep=True)
    assert report.problem is None
    return plan


@parametrize_sizes(
    Size(1, 4, 12), Size(2, 4, 12, 0), Size(1, 32, 50), Size(1, 32, 50, 0), Size(4, 32, 50)
)
def test_tasks_on_postgresql_servers_all_succeed(
    postgres_database: str, postgres_log: Callable[[], str], tmp_path: Path, size: Size
) -> None:
    address = LakeAddress(postgres_database, str(tmp_path / "data"))
    with run_servers(address, tmp_path, size.servers) as urls:
        plan = run_on_servers(size, urls)
    assert "ducklake_snapshot_pkey" not in postgres_log()
    assert_sound(address)
    assert_stock_agrees(address, *expected_counts(plan))


@parametrize_sizes(Size(1, 4, 12, 0), Size(1, 16, 50))
def test_tasks_on_a_sqlite_server_all_succeed(tmp_path: Path, size: Size) -> None:
    address = LakeAddress(tmp_path / "home0" / "catalogs", str(tmp_path / "data"))
    with run_servers(address, tmp_path, size.servers) as urls:
        plan = run_on_servers(size, urls)
    assert_sound(address)
    assert_stock_agrees(address, *expected_counts(plan))


# ---- with stock DuckDB ---------------------------------------------------------------------------


def stock_task(
    location: LakeLocation, plan: FanOut, number: int, servers_done: Path
) -> list[StatementOutcome]:
    """A task in stock DuckDB, for a worker process; its pauses let the servers commit."""
    steps, pause = [], threading.Event()
    with stock_duckdb() as duck:
        duck.execute("SET threads = 1")
        location.attach(duck)
        for step in run_task(plan.task(number), stock_executor(duck)):
            steps.append(step)
            if servers_done.exists():
                break
            pause.wait(0.08)
    return steps


@parametrize_sizes(Size(2, 4, 12), Size(4, 32, 50))
def test_tasks_on_servers_succeed_with_stock_writers_on_postgresql(
    postgres_database: str,
    postgres_log: Callable[[], str],
    tmp_path: Path,
    duck: duckdb.DuckDBPyConnection,
    size: Size,
) -> None:
    address = LakeAddress(postgres_database, str(tmp_path / "data"))
    with Lake.open(address.metabase, address.data) as lake:
        lake.create_catalog(CATALOG)
    stock_plan = FanOut("stock", CATALOG, 2, UNLIMITED)
    location(address).attach(duck)
    prepare(stock_plan, stock_executor(duck))
    duck.execute(f"DETACH {CATALOG}")
    done = tmp_path / "servers-done"
    parts = [(location(address), stock_plan, number, done) for number in range(stock_plan.tasks)]
    with run_servers(address, tmp_path, size.servers) as urls, WorkerPool(len(parts)) as workers:
        running = workers.start(stock_task, parts)
        plan = run_on_servers(size, urls)
        done.touch()
        tasks = running.get(TIMEOUT_SECONDS)
    report = summarize(tasks)
    assert report.wrong_counts == ()
    assert [f for f in report.failures if not any(known in f for known in CONFLICTS)] == []
    assert "ducklake_snapshot_pkey" not in postgres_log()
    # The stock extension dates a snapshot by the start of its transaction.
    assert_sound(address, times=False)
    assert_stock_agrees(address, *expected_counts(plan), *stock_plan.checks(final_states(tasks)))
