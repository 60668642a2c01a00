"""What a second server process would bring to small statements on the cores of one machine.

One server, or two on the same lake in PostgreSQL, answers the same client processes; each client
stays with one server, as with ``SO_REUSEPORT``. The rates decide whether several worker processes
behind one port are worth building. ``--clients-on`` and ``--servers-on`` pin the processes to
cores, which tells whether cores or waits are the limit: as long as the machine has no idle time, a
second process can only take its CPU time from the clients and the first one.

``python benchmarks/workers.py [--quick] [--clients 16] [--only TEXT]``
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

import psutil

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks._measure import Answer, at_least, p50, print_table
from benchmarks.small import COLUMNS, DEFAULT_THREADS, METHODS, STATEMENTS, Cost, Servers, Statement
from swanlake.client import FlightSQLClient
from tests.faults.workers import WorkerPool
from tests.postgres_server import PostgresServer, new_database
from tests.server_process import ServerProcess

#: A second process is worth its complexity from this gain on.
GAIN = at_least(1.4)
SERVERS = 2


@dataclass
class Rounds:
    """The measurements of one statement by one number of servers."""

    costs: list[Cost] = field(default_factory=list)
    idle: list[float] = field(default_factory=list)

    def measure(
        self,
        servers: Servers,
        workers: WorkerPool,
        method: str,
        statement: Statement,
        seconds: float,
    ) -> None:
        """Adds one round."""
        before = psutil.cpu_times()
        self.costs.append(servers.measure(workers, method, statement, seconds))
        after = psutil.cpu_times()
        self.idle.append(100 * (after.idle - before.idle) / (sum(after) - sum(before)))

    def median(self, name: str) -> float:
        """The median over all rounds."""
        return p50([getattr(cost, name) for cost in self.costs])


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--quick", action="store_true", help="a second for each measurement")
    arguments.add_argument("--rounds", type=int, default=3)
    arguments.add_argument("--clients", type=int, default=16)
    arguments.add_argument("--clients-on", type=int, nargs="+", help="cores", metavar="CORE")
    arguments.add_argument("--servers-on", type=int, nargs="+", help="cores", metavar="CORE")
    arguments.add_argument("--only", default="", help="measures what has this text in its name")
    given = arguments.parse_args()
    seconds = 1.0 if given.quick else 4.0
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="swanlake-bench-")))
        metabase = stack.enter_context(new_database(stack.enter_context(PostgresServer()).url))
        processes = [
            stack.enter_context(
                ServerProcess(
                    folder / f"server{number}",
                    SWANLAKE_METABASE_URL=metabase,
                    SWANLAKE_DATA_PATH=str(folder / "data"),
                    **DEFAULT_THREADS,
                )
            )
            for number in range(SERVERS)
        ]
        control = stack.enter_context(FlightSQLClient(processes[0].url))
        for table in ("queued", "direct"):
            control.execute(f"CREATE TABLE {table} ({COLUMNS})")
        pids = tuple(process.process.pid for process in processes)
        if given.servers_on:
            for pid in pids:
                pin(pid, given.servers_on)
        both = Servers(tuple(process.url for process in processes), pids)
        one = Servers(both.urls[:1], both.pids[:1])
        workers = stack.enter_context(WorkerPool(given.clients))
        if given.clients_on:
            workers.run(os.sched_setaffinity, [(0, given.clients_on)] * given.clients)
        answers = []
        for statement in STATEMENTS:
            for method in METHODS:
                name = f"{statement.name}, {method}"
                if given.only not in name:
                    continue
                baseline, divided = Rounds(), Rounds()
                for _ in range(given.rounds):
                    baseline.measure(one, workers, method, statement, seconds)
                    divided.measure(both, workers, method, statement, seconds)
                answers += compare(name, baseline, divided)
    pinned = [
        f"{who} on core {', '.join(map(str, cores))}"
        for who, cores in (("clients", given.clients_on), ("servers", given.servers_on))
        if cores
    ]
    where = "; ".join(pinned) or "not pinned"
    print_table(
        f"{SERVERS} servers, {given.clients} client processes, {where}; baseline: 1 server",
        answers,
    )


def pin(pid: int, cores: Sequence[int]) -> None:
    """Keeps all threads of a process on some cores, and those that it starts later."""
    for thread in psutil.Process(pid).threads():
        os.sched_setaffinity(thread.id, cores)


def compare(name: str, one: Rounds, both: Rounds) -> list[Answer]:
    """The lines of one statement by one client library."""

    def line(what: str, unit: str, field: str) -> Answer:
        return Answer(f"{name}: {what}", one.median(field), both.median(field), unit)

    rates = one.median("per_second"), both.median("per_second")
    return [
        Answer(f"{name}: statements", *rates, "/s", GAIN),
        line("p99", "ms", "p99"),
        line("server CPU", "ms", "cpu_milliseconds"),
        Answer(f"{name}: idle time of the machine", p50(one.idle), p50(both.idle), "%"),
    ]


if __name__ == "__main__":
    main()
