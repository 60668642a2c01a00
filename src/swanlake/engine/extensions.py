"""The DuckDB extensions, from their wheels: no network, signatures checked by DuckDB."""

from __future__ import annotations

from functools import cache
from importlib.util import find_spec
from pathlib import Path

import duckdb

from swanlake.errors import StartupError
from swanlake.sql.quoting import literal

EXTENSIONS = ("ducklake", "sqlite_scanner", "postgres_scanner", "httpfs", "aws")


@cache
def extension_path(name: str) -> Path:
    """The extension's file inside its installed wheel."""
    spec = find_spec(f"duckdb_extension_{name}")
    for folder in (spec.submodule_search_locations or ()) if spec else ():
        for file in Path(folder).rglob(f"{name}.duckdb_extension"):
            return file
    raise StartupError(
        f"The DuckDB extension {name!r} is not installed; pip install 'swanlake[server]' brings it."
    )


def load_extensions(connection: duckdb.DuckDBPyConnection) -> None:
    """Loads every extension SwanLake uses into the connection's instance."""
    for name in EXTENSIONS:
        connection.execute(f"LOAD {literal(str(extension_path(name)))}")
