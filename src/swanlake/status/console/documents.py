"""The documents of the pages: what a caller may know of a topic, as JSON.

Every function here may block: ``feed`` calls them on a thread.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, fields, is_dataclass
from datetime import datetime
from enum import Enum
from typing import Any

from swanlake._internal.memory import resident_bytes
from swanlake.access.identity import Identity, Privilege
from swanlake.errors import NotFound
from swanlake.jobs.transforms.registry import find_transform_key
from swanlake.queue.flush.dead_letters import DeadLetter
from swanlake.queue.flush.flusher import FlushReport
from swanlake.queue.flush.journal import FlushRun
from swanlake.queue.status import TableStatus
from swanlake.sql.quoting import qualified
from swanlake.status.console.lake_documents import LakeDocuments, sql_name
from swanlake.status.console.values import column_facts, row_values
from swanlake.status.view import ServerView

Document = dict[str, Any]
Parameters = Mapping[str, str]
Make = Callable[[Identity, Parameters], Document]

_MAX_GROUPS = 50
_MAX_ERRORS = 200
_MAX_JOBS = 100
_LETTER_ROWS = 20


class Documents:
    """Makes the documents of all topics."""

    #: Topics whose documents need the lake's database or storage.
    of_the_lake = frozenset(
        {"lake", "overview", "pipeline", "queue", "queue/rows", "schema", "server", "sql"}
    )

    def __init__(self, view: ServerView, history: Callable[[], Sequence[object]]) -> None:
        """``history`` gives the points of the charts, oldest first."""
        self._view = view
        self._history = history
        self._lake = LakeDocuments(view)
        self.topics: Mapping[str, Make] = {
            "me": self._me,
            "server": self._server,
            "overview": self._overview,
            "queue": self._queue,
            "queue/rows": self._letter_rows,
            "statements": self._statements,
            "lake": self._lake.lake,
            "pipeline": self._pipeline,
            "sql": self._lake.catalogs,
            "schema": self._lake.schema,
        }

    def make(self, identity: Identity, topic: str, parameters: Parameters) -> bytes:
        """The document of a topic."""
        document = self.topics[topic](identity, parameters)
        return json.dumps(document, default=plain, separators=(",", ":")).encode()

    def _me(self, identity: Identity, parameters: Parameters) -> Document:
        return {
            "name": identity.name,
            "role": identity.role,
            "is_admin": identity.is_admin,
            "has_login": self._view.settings.auth != "none",
        }

    def _server(self, identity: Identity, parameters: Parameters) -> Document:
        """Facts for the navigation of every page."""
        running = self._view.registry.services.activity.running(identity)
        return {
            "version": self._view.version,
            "reasons": self._view.not_ready_reasons,
            "running": sum(each.state != "queued result" for each in running),
            "paused": self._view.queue.is_paused,
            "dead_letters": len(self._letters(identity)),
        }

    def _overview(self, identity: Identity, parameters: Parameters) -> Document:
        view = self._view
        activity = view.registry.services.activity
        tables = self._queued(identity)
        runner = view.runner.status()
        return {
            "version": view.version,
            "url": view.url,
            "uptime_seconds": round(view.uptime_seconds),
            "reasons": view.not_ready_reasons,
            "checks": [
                {
                    "name": check.name,
                    "problem": None
                    if check.is_ok
                    else (identity.is_admin and check.detail) or check.reason,
                    "age_seconds": None if check.age_seconds is None else round(check.age_seconds),
                }
                for check in view.health.report().checks
            ],
            "now": {
                "running": len(activity.running(identity)),
                "results_waiting": view.registry.results_waiting if identity.is_admin else None,
                "sessions": len(activity.sessions(identity)),
                "max_sessions": view.settings.max_sessions if identity.is_admin else None,
                "queue_rows": sum(table.rows for table in tables),
                "queue_bytes": sum(table.bytes for table in tables),
                "oldest_seconds": max((table.oldest_seconds for table in tables), default=None),
                "paused": view.queue.is_paused,
                "dead_letters": len(self._letters(identity)),
                "memory_bytes": resident_bytes() if identity.is_admin else None,
                "pipeline": runner.kind,
                "pipeline_state": runner.state,
            },
            "history": self._history() if identity.is_admin else None,
        }

    # ---- queue -----------------------------------------------------------------------------------

    def _queue(self, identity: Identity, parameters: Parameters) -> Document:
        queue = self._view.queue
        return {
            "paused": queue.is_paused,
            "max_bytes": queue.settings.max_bytes,
            "tables": [self._queued_table(identity, table) for table in self._queued(identity)],
            "letters": [_letter(letter) for letter in reversed(self._letters(identity))],
        }

    def _letter_rows(self, identity: Identity, parameters: Parameters) -> Document:
        """The first rows of a dead letter."""
        segment = parameters.get("segment", "")
        if all(letter.segment_id != segment for letter in self._letters(identity)):
            raise NotFound(f"There is no dead letter {segment!r}.")
        batches = self._view.queue.dead_letter_rows(segment, _LETTER_ROWS)
        return {
            "columns": column_facts(batches[0].schema) if batches else [],
            "rows": [row for batch in batches for row in row_values(batch)],
        }

    def _queued(self, identity: Identity) -> list[TableStatus]:
        return [
            table
            for table in self._view.queue.status()
            if identity.privilege(table.table.catalog) >= Privilege.READ
        ]

    def _queued_table(self, identity: Identity, status: TableStatus) -> Document:
        table = status.table
        return {
            "name": f"{table.catalog}.{table.schema}.{table.name}",
            "sql_name": qualified(table.catalog, table.schema, table.name),
            "may_write": identity.privilege(table.catalog) >= Privilege.WRITE,
            **{each.name: getattr(status, each.name) for each in fields(status)[1:]},
        }

    def _letters(self, identity: Identity) -> list[DeadLetter]:
        return [
            letter
            for letter in self._view.queue.dead_letters()
            if identity.privilege(letter.catalog) >= Privilege.READ
        ]

    # ---- statements ------------------------------------------------------------------------------

    def _statements(self, identity: Identity, parameters: Parameters) -> Document:
        activity = self._view.registry.services.activity
        return {
            "running": activity.running(identity),
            "sessions": activity.sessions(identity),
            "slow": activity.slow(identity, _MAX_GROUPS),
            "errors": activity.errors(identity, _MAX_ERRORS),
        }

    # ---- pipeline --------------------------------------------------------------------------------

    def _pipeline(self, identity: Identity, parameters: Parameters) -> Document:
        status = self._view.runner.status()
        flushes = [
            run
            for run in self._view.queue.flushes()
            if identity.privilege(run.table.catalog) >= Privilege.READ
        ]
        jobs = [*map(_flush, flushes), *self._lake.maintenance_jobs(identity)]
        jobs.sort(key=lambda job: (job["state"] == "running", job["started_at"]), reverse=True)
        return {
            "runner": {
                "kind": status.kind,
                "state": status.state,
                "location": status.location,
                "ui_url": status.ui_url if identity.is_admin else None,
                "log_file": str(self._view.settings.home.absolute() / "logs" / "spark.log"),
            },
            "jobs": jobs[:_MAX_JOBS],
            "transforms": _transforms(
                {
                    source: into
                    for source, into in status.transforms.items()
                    if may_name(identity, source, *into)
                },
                flushes,
            ),
        }


def may_name(identity: Identity, *tables: str) -> bool:
    """True if the caller may read the catalogs that these names of tables begin with."""
    parts = [table.split(".") for table in tables]
    catalogs = {each[0].strip('"') for each in parts if len(each) > 2}
    return all(identity.privilege(catalog) >= Privilege.READ for catalog in catalogs)


def plain(value: Any) -> Any:
    """The JSON form of a value; times become seconds since 1970."""
    if isinstance(value, datetime):
        return value.timestamp()
    if isinstance(value, Enum):
        return value.value
    if is_dataclass(value) and not isinstance(value, type):
        return asdict(value)
    return str(value)


def _letter(letter: DeadLetter) -> Document:
    return {
        "segment_id": letter.segment_id,
        "name": sql_name(letter.catalog, letter.schema, letter.table),
        "rows": letter.rows,
        "bytes": letter.bytes,
        "reason": letter.reason,
        "at": datetime.fromisoformat(letter.at),
        "replayable": letter.replayable,
    }


def _flush(run: FlushRun) -> Document:
    report = run.report
    return {
        "id": f"flush {run.number}",
        "job": "flush",
        "table": sql_name(run.table.catalog, run.table.schema, run.table.name),
        "state": run.state,
        "started_at": run.started_at,
        "seconds": None if run.finished_at is None else run.finished_at - run.started_at,
        "rows": run.rows if report is None else report.rows,
        "files": None if report is None else report.files,
        "bytes": run.bytes if report is None else report.bytes,
        "snapshot": None if report is None else report.snapshot_id,
        "error": run.error or _letters_made(report),
    }


def _letters_made(report: FlushReport | None) -> str:
    count = 0 if report is None else report.dead_letters
    if not count:
        return ""
    return (
        "1 segment became a dead letter" if count == 1 else f"{count} segments became dead letters"
    )


def _transforms(declared: Mapping[str, tuple[str, ...]], flushes: list[FlushRun]) -> list[Document]:
    """The transforms, with the latest flush of their tables and its latest error."""
    by_key: dict[str | None, list[FlushRun]] = {}
    for run in flushes:
        table = run.table
        key = find_transform_key(declared, table.catalog, table.schema, table.name)
        by_key.setdefault(key, []).append(run)
    rows = []
    for key, into in sorted(declared.items()):
        runs = by_key.get(key, [])
        errors = [run.error for run in runs if run.error]
        rows.append(
            {
                "source": key,
                "into": into,
                "last_at": max((run.started_at for run in runs), default=None),
                "last_error": errors[0] if errors else None,
            }
        )
    return rows
