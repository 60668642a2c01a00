"""Names in the queue: its catalog, and the folders of its tables."""

from __future__ import annotations

from pathlib import Path
from urllib.parse import quote

from swanlake.lake.model.table_ref import TableRef

#: The catalog that clients name to write to the queue.
QUEUE = "duckling_queue"


def segment_folder(table: TableRef) -> Path:
    """The folder of a table's segments, relative to the directory of a server."""
    return Path(_quoted(table.catalog)) / f"{_quoted(table.schema)}.{_quoted(table.name)}"


def _quoted(name: str) -> str:
    """A name as part of a path: without dots, which separate names, and of limited length."""
    return quote(name, safe="").replace(".", "%2E")[:100]
