"""Cost of a durable insert through the Duckling Queue, compared with an INSERT into the lake table.

Both use one server with default settings. The baseline makes a Parquet file and a commit for every
INSERT. A second baseline is a table with inlining on, whose small inserts are rows of the metadata.
Every client is a separate process.

``python benchmarks/ingest.py [--quick]``
"""

from __future__ import annotations

import argparse
import math
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime
from enum import Enum
from pathlib import Path
from typing import Any

import adbc_driver_flightsql.dbapi as adbc
import psutil
import pyarrow as pa
import pyarrow.flight as flight

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks._measure import Answer, Target, at_least, at_most, p50, p99, print_table
from swanlake.client import FlightSQLClient
from swanlake.errors import SwanLakeError
from swanlake.protocol import messages
from tests.faults.workers import WorkerPool, wait_for_all
from tests.flight import FlightSql
from tests.server_process import ServerProcess

CATALOG, QUEUE = "swanlake", "duckling_queue"
CLIENTS = (1, 4, 16)
COLUMNS = "id BIGINT, client BIGINT, seen TIMESTAMP, note VARCHAR"
MOMENT = datetime(2026, 5, 1, 12, 30)
NOTE = "a note of about forty characters, no more"
MANY_ROWS = 1000
MANY_INSERTS = 100_000
MEGABYTE = 1 << 20
BATCH_ROWS = 50_000

THROUGHPUT = at_least(30)
LATENCY = at_most(1 / 50, "1/50")
FILES = at_most(1 / 1000, "1/1000")

ERRORS = (SwanLakeError, pa.ArrowException, flight.FlightError, adbc.Error)

Insert = Callable[[int], int]


class InsertPath(Enum):
    """How rows get into a table."""

    QUEUED = "through the queue"
    DIRECT = "into the table"
    INLINED = "into the table, with inlining on"

    @property
    def catalog(self) -> str:
        """The catalog that an INSERT names."""
        return QUEUE if self is InsertPath.QUEUED else CATALOG


@dataclass(frozen=True)
class Effort:
    """The size of each measurement."""

    seconds: float
    #: Inserts and time limit of the run that also counts files.
    inserts: int
    time_limit: float
    ingest_rows: int
    rounds: int


FULL = Effort(4.0, MANY_INSERTS, 45.0, 1_000_000, 5)
QUICK = Effort(1.0, 1_000, 10.0, 100_000, 2)


@dataclass
class Timings:
    """Timings of one client, or of all of them."""

    began: float = 0.0
    ended: float = 0.0
    milliseconds: list[float] = field(default_factory=list)
    failures: int = 0
    client_seconds: float = 0.0
    server_seconds: float = 0.0

    @property
    def per_second(self) -> float:
        """Acknowledged inserts per second of the whole run."""
        return len(self.milliseconds) / (self.ended - self.began)


@dataclass(frozen=True)
class Cell:
    """One measurement: its timings, and the table afterwards."""

    timings: Timings
    #: All acknowledged inserts, including the warm-up.
    inserts: int
    files: int


# ---- clients -------------------------------------------------------------------------------------


@contextmanager
def sql_text(url: str, table: str, client: int, rows: int) -> Iterator[Insert]:
    """SwanLake's client with a new SQL text for every insert."""
    with FlightSQLClient(url) as connection:

        def insert(number: int) -> int:
            values = f"({number}, {client}, TIMESTAMP '{MOMENT}', '{NOTE}')"
            text = f"INSERT INTO {table} VALUES {', '.join([values] * rows)}"
            return connection.execute(text).affected_rows

        yield insert


@contextmanager
def bound_rows(url: str, table: str, client: int, rows: int) -> Iterator[Insert]:
    """A plain Flight client with a prepared INSERT and rows as Arrow."""
    connection = FlightSql(url)
    prepared = connection.action_result(
        "CreatePreparedStatement",
        messages.ActionCreatePreparedStatementRequest(
            query=f"INSERT INTO {table} VALUES (?, ?, ?, ?)"
        ),
    )
    command = messages.CommandPreparedStatementUpdate(
        prepared_statement_handle=prepared.prepared_statement_handle
    )

    def insert(number: int) -> int:
        batch = pa.table(
            {
                "id": pa.array([number] * rows, pa.int64()),
                "client": pa.array([client] * rows, pa.int64()),
                "seen": pa.array([MOMENT] * rows, pa.timestamp("us")),
                "note": pa.array([NOTE] * rows),
            }
        )
        answer = messages.DoPutUpdateResult.FromString(connection.put(command, batch))
        return answer.record_count

    yield insert
    connection.close()


