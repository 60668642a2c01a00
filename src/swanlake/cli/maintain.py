"""``swanlake maintain``: maintenance of the lake by a running server, now, and what it did."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import click
import pyarrow as pa

from swanlake.cli.connection import connection_options
from swanlake.cli.durations import Duration
from swanlake.cli.output import format_option
from swanlake.cli.progress import steps, working
from swanlake.cli.remote import ServerCommands, call, is_lost, show_rows
from swanlake.cli.remote import server as connected
from swanlake.client import FlightSQLClient
from swanlake.errors import SwanLakeError
from swanlake.sql.quoting import qualified

JOBS = ("compact", "expire", "cleanup", "orphans")
_WORK = ("merge", "rewrite", "fold")
#: Long lists of paths; --format json, csv and arrow have them.
_LISTS = ("sources", "outputs")

_catalog_option = click.option(
    "--catalog", default=None, metavar="NAME", help="The catalog; without it the server's own."
)
_dry_run_option = click.option("--dry-run", is_flag=True, help="Only say what would be done.")


def _older_than_option(text: str) -> Callable[[Callable[..., None]], Callable[..., None]]:
    return click.option("--older-than", type=Duration(), default=None, help=text)


@click.group(cls=ServerCommands)
def maintain() -> None:
    """Have a running server compact tables, let snapshots go and delete what nobody needs.

    A server does this by itself too, unless `maintenance = "off"`; what runs already is waited for
    for a while. Exit codes: 0 done, 1 refused or failed, 2 wrong arguments or no connection.
    """


@maintain.command()
@click.option(
    "--table", default=None, metavar="NAME", help="Only this table: t, schema.t or catalog.schema.t"
)
@_catalog_option
@_dry_run_option
@format_option
@connection_options
def compact(
    table: str | None, catalog: str | None, dry_run: bool, output: str, **server: Any
) -> None:
    """Merge small files, rewrite those with deleted rows, and fold in what the metadata keeps."""
    failed: SwanLakeError | None = None
    with connected(**server) as client:
        if table is not None or dry_run:
            with working("compacting" if table else "looking"):
                rows = _compact(client, table, dry_run=dry_run, catalog=catalog)
        else:
            rows, failed = _compact_all(client, catalog)
    show_rows(rows, output, nothing="There is nothing to compact.", not_in_tables=_LISTS)
    if failed is not None:
        raise failed


@maintain.command()
@_older_than_option("Only snapshots that are older.")
@click.option(
    "--keep-last",
    type=click.IntRange(min=1),
    default=None,
    metavar="N",
    help="Not the newest N. With --older-than a snapshot goes if both allow it.",
)
@_catalog_option
@_dry_run_option
@format_option
@connection_options
def expire(
    older_than: timedelta | None,
    keep_last: int | None,
    catalog: str | None,
    dry_run: bool,
    output: str,
    **server: Any,
) -> None:
    """Let old snapshots go: time travel to them ends, and the files that only they need are free.

    Without --older-than and --keep-last by the server's settings.
    """
    with connected(**server) as client, working("expiring snapshots"):
        rows = call(
            client,
            "swanlake_expire",
            older_than=_text(older_than),
            keep_last=keep_last,
            dry_run=dry_run,
            catalog=catalog,
        )
    show_rows(rows, output, nothing="No snapshot may go.")
    if output == "table" and rows.num_rows:
        kinds = rows["kind"].to_pylist()
        went = "would expire" if dry_run else "expired"
        click.echo(
            f"{_count(kinds.count('snapshot'), 'snapshot')} {went}; the next clean-up has "
            f"{_count(kinds.count('file'), 'file')} more to look at."
        )


@maintain.command()
@_older_than_option("Only files that nobody has needed for longer.")
@_dry_run_option
@format_option
@connection_options
def cleanup(older_than: timedelta | None, dry_run: bool, output: str, **server: Any) -> None:
    """Delete the files that no snapshot of any catalog needs any more."""
    _delete("swanlake_cleanup", older_than, dry_run, output, server)


@maintain.command()
@_older_than_option("Only files that are older; never those of the last hour.")
@_dry_run_option
@format_option
@connection_options
def orphans(older_than: timedelta | None, dry_run: bool, output: str, **server: Any) -> None:
    """Delete the files that no catalog has ever known, such as those of writes that failed."""
    _delete("swanlake_orphans", older_than, dry_run, output, server)


@maintain.command()
@click.option("--job", type=click.Choice(JOBS), default=None, help="Only runs of this job.")
@click.option("--limit", type=click.IntRange(min=1), default=100, show_default=True)
@_catalog_option
@format_option
@connection_options
def history(job: str | None, limit: int, catalog: str | None, output: str, **server: Any) -> None:
    """Show the runs of all servers of the lake, the newest first."""
    with connected(**server) as client:
        rows = call(client, "swanlake_maintenance_history", catalog=catalog, job=job, last=limit)
    show_rows(rows, output, nothing="Nothing has been maintained yet.", not_in_tables=("id",))


# ---- compaction, table by table ------------------------------------------------------------------


def _compact(client: FlightSQLClient, table: str | None = None, **arguments: Any) -> Any:
    return call(client, "swanlake_compact", table, **arguments)


def _compact_all(client: FlightSQLClient, catalog: str | None) -> tuple[Any, SwanLakeError | None]:
    """Asks what there is to do and has it done table by table, so that one sees how far it is."""
    with working("looking"):
        plan = _compact(client, dry_run=True, catalog=catalog)
    names = ("catalog_name", "schema_name", "table_name")
    tables = list(
        dict.fromkeys(
            tuple(row[name] for name in names) for row in plan.to_pylist() if row["action"] in _WORK
        )
    )
    done = [plan.slice(0, 0)]
    failures: list[SwanLakeError] = []
    with steps("compact", len(tables)) as bar:
        for table in tables:
            with bar.step(".".join(table[1:])):
                try:
                    done.append(_compact(client, qualified(*table)))
                except SwanLakeError as error:
                    if is_lost(error):
                        raise
                    failures.append(error)
    return pa.concat_tables(done), _summed_up(failures, len(tables))


def _summed_up(failures: list[SwanLakeError], tables: int) -> SwanLakeError | None:
    if not failures or tables == 1:
        return failures[0] if failures else None
    return SwanLakeError(
        f"{len(failures)} of {_count(tables, 'table')} could not be compacted: {failures[0]}"
    )


# ---- shared --------------------------------------------------------------------------------------


def _delete(
    procedure: str,
    older_than: timedelta | None,
    dry_run: bool,
    output: str,
    server: dict[str, Any],
) -> None:
    with connected(**server) as client, working("looking for files"):
        rows = call(client, procedure, older_than=_text(older_than), dry_run=dry_run)
    show_rows(rows, output, nothing="There is nothing to delete.")
    found = rows.select(["bytes", "problem"]).to_pylist()
    problems = [row["problem"] for row in found if row["problem"] is not None]
    if output == "table" and found:
        size = sum(row["bytes"] for row in found if row["problem"] is None)
        what = f"{_count(len(found) - len(problems), 'file')} with {size:,} bytes"
        click.echo(f"{what} would be deleted." if dry_run else f"{what} deleted.")
    if problems:
        raise SwanLakeError(
            f"{_count(len(problems), 'file')} could not be deleted; the next run tries again: "
            f"{problems[0]}"
        )


def _text(age: timedelta | None) -> str | None:
    return None if age is None else f"{age.total_seconds():.6f}s"


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"
