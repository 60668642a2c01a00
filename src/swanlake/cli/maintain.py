"""``swanlake maintain``: has a running server maintain the lake, and shows what it did."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import click
import pyarrow as pa

from swanlake.cli.options import Duration
from swanlake.cli.output import format_option
from swanlake.cli.progress import progress_steps, spinner
from swanlake.cli.remote import (
    ServerCommands,
    call_procedure,
    connection_options,
    is_connection_error,
    open_client,
    show_rows,
)
from swanlake.client import FlightSQLClient
from swanlake.errors import SwanLakeError
from swanlake.maintenance.registry import JOBS, ArgumentType, MaintenanceJob
from swanlake.sql.quoting import qualified

#: The actions of a compaction that change files.
_CHANGES = ("merge", "rewrite", "fold")
#: Long lists of paths; --format json, csv and arrow have them.
_LISTS = ("sources", "outputs")

_OPTIONS: dict[ArgumentType, dict[str, Any]] = {
    ArgumentType.TABLE: {"metavar": "NAME"},
    ArgumentType.CATALOG: {"metavar": "NAME"},
    ArgumentType.AGE: {"type": Duration()},
    ArgumentType.COUNT: {"type": click.IntRange(min=1), "metavar": "N"},
    ArgumentType.FLAG: {"is_flag": True, "default": False},
}


@click.group(cls=ServerCommands)
def maintain() -> None:
    """Have a running server compact tables, expire snapshots and delete unneeded files.

    A server also does this automatically, unless `maintenance = "off"`. A command waits a while
    for a job that is running. Exit codes: 0 done, 1 refused or failed, 2 wrong arguments or no
    connection.
    """


def _add_command(job: MaintenanceJob) -> None:
    """Adds the command of a job: its arguments as options, its report as output."""

    def run(output: str, **options: Any) -> None:
        arguments = {argument.name: options.pop(argument.name) for argument in job.arguments}
        error: SwanLakeError | None = None
        with open_client(**options) as client:
            if job.name == "compact" and not (arguments["table"] or arguments["dry_run"]):
                rows, error = _compact_tables(client, arguments["catalog"])
            else:
                with spinner("looking" if arguments["dry_run"] else job.activity):
                    rows = _call(client, job, **arguments)
        show_rows(rows, output, when_empty=job.when_empty, hidden_columns=_LISTS)
        if output == "table" and rows.num_rows:
            _show_summary(rows, arguments["dry_run"])
        error = error or _find_problem(rows)
        if error is not None:
            raise error

    command = format_option(connection_options(run))
    options = sorted(job.arguments, key=lambda argument: argument.name == "dry_run")
    for argument in reversed(options):  # click shows the last one first
        flag = f"--{argument.name.replace('_', '-')}"
        settings = {"default": None, "help": argument.help} | _OPTIONS[argument.type]
        command = click.option(flag, **settings)(command)
    maintain.command(job.name, help=job.help)(command)


def _call(client: FlightSQLClient, job: MaintenanceJob, **arguments: Any) -> Any:
    named = {
        name: f"{value.total_seconds():.6f}s" if isinstance(value, timedelta) else value
        for name, value in arguments.items()
    }
    return call_procedure(client, job.procedure, named.pop("table", None), **named)


for _job in JOBS.values():
    _add_command(_job)


@maintain.command()
@click.option("--job", type=click.Choice(list(JOBS)), default=None, help="Only runs of this job.")
@click.option("--limit", type=click.IntRange(min=1), default=100, show_default=True)
@click.option(
    "--catalog", default=None, metavar="NAME", help="The catalog; without it the server's own."
)
@format_option
@connection_options
def history(job: str | None, limit: int, catalog: str | None, output: str, **server: Any) -> None:
    """Show the runs of all servers of the lake, the newest first."""
    with open_client(**server) as client:
        rows = call_procedure(
            client, "swanlake_maintenance_history", catalog=catalog, job=job, last=limit
        )
    show_rows(rows, output, when_empty="Nothing has been maintained yet.", hidden_columns=("id",))


def _compact_tables(
    client: FlightSQLClient, catalog: str | None
) -> tuple[Any, SwanLakeError | None]:
    """Compacts the tables that a dry run lists one by one, to show the progress."""
    job = JOBS["compact"]
    with spinner("looking"):
        plan = _call(client, job, dry_run=True, catalog=catalog)
    names = ("catalog_name", "schema_name", "table_name")
    tables = list(
        dict.fromkeys(
            tuple(row[name] for name in names)
            for row in plan.to_pylist()
            if row["action"] in _CHANGES
        )
    )
    reports = [plan.slice(0, 0)]
    errors: list[SwanLakeError] = []
    with progress_steps("compact", len(tables)) as begin_step:
        for table in tables:
            begin_step(".".join(table[1:]))
            try:
                reports.append(_call(client, job, table=qualified(*table)))
            except SwanLakeError as error:
                if is_connection_error(error):
                    raise
                errors.append(error)
    return pa.concat_tables(reports), _combine(errors, len(tables))


def _combine(errors: list[SwanLakeError], tables: int) -> SwanLakeError | None:
    if not errors or tables == 1:
        return errors[0] if errors else None
    return SwanLakeError(
        f"{len(errors)} of {_count(tables, 'table')} could not be compacted: {errors[0]}"
    )


def _show_summary(rows: Any, dry_run: bool) -> None:
    """One sentence below the table, for reports of snapshots and of deleted files."""
    if "kind" in rows.column_names:
        kinds = rows["kind"].to_pylist()
        expired = "would expire" if dry_run else "expired"
        click.echo(
            f"{_count(kinds.count('snapshot'), 'snapshot')} {expired}; the next clean-up has "
            f"{_count(kinds.count('file'), 'file')} more to look at."
        )
    elif "problem" in rows.column_names:
        files = rows.select(["bytes", "problem"]).to_pylist()
        sizes = [file["bytes"] for file in files if file["problem"] is None]
        subject = f"{_count(len(sizes), 'file')} with {sum(sizes):,} bytes"
        click.echo(f"{subject} would be deleted." if dry_run else f"{subject} deleted.")


def _find_problem(rows: Any) -> SwanLakeError | None:
    problems = rows["problem"].drop_null().to_pylist() if "problem" in rows.column_names else []
    if not problems:
        return None
    return SwanLakeError(
        f"{_count(len(problems), 'file')} could not be deleted; the next run tries again: "
        f"{problems[0]}"
    )


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"
