"""What the server tells about itself: to Flight clients, on ``/status.json`` and to the console.

Most facts are counters and lists in memory. ``LakeFacts`` need queries: a caller waits for them, or
takes old ones.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa

from swanlake._internal.memory import resident_bytes
from swanlake.access.identity import Identity
from swanlake.access.scope import Scope
from swanlake.lake.lifecycle.history import MaintenanceEntry
from swanlake.lake.metastore.base import CatalogInfo
from swanlake.queue.flush.dead_letters import DeadLetter
from swanlake.queue.status import TableStatus
from swanlake.status.health import HealthReport
from swanlake.status.view import ServerView

Facts = dict[str, Any]
_MAX_ENTRIES = 100


def describe_server(view: ServerView, identity: Identity) -> Facts:
    """What the Flight action tells: to others than admins only whether the server can work."""
    facts = _public_facts(view)
    if identity.is_admin:
        facts |= _server_facts(view)
    facts["health"] = health_facts(view.health.current(), with_details=identity.is_admin)
    return facts


def _public_facts(view: ServerView) -> Facts:
    return {"version": view.version, "state": str(view.state())}


def _server_facts(view: ServerView) -> Facts:
    """What only admins may know: other callers, their catalogs, the machine."""
    registry = view.registry
    services, sessions = registry.services, registry.metrics()
    facts: Facts = {
        "pid": os.getpid(),
        "started_at": datetime.fromtimestamp(view.started_at, UTC).isoformat(timespec="seconds"),
        "uptime_seconds": round(view.uptime_seconds, 1),
        "sessions": {
            "active": sessions.active,
            "max": view.settings.max_sessions,
            "created": sessions.created,
            "closed": dict(sessions.closed),
            "lifetime_seconds_average": sessions.lifetime_seconds_average,
            "lifetime_seconds_max": sessions.lifetime_seconds_max,
        },
        "statements_running": len(registry.watchdog.running()),
        "results_waiting": registry.results_waiting,
        "lake_writes": services.writes.as_dict(),
        "lake_reads": services.reads.as_dict(),
        "writers": [asdict(queue) for queue in services.lake.writers()],
        "memory": _memory(view),
    }
    if view.health.is_running:
        facts["health"] = health_facts(view.health.report(), with_details=True)
    facts["pipeline"] = asdict(view.runner.status())
    return facts


def _memory(view: ServerView) -> Facts:
    """The memory of the process, and that of its parts as far as they count it."""
    services = view.registry.services
    return {
        "process_bytes": resident_bytes(),
        "engines": [asdict(memory) for memory in services.host.memory()],
        "result_bytes": view.registry.result_bytes,
        "queue_bytes": services.queue.memory_bytes,
        "caller_limit_bytes": services.memory.limit,
        "caller_bytes": services.memory.held(),
        "arrow_bytes": pa.total_allocated_bytes(),
        "cached_tables": len(services.queue.table_cache),
        "snapshot_cache_bytes": services.snapshots.bytes,
    }


def health_facts(report: HealthReport, *, with_details: bool) -> Facts:
    """The last results of the health checks; their details are for admins."""
    checks = []
    for check in report.checks:
        facts: Facts = {
            "name": check.name,
            "ok": check.is_ok,
            "age_seconds": None if check.age_seconds is None else round(check.age_seconds, 1),
            "seconds": round(check.seconds, 4),
        }
        if not check.is_ok:
            facts["reason"] = check.reason
            if with_details:
                facts["detail"] = check.detail
        checks.append(facts)
    return {"ok": report.is_ok, "checks": checks}


@dataclass(frozen=True)
class LakeFacts:
    """What is known of the lake only by asking its database and its storage."""

    catalogs: Sequence[CatalogInfo]
    maintenance: Sequence[MaintenanceEntry]
    dead_letters: Sequence[DeadLetter]

    @classmethod
    def read(cls, view: ServerView) -> LakeFacts:
        """Asks; takes as long as the database and the storage do."""
        return cls(
            view.lake.catalogs(),
            view.maintenance.history(limit=_MAX_ENTRIES),
            view.queue.dead_letters(),
        )


def status_facts(view: ServerView, identity: Identity) -> Facts:
    """All that a caller may know without a query: an admin all, others what is theirs."""
    may_read = Scope.from_identity(identity).may_read
    facts = _public_facts(view)
    if identity.is_admin:
        facts |= _server_facts(view)
    elif view.health.is_running:
        facts["health"] = health_facts(view.health.report(), with_details=False)
    facts["caller"] = {"name": identity.name, "role": str(identity.role)}
    activity = view.registry.services.activity
    facts["statements"] = {
        "running": [_plain(each) for each in activity.running(identity)],
        "errors": [_plain(each) for each in activity.errors(identity, _MAX_ENTRIES)],
        "slow": [_plain(each) for each in activity.slow(identity, _MAX_ENTRIES)],
    }
    facts["open_sessions"] = [_plain(each) for each in activity.sessions(identity)]
    facts["queue"] = {
        "paused": view.queue.is_paused,
        "tables": [
            _queued(table) for table in view.queue.status() if may_read(table.table.catalog)
        ],
    }
    return facts


def lake_facts(facts: LakeFacts, identity: Identity) -> Facts:
    """Those of the catalogs that a caller may read."""
    may_read: Callable[[str], bool] = Scope.from_identity(identity).may_read
    names = {info.id: info.name for info in facts.catalogs if may_read(info.name)}
    letters = [letter for letter in facts.dead_letters if may_read(letter.catalog)]
    return {
        "catalogs": [_catalog(info, names) for info in facts.catalogs if may_read(info.name)],
        "maintenance": [_entry(entry) for entry in facts.maintenance if may_read(entry.catalog)],
        "dead_letters": {
            "count": len(letters),
            "rows": sum(letter.rows for letter in letters),
            "newest": [asdict(letter) for letter in letters[-_MAX_ENTRIES:]],
        },
    }


def _plain(value: Any) -> Facts:
    """A dataclass as values that JSON can hold."""
    return {
        name: each.isoformat() if isinstance(each, datetime) else each
        for name, each in asdict(value).items()
    }


def _queued(status: TableStatus) -> Facts:
    return asdict(status) | {"table": status.table.full_name}


def _catalog(info: CatalogInfo, names: Mapping[Any, str]) -> Facts:
    return {
        "name": info.name,
        "parent": None if info.parent is None else names.get(info.parent),
        "parent_snapshot": info.parent_snapshot,
        "created_at": None if info.created_at is None else info.created_at.isoformat(),
    }


def _entry(entry: MaintenanceEntry) -> Facts:
    return {
        "catalog": entry.catalog,
        "job": entry.job,
        "table": entry.table_name,
        "server": entry.server,
        "started_at": entry.started_at.isoformat(),
        "finished_at": None if entry.finished_at is None else entry.finished_at.isoformat(),
        "outcome": None if entry.outcome is None else str(entry.outcome),
        "report": None if entry.report is None else dict(entry.report),
    }
