"""``CALL duckling_queue_…``: what the queue holds, and what is to be done with it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from datetime import datetime

import pyarrow as pa

from swanlake.lake.layout import folded
from swanlake.queue.dead_letters import DeadLetter
from swanlake.queue.names import QueueTable
from swanlake.sessions.procedure import Procedure, Rows, Scope
from swanlake.sessions.table_names import split_name

_TABLE = [
    ("catalog_name", pa.string()),
    ("schema_name", pa.string()),
    ("table_name", pa.string()),
]
_FLUSHED = pa.schema(
    [
        *_TABLE,
        ("rows", pa.int64()),
        ("bytes", pa.int64()),
        ("files", pa.int64()),
        ("snapshot_id", pa.int64()),
        ("milliseconds", pa.float64()),
        ("dead_letters", pa.int64()),
    ]
)
_STATUS = pa.schema(
    [
        *_TABLE,
        ("state", pa.string()),
        ("rows", pa.int64()),
        ("bytes", pa.int64()),
        ("segments", pa.int64()),
        ("oldest_seconds", pa.float64()),
        ("failures", pa.int64()),
        ("last_error", pa.string()),
    ]
)
_SEGMENTS = pa.schema(
    [
        *_TABLE,
        ("segment_id", pa.string()),
        ("state", pa.string()),
        ("rows", pa.int64()),
        ("bytes", pa.int64()),
        ("age_seconds", pa.float64()),
        ("path", pa.string()),
    ]
)
_LETTERS = pa.schema(
    [
        ("segment_id", pa.string()),
        *_TABLE,
        ("rows", pa.int64()),
        ("bytes", pa.int64()),
        ("reason", pa.string()),
        ("at", pa.timestamp("us", tz="UTC")),
        ("replayable", pa.bool_()),
        ("path", pa.string()),
    ]
)
_REPLAYED = pa.schema([*_LETTERS, ("refused", pa.string())])
_STATE = pa.schema([("state", pa.string())])


def _flush(scope: Scope, table: str | None) -> Rows:
    reports = scope.queue.flush(_called(table), scope.check)
    return [
        {
            **_name(report.table),
            "rows": report.rows,
            "bytes": report.bytes,
            "files": report.files,
            "snapshot_id": report.snapshot_id,
            "milliseconds": report.milliseconds,
            "dead_letters": report.dead_letters,
        }
        for report in reports
    ]


def _status(scope: Scope) -> Rows:
    return [
        {
            **_name(one.table),
            "state": one.state,
            "rows": one.rows,
            "bytes": one.bytes,
            "segments": one.segments,
            "oldest_seconds": one.oldest_seconds,
            "failures": one.failures,
            "last_error": one.last_error or None,
        }
        for one in scope.queue.status()
    ]


def _segments(scope: Scope, table: str | None) -> Rows:
    is_called_so = _called(table)
    return [
        {
            **_name(one.table),
            "segment_id": str(one.id),
            "state": one.state,
            "rows": one.rows,
            "bytes": one.bytes,
            "age_seconds": one.age_seconds,
            "path": one.path,
        }
        for one in scope.queue.segments()
        if is_called_so(one.table)
    ]


def _dead_letters(scope: Scope) -> Rows:
    return [_letter(letter) for letter in scope.queue.dead_letters()]


def _replay(scope: Scope, segment: str | None) -> Rows:
    return [_letter(one.letter) | {"refused": one.refused} for one in scope.queue.replay(segment)]


def _pause(scope: Scope) -> Rows:
    scope.queue.pause()
    return [{"state": "paused"}]


def _resume(scope: Scope) -> Rows:
    scope.queue.resume()
    return [{"state": "running"}]


def _name(table: QueueTable) -> dict[str, str]:
    return {
        "catalog_name": table.catalog,
        "schema_name": table.schema,
        "table_name": table.name,
    }


def _letter(letter: DeadLetter) -> dict[str, object]:
    row = asdict(letter)
    for name in ("catalog", "schema", "table"):
        row[f"{name}_name"] = row.pop(name)
    return row | {"at": datetime.fromisoformat(letter.at)}


def _called(name: str | None) -> Callable[[QueueTable], bool]:
    """Tells which tables are called so: ``t``, ``schema.t`` or ``catalog.schema.t``."""
    if name is None:
        return lambda table: True
    parts = [folded(part) for part in split_name(name)]

    def is_called_so(table: QueueTable) -> bool:
        full = [folded(part) for part in (table.catalog, table.schema, table.name)]
        return full[-len(parts) :] == parts

    return is_called_so


QUEUE_PROCEDURES = (
    Procedure("duckling_queue_flush", ("table",), 1, _FLUSHED, True, _flush),
    Procedure("duckling_queue_status", (), 0, _STATUS, False, _status),
    Procedure("duckling_queue_segments", ("table",), 1, _SEGMENTS, False, _segments),
    Procedure("duckling_queue_dead_letters", (), 0, _LETTERS, False, _dead_letters),
    Procedure("duckling_queue_replay", ("segment",), 1, _REPLAYED, False, _replay),
    Procedure("duckling_queue_pause", (), 0, _STATE, False, _pause),
    Procedure("duckling_queue_resume", (), 0, _STATE, False, _resume),
)
