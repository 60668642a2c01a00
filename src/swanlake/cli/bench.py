"""``swanlake bench``: load tests of running servers that check every answer."""

from __future__ import annotations

import json
import sys
from functools import partial
from pathlib import Path
from uuid import uuid4

import click

from swanlake.bench.fanout import FanOut
from swanlake.bench.report import Latency, Report
from swanlake.bench.runner import run_fanout
from swanlake.cli.activity import json_option
from swanlake.cli.progress import progress_counter
from swanlake.cli.remote import ServerCommands, connect, connections_options
from swanlake.errors import SwanLakeError


@click.group(cls=ServerCommands)
def bench() -> None:
    """Measure running servers with a workload that checks every answer.

    Exit codes: 0 success, 1 a statement failed or a count was wrong, 2 wrong arguments or no
    connection.
    """


@bench.command()
@click.option(
    "--tasks",
    type=click.IntRange(min=1),
    default=32,
    show_default=True,
    help="Number of concurrent tasks, each in its own session.",
)
@click.option(
    "--statements",
    type=click.IntRange(min=1),
    default=50,
    show_default=True,
    help="Number of statements per task.",
)
@click.option(
    "--catalog",
    default="workbook",
    show_default=True,
    metavar="NAME",
    help="Catalog for the tables; created if it does not exist.",
)
@click.option(
    "--inlined-rows",
    type=click.IntRange(min=0),
    default=10,
    show_default=True,
    help="Inserts of up to this many rows are inlined in the metadata; 0: each writes a file.",
)
@click.option("--keep", is_flag=True, help="Do not drop the tables at the end.")
@json_option
@connections_options
def fanout(
    tasks: int,
    statements: int,
    catalog: str,
    inlined_rows: int,
    keep: bool,
    output: str,
    urls: tuple[str, ...],
    token_file: Path | None,
    tls_ca: Path | None,
) -> None:
    """Run many tasks: each creates tables, writes to them and to a shared table, and reads back.

    A task must read its own writes at once. At the end every server counts all acknowledged rows.
    """
    plan = FanOut(uuid4().hex[:8], catalog, tasks, statements, inlined_rows)
    with progress_counter("fanout", tasks * statements) as advance:
        report = run_fanout(
            plan,
            urls,
            partial(connect, token_file=token_file, tls_ca=tls_ca),
            keep=keep,
            on_statement=advance,
        )
    if output == "json":
        print(json.dumps(_plan_as_json(plan, urls) | report.as_json(), indent=2))
    else:
        _show(plan, report)
        if keep:
            print(f"The tables are in {plan.schema}.")
    sys.stdout.flush()  # before the error goes to standard error
    if report.problem is not None:
        raise SwanLakeError(report.problem)


def _plan_as_json(plan: FanOut, urls: tuple[str, ...]) -> dict[str, object]:
    return {
        "schema": plan.schema,
        "servers": list(urls),
        "tasks": plan.tasks,
        "statements": plan.statements,
        "inlined_rows": plan.inlined_rows,
    }


def _show(plan: FanOut, report: Report) -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table

    table = Table(box=box.ROUNDED)
    table.add_column("statements")
    for heading in ("run", "p50 ms", "p99 ms", "max ms"):
        table.add_column(heading, justify="right")
    for kind, latency in report.by_kind.items():
        table.add_row(str(kind), *_cells(latency))
    table.add_section()
    table.add_row("all that commit", *_cells(report.latency))
    Console(width=None if sys.stdout.isatty() else 10_000).print(table)
    print(
        f"{plan.tasks} tasks, {report.commits} commits in {report.seconds:.1f} s: "
        f"{report.commits_per_second:.1f} commits/s\n"
        f"failures {len(report.failures)}, retries {report.retries}, "
        f"conflicts {report.conflicts}, wrong counts {len(report.wrong_counts)}"
    )


def _cells(latency: Latency) -> tuple[str, ...]:
    numbers = (latency.p50, latency.p99, latency.max)
    return str(latency.statements), *(f"{number:.1f}" for number in numbers)
