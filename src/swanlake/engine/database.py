"""Opens a DuckDB instance, for sessions and for Spark workers, and loads its extensions."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import duckdb

from swanlake.errors import ConfigError, StartupError
from swanlake.sql.quoting import literal

EXTENSIONS = ("ducklake", "sqlite_scanner", "postgres_scanner", "httpfs", "aws")


def open_database(
    temp_directory: Path,
    memory_limit: str = "",
    threads: int = 0,
    extensions: Sequence[str] = EXTENSIONS,
) -> duckdb.DuckDBPyConnection:
    """An in-memory instance with these extensions; an empty limit is DuckDB's default."""
    temp_directory.mkdir(parents=True, exist_ok=True)
    options: dict[str, Any] = {
        "temp_directory": str(temp_directory),
        "autoinstall_known_extensions": False,
        "autoload_known_extensions": False,
        # Otherwise DuckDB looks up unknown table names among the variables of Python.
        "python_enable_replacements": False,
        # The extensions of the wheels are as trusted as this code. To check their signatures,
        # DuckDB would hash 150 MB, which takes most of a start.
        "allow_unsigned_extensions": True,
    }
    if memory_limit:
        options["memory_limit"] = memory_limit
    if threads:
        options["threads"] = threads
    try:
        opened = duckdb.connect(":memory:", config=options)
    except duckdb.Error as refused:
        raise ConfigError(f"DuckDB refused its memory limit or threads: {refused}") from None
    # Otherwise the Arrow type of TIMESTAMPTZ would depend on the machine's time zone.
    opened.execute("SET GLOBAL TimeZone = 'UTC'")
    load_extensions(opened, extensions)
    # Those that init SQL or a client loads are checked. It cannot be allowed again.
    opened.execute("SET allow_unsigned_extensions = false")
    return opened


@cache
def extension_path(name: str) -> Path:
    """The extension's file inside its installed wheel."""
    spec = find_spec(f"duckdb_extension_{name}")
    for folder in (spec.submodule_search_locations or ()) if spec else ():
        for file in Path(folder).rglob(f"{name}.duckdb_extension"):
            return file
    raise StartupError(
        f"The DuckDB extension {name!r} is not installed; run pip install 'swanlake[server]'."
    )


def load_extensions(
    connection: duckdb.DuckDBPyConnection, names: Sequence[str] = EXTENSIONS
) -> None:
    """Loads extensions from their wheels, without network."""
    for name in names:
        connection.execute(f"LOAD {literal(str(extension_path(name)))}")
