"""``CALL swanlake_compact()`` and its kin: maintenance, and what it did or would do."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pyarrow as pa

from swanlake.errors import InvalidRequest
from swanlake.lake.expiry import ExpireReport
from swanlake.lake.gc import Garbage
from swanlake.lake.layout import folded
from swanlake.pipeline.maintain import WHOLE_LAKE, Caller, TableReport
from swanlake.pipeline.triggers import Job
from swanlake.sessions.procedure import Procedure, Rows, Scope
from swanlake.sessions.table_names import split_name

_TIME = pa.timestamp("us", tz="UTC")
_COMPACTED = pa.schema(
    [
        ("catalog_name", pa.string()),
        ("schema_name", pa.string()),
        ("table_name", pa.string()),
        # merge, rewrite, fold; skip and failed have a reason.
        ("action", pa.string()),
        ("files", pa.int64()),
        ("rows", pa.int64()),
        ("bytes_before", pa.int64()),
        ("files_made", pa.int64()),
        ("bytes_after", pa.int64()),
        ("reason", pa.string()),
        ("dry_run", pa.bool_()),
        ("sources", pa.list_(pa.string())),
        ("outputs", pa.list_(pa.string())),
    ]
)
_EXPIRED = pa.schema(
    [
        ("catalog_name", pa.string()),
        # snapshot, table, file, rows
        ("kind", pa.string()),
        # Of a snapshot what it did; of rows their table in the metadata.
        ("name", pa.string()),
        ("snapshot_id", pa.int64()),
        ("snapshot_time", _TIME),
        ("rows", pa.int64()),
        ("bytes", pa.int64()),
        ("dry_run", pa.bool_()),
    ]
)
_DELETED = pa.schema(
    [
        ("catalog_name", pa.string()),
        ("reason", pa.string()),
        ("bytes", pa.int64()),
        ("dry_run", pa.bool_()),
        # Why it could not be deleted.
        ("problem", pa.string()),
        ("path", pa.string()),
    ]
)
_HISTORY = pa.schema(
    [
        ("id", pa.string()),
        ("catalog_name", pa.string()),
        ("job", pa.string()),
        ("table_name", pa.string()),
        ("started_at", _TIME),
        ("finished_at", _TIME),
        ("outcome", pa.string()),
        ("server", pa.string()),
        ("report", pa.string()),
    ]
)
_HISTORY_ROWS = 100


def _compact(scope: Scope, table: str | None, dry_run: bool | None, catalog: str | None) -> Rows:
    where, name = _catalog(scope, catalog), None
    if table is not None:
        where, *name = _whole_name(scope, table, catalog)
    reports = scope.maintenance.compact(
        where, None if name is None else (name[0], name[1]), _caller(scope), dry_run=bool(dry_run)
    )
    return [row for report in reports for row in _compacted(report, bool(dry_run))]


def _compacted(report: TableReport, dry_run: bool) -> Rows:
    done = report.done
    rows: Rows = [
        {
            "action": step.kind,
            "files": 0 if step.kind == "fold" else len(step.sources),
            "rows": step.rows,
            "bytes_before": step.bytes_before,
            "files_made": None if dry_run else len(step.outputs),
            "bytes_after": step.bytes_after,
            "sources": step.sources,
            "outputs": step.outputs,
        }
        for step in done.steps
    ]
    rows += [
        {"action": "skip", "files": 1, "reason": skipped.reason, "sources": [skipped.path]}
        for skipped in done.skipped
    ]
    if report.error is not None:
        rows.append({"action": "failed", "reason": report.error})
    named = {
        "catalog_name": report.catalog,
        "schema_name": report.schema,
        "table_name": report.name,
        "dry_run": dry_run,
    }
    return [named | row for row in rows]


def _expire(
    scope: Scope,
    older_than: timedelta | None,
    keep_last: int | None,
    dry_run: bool | None,
    catalog: str | None,
) -> Rows:
    report = scope.maintenance.expire(
        _catalog(scope, catalog),
        _caller(scope),
        older_than=older_than,
        keep_last=keep_last,
        dry_run=bool(dry_run),
    )
    named = {"catalog_name": report.catalog, "dry_run": bool(dry_run)}
    return [named | row for row in _expired(report)]


def _expired(report: ExpireReport) -> Rows:
    snapshots: Rows = [
        {
            "kind": "snapshot",
            "name": snapshot.changes,
            "snapshot_id": snapshot.id,
            "snapshot_time": snapshot.time,
        }
        for snapshot in report.snapshots
    ]
    tables: Rows = [{"kind": "table", "name": name} for name in report.tables]
    files: Rows = [{"kind": "file", "name": one.path, "bytes": one.size} for one in report.files]
    rows: Rows = [
        {"kind": "rows", "name": name, "rows": count} for name, count in report.rows.items()
    ]
    return [*snapshots, *tables, *files, *rows]


def _cleanup(scope: Scope, older_than: timedelta | None, dry_run: bool | None) -> Rows:
    work = scope.maintenance.cleanup
    return _deleted(work(_caller(scope), age=older_than, dry_run=bool(dry_run)), dry_run)


def _orphans(scope: Scope, older_than: timedelta | None, dry_run: bool | None) -> Rows:
    work = scope.maintenance.orphans
    return _deleted(work(_caller(scope), age=older_than, dry_run=bool(dry_run)), dry_run)


def _deleted(found: list[Garbage], dry_run: bool | None) -> Rows:
    return [
        {
            "catalog_name": garbage.catalog,
            "reason": garbage.reason.value,
            "bytes": garbage.size,
            "dry_run": bool(dry_run),
            "problem": garbage.problem,
            "path": garbage.path,
        }
        for garbage in found
    ]


def _history(scope: Scope, catalog: str | None, job: str | None, last: int | None) -> Rows:
    if job is not None and job not in list(Job):
        raise InvalidRequest(f"There is no job {job!r}; there are {', '.join(Job)}.")
    number = _HISTORY_ROWS if last is None else last
    return [
        {
            "id": str(entry.id),
            "catalog_name": None if entry.catalog == WHOLE_LAKE else entry.catalog,
            "job": entry.job,
            "table_name": entry.table_name,
            "started_at": entry.started_at,
            "finished_at": entry.finished_at,
            "outcome": entry.outcome or "running",
            "server": entry.server,
            "report": None if entry.report is None else json.dumps(dict(entry.report)),
        }
        for entry in scope.maintenance.history(catalog, job, number)
    ]


def _catalog(scope: Scope, given: str | None) -> str:
    """The catalog that is meant: the one that is named, or the one in which the session is."""
    if given is not None:
        return given
    where = scope.where()
    return scope.engine.catalog if where is None else where[0]


def _whole_name(scope: Scope, table: str, catalog: str | None) -> tuple[str, str, str]:
    """Catalog, schema and name of a table; what is not said is where the session is."""
    parts = split_name(table)
    if len(parts) == 3:
        if catalog is not None and folded(catalog) != folded(parts[0]):
            raise InvalidRequest(f"{table} is not in the catalog {catalog}.")
        return parts[0], parts[1], parts[2]
    named = _catalog(scope, catalog)
    where = scope.where()
    here = where[1] if where is not None and folded(where[0]) == folded(named) else "main"
    return (named, here, parts[0]) if len(parts) == 1 else (named, parts[0], parts[1])


def _caller(scope: Scope) -> Caller:
    return Caller(scope.check)


def _maintaining(
    name: str, parameters: tuple[str, ...], schema: Any, body: Callable[..., Rows]
) -> Procedure:
    """All arguments are optional. It commits by itself, in turns of its own."""
    return Procedure(name, parameters, len(parameters), schema, True, body)


MAINTENANCE_PROCEDURES = (
    _maintaining("swanlake_compact", ("table", "dry_run", "catalog"), _COMPACTED, _compact),
    _maintaining(
        "swanlake_expire", ("older_than", "keep_last", "dry_run", "catalog"), _EXPIRED, _expire
    ),
    _maintaining("swanlake_cleanup", ("older_than", "dry_run"), _DELETED, _cleanup),
    _maintaining("swanlake_orphans", ("older_than", "dry_run"), _DELETED, _orphans),
    Procedure(
        "swanlake_maintenance_history", ("catalog", "job", "last"), 3, _HISTORY, False, _history
    ),
)
