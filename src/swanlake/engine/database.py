"""Opens a DuckDB instance, for sessions and for Spark workers, and loads its extensions."""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from uuid import uuid4

import duckdb

from swanlake.engine.object_storage import hide_environment_keys
from swanlake.errors import ConfigError, StartupError
from swanlake.sql.quoting import literal

#: Two instances in one directory would overwrite each other's files: the names are the same.
_DIRECTORY = "engine-{pid}-{process}-{id}"
#: Tells this process from an earlier one with its id: in a container the ids are always the same.
_PROCESS = uuid4().hex[:8]

EXTENSIONS = ("ducklake", "sqlite_scanner", "postgres_scanner", "httpfs", "aws")


def open_database(
    temp_directory: Path | None,
    memory_limit: str = "",
    threads: int = 0,
    extensions: Sequence[str] = EXTENSIONS,
) -> duckdb.DuckDBPyConnection:
    """An in-memory instance with these extensions; an empty limit is DuckDB's default.

    No other instance may have the same temporary directory. DuckDB creates it when it first spills,
    and removes it at the end; without one, it never spills.
    """
    if temp_directory is not None:
        temp_directory.parent.mkdir(parents=True, exist_ok=True)
    options: dict[str, Any] = {
        "temp_directory": "" if temp_directory is None else str(temp_directory),
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
    if "httpfs" in extensions:
        hide_environment_keys(opened)
    # Those that init SQL or a client loads are checked. It cannot be allowed again.
    opened.execute("SET allow_unsigned_extensions = false")
    return opened


def new_temp_directory(parent: Path) -> Path:
    """The path of a temporary directory that no other instance has."""
    name = _DIRECTORY.format(pid=os.getpid(), process=_PROCESS, id=uuid4().hex[:8])
    return parent / name


def remove_abandoned_directories(parent: Path) -> None:
    """Removes the temporary directories of processes that were killed."""
    for directory in parent.glob(_DIRECTORY.format(pid="*", process="*", id="*")):
        _, pid, process, _ = directory.name.split("-")
        is_own_id = int(pid) == os.getpid()
        if process != _PROCESS if is_own_id else not _is_running(int(pid)):
            shutil.rmtree(directory, ignore_errors=True)


def _is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass  # it runs as another user
    return True


@cache
def extension_path(name: str) -> Path:
    """The extension's file inside its installed wheel."""
    spec = find_spec(f"duckdb_extension_{name}")
    for folder in (spec.submodule_search_locations or ()) if spec else ():
        for file in Path(folder).rglob(f"{name}.duckdb_extension"):
            return file
    raise StartupError(
        f"The DuckDB extension {name!r} is not installed; run pip install '.[server]' in a "
        "checkout of SwanLake."
    )


def load_extensions(
    connection: duckdb.DuckDBPyConnection, names: Sequence[str] = EXTENSIONS
) -> None:
    """Loads extensions from their wheels, without network."""
    for name in names:
        connection.execute(f"LOAD {literal(str(extension_path(name)))}")