@contextmanager
def stock_adbc(url: str, table: str, client: int, rows: int) -> Iterator[Insert]:
    """The stock ADBC driver."""
    with adbc.connect(url, autocommit=True) as connection, connection.cursor() as cursor:
        text = f"INSERT INTO {table} VALUES (?, ?, ?, ?)"

        def insert(number: int) -> int:
            row = (number, client, MOMENT, NOTE)
            if rows == 1:
                cursor.execute(text, row)
            else:
                cursor.executemany(text, [row] * rows)
            return int(cursor.rowcount)

        yield insert


METHODS = {"SQL text": sql_text, "bound": bound_rows, "stock ADBC": stock_adbc}


def client_job(
    url: str,
    server: int,
    method: str,
    table: str,
    client: int,
    rows: int,
    limits: tuple[float, int],
) -> Timings:
    """Inserts until a limit is reached, after an unmeasured warm-up insert."""
    seconds, most = limits
    timings = Timings()
    watched = psutil.Process(server) if client == 0 else None
    with METHODS[method](url, table, client, rows) as insert:
        assert insert(-1) == rows
        wait_for_all()
        cpu, server_cpu = time.process_time(), cpu_seconds(watched)
        timings.began = time.monotonic()
        for number in range(most):
            started = time.perf_counter()
            try:
                affected = insert(number)
            except ERRORS:
                timings.failures += 1
            else:
                assert affected == rows
                timings.milliseconds.append((time.perf_counter() - started) * 1000)
            if time.monotonic() - timings.began >= seconds:
                break
        timings.ended = time.monotonic()
        timings.client_seconds = time.process_time() - cpu
        timings.server_seconds = cpu_seconds(watched) - server_cpu
    return timings


def cpu_seconds(process: psutil.Process | None) -> float:
    """CPU time of a process and its descendants."""
    if process is None:
        return 0.0
    processes = [process, *process.children(recursive=True)]
    return sum(sum(member.cpu_times()[:2]) for member in processes)


def combine(timings: list[Timings]) -> Timings:
    """Combines the timings of all clients."""
    return Timings(
        min(client.began for client in timings),
        max(client.ended for client in timings),
        [time for client in timings for time in client.milliseconds],
        sum(client.failures for client in timings),
        sum(client.client_seconds for client in timings),
        sum(client.server_seconds for client in timings),
    )


# ---- measurements --------------------------------------------------------------------------------


class Bench:
    """The server under test and its tables."""

    def __init__(self, server: ServerProcess, control: FlightSQLClient, effort: Effort) -> None:
        self.server = server
        self.control = control
        self.effort = effort
        self._tables = 0

    @property
    def server_address(self) -> tuple[str, int]:
        """The server's URL and process id."""
        return self.server.url, self.server.process.pid

    def measure(
        self, workers: WorkerPool, method: str, path: InsertPath, rows: int, inserts: int = 0
    ) -> Cell:
        """All clients insert into one new table, for a time or a number of inserts."""
        name = self.new_table(path)
        each = math.ceil(inserts / workers.size) if inserts else sys.maxsize
        limits = (self.effort.time_limit if inserts else self.effort.seconds, each)
        timings = combine(
            workers.run(
                client_job,
                [
                    (
                        *self.server_address,
                        method,
                        f"{path.catalog}.main.{name}",
                        number,
                        rows,
                        limits,
                    )
                    for number in range(workers.size)
                ],
            )
        )
        if path is InsertPath.QUEUED:
            self.rows(f"CALL duckling_queue_flush('main.{name}')")
        done = len(timings.milliseconds) + workers.size
        stored = self.value(f"SELECT count(*) FROM {name}")
        assert stored == done * rows or timings.failures, f"{stored} rows, {done} inserts of {rows}"
        files = self.value(f"SELECT count(*) FROM ducklake_list_files('{CATALOG}', '{name}')")
        return Cell(timings, done, files)

    def new_table(self, path: InsertPath) -> str:
        """Creates an empty table."""
        self._tables += 1
        name = f"t{self._tables}"
        self.rows(f"CREATE TABLE {name} ({COLUMNS})")
        if path is InsertPath.INLINED:
            option = f"'data_inlining_row_limit', {MANY_ROWS}, table_name => '{name}'"
            self.rows(f"CALL {CATALOG}.set_option({option})")
        return name

    def rows(self, sql: str) -> list[dict[str, Any]]:
        rows: list[dict[str, Any]] = self.control.execute(sql).table.to_pylist()
        return rows

    def value(self, sql: str) -> Any:
        [row] = self.rows(sql)
        return next(iter(row.values()))


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--quick", action="store_true", help="few repetitions")
    effort = QUICK if arguments.parse_args().quick else FULL
    with tempfile.TemporaryDirectory(prefix="swanlake-bench-") as folder:
        with (
            ServerProcess(Path(folder) / "server") as server,
            FlightSQLClient(server.url) as control,
        ):
            bench = Bench(server, control, effort)
            for clients in CLIENTS:
                with WorkerPool(clients) as workers:
                    inserts(bench, workers)
            bulk(bench)


