"""What maintenance was done in a lake, when, by which server, and with what result.

An entry is written when a job begins and again when it has ended, so that one whose server died
shows as not finished.
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

from swanlake.lake.ids import uuid7

#: So many entries are kept of every catalog.
KEPT = 10_000


class Outcome(StrEnum):
    """How a job ended."""

    DONE = "done"
    #: There was nothing to do.
    IDLE = "idle"
    #: Others were in the way, and it will be tried again.
    SKIPPED = "skipped"
    FAILED = "failed"
    #: Whoever wanted it gave up, or their server ended before it.
    STOPPED = "stopped"


@dataclass(frozen=True)
class MaintenanceEntry:
    """One job: begun, and finished if it was.

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
        """The same job, ended."""
        ended = at or datetime.now(UTC)
        return replace(self, outcome=outcome, report=report, finished_at=ended)


def record(connection: Connection, table: SqlTable, entry: MaintenanceEntry) -> None:
    """Writes an entry, over what was there of it; a catalog's oldest go when it has too many."""
    values = {
        "catalog": entry.catalog,
        "job": entry.job,
        "table_name": entry.table_name,
        "started_at": entry.started_at,
        "finished_at": entry.finished_at,
        "outcome": entry.outcome,
        "server": entry.server,
        "report": None if entry.report is None else dict(entry.report),
    }
    # The update comes first: SQLite then waits for its turn, instead of refusing to write.
    known = update(table).where(table.c.id == str(entry.id)).values(**values)
    if connection.execute(known).rowcount:
        return
    connection.execute(insert(table).values(id=str(entry.id), **values))
    of_catalog = select(table.c.id).where(table.c.catalog == entry.catalog)
    old = of_catalog.order_by(*_newest_first(table)).offset(KEPT)
    connection.execute(delete(table).where(table.c.id.in_(old)))


def entries(
    connection: Connection, table: SqlTable, catalog: str | None, job: str | None, limit: int
) -> list[MaintenanceEntry]:
    """The newest entries first; of one catalog and one kind of job if they are named."""
    wanted = select(table).order_by(*_newest_first(table)).limit(limit)
    if catalog is not None:
        wanted = wanted.where(table.c.catalog == catalog)
    if job is not None:
        wanted = wanted.where(table.c.job == job)
    return [_entry(row) for row in connection.execute(wanted)]


def _newest_first(table: SqlTable) -> tuple[ColumnElement[Any], ...]:
    return table.c.started_at.desc(), table.c.id.desc()


def _entry(row: Row[Any]) -> MaintenanceEntry:
    return MaintenanceEntry(
        catalog=row.catalog,
        job=row.job,
        server=row.server,
        table_name=row.table_name,
        started_at=row.started_at,
        finished_at=row.finished_at,
        outcome=None if row.outcome is None else Outcome(row.outcome),
        report=row.report,
        id=UUID(row.id),
    )
