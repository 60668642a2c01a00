"""Cost of one small statement: a SELECT, an insert into the queue, an insert into the lake.

For stock ADBC and SwanLake's client, by 1, 4 and 16 client processes: statements per second, p50
and p99, and the server's CPU time and context switches for a statement. The baseline is a Flight
server that answers the same calls with fixed bytes, so the difference is what SwanLake does. Stock
DuckDB in process is compared as well. CPU time depends less on what else the machine does than
rates and latencies do. With several clients gRPC starts and ends threads all the time; their
context switches are counted in part, so the number is a lower bound there.

``python benchmarks/small.py [--quick] [--clients 1 16] [--only TEXT]``
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from itertools import chain, cycle
from pathlib import Path

import adbc_driver_flightsql.dbapi as adbc
import psutil

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks._measure import (
    Answer,
    Target,
    at_most_in_all,
    at_most_more,
    p50,
    p99,
    print_table,
)
from swanlake.client import FlightSQLClient
from tests.faults.workers import WorkerPool, wait_for_all
from tests.server_process import ServerProcess
from tests.stock_duckdb import stock_duckdb

CLIENTS = (1, 4, 16)
SELECT = "SELECT 42 AS answer"
COLUMNS = "id BIGINT, client BIGINT, note VARCHAR"
NOTE = "a note of about forty characters, no more"
WARM_UP = 20
#: As users start it: test servers have one thread for each engine.
DEFAULT_THREADS = {"SWANLAKE_DUCKDB_THREADS": "0"}
SWITCHES = at_most_in_all(12, "")

#: Runs the statement of that number.
Run = Callable[[int], object]


@dataclass(frozen=True)
class Statement:
    """A small statement, and how it is sent."""

    name: str
    #: The table that gets its rows; None for a SELECT.
    table: str | None = None
    #: True if its values are bound; otherwise they are in its text, which is new each time.
    is_bound: bool = False

    def text(self, client: int, number: int) -> str:
        """The SQL text."""
        if self.table is None:
            return SELECT
        values = "?, ?, ?" if self.is_bound else f"{number}, {client}, '{NOTE}'"
        return f"INSERT INTO {self.table} VALUES ({values})"

    def values(self, client: int, number: int) -> tuple[int, int, str] | None:
        """The values that are bound."""
        return (number, client, NOTE) if self.is_bound else None


STATEMENTS = (
    Statement("SELECT"),
    Statement("queue insert, text", "duckling_queue.main.queued"),
    Statement("queue insert, bound", "duckling_queue.main.queued", is_bound=True),
    Statement("lake insert, text", "swanlake.main.direct"),
)
#: The server's CPU time for a statement, in milliseconds.
CPU_TARGETS = {
    ("SELECT", "stock ADBC"): 2.0,
    ("SELECT", "our client"): 1.0,
    ("queue insert, text", "stock ADBC"): 2.5,
    ("queue insert, bound", "stock ADBC"): 2.5,
    ("queue insert, text", "our client"): 1.5,
    ("queue insert, bound", "our client"): 1.5,
}


# ---- clients -------------------------------------------------------------------------------------


@contextmanager
def stock_adbc(url: str, statement: Statement, client: int) -> Iterator[Run]:
    """The stock ADBC driver: prepares, executes, fetches and closes."""
    with adbc.connect(url, autocommit=True) as connection:

        def run(number: int) -> object:
            with connection.cursor() as cursor:
                cursor.execute(statement.text(client, number), statement.values(client, number))
                return cursor.fetchall() if statement.table is None else None

        yield run


@contextmanager
def our_client(url: str, statement: Statement, client: int) -> Iterator[Run]:
    """SwanLake's client: one call for a statement."""
    with FlightSQLClient(url) as connection:

        def run(number: int) -> object:
            values = statement.values(client, number)
            result = connection.execute(statement.text(client, number), values)
            return result.table if statement.table is None else None

        yield run


