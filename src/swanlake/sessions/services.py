"""The services that all sessions of a server share."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from swanlake._internal.counts import Counts
from swanlake._internal.memory_budget import MemoryBudget
from swanlake._internal.worker_threads import WorkerThreads
from swanlake.access.files import FileRules
from swanlake.config import Configuration, Settings
from swanlake.engine.host import EngineHost
from swanlake.lake.lake import Lake
from swanlake.lake.read.snapshot_cache import SnapshotCache
from swanlake.maintenance.service import Maintenance
from swanlake.queue.service import DucklingQueue
from swanlake.sessions.activity import Activity, AuditLog
from swanlake.sessions.run import Run


@dataclass(frozen=True)
class NativeParts:
    """The parts of native execution that are on; statements of the others use the extension.

    The setting ``native_statements`` turns all of them on or off. Benchmarks turn off one.
    """

    #: INSERT, COPY FROM and CREATE TABLE.
    inserts: bool = True
    #: INSERT of literals without DuckDB; without it, a staging table evaluates them.
    literals: bool = True
    #: Rows inlined in the metadata.
    inlining: bool = True
    #: UPDATE and DELETE of tables that have only inlined rows.
    changes: bool = True
    #: Reads of tables that have only inlined rows.
    reads: bool = True

    @property
    def is_on(self) -> bool:
        """True if any part is on."""
        return self.inserts or self.changes or self.reads

    @classmethod
    def from_setting(cls, native_statements: str) -> NativeParts:
        """All parts or none."""
        is_on = native_statements == "on"
        return cls(is_on, is_on, is_on, is_on, is_on)


@dataclass(frozen=True)
class SessionServices:
    """The services that all sessions of a server share."""

    host: EngineHost
    lake: Lake
    queue: DucklingQueue
    maintenance: Maintenance
    result_buffer_bytes: int
    spill_directory: Path
    max_statement_bytes: int
    #: Where the rows of tables are.
    snapshots: SnapshotCache
    #: How long a statement may hold a catalog's lock while others wait; 0 is no limit.
    writer_lock_seconds: float = 0.0
    native: NativeParts = field(default_factory=NativeParts)
    #: The files that statements may name.
    files: FileRules = field(default_factory=FileRules)
    #: True if the lake's files are in an object store, whose requests DuckDB does not interrupt.
    uses_object_store: bool = False
    #: For statements whose callers may be answered before they end.
    background: WorkerThreads = field(default_factory=lambda: WorkerThreads("swanlake-statement"))
    activity: Activity = field(default_factory=Activity)
    #: Exports the trace of a statement that has ended; None: none is recorded.
    send_trace: Callable[[Run], None] | None = None
    #: What is kept in memory for callers.
    memory: MemoryBudget = field(default_factory=lambda: MemoryBudget(sys.maxsize))
    audit: AuditLog = field(default_factory=lambda: AuditLog(Path(), "off", 0))
    #: Called when the roles or grants of callers were changed.
    on_credentials_changed: Callable[[], None] = lambda: None
    #: The effective settings, and the source of each.
    configuration: Configuration = field(default_factory=lambda: Configuration(Settings(), {}))
    #: How sessions write to the lake; each retry of a statement counts as ``repeated``.
    writes: Counts = field(default_factory=lambda: Counts("native", "extension", "repeated"))
    #: Queries answered from the metadata alone, from files too, and those that the engine had to
    #: run after all.
    reads: Counts = field(default_factory=lambda: Counts("metadata", "files", "repeated"))
