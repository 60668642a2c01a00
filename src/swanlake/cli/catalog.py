"""``swanlake catalog``: the catalogs of a lake, with or without a server beside it."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import pyarrow as pa

from swanlake import config
from swanlake.cli.durations import Duration
from swanlake.cli.exits import exit_with
from swanlake.cli.output import Result, format_option, show
from swanlake.errors import (
    CatalogUnreachable,
    ConfigError,
    StartupError,
    SwanLakeError,
)

if TYPE_CHECKING:
    from swanlake.lake.lake import Catalog, Lake
    from swanlake.lake.metabase import CatalogInfo

EXIT_REFUSED, EXIT_CONFIG = 1, 2

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


class CatalogCommands(click.Group):
    """Commands whose errors are one sentence and an exit code, whichever of them fails."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except ConfigError as wrong:
            exit_with(EXIT_CONFIG, wrong)
        except StartupError as unreachable:
            exit_with(unreachable.exit_code, unreachable)
        except SwanLakeError as refused:
            exit_with(EXIT_REFUSED, refused)


def _lake_options(command: Callable[..., None]) -> Callable[..., None]:
    """Which lake: the settings of ``serve`` that say so, from the same places."""
    for name in ("data_path", "home"):
        row = config.SETTINGS[name]
        text = row.help.replace("`", "") + f" [{row.env}]"
        command = click.option(row.flag, name, default=None, help=text, metavar="VALUE")(command)
    return click.option(
        "--config",
        "config_file",
        type=click.Path(path_type=Path),
        default=None,
        help="The TOML file with settings; without it ./swanlake.toml, if there is one.",
    )(command)


@click.group(cls=CatalogCommands)
def catalog() -> None:
    """Create, fork, drop, check and clean the catalogs of a lake.

    The lake is the one that `swanlake serve` would serve with the same settings; a server may run
    meanwhile. Exit codes: 0 done, 1 refused or something found, 2 wrong arguments or settings,
    4 the lake cannot be reached.
    """


# ---- changing ------------------------------------------------------------------------------------


@catalog.command()
@click.argument("name")
@_lake_options
def create(name: str, **settings: Any) -> None:
    """Make a new, empty catalog."""
    with _lake(settings, make=True) as lake:
        made = lake.create_catalog(name)
        click.echo(f"The catalog {made.name} is ready. DuckDB attaches it with\n")
        click.echo(lake.location(made.info).statement)


@catalog.command()
@click.argument("parent")
@click.argument("name")
@click.option(
    "--at", type=int, default=None, help="The snapshot to fork at; without it the newest."
)
@_lake_options
def fork(parent: str, name: str, at: int | None, **settings: Any) -> None:
    """Make the catalog NAME from PARENT, as it is or as it was, without copying a file."""
    with _lake(settings) as lake:
        made = lake.fork_catalog(parent, name, at)
        click.echo(
            f"The catalog {made.name} is ready; it leaves {parent} at snapshot "
            f"{made.info.parent_snapshot}. DuckDB attaches it with\n"
        )
        click.echo(lake.location(made.info).statement)


@catalog.command()
@click.argument("name")
@click.option("--yes", is_flag=True, help="Do not ask.")
@_lake_options
def drop(name: str, yes: bool, **settings: Any) -> None:
    """Remove a catalog with all its tables and snapshots. Its forks keep what they see."""
    with _lake(settings) as lake:
        name = lake.catalog(name).name
        if not yes and not _confirmed(name):
            click.echo("Nothing was dropped.")
            raise SystemExit(EXIT_REFUSED)
        lake.drop_catalog(name)
        click.echo(
            f"The catalog {name} is dropped. The files that no fork can see go with the next "
            "`swanlake catalog collect`."
        )


@catalog.command()
@click.argument("name")
@_lake_options
def adopt(name: str, **settings: Any) -> None:
    """Register a catalog that another program made, and put up its fence.

    It must be where SwanLake would have made it: in the file catalogs/NAME.sqlite under the home
    directory, or in the schema lake_NAME of the PostgreSQL database. A catalog that is registered
    already gets its fence again.
    """
    with _lake(settings) as lake:
        adopted = lake.adopt_catalog(name)
        click.echo(
            f"The catalog {adopted.name} is registered and fenced. DuckDB attaches it with\n"
        )
        click.echo(lake.location(adopted.info).statement)