def inserts(bench: Bench, workers: WorkerPool) -> None:
    """Measures single-row inserts by all methods, then inserts of a thousand rows."""
    goal = workers.size == max(CLIENTS)
    clients = f"{workers.size} client{'s' if workers.size > 1 else ''}"
    answers: list[Answer] = []
    for method in METHODS:
        counts_files = goal and method == "bound"
        queued = bench.measure(
            workers, method, InsertPath.QUEUED, 1, bench.effort.inserts if counts_files else 0
        )
        direct = bench.measure(workers, method, InsertPath.DIRECT, 1)
        answers += comparison(method, direct, queued, goal=goal)
        if method == "bound":
            inlined = bench.measure(workers, method, InsertPath.INLINED, 1)
            answers += comparison("bound, over inlining on", inlined, queued)
            bound = (queued, direct, inlined)
    print_table(f"single-row inserts, {clients}; baseline: INSERT into the lake's table", answers)

    print_breakdown(bench, f"single bound rows, {clients}", bound[0].timings)
    if goal:
        files(*bound)

    queued, direct, inlined = (
        bench.measure(workers, "bound", path, MANY_ROWS)
        for path in (InsertPath.QUEUED, InsertPath.DIRECT, InsertPath.INLINED)
    )
    print_table(
        f"inserts of {MANY_ROWS} bound rows, {clients}; baseline: INSERT into the lake's table",
        [
            *comparison("inlining off", direct, queued),
            *comparison("inlining on", inlined, queued),
        ],
    )


def comparison(name: str, baseline: Cell, ours: Cell, *, goal: bool = False) -> list[Answer]:
    """The lines of one method; only the largest number of clients has targets."""

    def line(what: str, at: Callable[[list[float]], float], target: Target | None = None) -> Answer:
        times = (at(baseline.timings.milliseconds), at(ours.timings.milliseconds))
        return Answer(f"{name}: {what}", *times, "ms", target if goal else None)

    answers = [
        Answer(
            f"{name}: inserts",
            baseline.timings.per_second,
            ours.timings.per_second,
            "/s",
            THROUGHPUT if goal else None,
        ),
        line("acknowledged, p50", p50),
        line("acknowledged, p99", p99, LATENCY),
    ]
    failures = (baseline.timings.failures, ours.timings.failures)
    if any(failures):
        answers.append(Answer(f"{name}: failures", *failures, ""))
    return answers


def files(queued: Cell, direct: Cell, inlined: Cell) -> None:
    """Prints the Parquet files that a hundred thousand inserts leave, extrapolated if need be."""

    def scaled(cell: Cell) -> int:
        return math.ceil(cell.files * max(MANY_INSERTS / cell.inserts, 1))

    print_table(
        f"Parquet files for {MANY_INSERTS:,} single-row inserts, {max(CLIENTS)} clients",
        [Answer("files", scaled(direct), scaled(queued), "files", FILES)],
    )
    for name, cell in (("baseline", direct), ("inlining on", inlined), ("SwanLake", queued)):
        how = "scaled up" if cell.inserts < MANY_INSERTS else "counted"
        print(f"  {name}: {cell.files:,} files after {cell.inserts:,} inserts, {how}")


