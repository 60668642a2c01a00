"""Load of many concurrent tasks: sessions of one server, compared with stock DuckDB.

Each task creates tables, inserts, updates, deletes and copies its own rows, appends to a table that
all tasks share, and reads back what it wrote. SwanLake's tasks are sessions of one server; the
stock tasks are processes that attach a catalog of the stock extension in the same database, with
its default retries. Both inline inserts of up to ten rows, the stock default. Every count is
checked at the end. Of several alternating rounds, the median counts.

``python benchmarks/fanout.py [--sqlite] [--rounds N] [--tasks N] [--statements N]
[--inlined-rows N]``
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from itertools import chain
from pathlib import Path
from textwrap import shorten

import duckdb

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks._measure import Answer, Target, at_least, at_most, print_table
from benchmarks.commits import stock_duckdb
from swanlake.bench.fanout import FanOut
from swanlake.bench.report import Report, StatementOutcome, final_states, summarize
from swanlake.bench.runner import find_differences, prepare, run_fanout, run_task
from swanlake.client import connect
from swanlake.sql.quoting import literal
from tests.faults.stock_executor import stock_executor
from tests.faults.workers import WorkerPool, wait_for_all
from tests.postgres_server import PostgresServer
from tests.server_process import ServerProcess

TASKS, STATEMENTS = 32, 50
#: Fewer than on PostgreSQL: most stock writers wait seconds for the file lock and then fail.
TASKS_ON_SQLITE, STATEMENTS_ON_SQLITE = 16, 12
THROUGHPUT = at_least(5)
LATENCY = at_most(1 / 20, "1/20")
NONE = Target("0", lambda baseline, swanlake: swanlake == 0)


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--sqlite", action="store_true", help="the embedded default")
    arguments.add_argument("--tasks", type=int, help="32, on SQLite 16")
    arguments.add_argument("--statements", type=int, help="of each task: 50, on SQLite 12")
    arguments.add_argument("--inlined-rows", type=int, default=10, help="0: a file for each insert")
    arguments.add_argument("--rounds", type=int, default=1, help="of each, alternating")
    options = arguments.parse_args()
    tasks = options.tasks or (TASKS_ON_SQLITE if options.sqlite else TASKS)
    statements = options.statements or (STATEMENTS_ON_SQLITE if options.sqlite else STATEMENTS)
    with tempfile.TemporaryDirectory(prefix="swanlake-bench-") as name:
        folder = Path(name)
        plan = FanOut("", "workbook", tasks, statements, options.inlined_rows)
        if options.sqlite:
            compare(folder, None, plan, options.rounds)
        else:
            with PostgresServer() as server:
                compare(folder, server.url, plan, options.rounds)


def compare(folder: Path, url: str | None, plan: FanOut, rounds: int) -> None:
    """Runs both alternately and prints the comparison."""
    our_reports, stock_reports = [], []
    for number in range(rounds):
        our_reports.append(run_on_server(folder, url, replace(plan, run=f"ours{number}")))
        stock_reports.append(run_on_stock_duckdb(folder, url, replace(plan, run=f"stock{number}")))
    ours, stock = median_report(our_reports), median_report(stock_reports)
    metabase = "SQLite" if url is None else "PostgreSQL"
    print_table(
        f"{metabase}, {plan.tasks} tasks, {plan.statements} statements each; "
        "baseline: stock DuckDB, a process for each task",
        [
            Answer("commits", stock.commits_per_second, ours.commits_per_second, "/s", THROUGHPUT),
            Answer("p50", stock.latency.p50, ours.latency.p50, "ms"),
            Answer("p99", stock.latency.p99, ours.latency.p99, "ms", LATENCY),
            Answer("max", stock.latency.max, ours.latency.max, "ms"),
            *(
                Answer(f"{kind}, p50", stock.by_kind[kind].p50, latency.p50, "ms")
                for kind, latency in ours.by_kind.items()
                if kind in stock.by_kind
            ),
            Answer("failures", len(stock.failures), len(ours.failures), "", NONE),
            Answer("wrong counts", len(stock.wrong_counts), len(ours.wrong_counts), "", NONE),
            Answer("conflicts", stock.conflicts, ours.conflicts, ""),
            Answer("retries", stock.retries, ours.retries, ""),
        ],
    )
    for name, report in (("stock DuckDB", stock), ("SwanLake", ours)):
        if report.problem is not None:
            print(f"  {name}: {shorten(report.problem, 300)}")


def median_report(rounds: Sequence[Report]) -> Report:
    """The report of the median round, with the failures of all rounds."""
    by_speed = sorted(rounds, key=lambda report: report.commits_per_second)
    return replace(
        by_speed[len(rounds) // 2],
        failures=tuple(chain.from_iterable(report.failures for report in rounds)),
        wrong_counts=tuple(chain.from_iterable(report.wrong_counts for report in rounds)),
    )


def run_on_server(folder: Path, url: str | None, plan: FanOut) -> Report:
    """Runs the tasks as sessions of one server."""
    environment = {} if url is None else {"SWANLAKE_METABASE_URL": url}
    with ServerProcess(folder / "server", **environment) as server:
        return run_fanout(plan, [server.url], connect)


def run_on_stock_duckdb(folder: Path, url: str | None, plan: FanOut) -> Report:
    """Runs the tasks as processes with stock DuckDB."""
    attach = stock_attach(folder, url, plan.catalog)
    with closing(attached(attach)) as duck:
        prepare(plan, stock_executor(duck))
    with WorkerPool(plan.tasks) as workers:
        tasks = workers.run(stock_task, [(attach, plan, number) for number in range(plan.tasks)])
    with closing(attached(attach)) as duck:
        wrong = find_differences(plan.checks(final_states(tasks)), stock_executor(duck))
    return summarize(tasks, wrong_counts=wrong)


def stock_attach(folder: Path, url: str | None, catalog: str) -> str:
    """The statement with which stock DuckDB attaches the catalog, creating it the first time."""
    source = f"sqlite:{folder / 'stock.sqlite'}" if url is None else f"postgres:{url}"
    options = [f"DATA_PATH {literal(str(folder / 'stock-data'))}"]
    if url is not None:
        options.append("METADATA_SCHEMA 'stock'")
    return f"ATTACH {literal(f'ducklake:{source}')} AS {catalog} ({', '.join(options)})"


def attached(attach: str) -> duckdb.DuckDBPyConnection:
    """Stock DuckDB with the catalog attached."""
    duck = stock_duckdb()
    duck.execute(attach)
    return duck


def stock_task(attach: str, plan: FanOut, number: int) -> list[StatementOutcome]:
    """Runs one task after all processes have attached the catalog."""
    # The stock extension shows progress bars for long commits, whatever DuckDB's settings are.
    with Path(os.devnull).open("w") as null:
        os.dup2(null.fileno(), sys.stdout.fileno())
    with closing(attached(attach)) as duck:
        wait_for_all()
        return list(run_task(plan.task(number), stock_executor(duck)))


if __name__ == "__main__":
    main()
