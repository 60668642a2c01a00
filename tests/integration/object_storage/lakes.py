"""Lakes whose files are in an S3 server, without a SwanLake server."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import duckdb

from swanlake.engine.database import open_database
from swanlake.engine.object_storage import use_object_store
from swanlake.lake.catalog import Catalog
from swanlake.lake.files import storage
from swanlake.lake.lake import Lake
from swanlake.lake.model.types import ColumnSpec
from tests.object_store import S3Server

ROWS = [ColumnSpec("i", "BIGINT")]


@contextmanager
def open_lake(metabase: str | Path, s3: S3Server, data: str) -> Iterator[Lake]:
    """A lake; this process reaches object stores at the server from now on."""
    storage.configure(s3.options)
    with Lake.open(metabase, data) as lake:
        yield lake


@contextmanager
def duck_at(s3: S3Server, directory: Path) -> Iterator[duckdb.DuckDBPyConnection]:
    """A DuckDB that reaches the server."""
    with open_database(directory) as connection:
        use_object_store(connection, s3.options)
        yield connection


def table(lake: Lake, name: str = "t") -> Catalog:
    """A catalog with an empty table."""
    found = lake.find("sales")
    catalog = lake.create_catalog("sales") if found is None else lake.catalog("sales")
    catalog.create_table("main", name, ROWS)
    return catalog
