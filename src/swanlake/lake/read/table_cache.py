"""Which table of the lake a name means, remembered for a moment.

Every insert asks, and the catalog takes milliseconds to answer. A table that another server has
changed is noticed within a second; what this server changes, at once. A commit that is based on
what is remembered finds out in any case, and one that went well is as good as an answer; only of
options that another server has set it says nothing, and these are noticed within ten seconds.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

from swanlake.errors import AlreadyExists, NotFound, SwanLakeError
from swanlake.lake.lake import Catalog, Lake
from swanlake.lake.layout import Table, folded
from swanlake.lake.types import ColumnSpec
from swanlake.queue.names import QueueTable

log = logging.getLogger("swanlake.queue")

_REMEMBERED_SECONDS = 1.0
_CHECKED_SECONDS = 10.0
_MOST_REMEMBERED = 10_000

Name = tuple[str, str, str]


@dataclass(frozen=True)
class Target:
    """A table, and what it looked like a moment ago."""

    table: QueueTable
    layout: Table


@dataclass(frozen=True)
class _Known:
    """What is remembered of a name, since when, and when it was last found to be so."""

    target: Target
    read_at: float
    confirmed_at: float

    def is_fresh(self, now: float, *, checked: bool) -> bool:
        if now - self.read_at >= _CHECKED_SECONDS:
            return False
        return checked or now - self.confirmed_at < _REMEMBERED_SECONDS


def _is_same(one: Table, other: Table) -> bool:
    """True if two layouts differ in nothing but the snapshot at which they were read."""
    return replace(one, snapshot_id=other.snapshot_id) == other


class Targets:
    """Tables by name."""

    def __init__(self, lake: Lake, clock: Callable[[], float] = time.monotonic) -> None:
        self._lake = lake
        self._clock = clock
        self._lock = threading.Lock()
        self._known: dict[Name, _Known] = {}
        self._catalogs: dict[str, tuple[float, Catalog]] = {}
        #: Counts how often all was forgotten: an answer from before that is old.
        self._generation = 0

    def catalog(self, name: str) -> Catalog:
        """The catalog of that name; raises NotFound."""
        key, now = folded(name), self._clock()
        with self._lock:
            read_at, catalog = self._catalogs.get(key, (float("-inf"), None))
            if catalog is not None and now - read_at < _REMEMBERED_SECONDS:
                return catalog
        found = self._lake.catalog(name)
        with self._lock:
            self._catalogs[key] = (now, found)
        return found

    def find(self, catalog: str, schema: str, name: str, *, checked: bool = False) -> Target:
        """The table of that name; raises NotFound.

        ``checked`` says that a commit will find out if the table is no longer what it was.
        """
        key = (folded(catalog), folded(schema), folded(name))
        now = self._clock()
        with self._lock:
            generation = self._generation
            known = self._known.get(key)
            target = None if known is None else known.target
            if known is not None:
                if known.is_fresh(now, checked=checked):
                    return known.target
                # One asks; who comes meanwhile takes what was known for a moment longer.
                self._known[key] = _Known(known.target, now, now)
        try:
            found = self.catalog(catalog)
            layout = found.table(schema, name)
        except NotFound:
            with self._lock:
                self._known.pop(key, None)
            raise
        except SwanLakeError as unreachable:
            if target is None:
                raise
            # The queue is there to take rows when the lake is away.
            log.warning("%s is taken to be what it was: %s", target.table.full_name, unreachable)
            return target
        table = QueueTable(found.name, layout.schema, layout.name, found.info.id, layout.id)
        target = Target(table, layout)
        with self._lock:
            if generation != self._generation:
                return target  # as of before something changed: not to be remembered
            if len(self._known) >= _MOST_REMEMBERED:
                self._known.clear()
            self._known[key] = _Known(target, now, now)
        return target

    def confirm(self, catalog: str, schema: str, name: str, layout: Table, at: int) -> None:
        """A commit has shown that a table was at a snapshot what it was when it was read.

        The next commit then need not look again at everything that happened before.
        """
        key = (folded(catalog), folded(schema), folded(name))
        with self._lock:
            known = self._known.get(key)
            if known is None or not _is_same(known.target.layout, layout):
                return
            if known.target.layout.snapshot_id < at:
                newer = replace(known.target, layout=replace(layout, snapshot_id=at))
                self._known[key] = _Known(newer, known.read_at, self._clock())

    def create(self, catalog: str, schema: str, name: str, columns: Sequence[ColumnSpec]) -> None:
        """Makes a table, unless somebody else was faster."""
        with suppress(AlreadyExists):
            self._lake.catalog(catalog).create_table(schema, name, columns)

    def forget_one(self, catalog: str, schema: str, name: str) -> None:
        """A table may have changed: the next to ask gets it as it is."""
        with self._lock:
            self._known.pop((folded(catalog), folded(schema), folded(name)), None)

    def forget(self) -> None:
        """Tables may have changed: the next to ask gets them as they are."""
        with self._lock:
            self._generation += 1
            self._known.clear()
            self._catalogs.clear()