METHODS = {"stock ADBC": stock_adbc, "our client": our_client}


@dataclass(frozen=True)
class Timings:
    """The statements of one client, and what the server needed for those of all clients."""

    seconds: float
    milliseconds: list[float]
    cpu_seconds: float = 0.0
    switches: int = 0


def client_job(
    url: str,
    servers: Sequence[int],
    method: str,
    statement: Statement,
    client: int,
    seconds: float,
) -> Timings:
    """Runs statements for a time; the first client also watches the servers."""
    with METHODS[method](url, statement, client) as run:
        for number in range(WARM_UP):
            run(-1 - number)
        wait_for_all()
        meter = ServerMeter(servers) if client == 0 else None
        wait_for_all()
        times = time_repeatedly(run, seconds)
        wait_for_all()
        return Timings(seconds, times, *(meter.stop() if meter is not None else ()))


def time_repeatedly(run: Run, seconds: float) -> list[float]:
    """The milliseconds of each run."""
    times: list[float] = []
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        started = time.perf_counter()
        run(len(times))
        times.append((time.perf_counter() - started) * 1000)
    return times


class ServerMeter:
    """Measures what servers and their child processes use, from its creation to ``stop``."""

    def __init__(self, servers: Sequence[int]) -> None:
        processes = list(map(psutil.Process, servers))
        children = [process.children(recursive=True) for process in processes]
        self._processes = [*processes, *chain.from_iterable(children)]
        #: By the id of the thread: at the start, and when it was last seen.
        self._first = self._last = self._switches()
        self._cpu_seconds = self._cpu()
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._watch)
        self._thread.start()

    def stop(self) -> tuple[float, int]:
        """CPU seconds, and voluntary and involuntary context switches."""
        self._stopped.set()
        self._thread.join()
        self._last = self._last | self._switches()
        switches = sum(self._last.values()) - sum(self._first.values())
        return self._cpu() - self._cpu_seconds, switches

    def _watch(self) -> None:
        """Reads the counters of threads often: those of a thread that ends are gone."""
        while not self._stopped.wait(0.1):
            self._last = self._last | self._switches()

    def _cpu(self) -> float:
        return sum(sum(process.cpu_times()[:2]) for process in self._processes)

    def _switches(self) -> dict[str, int]:
        tasks = (Path(f"/proc/{process.pid}/task") for process in self._processes)
        return {
            folder.name: _switches(status)
            for folder in chain.from_iterable(task.iterdir() for task in tasks)
            if (status := _read(folder / "status")) is not None
        }


def _read(path: Path) -> str | None:
    with suppress(FileNotFoundError, ProcessLookupError):  # the thread has ended
        return path.read_text()
    return None


def _switches(status: str) -> int:
    lines = (line.split() for line in status.splitlines())
    return sum(int(words[1]) for words in lines if words[0].endswith("voluntary_ctxt_switches:"))


# ---- measurements --------------------------------------------------------------------------------


@dataclass(frozen=True)
class Cost:
    """What a statement costs with some number of clients."""

    per_second: float
    p50: float
    p99: float
    cpu_milliseconds: float
    switches: float

    @classmethod
    def summarize(cls, timings: list[Timings]) -> Cost:
        times = [time for client in timings for time in client.milliseconds]
        return cls(
            len(times) / timings[0].seconds,
            p50(times),
            p99(times),
            1000 * timings[0].cpu_seconds / len(times),
            timings[0].switches / len(times),
        )


@dataclass(frozen=True)
class Servers:
    """Servers under test, which share the clients."""

    urls: tuple[str, ...]
    pids: tuple[int, ...]

    def measure(
        self, workers: WorkerPool, method: str, statement: Statement, seconds: float
    ) -> Cost:
        """All clients run the statement for a time."""
        parts = [
            (url, self.pids, method, statement, client, seconds)
            for client, url in zip(range(workers.size), cycle(self.urls), strict=False)
        ]
        return Cost.summarize(workers.run(client_job, parts))


