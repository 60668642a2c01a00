"""What a durable insert costs: through the Duckling Queue, and straight into a table of DuckLake.

All go through one server with its default settings. The baseline is the same INSERT into such a
table of the lake itself: a Parquet file and a commit each. A second baseline is a table for which
inlining is on: small inserts are rows of the metadata and make no files. Every client is a process
of its own.

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
from tests.faults.crew import Crew, wait_for_all
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


class Road(Enum):
    """How rows get into a table."""

    QUEUED = "through the queue"
    DIRECT = "into the table"
    INLINED = "into the table, with inlining on"

    @property
    def catalog(self) -> str:
        """What an INSERT names."""
        return QUEUE if self is Road.QUEUED else CATALOG


@dataclass(frozen=True)
class Effort:
    """How long each measurement takes."""

    seconds: float
    #: For the run that also counts files: all its inserts, and when it is given up.
    inserts: int
    patience: float
    ingest_rows: int
    rounds: int


FULL = Effort(4.0, MANY_INSERTS, 45.0, 1_000_000, 5)
QUICK = Effort(1.0, 1_000, 10.0, 100_000, 2)


@dataclass
class Spent:
    """What one client, or all of them, took."""

    began: float = 0.0
    ended: float = 0.0
    milliseconds: list[float] = field(default_factory=list)
    failures: int = 0
    client_seconds: float = 0.0
    server_seconds: float = 0.0

    @property
    def per_second(self) -> float:
        """Inserts that were acknowledged in a second of the whole run."""
        return len(self.milliseconds) / (self.ended - self.began)


@dataclass(frozen=True)
class Cell:
    """One measurement: what it took, and what was in the table afterwards."""

    spent: Spent
    #: All that were acknowledged, the unmeasured ones too.
    inserts: int
    files: int


# ---- clients -------------------------------------------------------------------------------------


@contextmanager
def sql_text(url: str, table: str, client: int, rows: int) -> Iterator[Insert]:
    """Our driver, a new text every time."""
    with FlightSQLClient(url) as connection:

        def insert(number: int) -> int:
            values = f"({number}, {client}, TIMESTAMP '{MOMENT}', '{NOTE}')"
            text = f"INSERT INTO {table} VALUES {', '.join([values] * rows)}"
            return connection.execute(text).affected_rows

        yield insert


@contextmanager
def bound_rows(url: str, table: str, client: int, rows: int) -> Iterator[Insert]:
    """A prepared INSERT and a plain Flight client that sends its rows as Arrow."""
    connection = FlightSql(url)
    prepared = connection.ask(
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
    """The stock driver, as most programs use it."""
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


WAYS = {"SQL text": sql_text, "bound": bound_rows, "stock ADBC": stock_adbc}


def client_job(
    url: str, server: int, way: str, table: str, client: int, rows: int, limits: tuple[float, int]
) -> Spent:
    """Inserts until the time is over or there were enough; the first, unmeasured, warms up."""
    seconds, most = limits
    spent = Spent()
    watched = psutil.Process(server) if client == 0 else None
    with WAYS[way](url, table, client, rows) as insert:
        assert insert(-1) == rows
        wait_for_all()
        cpu, server_cpu = time.process_time(), cpu_seconds(watched)
        spent.began = time.monotonic()
        for number in range(most):
            started = time.perf_counter()
            try:
                affected = insert(number)
            except ERRORS:
                spent.failures += 1
            else:
                assert affected == rows
                spent.milliseconds.append((time.perf_counter() - started) * 1000)
            if time.monotonic() - spent.began >= seconds:
                break
        spent.ended = time.monotonic()
        spent.client_seconds = time.process_time() - cpu
        spent.server_seconds = cpu_seconds(watched) - server_cpu
    return spent


def cpu_seconds(process: psutil.Process | None) -> float:
    """What a process and the children it keeps have used."""
    if process is None:
        return 0.0
    family = [process, *process.children(recursive=True)]
    return sum(sum(one.cpu_times()[:2]) for one in family)


def together(spent: list[Spent]) -> Spent:
    """All clients as one."""
    return Spent(
        min(one.began for one in spent),
        max(one.ended for one in spent),
        [time for one in spent for time in one.milliseconds],
        sum(one.failures for one in spent),
        sum(one.client_seconds for one in spent),
        sum(one.server_seconds for one in spent),
    )


# ---- measurements --------------------------------------------------------------------------------


class Bench:
    """The server, and the tables that were filled on it."""

    def __init__(self, server: ServerProcess, control: FlightSQLClient, effort: Effort) -> None:
        self.server = server
        self.control = control
        self.effort = effort
        self._tables = 0

    @property
    def where(self) -> tuple[str, int]:
        """What a client must know of the server."""
        return self.server.url, self.server.process.pid

    def measure(self, crew: Crew, way: str, road: Road, rows: int, inserts: int = 0) -> Cell:
        """All clients of a crew insert into one new table, for a time or a number of inserts."""
        name = self.new_table(road)
        each = math.ceil(inserts / crew.size) if inserts else sys.maxsize
        limits = (self.effort.patience if inserts else self.effort.seconds, each)
        spent = together(
            crew.work(
                client_job,
                [
                    (*self.where, way, f"{road.catalog}.main.{name}", number, rows, limits)
                    for number in range(crew.size)
                ],
            )
        )
        if road is Road.QUEUED:
            self.rows(f"CALL duckling_queue_flush('main.{name}')")
        done = len(spent.milliseconds) + crew.size
        kept = self.value(f"SELECT count(*) FROM {name}")
        assert kept == done * rows or spent.failures, f"{kept} rows, {done} inserts of {rows}"
        files = self.value(f"SELECT count(*) FROM ducklake_list_files('{CATALOG}', '{name}')")
        return Cell(spent, done, files)

    def new_table(self, road: Road) -> str:
        """An empty table for rows that take a road."""
        self._tables += 1
        name = f"t{self._tables}"
        self.rows(f"CREATE TABLE {name} ({COLUMNS})")
        if road is Road.INLINED:
            option = f"'data_inlining_row_limit', {MANY_ROWS}, table_name => '{name}'"
            self.rows(f"CALL {CATALOG}.set_option({option})")
        return name

    def rows(self, sql: str) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.control.execute(sql).table.to_pylist()
        return found

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
                with Crew(clients) as crew:
                    inserts(bench, crew)
            bulk(bench)


def inserts(bench: Bench, crew: Crew) -> None:
    """Single rows by all ways, then a thousand rows at once."""
    goal = crew.size == max(CLIENTS)
    clients = f"{crew.size} client{'s' if crew.size > 1 else ''}"
    answers: list[Answer] = []
    for way in WAYS:
        counts_files = goal and way == "bound"
        queued = bench.measure(
            crew, way, Road.QUEUED, 1, bench.effort.inserts if counts_files else 0
        )
        direct = bench.measure(crew, way, Road.DIRECT, 1)
        answers += comparison(way, direct, queued, goal=goal)
        if way == "bound":
            inlined = bench.measure(crew, way, Road.INLINED, 1)
            answers += comparison("bound, over inlining on", inlined, queued)
            bound = (queued, direct, inlined)
    print_table(f"single-row inserts, {clients}; baseline: INSERT into the lake's table", answers)

    where_time_goes(bench, f"single bound rows, {clients}", bound[0].spent)
    if goal:
        files(*bound)

    queued, direct, inlined = (
        bench.measure(crew, "bound", road, MANY_ROWS)
        for road in (Road.QUEUED, Road.DIRECT, Road.INLINED)
    )
    print_table(
        f"inserts of {MANY_ROWS} bound rows, {clients}; baseline: INSERT into the lake's table",
        [
            *comparison("inlining off", direct, queued),
            *comparison("inlining on", inlined, queued),
        ],
    )


def comparison(name: str, baseline: Cell, ours: Cell, *, goal: bool = False) -> list[Answer]:
    """The lines for one way; only the most clients have targets to reach."""

    def line(what: str, at: Callable[[list[float]], float], target: Target | None = None) -> Answer:
        given = (at(baseline.spent.milliseconds), at(ours.spent.milliseconds))
        return Answer(f"{name}: {what}", *given, "ms", target if goal else None)

    answers = [
        Answer(
            f"{name}: inserts",
            baseline.spent.per_second,
            ours.spent.per_second,
            "/s",
            THROUGHPUT if goal else None,
        ),
        line("acknowledged, p50", p50),
        line("acknowledged, p99", p99, LATENCY),
    ]
    failures = (baseline.spent.failures, ours.spent.failures)
    if any(failures):
        answers.append(Answer(f"{name}: failures", *failures, ""))
    return answers


def files(queued: Cell, direct: Cell, inlined: Cell) -> None:
    """How many Parquet files a hundred thousand inserts leave; what was not run is scaled up."""

    def scaled(cell: Cell) -> int:
        return math.ceil(cell.files * max(MANY_INSERTS / cell.inserts, 1))

    print_table(
        f"Parquet files for {MANY_INSERTS:,} single-row inserts, {max(CLIENTS)} clients",
        [Answer("files", scaled(direct), scaled(queued), "files", FILES)],
    )
    for name, cell in (("baseline", direct), ("inlining on", inlined), ("SwanLake", queued)):
        how = "scaled up" if cell.inserts < MANY_INSERTS else "counted"
        print(f"  {name}: {cell.files:,} files after {cell.inserts:,} inserts, {how}")


def where_time_goes(bench: Bench, title: str, spent: Spent) -> None:
    """Processor time for an insert, and what of an acknowledgement is not the queue's own."""
    count = len(spent.milliseconds)
    cores = os.cpu_count() or 1
    busy = (spent.server_seconds + spent.client_seconds) / (spent.ended - spent.began) / cores
    answers = [
        ("server's processor time for an insert", 1000 * spent.server_seconds / count, "ms"),
        ("client's processor time for an insert", 1000 * spent.client_seconds / count, "ms"),
        (f"both, of {cores} cores", 100 * busy, "%"),
        ("acknowledged, p50", p50(spent.milliseconds), "ms"),
        ("an empty call to the idle server, p50", round_trip(bench), "ms"),
        ("append and fdatasync of 1 KB on its disk, p50", disk_sync(bench.server.home), "ms"),
    ]
    print_table(
        f"where the time of the queue goes: {title}",
        [Answer(question, None, value, unit) for question, value, unit in answers],
    )