@catalog.command()
@click.option(
    "--older-than",
    "age",
    type=Duration(),
    default="2d",
    show_default=True,
    help="Leave younger files alone. Files wait for their commit: a shorter time than the longest "
    "write takes would lose its rows.",
)
@click.option("--dry-run", is_flag=True, help="Only say what would be deleted.")
@format_option
@_lake_options
def collect(age: timedelta, dry_run: bool, output: str, **settings: Any) -> None:
    """Delete the files that no snapshot of any catalog needs."""
    with _lake(settings) as lake:
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
        _show(rows, _GARBAGE, output)
    if output == "table":
        count = _files(len(rows) - stuck)
        click.echo(f"{count} would be deleted." if dry_run else f"{count} deleted.")
    if stuck:
        click.echo(f"{_files(stuck)} could not be deleted; the next run tries again.", err=True)
        raise SystemExit(EXIT_REFUSED)


def _files(count: int) -> str:
    return f"{count} file{'' if count == 1 else 's'}"


# ---- looking -------------------------------------------------------------------------------------


@catalog.command(name="list")
@format_option
@_lake_options
def list_(output: str, **settings: Any) -> None:
    """Show every catalog, where it is, and how DuckDB attaches it."""
    with _lake(settings) as lake:
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
        _show(rows, _CATALOGS, output)
        return
    # A statement is there to be copied, and a table would fold it.
    _show(rows, _CATALOGS.remove(_CATALOGS.get_field_index("attach")), output)
    for row in rows:
        click.echo(row["attach"])


@catalog.command()
@click.argument("name")
@click.option("--limit", type=click.IntRange(min=1), default=None, help="Only the newest ones.")
@format_option
@_lake_options
def snapshots(name: str, limit: int | None, output: str, **settings: Any) -> None:
    """Show the snapshots of a catalog, the newest first."""
    from swanlake.lake.listing import SNAPSHOT_COLUMNS, snapshot_rows  # slow to load

    with _lake(settings) as lake:
        found = lake.catalog(name).snapshots()
    newest = list(reversed(found[-limit:] if limit else found))
    _show(snapshot_rows(newest), SNAPSHOT_COLUMNS, output)


@catalog.command()
@click.argument("name", required=False)
@click.option("--files", is_flag=True, help="Also look whether every file is there.")
@format_option
@_lake_options
def check(name: str | None, files: bool, output: str, **settings: Any) -> None:
    """Look for damage in one catalog or in all; exit code 1 if there is any."""
    with _lake(settings) as lake:
        names = [info.name for info in lake.catalogs()] if name is None else [name]
        catalogs = [lake.catalog(each) for each in names]
        rows = [
            {"catalog_name": each.name, "finding": finding}
            for each in catalogs
            for finding in _findings(each, files)
        ]
    if rows or output != "table":
        _show(rows, _FINDINGS, output)
    elif not rows:
        count = len(catalogs)
        click.echo(f"{count} catalog{' is' if count == 1 else 's are'} sound.")
    if rows:
        raise SystemExit(EXIT_REFUSED)


def _findings(catalog: Catalog, files: bool) -> list[str]:
    """What is wrong with a catalog; that it cannot be read is a finding too."""
    try:
        findings = catalog.check()
        if files:
            findings += [f"The file {path} is missing." for path in catalog.missing_files()]
    except SwanLakeError as unreadable:
        return [str(unreadable)]
    return findings


def _newest_snapshot(lake: Lake, info: CatalogInfo) -> int | None:
    """The newest snapshot; None, and a word to the terminal, for a catalog that is damaged."""
    try:
        return lake.catalog(info.name).snapshot_id()
    except SwanLakeError as unreadable:
        click.echo(f"swanlake: catalog {info.name}: {unreadable}", err=True)
        return None


# ---- shared --------------------------------------------------------------------------------------


@contextmanager
def _lake(given: dict[str, Any], *, make: bool = False) -> Iterator[Lake]:
    """The lake of the settings; without ``make`` a mistyped home does not become a new one."""
    from swanlake.lake.lake import Lake  # slow to load, and only needed here

    config_file = given.pop("config_file")
    settings = config.load(given, config_file=config_file).settings
    if not make and not settings.metabase_url and not (settings.home / "catalogs").is_dir():
        raise CatalogUnreachable(
            f"There is no lake in {settings.home.absolute()}; `swanlake serve` or `swanlake "
            "catalog create` makes one."
        )
    with Lake.from_settings(settings) as lake:
        yield lake


def _confirmed(name: str) -> bool:
    if not sys.stdin.isatty():
        raise ConfigError("There is no terminal to ask on: say --yes to drop the catalog.")
    return click.confirm(f"Drop the catalog {name} with all its tables and snapshots?")


def _show(rows: list[dict[str, Any]], schema: Any, output: str) -> None:
    show(Result(schema, pa.Table.from_pylist(rows, schema=schema).to_batches()), output, quiet=True)
    sys.stdout.flush()  # what the console wrote must come before what click writes
