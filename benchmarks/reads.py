"""Small reads of the lake: stock DuckDB in process, a session in process, and a client.

A point read of tables with 1, 10, 100 and 1,000 files, and the aggregate of a dashboard over
200,000 rows, on SQLite and PostgreSQL; then the number of metadata queries that 32 readers cause on
PostgreSQL. Stock DuckDB reads the same lake in the same run, in turns with the others.

``python benchmarks/reads.py [--quick] [--sqlite]``
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

import psycopg

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks._measure import Answer, at_most, p50, print_table
from swanlake.access.identity import Identity, Role
from swanlake.client import connect
from swanlake.engine.host import SharedHost
from swanlake.engine.instance import EngineSpec
from swanlake.jobs.inline import InlineRunner
from swanlake.lake.lake import Lake
from swanlake.lake.read.snapshot_cache import SnapshotCache
from swanlake.maintenance.service import Maintenance
from swanlake.maintenance.settings import MaintenanceSettings
from swanlake.queue.service import DucklingQueue
from swanlake.queue.settings import QueueSettings
from swanlake.sessions.ids import SessionKey
from swanlake.sessions.run import Run, Watchdog
from swanlake.sessions.services import SessionServices
from swanlake.sessions.session import Session
from tests.postgres_server import PostgresServer
from tests.server_process import ServerProcess
from tests.stock_duckdb import stock_duckdb

FILES = (1, 10, 100, 1000)
ROWS_PER_FILE = 200
DASHBOARD = "SELECT day, count(*), sum(v), max(name) FROM dashboard GROUP BY day ORDER BY day"
READERS = 32

#: Runs the statement of that number.
Reader = Callable[[str], object]


@contextmanager
def session_in_process(home: Path, metabase: str | None) -> Iterator[Reader]:
    """A session without a server and a wire."""
    with Lake.open(metabase or home / "catalogs", home / "data") as lake, ExitStack() as stack:
        location = lake.location(lake.ensure_catalog("swanlake").info)
        host = SharedHost(EngineSpec(lake=location, temp_directory=home / "session"))
        stack.callback(host.close)
        runner = InlineRunner(host)
        queue = DucklingQueue(QueueSettings(home / "queue-of-session"), lake, runner)
        stack.callback(queue.stop, 5)
        maintenance = Maintenance(lake, runner, MaintenanceSettings())
        stack.callback(maintenance.close)
        services = SessionServices(
            host, lake, queue, maintenance, 1 << 26, home, 1 << 24, SnapshotCache(1 << 26)
        )
        key = SessionKey("benchmark", "reads")
        session = Session(key, services, Identity("benchmark", Role.ADMIN))
        watchdog = Watchdog()
        stack.callback(watchdog.close)

        def read(sql: str) -> object:
            stream = session.execute(Run(watchdog, key), sql).stream
            assert stream is not None
            batches = []
            while (batch := stream.read()) is not None:
                batches.append(batch)
            return batches

        yield read


def in_turns(
    readers: Sequence[Reader], statement: Callable[[int], str], count: int
) -> list[list[float]]:
    """The milliseconds of each reader; they take turns, so that they share the machine's mood."""
    times: list[list[float]] = [[] for _ in readers]
    for number in range(-3, count):
        for reader, own in zip(readers, times, strict=True):
            started = time.perf_counter()
            reader(statement(max(number, 0)))
            if number >= 0:
                own.append((time.perf_counter() - started) * 1000)
    return times


def compare(metastore: str, server: ServerProcess, metabase: str | None, *, count: int) -> None:
    """Fills a lake and prints how long its reads take."""
    answers = []
    with (
        stock_duckdb(threads=2) as stock,
        connect(server.url) as client,
        session_in_process(server.home, metabase) as own,
    ):
        lake = Lake.open(metabase or server.home / "catalogs", server.home / "data")
        with lake:
            attach = lake.location(lake.catalog("swanlake").info).statement
        stock.execute(attach)
        stock.execute("USE swanlake")
        fill(stock)
        readers: list[Reader] = [
            lambda sql: stock.execute(sql).to_arrow_table(),
            own,
            lambda sql: client.query(sql).table,
        ]
        for files in FILES:

            def point(number: int, files: int = files) -> str:
                id = (number * 37 + 11) % (files * ROWS_PER_FILE)
                return f"SELECT name, v FROM t{files} WHERE id = {id}"

            answers += lines(f"point read, {files} files", in_turns(readers, point, count))
        answers += lines(
            "dashboard, 200,000 rows", in_turns(readers, lambda _: DASHBOARD, count), 2
        )
    print_table(f"Small reads, metadata in {metastore}", answers)


