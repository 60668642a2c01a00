"""Snapshots as rows, for the CLI and SQL procedures."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pyarrow as pa

from swanlake.lake.read.metadata import Snapshot

SNAPSHOT_COLUMNS = pa.schema(
    [
        ("snapshot_id", pa.int64()),
        ("snapshot_time", pa.timestamp("us", tz="UTC")),
        ("schema_version", pa.int64()),
        ("changes", pa.string()),
        ("author", pa.string()),
        ("commit_message", pa.string()),
    ]
)


def snapshot_rows(snapshots: Iterable[Snapshot]) -> list[dict[str, Any]]:
    """One row per snapshot, in their order."""
    return [
        {
            "snapshot_id": snapshot.id,
            "snapshot_time": snapshot.time,
            "schema_version": snapshot.schema_version,
            "changes": snapshot.changes,
            "author": snapshot.author,
            "commit_message": snapshot.message,
        }
        for snapshot in snapshots
    ]
