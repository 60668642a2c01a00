"""Shared by the commands that open the lake themselves: options, exit codes, output."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pyarrow as pa

from swanlake import config
from swanlake.cli.options import config_option, setting_option
from swanlake.cli.output import show_table
from swanlake.cli.remote import ServerCommands
from swanlake.errors import CatalogUnreachable, StartupError, SwanLakeError

if TYPE_CHECKING:
    from swanlake.lake.lake import Lake


class LakeCommands(ServerCommands):
    """The same exit codes, and the one for a lake that cannot be reached."""

    def exit_code(self, error: SwanLakeError) -> int:
        return error.exit_code if isinstance(error, StartupError) else super().exit_code(error)


def lake_options(command: Callable[..., None]) -> Callable[..., None]:
    """Adds the settings of ``serve`` that locate the lake."""
    for name in ("data_path", "home"):
        command = setting_option(config.SETTINGS[name])(command)
    return config_option(command)


@contextmanager
def open_lake(flags: dict[str, Any], *, make: bool = False) -> Iterator[Lake]:
    """The lake of the settings; only with ``make`` is a missing home directory created."""
    from swanlake.lake.lake import Lake  # slow to load, and only needed here

    config_file = flags.pop("config_file")
    settings = config.load(flags, config_file=config_file).settings
    if not make and not settings.metabase_url and not (settings.home / "catalogs").is_dir():
        raise CatalogUnreachable(
            f"There is no lake in {settings.home.absolute()}; `swanlake serve` or `swanlake "
            "catalog create` creates one."
        )
    with Lake.from_settings(settings) as lake:
        yield lake


def show_list(rows: list[dict[str, Any]], schema: Any, output: str) -> None:
    """Prints rows in the chosen format."""
    show_table(pa.Table.from_pylist(rows, schema=schema), output)