def round_trip(bench: Bench) -> float:
    """Milliseconds of a call that does nothing."""
    times = []
    for _ in range(50):
        started = time.perf_counter()
        bench.control.status()
        times.append((time.perf_counter() - started) * 1000)
    return p50(times)


def disk_sync(folder: Path) -> float:
    """Milliseconds until a small write is on the disk that the queue is on."""
    times = []
    with tempfile.TemporaryFile(dir=folder, buffering=0) as file:
        for _ in range(50):
            started = time.perf_counter()
            file.write(b"x" * 1024)
            os.fdatasync(file.fileno())
            times.append((time.perf_counter() - started) * 1000)
    return p50(times)


def bulk(bench: Bench) -> None:
    """One client sends a large table as Arrow."""
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
    # Stock ADBC sends no message of more than 16 MB.
    data = pa.Table.from_batches(data.to_batches(max_chunksize=BATCH_ROWS))
    acknowledged: dict[Road, list[float]] = {Road.QUEUED: [], Road.DIRECT: []}
    in_the_lake: list[float] = []
    tables = {road: bench.new_table(road) for road in acknowledged}
    with adbc.connect(bench.server.url, autocommit=True) as client, client.cursor() as cursor:
        for _ in range(bench.effort.rounds + 1):
            for road, table in tables.items():
                started = time.perf_counter()
                cursor.adbc_ingest(
                    table, data, mode="append", catalog_name=road.catalog, db_schema_name="main"
                )
                acknowledged[road].append(size / (time.perf_counter() - started))
                if road is Road.QUEUED:
                    bench.rows(f"CALL duckling_queue_flush('main.{table}')")
                    in_the_lake.append(size / (time.perf_counter() - started))
    for table in tables.values():
        assert bench.value(f"SELECT count(*) FROM {table}") == rows * (bench.effort.rounds + 1)
    # The first round warms up.
    queued, direct = acknowledged[Road.QUEUED][1:], acknowledged[Road.DIRECT][1:]
    print_table(
        f"adbc_ingest of {rows:,} rows, {size:.0f} MB of Arrow ({bench.effort.rounds} rounds); "
        "baseline: the same into the lake's table",
        [
            Answer("acknowledged, p50", p50(direct), p50(queued), "MB/s"),
            Answer("acknowledged, best", max(direct), max(queued), "MB/s"),
            Answer("in the lake, p50", p50(direct), p50(in_the_lake[1:]), "MB/s"),
        ],
    )


if __name__ == "__main__":
    main()
