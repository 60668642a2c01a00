"""Rates of many rows at once: the client's writer, stock ADBC's bulk calls, and a whole load.

The baselines run in the same process as stock DuckDB, with a DuckLake of its own: an INSERT of the
same Arrow rows, and a COPY of the same rows from Parquet. CPU time of client and server, for each
row, depends less on what else the machine does than rates do.

``python benchmarks/bulk.py [--quick] [--only TEXT]``
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import adbc_driver_flightsql.dbapi as adbc
import psutil
import pyarrow as pa

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks._measure import Answer, Target, at_least, p50, print_table
from benchmarks.small import DEFAULT_THREADS
from swanlake.client import FlightSQLClient
from tests.server_process import ServerProcess
from tests.stock_duckdb import stock_duckdb

COLUMNS = "id BIGINT, client BIGINT, seen TIMESTAMP, note VARCHAR"
ROWS = """
    SELECT range AS id, range % 16 AS client, TIMESTAMP '2026-05-01' + to_seconds(range) AS seen,
        'a note of about forty characters, ' || range AS note
    FROM range({rows})
"""
#: Stock ADBC limits a message to 16 MB.
BATCH_ROWS = 50_000
WRITER_RATE = 150_000
MILLION = 1_000_000


@dataclass(frozen=True)
class Effort:
    """The size of each measurement."""

    writer_rows: int
    bulk_rows: int
    load_rows: int
    rounds: int


FULL = Effort(500_000, 200_000, 10 * MILLION, 3)
QUICK = Effort(100_000, 200_000, MILLION, 2)


@dataclass
class Load:
    """The runs of one way of writing rows."""

    seconds: list[float]
    client_cpu: list[float]
    server_cpu: list[float]

    def per_second(self, rows: int) -> float:
        """The rate of the median run."""
        return rows / p50(self.seconds)


class Bench:
    """The server under test, stock DuckDB in process, and their tables."""

    def __init__(self, server: ServerProcess, control: FlightSQLClient, duck: Any) -> None:
        self.url = server.url
        self.duck = duck
        self.control = control
        self._process = psutil.Process(server.process.pid)
        self._tables = 0

    def rows(self, count: int) -> Any:
        """Rows to write, in batches that stock ADBC can send."""
        table = self.duck.execute(ROWS.format(rows=count)).to_arrow_table()
        return pa.Table.from_batches(table.combine_chunks().to_batches(BATCH_ROWS))

    def new_table(self, catalog: str = "") -> str:
        """An empty table of the server, or of stock DuckDB."""
        self._tables += 1
        name = f"t{self._tables}"
        if catalog:
            self.duck.execute(f"CREATE TABLE {catalog}.{name} ({COLUMNS})")
        else:
            self.control.execute(f"CREATE TABLE {name} ({COLUMNS})")
        return name

    def count(self, table: str) -> int:
        """The rows of a table of the server."""
        self.control.execute(f"CALL duckling_queue_flush('main.{table}')")
        return int(self.control.query(f"SELECT count(*) FROM {table}").scalar())

    def time(self, load: Load, write: Callable[..., object], *values: Any, **options: Any) -> None:
        """Adds one run."""
        client, server = time.process_time(), self._server_cpu()
        started = time.perf_counter()
        write(*values, **options)
        load.seconds.append(time.perf_counter() - started)
        load.client_cpu.append(time.process_time() - client)
        load.server_cpu.append(self._server_cpu() - server)

    def _server_cpu(self) -> float:
        processes = [self._process, *self._process.children(recursive=True)]
        return sum(sum(process.cpu_times()[:2]) for process in processes)


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--quick", action="store_true", help="few repetitions, fewer rows")
    arguments.add_argument("--only", default="", help="measures what has this text in its name")
    given = arguments.parse_args()
    effort = QUICK if given.quick else FULL
    with (
        tempfile.TemporaryDirectory(prefix="swanlake-bench-") as folder,
        ServerProcess(Path(folder) / "server", **DEFAULT_THREADS) as server,
        FlightSQLClient(server.url) as control,
        stock_duckdb(threads=os.cpu_count()) as duck,
    ):
        duck.execute(f"ATTACH 'ducklake:{folder}/stock.db' AS stock (DATA_PATH '{folder}/stock/')")
        bench = Bench(server, control, duck)
        parts: dict[str, Callable[[Bench, Effort], None]] = {
            "writer": writer,
            "bulk": bulk,
            "load": lambda bench, effort: load(bench, effort, Path(folder)),
        }
        for name, measure in parts.items():
            if given.only in name:
                measure(bench, effort)


def writer(bench: Bench, effort: Effort) -> None:
    """Measures rows a second of the client's writer, until all are acknowledged."""
    count = effort.writer_rows
    dicts = bench.rows(count).to_pylist()
    tuples = [tuple(row.values()) for row in dicts]
    kinds: dict[str, tuple[list[Any], bool]] = {
        "write(dict)": (dicts, False),
        "write(tuple)": (tuples, False),
        "write_many(tuples)": (tuples, True),
    }
    loads = {name: Load([], [], []) for name in kinds}
    for _ in range(effort.rounds):
        for name, (rows, at_once) in kinds.items():
            table = bench.new_table()
            bench.time(loads[name], write_rows, bench.control, table, rows, at_once=at_once)
            assert bench.count(table) == count
    rate = Target(f">= {WRITER_RATE:,}/s", lambda _, rows: rows >= WRITER_RATE)
    answers = []
    for name, done in loads.items():
        answers += [
            Answer(f"{name}: rows", None, done.per_second(count), "/s", rate),
            Answer(f"{name}: client CPU", None, 1e6 * p50(done.client_cpu) / count, "us a row"),
            Answer(f"{name}: server CPU", None, 1e6 * p50(done.server_cpu) / count, "us a row"),
        ]
    print_table(f"the client's writer, {count:,} rows into the queue", answers)


