"""What was done to maintain the lake, kept beside the list of its catalogs."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import Connection, delete, insert, select
from sqlalchemy import Table as SqlTable

#: How long it is remembered.
_KEPT = timedelta(days=90)


@dataclass(frozen=True)
class Entry:
    """One run of a job, from its beginning on."""

    id: str
    #: None for the whole lake.
    catalog: str | None
    job: str
    table_name: str | None
    started_at: datetime
    finished_at: datetime | None
    outcome: str
    server: str
    report: dict[str, Any] = field(default_factory=dict)


def record(connection: Connection, table: SqlTable, entry: Entry) -> None:
    """Keeps an entry, in the place of what was kept of the same run."""
    connection.execute(
        delete(table).where(
            (table.c.id == entry.id) | (table.c.started_at < entry.started_at - _KEPT)
        )
    )
    connection.execute(
        insert(table).values(
            id=entry.id,
            catalog=entry.catalog,
            job=str(entry.job),
            table_name=entry.table_name,
            started_at=entry.started_at,
            finished_at=entry.finished_at,
            outcome=str(entry.outcome),
            server=entry.server,
            report=json.dumps(entry.report),
        )
    )


def history(
    connection: Connection, table: SqlTable, catalog: str | None, job: str | None, limit: int
) -> list[Entry]:
    """The newest entries, of one catalog or job or of all, newest first."""
    question = select(table).order_by(table.c.started_at.desc(), table.c.id.desc()).limit(limit)
    if catalog is not None:
        question = question.where(table.c.catalog == catalog.lower())
    if job is not None:
        question = question.where(table.c.job == job)
    return [
        Entry(
            str(row.id),
            row.catalog,
            row.job,
            row.table_name,
            row.started_at,
            row.finished_at,
            row.outcome,
            row.server,
            json.loads(row.report),
        )
        for row in connection.execute(question)
    ]