def lines(question: str, times: list[list[float]], factor: int = 3) -> list[Answer]:
    """The medians of stock DuckDB, of a session in process, and of a client."""
    stock, own, client = map(p50, times)
    return [
        Answer(f"{question}: in process", stock, own, "ms", at_most(1 / factor, f"1/{factor}")),
        Answer(f"{question}: client", stock, client, "ms", at_most(1 / 2, "1/2")),
    ]


def fill(stock: object) -> None:
    """Tables with a file for each insert, and one with 200,000 rows."""
    execute = stock.execute  # type: ignore[attr-defined]
    columns = "id BIGINT, name VARCHAR, v DOUBLE, day DATE"
    rows = (
        "SELECT {0} + range, 'swan ' || range % 1000, range / 3, "
        "DATE '2026-01-01' + (range % 30)::INTEGER FROM range({1})"
    )
    for files in FILES:
        execute(f"CREATE TABLE t{files} ({columns})")
        execute("BEGIN")
        for number in range(files):
            first = number * ROWS_PER_FILE
            execute(f"INSERT INTO t{files} {rows.format(first, ROWS_PER_FILE)}")
        execute("COMMIT")
    execute(f"CREATE TABLE dashboard ({columns})")
    for part in range(4):
        execute(f"INSERT INTO dashboard {rows.format(part * 50_000, 50_000)}")


def metadata_queries(server: ServerProcess, url: str, seconds: float) -> None:
    """Prints how many metadata queries a read needs with 32 readers, native and not."""
    per_read = {}
    for native in ("off", "on"):
        home = server.home.with_name(f"readers-{native}")
        flags = {"SWANLAKE_METABASE_URL": url, "SWANLAKE_NATIVE_STATEMENTS": native}
        data = {"SWANLAKE_DATA_PATH": str(server.home / "data")}
        with ServerProcess(home, **flags, **data) as other, psycopg.connect(url) as database:
            before = statements(database)
            reads = read_for(other.url, seconds)
            per_read[native] = (statements(database) - before) / reads
    answer = Answer(
        f"metadata transactions for a read, {READERS} readers",
        per_read["off"],
        per_read["on"],
        "",
        at_most(1 / 10, "1/10"),
    )
    print_table("Metadata queries, extension and native", [answer])


def statements(database: psycopg.Connection) -> int:
    """Transactions that PostgreSQL has run so far."""
    database.execute("SELECT pg_stat_force_next_flush()")
    database.commit()
    time.sleep(1.5)  # other connections report with a delay
    query = "SELECT sum(xact_commit + xact_rollback)::BIGINT FROM pg_stat_database"
    [[count]] = database.execute(query).fetchall()
    database.commit()
    return int(count)


def read_for(url: str, seconds: float) -> int:
    """Point reads by many clients for a time; returns how many."""
    counts = [0] * READERS
    end = time.monotonic() + seconds

    def read(index: int) -> None:
        with connect(url) as client:
            while time.monotonic() < end:
                client.query(f"SELECT name, v FROM t10 WHERE id = {counts[index] % 2000}").table  # noqa: B018
                counts[index] += 1

    threads = [threading.Thread(target=read, args=(index,)) for index in range(READERS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return sum(counts)


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--quick", action="store_true", help="fewer repetitions")
    arguments.add_argument("--sqlite", action="store_true", help="only SQLite")
    given = arguments.parse_args()
    count = 30 if given.quick else 150
    with tempfile.TemporaryDirectory(prefix="swanlake-bench-") as folder:
        # The session in process is a second SQLite client beside the server.
        with ServerProcess(Path(folder) / "sqlite", SWANLAKE_DUCKDB_THREADS="2") as server:
            compare("SQLite", server, None, count=count)
        if given.sqlite:
            return
        with PostgresServer() as postgres:
            url = postgres.url
            with ServerProcess(
                Path(folder) / "postgres", SWANLAKE_METABASE_URL=url, SWANLAKE_DUCKDB_THREADS="2"
            ) as server:
                compare("PostgreSQL", server, url, count=count)
                metadata_queries(server, url, 3.0 if given.quick else 10.0)


if __name__ == "__main__":
    main()
