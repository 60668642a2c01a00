"""A bare DuckDB instance, for sessions and for workers alike."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import duckdb

from swanlake.errors import ConfigError


def open_database(
    temp_directory: Path, memory_limit: str = "", threads: int = 0
) -> duckdb.DuckDBPyConnection:
    """An instance in memory, within limits; an empty one is left to DuckDB."""
    temp_directory.mkdir(parents=True, exist_ok=True)
    options: dict[str, Any] = {
        "temp_directory": str(temp_directory),
        "autoinstall_known_extensions": False,
        "autoload_known_extensions": False,
        # Without this a table name that is not found is looked up among the variables of Python.
        "python_enable_replacements": False,
    }
    if memory_limit:
        options["memory_limit"] = memory_limit
    if threads:
        options["threads"] = threads
    try:
        opened = duckdb.connect(":memory:", config=options)
    except duckdb.Error as refused:
        raise ConfigError(f"DuckDB refused its memory limit or threads: {refused}") from None
    # One time zone for all, or the type of every TIMESTAMPTZ would depend on the machine.
    opened.execute("SET GLOBAL TimeZone = 'UTC'")
    return opened