def print_breakdown(bench: Bench, title: str, timings: Timings) -> None:
    """Prints the CPU time of an insert, and the parts of its latency outside of the queue."""
    count = len(timings.milliseconds)
    cores = os.cpu_count() or 1
    busy = (
        (timings.server_seconds + timings.client_seconds) / (timings.ended - timings.began) / cores
    )
    answers = [
        ("server's processor time for an insert", 1000 * timings.server_seconds / count, "ms"),
        ("client's processor time for an insert", 1000 * timings.client_seconds / count, "ms"),
        (f"both, of {cores} cores", 100 * busy, "%"),
        ("acknowledged, p50", p50(timings.milliseconds), "ms"),
        ("an empty call to the idle server, p50", round_trip(bench), "ms"),
        ("append and fdatasync of 1 KB on its disk, p50", disk_sync(bench.server.home), "ms"),
    ]
    print_table(
        f"breakdown of the queue's time: {title}",
        [Answer(question, None, value, unit) for question, value, unit in answers],
    )


def round_trip(bench: Bench) -> float:
    """Milliseconds of an empty call."""
    times = []
    for _ in range(50):
        started = time.perf_counter()
        bench.control.status()
        times.append((time.perf_counter() - started) * 1000)
    return p50(times)


def disk_sync(folder: Path) -> float:
    """Milliseconds of a small synced write on the queue's disk."""
    times = []
    with tempfile.TemporaryFile(dir=folder, buffering=0) as file:
        for _ in range(50):
            started = time.perf_counter()
            file.write(b"x" * 1024)
            os.fdatasync(file.fileno())
            times.append((time.perf_counter() - started) * 1000)
    return p50(times)


def bulk(bench: Bench) -> None:
    """Measures the upload of a large Arrow table by one client."""
    rows = bench.effort.ingest_rows
    data = pa.table(
        {
            "id": pa.array(range(rows), pa.int64()),
            "client": pa.array([1] * rows, pa.int64()),
            "seen": pa.array([MOMENT] * rows, pa.timestamp("us")),
            "note": pa.array([f"{NOTE} {number}" for number in range(rows)]),
        }
    )
    size = data.nbytes / MEGABYTE
    # Stock ADBC limits a message to 16 MB.
    data = pa.Table.from_batches(data.to_batches(max_chunksize=BATCH_ROWS))
    acknowledged: dict[InsertPath, list[float]] = {InsertPath.QUEUED: [], InsertPath.DIRECT: []}
    committed: list[float] = []
    tables = {path: bench.new_table(path) for path in acknowledged}
    with adbc.connect(bench.server.url, autocommit=True) as client, client.cursor() as cursor:
        for _ in range(bench.effort.rounds + 1):
            for path, table in tables.items():
                started = time.perf_counter()
                cursor.adbc_ingest(
                    table, data, mode="append", catalog_name=path.catalog, db_schema_name="main"
                )
                acknowledged[path].append(size / (time.perf_counter() - started))
                if path is InsertPath.QUEUED:
                    bench.rows(f"CALL duckling_queue_flush('main.{table}')")
                    committed.append(size / (time.perf_counter() - started))
    for table in tables.values():
        assert bench.value(f"SELECT count(*) FROM {table}") == rows * (bench.effort.rounds + 1)
    # The first round is a warm-up.
    queued, direct = acknowledged[InsertPath.QUEUED][1:], acknowledged[InsertPath.DIRECT][1:]
    print_table(
        f"adbc_ingest of {rows:,} rows, {size:.0f} MB of Arrow ({bench.effort.rounds} rounds); "
        "baseline: the same into the lake's table",
        [
            Answer("acknowledged, p50", p50(direct), p50(queued), "MB/s"),
            Answer("acknowledged, best", max(direct), max(queued), "MB/s"),
            Answer("in the lake, p50", p50(direct), p50(committed[1:]), "MB/s"),
        ],
    )


if __name__ == "__main__":
    main()
