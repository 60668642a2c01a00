"""The documents about the lake: its catalogs, a catalog, a table."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict
from datetime import datetime
from typing import Any, TypeVar

from swanlake.access.identity import Identity, Privilege
from swanlake.access.policy import require
from swanlake.lake.catalog import Catalog
from swanlake.lake.commit.commit_queue import CommitQueueStatus, WriterStatus
from swanlake.lake.lake import DEFAULT_CATALOG
from swanlake.lake.lifecycle.history import MaintenanceEntry
from swanlake.lake.metastore.base import CatalogInfo
from swanlake.lake.model.layout import Column, Table
from swanlake.lake.model.types import duckdb_type
from swanlake.lake.read.browse import Contents, SnapshotSummary, TableProfile
from swanlake.lake.read.survey import CatalogSurvey, TableSurvey
from swanlake.maintenance.compaction.plan import CompactOptions
from swanlake.maintenance.runs import WHOLE_LAKE
from swanlake.sql.quoting import identifier
from swanlake.status.view import ServerView

Document = dict[str, Any]
Parameters = Mapping[str, str]
T = TypeVar("T")

_SNAPSHOTS = 100
_JOBS = 50
#: How long what was read of a catalog serves all callers.
_KEPT_SECONDS = 2.0
_MAX_KEPT = 512
_PLAIN = re.compile(r"[a-z_][a-z0-9_]*")
#: What is counted of a table in the report of a job.
_COUNTED = {"files": ("files_made", "files"), "bytes": ("bytes_after", "bytes")}


def sql_name(*parts: str) -> str:
    """A dotted name, quoted where it needs to be."""
    return ".".join(part if _PLAIN.fullmatch(part) else identifier(part) for part in parts)


class LakeDocuments:
    """Makes the documents about the lake."""

    def __init__(self, view: ServerView) -> None:
        self._view = view
        self._kept: dict[tuple[Any, ...], tuple[float, Any]] = {}

    def catalogs(self, identity: Identity, parameters: Parameters) -> Document:
        """The names of the catalogs, and the one that a new session is in."""
        readable = self._readable(identity)
        return {
            "catalogs": [{"name": info.name} for info in readable],
            "catalog": _default(readable),
        }

    def schema(self, identity: Identity, parameters: Parameters) -> Document:
        """The tables and views of a catalog, or the columns of a table."""
        catalog = self._open(identity, parameters.get("catalog", DEFAULT_CATALOG))
        if "table" in parameters:
            profile = catalog.profile(parameters.get("schema", "main"), parameters["table"])
            return {"columns": list(_columns(profile.table))}
        survey, contents = self._survey(catalog), self._contents(catalog)
        named = [(each.schema, each.name, False) for each in survey.tables]
        named += [(view.schema, view.name, True) for view in contents.views]
        return {
            "tables": [
                {
                    "schema": schema,
                    "name": name,
                    "is_view": is_view,
                    "sql_name": sql_name(catalog.name, schema, name),
                }
                for schema, name, is_view in sorted(named)
            ]
        }

    def lake(self, identity: Identity, parameters: Parameters) -> Document:
        """All catalogs; the one that is named, or the first; the table that is named."""
        readable = self._readable(identity)
        names = {info.id: info.name for info in readable}
        document: Document = {
            "metastore": "PostgreSQL" if self._view.settings.metabase_url else "SQLite",
            "catalogs": [
                {
                    "name": info.name,
                    "parent": None if info.parent is None else names.get(info.parent),
                    "parent_snapshot": info.parent_snapshot,
                }
                for info in readable
            ],
            "catalog": None,
            "table": None,
        }
        name = parameters.get("catalog") or _default(readable)
        if name is None:
            return document
        catalog = self._open(identity, name)
        document["catalog"] = self._catalog(identity, catalog, names)
        if "table" in parameters:
            profile = catalog.profile(parameters.get("schema", "main"), parameters["table"])
            document["table"] = self._table(catalog, profile)
        return document

    def maintenance_jobs(self, identity: Identity) -> list[Document]:
        """The latest jobs on catalogs that the caller may read."""
        entries = self._remember(("history",), lambda: self._view.maintenance.history(limit=_JOBS))
        return [
            {
                "id": str(entry.id),
                "job": entry.job,
                "table": entry.catalog + (f".{entry.table_name}" if entry.table_name else ""),
                "state": _outcome(entry),
                "started_at": entry.started_at.timestamp(),
                "seconds": _seconds(entry),
                "rows": (entry.report or {}).get("rows_folded"),
                **{name: _first(entry.report, keys) for name, keys in _COUNTED.items()},
                "snapshot": max((entry.report or {}).get("snapshots") or [None])
                if isinstance((entry.report or {}).get("snapshots"), list)
                else None,
                "error": (entry.report or {}).get("error", ""),
            }
            for entry in entries
            if _may_see(identity, entry)
        ]

    # ---- parts -----------------------------------------------------------------------------------

    def _catalog(self, identity: Identity, catalog: Catalog, names: Mapping[Any, str]) -> Document:
        survey, contents = self._survey(catalog), self._contents(catalog)
        info = catalog.info
        locks = [status for status in self._view.lake.writers() if status.catalog == info.name]
        latest = self._remember((info.id, "timeline"), lambda: catalog.latest_snapshots(_SNAPSHOTS))
        return {
            "name": info.name,
            "parent": None if info.parent is None else names.get(info.parent),
            "parent_snapshot": info.parent_snapshot,
            "data_path": info.data_path,
            "created_at": info.created_at,
            "schemas": contents.schemas,
            "views": [{"schema": view.schema, "name": view.name} for view in contents.views],
            "tables": [_counted(table) for table in survey.tables],
            "snapshots": survey.snapshots,
            "unneeded_files": survey.unneeded_files,
            "timeline": [_snapshot(each) for each in latest],
            "maintenance": self._maintenance(catalog) if identity.is_admin else None,
            "lock": self._lock(identity, locks[0]) if locks else None,
        }

    def _lock(self, identity: Identity, status: CommitQueueStatus) -> Document:
        """The writers at a commit lock; the sessions of other callers have no name."""
        if identity.is_admin:
            return asdict(status)
        sessions = self._view.registry.services.activity.sessions(identity)
        own = {each.session_id for each in sessions}

        def writer(each: WriterStatus) -> Document:
            return asdict(each) | {"name": each.name if each.name in own else None}

        return {
            "catalog": status.catalog,
            "holder": writer(status.holder),
            "waiters": list(map(writer, status.waiters)),
        }

    def _table(self, catalog: Catalog, profile: TableProfile) -> Document:
        table = profile.table
        options = self._options.for_table(table.options)
        columns = {column.id: column.name for each in table.columns for column in each.tree()}
        return {
            "schema": table.schema,
            "name": table.name,
            "sql_name": sql_name(catalog.name, table.schema, table.name),
            "columns": list(_columns(table)),
            "partition_keys": [
                columns.get(key.column_id, "?")
                if key.transform == "identity"
                else f"{key.transform} of {columns.get(key.column_id, '?')}"
                for key in table.partition_keys
            ],
            "sort_keys": [key.sql for key in table.sort_keys],
            "target_file_size": options.target_file_size,
            "small_file_ratio": options.small_file_ratio,
            "directory": table.directory,
            "options": {
                name: value
                for name, value in asdict(table.options).items()
                if value is not None and not isinstance(value, bool) and name != "target_file_size"
            },
            "sizes": profile.sizes,
        }

    def _maintenance(self, catalog: Catalog) -> list[Document]:
        entries = self._remember(
            (catalog.info.id, "history"),
            lambda: self._view.maintenance.history(catalog.name, limit=_JOBS),
        )
        return [
            {
                "id": str(entry.id),
                "job": entry.job,
                "table": entry.table_name,
                "outcome": _outcome(entry),
                "started_at": entry.started_at,
                "seconds": _seconds(entry),
                "report": describe_report(entry.report or {}),
                "server": entry.server,
            }
            for entry in entries
        ]

    @property
    def _options(self) -> CompactOptions:
        return self._view.maintenance.settings.options

    def _readable(self, identity: Identity) -> list[CatalogInfo]:
        infos: list[CatalogInfo] = self._remember(("catalogs",), self._view.lake.catalogs)
        return [info for info in infos if identity.privilege(info.name) >= Privilege.READ]

    def _open(self, identity: Identity, name: str) -> Catalog:
        require(identity, name, Privilege.READ)
        return self._view.lake.catalog(name)

    def _survey(self, catalog: Catalog) -> CatalogSurvey:
        return self._remember(
            (catalog.info.id, "survey"), lambda: self._view.maintenance.survey(catalog.name)
        )

    def _contents(self, catalog: Catalog) -> Contents:
        return self._remember((catalog.info.id, "contents"), catalog.contents)

    def _remember(self, key: tuple[Any, ...], read: Callable[[], T]) -> T:
        """What was read a moment ago, for this caller or another one."""
        now = time.monotonic()
        kept = self._kept.get(key)
        if kept is not None and now - kept[0] < _KEPT_SECONDS:
            value: T = kept[1]
            return value
        value = read()
        if len(self._kept) >= _MAX_KEPT:
            self._kept.clear()
        self._kept[key] = now, value
        return value


def describe_report(report: Mapping[str, Any]) -> str:
    """The report of a job in words: what is not zero."""
    return ", ".join(
        f"{name.replace('_', ' ')} {_listed(value)}" for name, value in report.items() if value
    )


def _listed(value: Any) -> str:
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)


def _default(readable: list[CatalogInfo]) -> str | None:
    names = [info.name for info in readable]
    return DEFAULT_CATALOG if DEFAULT_CATALOG in names else next(iter(names), None)


def _may_see(identity: Identity, entry: MaintenanceEntry) -> bool:
    if entry.catalog == WHOLE_LAKE:
        return identity.is_admin
    return identity.privilege(entry.catalog) >= Privilege.READ


def _counted(table: TableSurvey) -> Document:
    return {
        "schema": table.schema,
        "name": table.name,
        "live_rows": table.rows - table.deleted_rows + table.inlined_rows,
        "files": table.files,
        "small_files": table.small_files,
        "bytes": table.bytes,
        "deleted_rows": table.deleted_rows,
        "inlined_rows": table.inlined_rows,
    }


def _snapshot(summary: SnapshotSummary) -> Document:
    snapshot = summary.snapshot
    return {
        "id": snapshot.id,
        "at": snapshot.time,
        "author": snapshot.author,
        "message": snapshot.message,
        "changes": summary.changes,
    }


def _columns(table: Table) -> Iterator[Document]:
    partition = {key.column_id: key.transform for key in table.partition_keys}
    sort = {
        key.expression.strip('"'): f"sort {place}" for place, key in enumerate(table.sort_keys, 1)
    }

    def below(columns: tuple[Column, ...], depth: int, path: str) -> Iterator[Document]:
        for column in columns:
            full = f"{path}.{column.name}" if path else column.name
            yield {
                "path": full,
                "name": column.name,
                "sql_name": sql_name(*([path] if path else []), column.name),
                "depth": depth,
                "type": column.type if column.children else duckdb_type(column),
                "nullable": column.nullable,
                "default": None if column.default is None else column.default.text,
                "partition": partition.get(column.id),
                "sort": None if depth else sort.get(column.name),
            }
            yield from below(column.children, depth + 1, full)

    return below(table.columns, 0, "")


def _outcome(entry: MaintenanceEntry) -> str:
    return "running" if entry.outcome is None else entry.outcome.value


def _seconds(entry: MaintenanceEntry) -> float | None:
    ended: datetime | None = entry.finished_at
    return None if ended is None else (ended - entry.started_at).total_seconds()


def _first(report: Mapping[str, Any] | None, keys: tuple[str, ...]) -> Any:
    return next((report[key] for key in keys if report and key in report), None)
