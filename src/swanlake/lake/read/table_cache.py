"""A cache of tables by name.

Every insert looks up its table, and the catalog takes milliseconds to answer. Changes by another
server are noticed within a second, changes by this server at once. A commit that is based on a
cached table detects changes in any case, and a successful one confirms the entry; it says nothing
about options that another server set, which are noticed within ten seconds.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

from swanlake.errors import AlreadyExists, NotFound, SwanLakeError
from swanlake.lake.catalog import Catalog
from swanlake.lake.lake import Lake
from swanlake.lake.model.layout import Table, folded
from swanlake.lake.model.table_ref import TableRef
from swanlake.lake.model.types import ColumnSpec

log = logging.getLogger("swanlake.queue")

_TTL_SECONDS = 1.0
_MAX_AGE_SECONDS = 10.0
_MAX_ENTRIES = 10_000

Name = tuple[str, str, str]


@dataclass(frozen=True)
class CachedTable:
    """A table's identity, and its layout when it was read."""

    table: TableRef
    layout: Table


@dataclass(frozen=True)
class _Entry:
    """A cached table, when it was read, and when a commit last confirmed it."""

    target: CachedTable
    read_at: float
    confirmed_at: float

    def is_fresh(self, now: float, *, checked: bool) -> bool:
        if now - self.read_at >= _MAX_AGE_SECONDS:
            return False
        return checked or now - self.confirmed_at < _TTL_SECONDS


class TableCache:
    """Caches catalogs and tables by name; safe for threads."""

    def __init__(self, lake: Lake, clock: Callable[[], float] = time.monotonic) -> None:
        self._lake = lake
        self._clock = clock
        self._lock = threading.Lock()
        self._entries: dict[Name, _Entry] = {}
        self._catalogs: dict[str, tuple[float, Catalog]] = {}
        self._has_macros: dict[str, tuple[float, bool]] = {}
        #: Counts invalidations: a read that began before one is stale.
        self._generation = 0

    def __len__(self) -> int:
        """The number of cached tables."""
        return len(self._entries)

    def catalog(self, name: str) -> Catalog:
        """The catalog with that name; raises NotFound."""
        key, now = folded(name), self._clock()
        with self._lock:
            read_at, catalog = self._catalogs.get(key, (float("-inf"), None))
            if catalog is not None and now - read_at < _TTL_SECONDS:
                return catalog
        found = self._lake.catalog(name)
        with self._lock:
            self._catalogs[key] = (now, found)
        return found

    def has_macros(self, name: str) -> bool:
        """True if the catalog with that name has macros; raises NotFound."""
        key, now = folded(name), self._clock()
        with self._lock:
            generation = self._generation
            read_at, has_macros = self._has_macros.get(key, (float("-inf"), True))
            if now - read_at < _TTL_SECONDS:
                return has_macros
        has_macros = self.catalog(name).has_macros()
        with self._lock:
            if generation == self._generation:
                self._has_macros[key] = (now, has_macros)
        return has_macros

    def find(
        self, catalog: str, schema: str, name: str, *, commit_checks: bool = False
    ) -> CachedTable:
        """The table with that name; raises NotFound.

        ``commit_checks``: a commit will detect a change, so an older entry is good enough.
        """
        key = (folded(catalog), folded(schema), folded(name))
        now = self._clock()
        with self._lock:
            generation = self._generation
            entry = self._entries.get(key)
            target = None if entry is None else entry.target
            if entry is not None:
                if entry.is_fresh(now, checked=commit_checks):
                    return entry.target
                # Single-flight refresh: other callers get the stale entry.
                self._entries[key] = _Entry(entry.target, now, now)
        try:
            found = self.catalog(catalog)
            layout = found.table(schema, name)
        except NotFound:
            with self._lock:
                self._entries.pop(key, None)
            raise
        except SwanLakeError as unreachable:
            if target is None:
                raise
            # The queue accepts rows while the lake is unreachable.
            log.warning("using the cached layout of %s: %s", target.table.full_name, unreachable)
            return target
        table = TableRef(found.name, layout.schema, layout.name, found.info.id, layout.id)
        target = CachedTable(table, layout)
        with self._lock:
            if generation != self._generation:
                return target  # may be from before the invalidation: not cached
            if len(self._entries) >= _MAX_ENTRIES:
                self._entries.clear()
            self._entries[key] = _Entry(target, now, now)
        return target

    def confirm(self, catalog: str, schema: str, name: str, layout: Table, at: int) -> None:
        """Records that a table was unchanged at a snapshot, as a commit has shown.

        The next commit then need not check the changes before it.
        """
        key = (folded(catalog), folded(schema), folded(name))
        with self._lock:
            entry = self._entries.get(key)
            if entry is None or entry.target.layout != layout:  # whatever their snapshots
                return
            if entry.target.layout.snapshot_id < at:
                newer = replace(entry.target, layout=replace(layout, snapshot_id=at))
                self._entries[key] = _Entry(newer, entry.read_at, self._clock())

    def create_table(
        self, catalog: str, schema: str, name: str, columns: Sequence[ColumnSpec]
    ) -> None:
        """Creates a table, unless it exists."""
        with suppress(AlreadyExists):
            self._lake.catalog(catalog).create_table(schema, name, columns)

    def invalidate(self, catalog: str, schema: str, name: str) -> None:
        """Drops the entry of a table that may have changed."""
        with self._lock:
            self._entries.pop((folded(catalog), folded(schema), folded(name)), None)

    def invalidate_all(self) -> None:
        """Drops all entries."""
        with self._lock:
            self._generation += 1
            self._entries.clear()
            self._catalogs.clear()
            self._has_macros.clear()
