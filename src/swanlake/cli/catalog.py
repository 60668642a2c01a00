"""``swanlake catalog``: the catalogs of a lake; it needs no running server."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Any

import click
import pyarrow as pa

from swanlake.cli.lake import LakeCommands, lake_options, open_lake, show_list
from swanlake.cli.options import Duration, confirmed
from swanlake.cli.output import format_option
from swanlake.cli.remote import EXIT_REFUSED
from swanlake.errors import SwanLakeError

if TYPE_CHECKING:
    from swanlake.lake.catalog import Catalog
    from swanlake.lake.lake import Lake
    from swanlake.lake.metastore.base import CatalogInfo

_CATALOGS = pa.schema(
    [
        ("catalog_name", pa.string()),
        ("parent_name", pa.string()),
        ("parent_snapshot", pa.int64()),
        ("newest_snapshot", pa.int64()),
        ("data_path", pa.string()),
        ("attach", pa.string()),
    ]
)
_FINDINGS = pa.schema([("catalog_name", pa.string()), ("finding", pa.string())])
_GARBAGE = pa.schema(
    [
        ("path", pa.string()),
        ("reason", pa.string()),
        ("catalog_name", pa.string()),
        ("size", pa.int64()),
        ("problem", pa.string()),
    ]
)


@click.group(cls=LakeCommands)
def catalog() -> None:
    """Create, fork, drop, check and clean the catalogs of a lake.

    The lake is the one that `swanlake serve` uses with the same settings; servers may be running.
    Exit codes: 0 success, 1 refused or problems found, 2 wrong arguments or settings, 4 the lake
    cannot be reached.
    """


@catalog.command()
@click.argument("name")
@lake_options
def create(name: str, **settings: Any) -> None:
    """Create an empty catalog."""
    with open_lake(settings, make=True) as lake:
        _announce(lake, lake.create_catalog(name), "ready")


@catalog.command()
@click.argument("parent")
@click.argument("name")
@click.option("--at", type=int, default=None, help="Snapshot to fork at. Default: the newest.")
@lake_options
def fork(parent: str, name: str, at: int | None, **settings: Any) -> None:
    """Create the catalog NAME as a fork of PARENT, now or at a snapshot, without copying files."""
    with open_lake(settings) as lake:
        made = lake.fork_catalog(parent, name, at)
        snapshot = made.info.parent_snapshot
        _announce(lake, made, f"ready; it forks {parent} at snapshot {snapshot}")


@catalog.command()
@click.argument("name")
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
@lake_options
def drop(name: str, yes: bool, **settings: Any) -> None:
    """Drop a catalog with all its tables and snapshots. Its forks are not affected."""
    with open_lake(settings) as lake:
        name = lake.catalog(name).name
        question = f"Drop the catalog {name} with all its tables and snapshots?"
        if not yes and not confirmed(question):
            click.echo("Nothing was dropped.")
            raise SystemExit(EXIT_REFUSED)
        lake.drop_catalog(name)
        click.echo(
            f"The catalog {name} is dropped. The next `swanlake catalog collect` deletes the files "
            "that no fork uses."
        )


@catalog.command()
@click.argument("name")
@lake_options
def adopt(name: str, **settings: Any) -> None:
    """Register a catalog that another program created, and install its fence.

    The catalog must be at SwanLake's location: in the file catalogs/NAME.sqlite under the home
    directory, or in the schema lake_NAME of the PostgreSQL database. For a registered catalog, the
    fence is installed again.
    """
    with open_lake(settings) as lake:
        _announce(lake, lake.adopt_catalog(name), "registered and fenced")


@catalog.command()
@click.option(
    "--older-than",
    "age",
    type=Duration(),
    default="2d",
    show_default=True,
    help="Minimum age of deleted files. It must exceed the longest write: files wait for their "
    "commit, and deleting them would lose rows.",
)
@click.option("--dry-run", is_flag=True, help="Only show what would be deleted.")
@format_option
@lake_options
def collect(age: timedelta, dry_run: bool, output: str, **settings: Any) -> None:
    """Delete the files that no snapshot of any catalog needs."""
    with open_lake(settings) as lake:
        garbage = lake.collect(age=age, dry_run=dry_run)
    rows = [
        {
            "path": found.path,
            "reason": found.reason.value,
            "catalog_name": found.catalog,
            "size": found.size,
            "problem": found.problem,
        }
        for found in garbage
    ]
    stuck = sum(1 for found in garbage if found.problem is not None)
    if rows or output != "table":
        show_list(rows, _GARBAGE, output)
    if output == "table":
        count = _files(len(rows) - stuck)
        click.echo(f"{count} would be deleted." if dry_run else f"{count} deleted.")
    if stuck:
        click.echo(f"{_files(stuck)} could not be deleted; the next run tries again.", err=True)
        raise SystemExit(EXIT_REFUSED)


def _files(count: int) -> str:
    return f"{count} file{'' if count == 1 else 's'}"


@catalog.command(name="list")
@format_option
@lake_options
def list_(output: str, **settings: Any) -> None:
    """Show all catalogs, their locations, and how DuckDB attaches them."""
    with open_lake(settings) as lake:
        infos = lake.catalogs()
        names = {info.id: info.name for info in infos}
        rows = [
            {
                "catalog_name": info.name,
                "parent_name": None if info.parent is None else names.get(info.parent),
                "parent_snapshot": info.parent_snapshot,
                "newest_snapshot": _newest_snapshot(lake, info),
                "data_path": info.data_path,
                "attach": lake.location(info).statement,
            }
            for info in infos
        ]
    if output != "table":
        show_list(rows, _CATALOGS, output)
        return
    # Outside of the table, which would wrap the statements and make them hard to copy.
    show_list(rows, _CATALOGS.remove(_CATALOGS.get_field_index("attach")), output)
    for row in rows:
        click.echo(row["attach"])


@catalog.command()
@click.argument("name")
@click.option(
    "--limit", type=click.IntRange(min=1), default=None, help="Number of snapshots to show."
)
@format_option
@lake_options
def snapshots(name: str, limit: int | None, output: str, **settings: Any) -> None:
    """Show the snapshots of a catalog, newest first."""
    from swanlake.lake.read.listing import SNAPSHOT_COLUMNS, snapshot_rows  # slow to load

    with open_lake(settings) as lake:
        found = lake.catalog(name).snapshots()
    newest = list(reversed(found[-limit:] if limit else found))
    show_list(snapshot_rows(newest), SNAPSHOT_COLUMNS, output)


@catalog.command()
@click.argument("name", required=False)
@click.option("--files", is_flag=True, help="Also check that every file exists.")
@format_option
@lake_options
def check(name: str | None, files: bool, output: str, **settings: Any) -> None:
    """Check one catalog, or all, for damage; exit code 1 if any is found."""
    with open_lake(settings) as lake:
        names = [info.name for info in lake.catalogs()] if name is None else [name]
        catalogs = [lake.catalog(each) for each in names]
        rows = [
            {"catalog_name": each.name, "finding": finding}
            for each in catalogs
            for finding in _findings(each, files)
        ]
    if rows or output != "table":
        show_list(rows, _FINDINGS, output)
    else:
        count = len(catalogs)
        click.echo(f"{count} catalog{' is' if count == 1 else 's are'} sound.")
    if rows:
        raise SystemExit(EXIT_REFUSED)


def _findings(catalog: Catalog, files: bool) -> list[str]:
    """The problems of a catalog; an unreadable catalog is one too."""
    try:
        findings = catalog.check()
        if files:
            findings += [f"The file {path} is missing." for path in catalog.missing_files()]
    except SwanLakeError as unreadable:
        return [str(unreadable)]
    return findings


def _newest_snapshot(lake: Lake, info: CatalogInfo) -> int | None:
    """The newest snapshot; None, with a message, for a damaged catalog."""
    try:
        return lake.catalog(info.name).newest_snapshot()
    except SwanLakeError as unreadable:
        click.echo(f"swanlake: catalog {info.name}: {unreadable}", err=True)
        return None


def _announce(lake: Lake, catalog: Catalog, state: str) -> None:
    click.echo(f"The catalog {catalog.name} is {state}. DuckDB attaches it with\n")
    click.echo(lake.location(catalog.info).statement)
