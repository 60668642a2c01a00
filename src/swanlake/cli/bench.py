"""``swanlake bench``: how much running servers bear, and whether all their answers are true."""

from __future__ import annotations

import json
import sys
from functools import partial
from pathlib import Path
from uuid import uuid4

import click

from swanlake.bench.fanout import FanOut
from swanlake.bench.report import Latency, Report
from swanlake.bench.runner import fan_out
from swanlake.cli.connection import connect, connections_options
from swanlake.cli.progress import counted
from swanlake.cli.remote import ServerCommands
from swanlake.errors import SwanLakeError


@click.group(cls=ServerCommands)
def bench() -> None:
    """Measure running servers with work whose every answer is checked.

    Exit codes: 0 all went well, 1 a statement failed or a count was wrong, 2 wrong arguments or no
    connection.
    """


@bench.command()
@click.option(
    "--tasks",
    type=click.IntRange(min=1),
    default=32,
    show_default=True,
    help="How many work at the same time, each in a session of its own.",
)
@click.option(
    "--statements",
    type=click.IntRange(min=1),
    default=50,
    show_default=True,
    help="How many statements each of them runs.",
)
@click.option(
    "--catalog",
    default="workbook",
    show_default=True,
    metavar="NAME",
    help="Where the tables are made; the catalog is made too, if it is not there.",
)
@click.option(
    "--inlined-rows",
    type=click.IntRange(min=0),
    default=10,
    show_default=True,
    help="Inserts of up to so many rows are kept in the metadata; 0: each is a file.",
)
@click.option("--keep", is_flag=True, help="Do not drop the tables at the end.")
@click.option("--json", "as_json", is_flag=True, help="Print the report as JSON.")
@connections_options
def fanout(
    tasks: int,
    statements: int,
    catalog: str,
    inlined_rows: int,
    keep: bool,
    as_json: bool,
    urls: tuple[str, ...],
    token_file: Path | None,
    tls_ca: Path | None,
) -> None:
    """Many tasks at once: each makes tables, writes to them and to a shared one, and reads back.

    What a task reads must be what it wrote, at once; at the end all that was acknowledged is
    counted, on every server.
    """
    plan = FanOut(uuid4().hex[:8], catalog, tasks, statements, inlined_rows)
    with counted("fanout", tasks * statements) as stepped:
        report = fan_out(
            plan,
            urls,
            partial(connect, token_file=token_file, tls_ca=tls_ca),
            keep=keep,
            stepped=stepped,
        )
    if as_json:
        print(json.dumps(_described(plan, urls) | report.as_json(), indent=2))
    else:
        _show(plan, report)
        if keep:
            print(f"The tables are in {plan.schema}.")
    sys.stdout.flush()  # before what is wrong is said on standard error
    if report.problem is not None:
        raise SwanLakeError(report.problem)


def _described(plan: FanOut, urls: tuple[str, ...]) -> dict[str, object]:
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
