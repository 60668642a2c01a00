"""Cost and benefit of the client's pool and writer.

Acquiring and releasing a connection is compared with psycopg_pool on the same machine, CPU-bound
queries through a pool with the same through one connection, and the writer with one INSERT per row.

``python benchmarks/pool.py [--quick]``
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psycopg_pool

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import swanlake
from benchmarks._measure import Answer, Target, at_least, at_most, p50, p99, print_table
from tests.postgres_server import PostgresServer
from tests.server_process import ServerProcess

#: Keeps one core busy for some tenths of a second.
BUSY = "SELECT sum(hash(range)) FROM range(20000000)"


def acquire_and_release(server: ServerProcess, folder: Path, rounds: int) -> None:
    """Compares the time to acquire and release an idle connection, with one thread and several."""
    with (
        PostgresServer() as database,
        psycopg_pool.ConnectionPool(database.url, min_size=4, max_size=4) as baseline,
        swanlake.Pool(server.url, min_idle=4, max_size=4) as ours,
    ):
        baseline.wait()
        ours.open(wait=True)
        answers = []
        for threads in (1, 4, 16):
            times = time_alternately(
                lambda: use(baseline.connection), lambda: use(ours.connection), threads, rounds
            )
            for name, at in (("p50", p50), ("p99", p99)):
                target = at_most(1, "1x") if at is p50 and threads == 1 else None
                question = f"acquire and release, {threads} threads, {name}"
                answers.append(Answer(question, at(times[0]), at(times[1]), "us", target))
    print_table(f"pool; baseline: psycopg_pool ({rounds} rounds a thread)", answers)


def use(connection: Callable[[], object]) -> None:
    with connection():  # type: ignore[attr-defined]
        pass


def time_alternately(
    baseline: Callable[[], None], ours: Callable[[], None], threads: int, rounds: int
) -> tuple[list[float], list[float]]:
    """Microseconds of every call of both, from that many threads at once."""
    spent: tuple[list[float], list[float]] = ([], [])
    for _ in range(5):
        for which, call in enumerate((baseline, ours)):

            def work(call: Callable[[], None] = call) -> list[float]:
                times = []
                for _ in range(rounds // 5):
                    started = time.perf_counter()
                    call()
                    times.append((time.perf_counter() - started) * 1e6)
                return times

            with ThreadPoolExecutor(threads) as workers:
                for done in [workers.submit(work) for _ in range(threads)]:
                    spent[which].extend(done.result())
    return spent


def parallel(folder: Path, queries: int) -> None:
    """Compares CPU-bound queries through one connection and through a pool."""
    cores = os.cpu_count() or 1
    with (
        ServerProcess(folder / "single", SWANLAKE_DUCKDB_THREADS="1") as server,
        swanlake.connect(server.url) as client,
        swanlake.Pool(server.url, max_size=cores, min_idle=cores) as pool,
    ):
        pool.open(wait=True)
        for run in (client.query, pool.query):
            run(BUSY)
        started = time.perf_counter()
        for _ in range(queries):
            client.query(BUSY)
        alone = time.perf_counter() - started
        started = time.perf_counter()
        with ThreadPoolExecutor(cores) as workers:
            list(workers.map(lambda _: pool.query(BUSY), range(queries)))
        pooled = time.perf_counter() - started
    target = Target(f">= {0.8 * cores:g}x", lambda one, many: many >= one * 0.8 * cores)
    print_table(
        f"CPU-bound queries, {cores} cores; baseline: one connection",
        [Answer("queries/s through a pool", queries / alone, queries / pooled, "/s", target)],
    )


def writer(server: ServerProcess, single: int, many: int) -> None:
    """Compares rows per second of the writer with one INSERT per row, direct and queued."""
    row = {"id": 1, "name": "a name of some length", "amount": 2.5}
    values = "(1, 'a name of some length', 2.5)"
    with swanlake.connect(server.url) as client:
        for table in ("straight", "queued", "written"):
            client.execute(f"CREATE TABLE {table} (id BIGINT, name VARCHAR, amount DOUBLE)")
        rates = []
        for target in ("straight", "duckling_queue.queued"):
            started = time.perf_counter()
            for _ in range(single):
                client.update(f"INSERT INTO {target} VALUES {values}")
            rates.append(single / (time.perf_counter() - started))
        started = time.perf_counter()
        with client.writer("written") as rows:
            for _ in range(many):
                rows.write(row)
        written = many / (time.perf_counter() - started)
        client.execute("CALL duckling_queue_flush('main.written')")
        assert client.query("SELECT count(*) FROM written").scalar() == many
    print_table(
        "writer; baseline: one INSERT a row, one client",
        [
            Answer("rows/s, over INSERT INTO the table", rates[0], written, "/s", at_least(10)),
            Answer("rows/s, over INSERT INTO the queue", rates[1], written, "/s", at_least(10)),
        ],
    )


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--quick", action="store_true", help="few repetitions")
    quick: bool = arguments.parse_args().quick
    with tempfile.TemporaryDirectory(prefix="swanlake-bench-") as name:
        folder = Path(name)
        with ServerProcess(folder / "server") as server:
            acquire_and_release(server, folder, 1_000 if quick else 20_000)
            writer(server, 100 if quick else 1_000, 20_000 if quick else 500_000)
        parallel(folder, 8 if quick else 40)


if __name__ == "__main__":
    main()