@contextmanager
def floor_server() -> Iterator[Servers]:
    """A Flight server that does nothing."""
    program = Path(__file__).with_name("_floor_server.py")
    with subprocess.Popen([sys.executable, program], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield Servers((process.stdout.readline().strip(),), (process.pid,))
        finally:
            process.kill()


def compare(
    name: str, statement: Statement, method: str, floor: Cost, cost: Cost, *, has_targets: bool
) -> list[Answer]:
    """The lines of one statement by one client library."""
    cpu = CPU_TARGETS.get((statement.name, method))
    cpu_target = at_most_in_all(cpu, "ms") if cpu is not None and has_targets else None

    def line(what: str, unit: str, field: str, target: Target | None = None) -> Answer:
        values = (getattr(floor, field), getattr(cost, field))
        return Answer(f"{name}: {what}", *values, unit, target)

    return [
        line("statements", "/s", "per_second"),
        line("p50", "ms", "p50"),
        line("p99", "ms", "p99"),
        line("server CPU", "ms", "cpu_milliseconds", cpu_target),
        line("context switches", "", "switches", SWITCHES if cpu_target else None),
    ]


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--quick", action="store_true", help="a second for each measurement")
    arguments.add_argument("--clients", type=int, nargs="+", default=CLIENTS)
    arguments.add_argument("--only", default="", help="measures what has this text in its name")
    given = arguments.parse_args()
    seconds = 1.0 if given.quick else 5.0
    with (
        tempfile.TemporaryDirectory(prefix="swanlake-bench-") as folder,
        ServerProcess(Path(folder) / "server", **DEFAULT_THREADS) as process,
        FlightSQLClient(process.url) as control,
        floor_server() as floor,
    ):
        control.execute(f"CREATE TABLE queued ({COLUMNS})")
        control.execute(f"CREATE TABLE direct ({COLUMNS})")
        server = Servers((process.url,), (process.process.pid,))
        costs: dict[str, Cost] = {}
        for clients in given.clients:
            answers = []
            with WorkerPool(clients) as workers:
                for statement in STATEMENTS:
                    for method in METHODS:
                        name = f"{statement.name}, {method}"
                        if given.only not in name:
                            continue
                        base = floor.measure(workers, method, statement, seconds)
                        cost = server.measure(workers, method, statement, seconds)
                        costs.setdefault(name, cost)
                        answers += compare(
                            name, statement, method, base, cost, has_targets=clients == 1
                        )
            plural = "s" if clients > 1 else ""
            print_table(
                f"{clients} client process{'es' if plural else ''}; baseline: a Flight server that "
                "does nothing",
                answers,
            )
        in_process(Path(folder), costs, seconds)


def in_process(folder: Path, costs: dict[str, Cost], seconds: float) -> None:
    """Compares one client with stock DuckDB in process, where no row is sent anywhere."""
    with stock_duckdb() as duck:
        duck.execute(f"ATTACH 'ducklake:{folder}/stock.db' AS lake (DATA_PATH '{folder}/stock/')")
        duck.execute(f"CREATE TABLE lake.direct ({COLUMNS})")
        text = Statement("", "lake.direct").text

        def select(number: int) -> object:
            return duck.execute(SELECT).fetchall()

        def insert(number: int) -> object:
            return duck.execute(text(0, number))

        spent = {"SELECT": time_repeatedly(select, seconds)}
        spent["lake insert, text"] = time_repeatedly(insert, seconds)
    answers = [
        Answer(
            f"{name}: p50",
            p50(spent[statement]),
            cost.p50,
            "ms",
            at_most_more(1, "ms") if name == "SELECT, our client" else None,
        )
        for statement in spent
        for name, cost in costs.items()
        if name.startswith(statement)
    ]
    print_table("the fewest clients; baseline: stock DuckDB in process", answers)


if __name__ == "__main__":
    main()
