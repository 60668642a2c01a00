"""The maintenance procedures, such as ``CALL swanlake_compact()``, and their history."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa

from swanlake.access.identity import Role
from swanlake.errors import InvalidRequest
from swanlake.lake.model.layout import folded
from swanlake.maintenance.registry import JOBS, ArgumentType, MaintenanceJob
from swanlake.maintenance.runs import WHOLE_LAKE, RunControl
from swanlake.sessions.procedures.base import (
    Procedure,
    ProcedureContext,
    Rows,
    parse_age,
    parse_count,
    parse_flag,
    split_name,
)

_TIME = pa.timestamp("us", tz="UTC")
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
_CONVERTERS = {
    ArgumentType.AGE: parse_age,
    ArgumentType.COUNT: parse_count,
    ArgumentType.FLAG: parse_flag,
}


def _history(
    context: ProcedureContext, catalog: str | None, job: str | None, last: int | None
) -> Rows:
    if job is not None and job not in JOBS:
        raise InvalidRequest(f"There is no job {job!r}; there are {', '.join(JOBS)}.")
    limit = _HISTORY_ROWS if last is None else last
    return [
        {
            **vars(entry),
            "id": str(entry.id),
            "catalog_name": None if entry.catalog == WHOLE_LAKE else entry.catalog,
            "outcome": entry.outcome or "running",
            "report": None if entry.report is None else json.dumps(dict(entry.report)),
        }
        for entry in context.maintenance.history(catalog, job, limit)
    ]


def _procedure(job: MaintenanceJob) -> Procedure:
    """The procedure of a job; all arguments are optional, and it commits on its own."""
    names = tuple(argument.name for argument in job.arguments)

    def body(context: ProcedureContext, *values: Any) -> Rows:
        arguments = dict(zip(names, values, strict=True))
        dry_run = arguments["dry_run"] = bool(arguments["dry_run"])
        if arguments.get("table") is not None:
            catalog, *table = _resolve_table(context, arguments["table"], arguments["catalog"])
            arguments |= {"catalog": catalog, "table": tuple(table)}
        elif "catalog" in arguments:
            arguments["catalog"] = _resolve_catalog(context, arguments["catalog"])
        run = getattr(context.maintenance, job.name)
        return job.to_rows(run(control=RunControl(context.check), **arguments), dry_run)

    converters = {
        argument.name: _CONVERTERS[argument.type]
        for argument in job.arguments
        if argument.type in _CONVERTERS
    }
    return Procedure(
        job.procedure, names, len(names), job.columns, True, Role.ADMIN, body, converters
    )


def _resolve_catalog(context: ProcedureContext, catalog: str | None) -> str:
    """The named catalog, or the current one of the session."""
    if catalog is not None:
        return catalog
    location = context.location()
    return context.engine.catalog if location is None else location[0]


def _resolve_table(
    context: ProcedureContext, table: str, catalog: str | None
) -> tuple[str, str, str]:
    """Catalog, schema and name of a table; missing parts come from the session."""
    parts = split_name(table)
    if len(parts) == 3:
        if catalog is not None and folded(catalog) != folded(parts[0]):
            raise InvalidRequest(f"{table} is not in the catalog {catalog}.")
        return parts[0], parts[1], parts[2]
    catalog = _resolve_catalog(context, catalog)
    if len(parts) == 2:
        return catalog, parts[0], parts[1]
    location = context.location()
    is_current = location is not None and folded(location[0]) == folded(catalog)
    return catalog, location[1] if location and is_current else "main", parts[0]


MAINTENANCE_PROCEDURES = (
    *map(_procedure, JOBS.values()),
    Procedure(
        "swanlake_maintenance_history",
        ("catalog", "job", "last"),
        3,
        _HISTORY,
        False,
        Role.ADMIN,
        _history,
        reads=True,
    ),
)
