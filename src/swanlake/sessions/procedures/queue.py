"""``CALL duckling_queue_…``: status of the queue, flush, replay, pause and resume."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from datetime import datetime
from typing import Any

import pyarrow as pa

from swanlake.access.identity import Privilege, Role
from swanlake.lake.model.layout import folded
from swanlake.lake.model.table_ref import TableRef
from swanlake.queue.flush.dead_letters import DeadLetter
from swanlake.sessions.procedures.base import Procedure, ProcedureContext, Rows, split_name

_TABLE = [(name, pa.string()) for name in ("catalog_name", "schema_name", "table_name")]
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


def _flush(context: ProcedureContext, table: str | None) -> Rows:
    matches = _name_filter(table)

    def is_writable(ref: TableRef) -> bool:
        return context.identity.privilege(ref.catalog) >= Privilege.WRITE and matches(ref)

    return [_row(report) for report in context.queue.flush(is_writable, context.check)]


def _status(context: ProcedureContext) -> Rows:
    return [
        _row(entry) | {"last_error": entry.last_error or None}
        for entry in context.queue.status()
        if context.may_read(entry.table.catalog)
    ]


def _segments(context: ProcedureContext, table: str | None) -> Rows:
    matches = _name_filter(table)
    return [
        _row(segment) | {"segment_id": str(segment.id)}
        for segment in context.queue.segments()
        if matches(segment.table) and context.may_read(segment.table.catalog)
    ]


def _dead_letters(context: ProcedureContext) -> Rows:
    letters = context.queue.dead_letters()
    return [_letter(letter) for letter in letters if context.may_read(letter.catalog)]


def _replay(context: ProcedureContext, segment: str | None) -> Rows:
    replays = context.queue.replay(segment)
    return [_letter(replay.letter) | {"refused": replay.refused} for replay in replays]


def _discard(context: ProcedureContext, segment: str) -> Rows:
    return [_letter(context.queue.discard(segment))]


def _pause(context: ProcedureContext) -> Rows:
    context.queue.pause()
    return [{"state": "paused"}]


def _resume(context: ProcedureContext) -> Rows:
    context.queue.resume()
    return [{"state": "running"}]


def _row(entry: Any) -> dict[str, Any]:
    """The fields of a report or a status of one table, by the names of their columns."""
    return {
        **vars(entry),
        "catalog_name": entry.table.catalog,
        "schema_name": entry.table.schema,
        "table_name": entry.table.name,
    }


def _letter(letter: DeadLetter) -> dict[str, object]:
    row = asdict(letter)
    for name in ("catalog", "schema", "table"):
        row[f"{name}_name"] = row.pop(name)
    return row | {"at": datetime.fromisoformat(letter.at)}


def _name_filter(name: str | None) -> Callable[[TableRef], bool]:
    """Matches tables of a name: ``t``, ``schema.t`` or ``catalog.schema.t``; None matches all."""
    if name is None:
        return lambda table: True
    parts = [folded(part) for part in split_name(name)]

    def matches(table: TableRef) -> bool:
        full = [folded(part) for part in (table.catalog, table.schema, table.name)]
        return full[-len(parts) :] == parts

    return matches


QUEUE_PROCEDURES = (
    Procedure("duckling_queue_flush", ("table",), 1, _FLUSHED, True, Role.WRITER, _flush),
    Procedure("duckling_queue_status", (), 0, _STATUS, False, Role.READER, _status, reads=True),
    Procedure(
        "duckling_queue_segments",
        ("table",),
        1,
        _SEGMENTS,
        False,
        Role.READER,
        _segments,
        reads=True,
    ),
    Procedure(
        "duckling_queue_dead_letters",
        (),
        0,
        _LETTERS,
        False,
        Role.READER,
        _dead_letters,
        reads=True,
    ),
    Procedure("duckling_queue_replay", ("segment",), 1, _REPLAYED, False, Role.ADMIN, _replay),
    Procedure("duckling_queue_discard", ("segment",), 0, _LETTERS, False, Role.ADMIN, _discard),
    Procedure("duckling_queue_pause", (), 0, _STATE, False, Role.ADMIN, _pause),
    Procedure("duckling_queue_resume", (), 0, _STATE, False, Role.ADMIN, _resume),
)