def write_rows(client: FlightSQLClient, table: str, rows: list[Any], *, at_once: bool) -> None:
    """Writes rows one by one or by one call, and waits until all are acknowledged."""
    with client.writer(table) as writer:
        if at_once:
            writer.write_many(rows)
            return
        for row in rows:
            writer.write(row)


def bulk(bench: Bench, effort: Effort) -> None:
    """Compares bulk calls of stock ADBC with an INSERT of the same Arrow rows in process."""
    count = effort.bulk_rows
    data = bench.rows(count)
    bench.duck.register("rows", data)
    baseline, many, ingested = (Load([], [], []) for _ in range(3))
    with adbc.connect(bench.url, autocommit=True) as client, client.cursor() as cursor:
        for _ in range(effort.rounds + 1):
            table = bench.new_table("stock")
            bench.time(baseline, bench.duck.execute, f"INSERT INTO stock.{table} FROM rows")
            insert = f"INSERT INTO {bench.new_table()} VALUES (?, ?, ?, ?)"
            bench.time(many, cursor.executemany, insert, data)
            table = bench.new_table()
            bench.time(ingested, cursor.adbc_ingest, table, data, mode="append")
            assert bench.count(table) == count
    answers = []
    for name, done in (("executemany", many), ("adbc_ingest", ingested)):
        rates = baseline.per_second(count), done.per_second(count)
        answers += [
            Answer(f"{name}: rows", *rates, "/s"),
            Answer(f"{name}: server CPU", None, 1e6 * p50(done.server_cpu) / count, "us a row"),
        ]
    print_table(
        f"{count:,} rows by stock ADBC into a table of the lake; baseline: INSERT of the same "
        "Arrow rows by stock DuckDB in process",
        answers,
    )


def load(bench: Bench, effort: Effort, folder: Path) -> None:
    """Compares adbc_ingest of many rows with a COPY from Parquet in process."""
    count = effort.load_rows
    file = folder / "load.parquet"
    bench.duck.execute(f"COPY ({ROWS.format(rows=count)}) TO '{file}'")
    data = bench.rows(count)
    copied, ingested = Load([], [], []), Load([], [], [])
    with adbc.connect(bench.url, autocommit=True) as client, client.cursor() as cursor:
        for _ in range(effort.rounds):
            table = bench.new_table("stock")
            bench.time(copied, bench.duck.execute, f"COPY stock.{table} FROM '{file}'")
            table = bench.new_table()
            bench.time(ingested, cursor.adbc_ingest, table, data, mode="append")
            assert bench.count(table) == count
    rates = copied.per_second(count), ingested.per_second(count)
    print_table(
        f"{count:,} rows by adbc_ingest; baseline: COPY from Parquet by stock DuckDB in process",
        [
            Answer("rows", *rates, "/s", at_least(0.8)),
            Answer("CPU of baseline", None, 1e6 * p50(copied.client_cpu) / count, "us a row"),
            Answer("CPU of the client", None, 1e6 * p50(ingested.client_cpu) / count, "us a row"),
            Answer("CPU of the server", None, 1e6 * p50(ingested.server_cpu) / count, "us a row"),
        ],
    )


if __name__ == "__main__":
    main()
