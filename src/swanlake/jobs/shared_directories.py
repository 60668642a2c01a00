"""The lake's directories, where workers elsewhere must see what the server sees.

A worker that made a directory on a disk of its own would write files that nobody finds, and a
commit of them would lose rows.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Iterable, Sequence

from swanlake.errors import PipelineFailed
from swanlake.lake import datafile
from swanlake.lake.disk import make_directories
from swanlake.lake.files import is_url, missing
from swanlake.lake.layout import DataFile, DeleteFile, Table


def share(tables: Iterable[Table]) -> None:
    """The server's part before a job: the directories of tables are there."""
    for table in tables:
        if not is_url(table.directory):
            make_directories(table.directory)


def check_directory(table: Table) -> None:
    """The worker's part: raises PipelineFailed if the directory is not to be seen."""
    if is_url(table.directory) or os.path.isdir(table.directory):
        return
    raise PipelineFailed(
        f"The worker on {socket.gethostname()} does not see {table.directory}: the lake's data "
        "path must be a directory that Spark's executors share with the server, or s3://…"
    )


def check_seen(made: Sequence[tuple[Table, Sequence[DataFile | DeleteFile]]]) -> None:
    """The server's part after a job: raises PipelineFailed if files are not to be seen."""
    unseen = missing(
        table.directory + file.path
        for table, files in made
        if not is_url(table.directory)
        for file in files
    )
    if not unseen:
        return
    for table, files in made:
        datafile.remove_files(table, files)
    raise PipelineFailed(
        f"Spark wrote {unseen[0]}, and this server does not see it: the lake's data path must be a "
        "directory that Spark's executors share with the server, or s3://…"
    )
