"""The maintenance history: which jobs ran, when, on which server, with what result.

An entry is written when a job starts and again when it ends, so a job whose server died shows as
unfinished.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any
from uuid import UUID

from sqlalchemy import ColumnElement, Connection, Row, delete, insert, select, update
from sqlalchemy import Table as SqlTable

from swanlake.lake.model.ids import uuid7

#: Per catalog; older entries are removed.
MAX_ENTRIES = 10_000


class Outcome(StrEnum):
    """How a job ended."""

    DONE = "done"
    #: There was nothing to do.
    IDLE = "idle"
    #: Conflicting writers; it will be retried.
    SKIPPED = "skipped"
    FAILED = "failed"
    #: Cancelled, or its server stopped first.
    STOPPED = "stopped"


@dataclass(frozen=True)
class MaintenanceEntry:
    """One job: started, and finished if it was.

    entry = MaintenanceEntry("sales", "expire", server="one")
    lake.record(entry)
    lake.record(entry.finished(Outcome.DONE, {"snapshots": 12}))
    """

    catalog: str
    job: str
    server: str
    #: ``schema.name``; None for a job on the whole catalog.
    table_name: str | None = None
    started_at: datetime = field(default_factory=lambda: datetime.now(UTC))
    finished_at: datetime | None = None
    outcome: Outcome | None = None
    #: What was done, or why it failed: plain values that JSON can hold.
    report: Mapping[str, Any] | None = None
    id: UUID = field(default_factory=uuid7)

    def finished(
        self, outcome: Outcome, report: Mapping[str, Any] | None = None, at: datetime | None = None
    ) -> MaintenanceEntry:
        """The entry with the end of the job."""
        ended = at or datetime.now(UTC)
        return replace(self, outcome=outcome, report=report, finished_at=ended)


def record(connection: Connection, table: SqlTable, entry: MaintenanceEntry) -> None:
    """Writes or replaces an entry; removes a catalog's oldest when it has too many."""
    report = None if entry.report is None else dict(entry.report)
    values = vars(entry) | {"id": str(entry.id), "report": report}
    # The update comes first: SQLite then waits for the lock instead of failing the upgrade.
    known = update(table).where(table.c.id == values["id"]).values(values)
    if connection.execute(known).rowcount:
        return
    connection.execute(insert(table).values(values))
    of_catalog = select(table.c.id).where(table.c.catalog == entry.catalog)
    old = of_catalog.order_by(*_newest_first(table)).offset(MAX_ENTRIES)
    connection.execute(delete(table).where(table.c.id.in_(old)))


def read_entries(
    connection: Connection, table: SqlTable, catalog: str | None, job: str | None, limit: int
) -> list[MaintenanceEntry]:
    """The newest entries first, of one catalog and one kind of job if they are named."""
    wanted = select(table).order_by(*_newest_first(table)).limit(limit)
    if catalog is not None:
        wanted = wanted.where(table.c.catalog == catalog)
    if job is not None:
        wanted = wanted.where(table.c.job == job)
    return [_entry(row) for row in connection.execute(wanted)]


def _newest_first(table: SqlTable) -> tuple[ColumnElement[Any], ...]:
    return table.c.started_at.desc(), table.c.id.desc()


def _entry(row: Row[Any]) -> MaintenanceEntry:
    outcome = None if row.outcome is None else Outcome(row.outcome)
    return MaintenanceEntry(**row._asdict() | {"id": UUID(row.id), "outcome": outcome})
