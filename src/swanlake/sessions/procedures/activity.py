"""What the server does, and how it is stopped: ``FROM swanlake_queries()``, ``KILL QUERY 'id'``."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa

from swanlake.access.identity import Role
from swanlake.config import SETTINGS
from swanlake.errors import InvalidRequest
from swanlake.queue.flush.journal import FlushRun
from swanlake.sessions.activity import Cancelled, FinishedStatement
from swanlake.sessions.procedures.base import Procedure, ProcedureContext, Rows

_TIME = pa.timestamp("us", tz="UTC")
_ALL = 1_000_000
_STATEMENT = [
    ("query_id", pa.string()),
    ("session_id", pa.string()),
    ("user", pa.string()),
    ("role", pa.string()),
    ("address", pa.string()),
    ("kind", pa.string()),
    ("started_at", _TIME),
    ("seconds", pa.float64()),
    ("rows", pa.int64()),
]
_RUNNING = pa.schema(
    [*_STATEMENT, ("state", pa.string()), ("progress", pa.float64()), ("sql", pa.string())]
)
_FINISHED = pa.schema(
    [
        *_STATEMENT,
        ("ended_at", _TIME),
        ("outcome", pa.string()),
        ("error", pa.string()),
        ("sql", pa.string()),
    ]
)
_GROUP = pa.schema(
    [
        ("fingerprint", pa.string()),
        ("user", pa.string()),
        ("kind", pa.string()),
        ("count", pa.int64()),
        ("errors", pa.int64()),
        ("rows", pa.int64()),
        ("total_seconds", pa.float64()),
        ("mean_seconds", pa.float64()),
        ("p50_seconds", pa.float64()),
        ("p99_seconds", pa.float64()),
        ("max_seconds", pa.float64()),
        ("last_seen_at", _TIME),
        ("text", pa.string()),
    ]
)
_SESSION = pa.schema(
    [
        ("session_id", pa.string()),
        ("user", pa.string()),
        ("role", pa.string()),
        ("address", pa.string()),
        ("state", pa.string()),
        ("opened_at", _TIME),
        ("idle_seconds", pa.float64()),
        ("in_transaction", pa.bool_()),
        ("statements", pa.int64()),
        ("catalog_name", pa.string()),
    ]
)
_FLUSH = pa.schema(
    [
        ("flush_id", pa.int64()),
        *((name, pa.string()) for name in ("catalog_name", "schema_name", "table_name", "state")),
        ("started_at", _TIME),
        ("seconds", pa.float64()),
        ("segments", pa.int64()),
        ("rows", pa.int64()),
        ("bytes", pa.int64()),
        ("files", pa.int64()),
        ("snapshot_id", pa.int64()),
        ("dead_letters", pa.int64()),
        ("runner", pa.string()),
        ("error", pa.string()),
    ]
)
_SETTING = pa.schema(
    [(name, pa.string()) for name in ("name", "value", "source", "default", "description")]
)
_LOCK = pa.schema(
    [
        ("catalog_name", pa.string()),
        ("state", pa.string()),
        ("position", pa.int64()),
        ("session_id", pa.string()),
        ("seconds", pa.float64()),
    ]
)
_CANCELLED = pa.schema(
    [("query_id", pa.string()), ("user", pa.string()), ("was_running", pa.bool_())]
)
_KILLED = pa.schema([("session_id", pa.string()), ("cancelled_statements", pa.int64())])
_AUDIT = pa.schema(
    [
        ("at", _TIME),
        *(
            (name, pa.string())
            for name in (
                "event",
                "user",
                "role",
                "address",
                "session_id",
                "query_id",
                "kind",
                "text",
                "action",
                "outcome",
            )
        ),
        ("seconds", pa.float64()),
        ("rows", pa.int64()),
    ]
)
_AUDIT_ROWS = 1000
_FUNCTION = pa.schema(
    [
        ("name", pa.string()),
        ("usage", pa.string()),
        ("role", pa.string()),
        ("is_table_function", pa.bool_()),
        ("description", pa.string()),
    ]
)


def _queries(context: ProcedureContext) -> Rows:
    running = context.services.activity.running(context.identity)
    return [vars(one) | {"started_at": one.started_at} for one in running]


def _recent_queries(context: ProcedureContext, last: int | None) -> Rows:
    return _finished(context.services.activity.recent(context.identity, _limit(last)))


def _errors(context: ProcedureContext, last: int | None) -> Rows:
    return _finished(context.services.activity.errors(context.identity, _limit(last)))


def _finished(statements: Sequence[FinishedStatement]) -> Rows:
    return [
        vars(one) | {"started_at": one.started_at, "ended_at": one.ended_at} for one in statements
    ]


def _slow_queries(context: ProcedureContext, last: int | None) -> Rows:
    return list(map(vars, context.services.activity.slow(context.identity, _limit(last))))


def _sessions(context: ProcedureContext) -> Rows:
    sessions = context.services.activity.sessions(context.identity)
    return [vars(one) | {"catalog_name": one.catalog} for one in sessions]


def _limit(last: int | None) -> int:
    return _ALL if last is None else last


def _flushes(context: ProcedureContext) -> Rows:
    return [
        _flush_row(run, context.services.configuration.settings.pipeline)
        for run in context.queue.flushes()
        if context.may_read(run.table.catalog)
    ]


def _flush_row(run: FlushRun, runner: str) -> dict[str, Any]:
    ended = datetime.now(UTC).timestamp() if run.finished_at is None else run.finished_at
    report = run.report
    return {
        "flush_id": run.number,
        "catalog_name": run.table.catalog,
        "schema_name": run.table.schema,
        "table_name": run.table.name,
        "state": run.state,
        "started_at": datetime.fromtimestamp(run.started_at, UTC),
        "seconds": max(ended - run.started_at, 0.0),
        "segments": run.segments,
        "rows": run.rows,
        "bytes": run.bytes,
        "files": None if report is None else report.files,
        "snapshot_id": None if report is None else report.snapshot_id,
        "dead_letters": None if report is None else report.dead_letters,
        "runner": runner,
        "error": run.error or None,
    }


def _settings(context: ProcedureContext) -> Rows:
    configuration = context.services.configuration
    return [
        {
            "name": setting.name,
            "value": setting.show(getattr(configuration.settings, setting.name)),
            "source": configuration.sources.get(setting.name, "default"),
            "default": setting.show(setting.default),
            "description": setting.help,
        }
        for setting in SETTINGS.values()
    ]


def _locks(context: ProcedureContext) -> Rows:
    own = {one.session_id for one in context.services.activity.sessions(context.identity)}
    return [
        {
            "catalog_name": queue.catalog,
            "state": "waiting" if position else "holding",
            "position": position,
            "session_id": writer.name if writer.name in own else None,
            "seconds": writer.seconds,
        }
        for queue in context.lake.writers()
        if context.may_read(queue.catalog)
        for position, writer in enumerate((queue.holder, *queue.waiters))
    ]


def _kill_query(context: ProcedureContext, id: str) -> Rows:
    return list(map(_cancelled_row, context.services.activity.cancel(id, context.identity)))


def _cancelled_row(cancelled: Cancelled) -> dict[str, Any]:
    return vars(cancelled)


def _kill_session(context: ProcedureContext, id: str, user: str | None) -> Rows:
    if context.session.id == id and user in (None, context.session.identity):
        raise InvalidRequest("A session cannot kill itself; close it instead.")
    cancelled = context.services.activity.close_session(id, context.identity, user)
    return [{"session_id": id, "cancelled_statements": len(cancelled)}]


def _audit(context: ProcedureContext, last: int | None) -> Rows:
    context.services.activity.log.digest()  # statements that have just ended
    entries = context.services.audit.read(_AUDIT_ROWS if last is None else last)
    return [vars(entry) | {"at": datetime.fromtimestamp(entry.at, UTC)} for entry in entries]


def _functions(context: ProcedureContext) -> Rows:
    from swanlake.sessions.procedures.registry import PROCEDURES  # which lists this one

    return [
        {
            "name": procedure.name,
            "usage": procedure.usage,
            "role": procedure.role.value,
            "is_table_function": procedure.reads,
            "description": procedure.help or None,
        }
        for procedure in PROCEDURES.values()
        if context.identity.role.includes(procedure.role)
    ]


ACTIVITY_PROCEDURES = (
    Procedure(
        "swanlake_queries",
        (),
        0,
        _RUNNING,
        False,
        Role.READER,
        _queries,
        reads=True,
        help="The statements that run, or whose result was not read to its end.",
    ),
    Procedure(
        "swanlake_recent_queries",
        ("last",),
        1,
        _FINISHED,
        False,
        Role.READER,
        _recent_queries,
        reads=True,
        help="The statements that ended last, newest first.",
    ),
    Procedure(
        "swanlake_errors",
        ("last",),
        1,
        _FINISHED,
        False,
        Role.READER,
        _errors,
        reads=True,
        help="The statements that failed last, newest first.",
    ),
    Procedure(
        "swanlake_slow_queries",
        ("last",),
        1,
        _GROUP,
        False,
        Role.READER,
        _slow_queries,
        reads=True,
        help="Statements grouped by what they do; first those that took the most time.",
    ),
    Procedure(
        "swanlake_sessions",
        (),
        0,
        _SESSION,
        False,
        Role.READER,
        _sessions,
        reads=True,
        help="The open sessions.",
    ),
    Procedure(
        "swanlake_flushes",
        (),
        0,
        _FLUSH,
        False,
        Role.READER,
        _flushes,
        reads=True,
        help="The flushes of the queue that run, and those that ended last.",
    ),
    Procedure(
        "swanlake_settings",
        (),
        0,
        _SETTING,
        False,
        Role.ADMIN,
        _settings,
        reads=True,
        help="The settings of the server; secrets are masked.",
    ),
    Procedure(
        "swanlake_locks",
        (),
        0,
        _LOCK,
        False,
        Role.READER,
        _locks,
        reads=True,
        help="The holder and the waiters of the commit lock of each catalog.",
    ),
    Procedure(
        "swanlake_audit",
        ("last",),
        1,
        _AUDIT,
        False,
        Role.ADMIN,
        _audit,
        reads=True,
        help="The audit log, newest first.",
    ),
    Procedure(
        "swanlake_functions",
        (),
        0,
        _FUNCTION,
        False,
        Role.READER,
        _functions,
        reads=True,
        help="The procedures and table functions of the server that the caller may use.",
    ),
    Procedure(
        "swanlake_kill_query",
        ("id",),
        0,
        _CANCELLED,
        False,
        Role.READER,
        _kill_query,
        help="Cancels the statements of a query id.",
    ),
    Procedure(
        "swanlake_kill_session",
        ("id", "user"),
        1,
        _KILLED,
        False,
        Role.READER,
        _kill_session,
        help="Closes a session and cancels its statements.",
    ),
)
