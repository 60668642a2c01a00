"""What each part of native execution brings, against the same server with that part off.

Both servers run the same statements in alternating rounds, first from one session and then from
eight at once. Of each part the median round counts. Wall time includes the client and waiting;
CPU time is that of the server and its child processes.

``python benchmarks/native.py [--sqlite] [--rounds N] [--statements N] [part …]``
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from statistics import median

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks._measure import Answer, at_most, print_table
from benchmarks.native_server import PART
from swanlake.client import connect
from tests.postgres_server import PostgresServer
from tests.server_process import ServerProcess

#: What does not bring this factor is not worth its code.
FACTOR = at_most(1 / 1.3, "1/1.3")
_TICKS = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class Workload:
    """The statements by which a part is measured."""

    part: str
    title: str
    #: Of the catalog; 0 writes a file for each INSERT.
    inlined_rows: int
    setup: tuple[str, ...]
    #: The statement of a session's number and a counter.
    statement: Callable[[int, int], str]
    #: Run by another session all the time.
    companion: str | None = None


def _literal_rows(session: int, number: int) -> str:
    rows = ", ".join(f"({number * 5 + row}, 'swan {session}', {row}.5)" for row in range(5))
    return f"INSERT INTO t VALUES {rows}"


_TABLE = "CREATE TABLE t (id BIGINT, name VARCHAR, v DOUBLE)"
_OWN_TABLES = tuple(
    sql
    for session in range(8)
    for sql in (
        f"CREATE TABLE t{session} (id BIGINT, name VARCHAR, v DOUBLE)",
        f"INSERT INTO t{session} SELECT range, 'swan', 0.5 FROM range(50)",
    )
)
WORKLOADS = [
    Workload(
        "inserts",
        "INSERT of 1000 rows to files",
        0,
        (_TABLE,),
        lambda session, n: f"INSERT INTO t SELECT range, 'swan {n}', 0.5 FROM range(1000)",
    ),
    Workload(
        "inserts",
        "INSERT of 5 literal rows to files",
        0,
        (_TABLE,),
        _literal_rows,
    ),
    Workload(
        "inserts",
        "INSERT of 5 literal rows to files next to long INSERTs",
        0,
        (_TABLE, "CREATE TABLE large (id BIGINT, name VARCHAR, v DOUBLE)"),
        _literal_rows,
        "INSERT INTO large SELECT range, 'swan ' || range, random() FROM range(2_000_000)",
    ),
    Workload("literals", "literal rows without DuckDB", 10, (_TABLE,), _literal_rows),
    Workload("literals", "literal rows without DuckDB, to files", 0, (_TABLE,), _literal_rows),
    Workload("inlining", "rows inlined in the metadata", 10, (_TABLE,), _literal_rows),
    Workload(
        "changes",
        "UPDATE of an inlined row",
        100,
        _OWN_TABLES,
        lambda session, n: f"UPDATE t{session} SET v = v + 1 WHERE id = {n % 50}",
    ),
    Workload(
        "reads",
        "SELECT of a small inlined table",
        100,
        (_TABLE, "INSERT INTO t SELECT range, 'swan', 0.5 FROM range(50)"),
        lambda session, n: f"SELECT name, v FROM t WHERE id = {n % 50}",
    ),
]


class _Server(ServerProcess):
    _program = (str(Path(__file__).with_name("native_server.py")),)


@dataclass(frozen=True)
class Cost:
    """Milliseconds for each statement."""

    wall: float
    cpu: float


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--sqlite", action="store_true", help="the embedded default")
    arguments.add_argument("--rounds", type=int, default=3)
    arguments.add_argument("--statements", type=int, default=15, help="of each session and round")
    arguments.add_argument("parts", nargs="*", help="all, unless some are named")
    options = arguments.parse_args()
    with tempfile.TemporaryDirectory(prefix="swanlake-bench-") as name, ExitStack() as cleanup:
        folder = Path(name)
        url = None if options.sqlite else cleanup.enter_context(PostgresServer()).url
        metastore = "SQLite" if options.sqlite else "PostgreSQL"
        for number, workload in enumerate(WORKLOADS):
            if options.parts and workload.part not in options.parts:
                continue
            with ExitStack() as servers:
                off, on = (
                    servers.enter_context(_start(folder / f"{number}-{part or 'on'}", url, part))
                    for part in (workload.part, None)
                )
                answers = [
                    answer
                    for sessions in (1, 8)
                    for answer in _compare(workload, off, on, sessions, options)
                ]
            print_table(f"{metastore}, {workload.title}; baseline: {workload.part} off", answers)


def _start(home: Path, url: str | None, part: str | None) -> ServerProcess:
    environment = {} if url is None else {"SWANLAKE_METABASE_URL": url}
    environment["SWANLAKE_DATA_PATH"] = str(home / "data")
    if part is None:
        return ServerProcess(home, **environment)
    return _Server(home, **environment, **{PART: part})


def _compare(
    workload: Workload,
    off: ServerProcess,
    on: ServerProcess,
    sessions: int,
    options: argparse.Namespace,
) -> list[Answer]:
    costs: dict[str, list[Cost]] = {"off": [], "on": []}
    for name, server in (("off", off), ("on", on)):
        catalog = _catalog(name, workload, sessions)
        with connect(server.url) as client:
            client.execute(f"CALL swanlake_create_catalog('{catalog}')")
            client.execute(f"USE {catalog}")
            option = f"'data_inlining_row_limit', {workload.inlined_rows}"
            client.execute(f"CALL {catalog}.set_option({option})")
            for sql in workload.setup:
                client.execute(sql)
    for number in range(-1, options.rounds):  # the first round warms up and does not count
        for name, server in (("off", off), ("on", on)):
            catalog = _catalog(name, workload, sessions)
            first = (number + 1) * options.statements
            numbers = range(first, first + options.statements)
            cost = _run(workload, server, catalog, sessions, numbers)
            if number >= 0:
                costs[name].append(cost)
    wall = [median(cost.wall for cost in costs[name]) for name in ("off", "on")]
    cpu = [median(cost.cpu for cost in costs[name]) for name in ("off", "on")]
    return [
        Answer(f"{sessions} sessions, wall", wall[0], wall[1], "ms", FACTOR),
        Answer(f"{sessions} sessions, CPU", cpu[0], cpu[1], "ms", FACTOR),
    ]


def _catalog(name: str, workload: Workload, sessions: int) -> str:
    """A catalog of its own: with PostgreSQL both servers share the metastore."""
    return f"{name}_{WORKLOADS.index(workload)}_{sessions}"


def _run(
    workload: Workload, server: ServerProcess, catalog: str, sessions: int, numbers: range
) -> Cost:
    clients = [connect(server.url) for _ in range(sessions)]
    try:
        for client in clients:
            client.execute(f"USE {catalog}")

        def work(session: int) -> None:
            for number in numbers:
                clients[session].execute(workload.statement(session, number)).rows()

        with _companion(workload, server, catalog):
            began, cpu_before = time.perf_counter(), _cpu_seconds(server.process.pid)
            with ThreadPoolExecutor(sessions) as pool:
                list(pool.map(work, range(sessions)))
            seconds = time.perf_counter() - began
            cpu = _cpu_seconds(server.process.pid) - cpu_before
    finally:
        for client in clients:
            client.close()
    statements = sessions * len(numbers)
    return Cost(1000 * seconds / statements, 1000 * cpu / statements)


@contextmanager
def _companion(workload: Workload, server: ServerProcess, catalog: str) -> Iterator[None]:
    """Runs the companion of a workload again and again during the block."""
    if workload.companion is None:
        yield
        return
    stopped = threading.Event()

    def run(sql: str) -> None:
        with connect(server.url) as client:
            client.execute(f"USE {catalog}")
            while not stopped.is_set():
                client.execute(sql)

    with ThreadPoolExecutor(1) as pool:
        done = pool.submit(run, workload.companion)
        try:
            yield
        finally:
            stopped.set()
            done.result()


def _cpu_seconds(pid: int) -> float:
    """CPU time of a process and its children, in seconds."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    own = (int(fields[11]) + int(fields[12])) / _TICKS
    lists = Path(f"/proc/{pid}/task").glob("*/children")
    children = [int(child) for path in lists for child in path.read_text().split()]
    return own + sum(map(_cpu_seconds, children))


if __name__ == "__main__":
    main()
