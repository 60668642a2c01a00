"""Checks that remote workers and the server see the same table directories.

A worker that wrote to a directory of the same name on its own disk would produce files that the
server cannot see, and a commit of them would lose rows.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Iterable, Sequence

from swanlake._internal.disk import make_directories
from swanlake.errors import PipelineFailed
from swanlake.lake.files import datafile
from swanlake.lake.files.storage import find_missing, is_url
from swanlake.lake.model.layout import DataFile, DeleteFile, Table


def make_table_directories(tables: Iterable[Table]) -> None:
    """On the server, before a job: creates the directories of tables."""
    for table in tables:
        if not is_url(table.directory):
            make_directories(table.directory)


def check_directory_visible(table: Table) -> None:
    """On the worker: raises PipelineFailed if it does not see the directory of a table."""
    if is_url(table.directory) or os.path.isdir(table.directory):
        return
    raise PipelineFailed(
        f"The worker on {socket.gethostname()} does not see {table.directory}: the lake's data "
        "path must be a directory that Spark's executors share with the server, or s3://…"
    )


def check_files_visible(written: Sequence[tuple[Table, Sequence[DataFile | DeleteFile]]]) -> None:
    """On the server, after a job: raises PipelineFailed if it does not see a written file."""
    invisible = find_missing(
        table.directory + file.path
        for table, files in written
        if not is_url(table.directory)
        for file in files
    )
    if not invisible:
        return
    for table, files in written:
        datafile.remove_files(table, files)
    raise PipelineFailed(
        f"Spark wrote {invisible[0]}, and this server does not see it: the lake's data path must "
        "be a directory that Spark's executors share with the server, or s3://…"
    )
