"""Which table of the lake a name means, remembered for a moment.

Every insert asks, and the catalog takes a millisecond or more to answer. A table that another
server has changed is noticed within a second; what this server changes, at once.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace

from swanlake.errors import AlreadyExists, NotFound, SwanLakeError
from swanlake.lake.lake import Lake
from swanlake.lake.layout import Table, folded
from swanlake.lake.types import ColumnSpec
from swanlake.queue.names import QueueTable

log = logging.getLogger("swanlake.queue")

_REMEMBERED_SECONDS = 1.0
_MOST_REMEMBERED = 10_000

Name = tuple[str, str, str]


@dataclass(frozen=True)
class Target:
    """A table, and what it looked like a moment ago."""

    table: QueueTable
    layout: Table


class Targets:
    """Tables by name."""

    def __init__(self, lake: Lake, clock: Callable[[], float] = time.monotonic) -> None:
        self._lake = lake
        self._clock = clock
        self._lock = threading.Lock()
        self._known: dict[Name, tuple[float, Target]] = {}
        #: Counts how often all was forgotten: an answer from before that is old.
        self._generation = 0

    def find(self, catalog: str, schema: str, name: str) -> Target:
        """The table of that name; raises NotFound."""
        key = (folded(catalog), folded(schema), folded(name))
        now = self._clock()
        with self._lock:
            generation = self._generation
            read_at, target = self._known.get(key, (float("-inf"), None))
            if target is not None:
                if now - read_at < _REMEMBERED_SECONDS:
                    return target
                # One asks; who comes meanwhile takes what was known for a moment longer.
                self._known[key] = (now, target)
        try:
            found = self._lake.catalog(catalog)
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
            self._known[key] = (now, target)
        return target

    def confirm(self, catalog: str, schema: str, name: str, layout: Table, at: int) -> None:
        """A commit has shown that a table was at a snapshot what it was when it was read.

        The next commit then need not look again at everything that happened before.
        """
        key = (folded(catalog), folded(schema), folded(name))
        with self._lock:
            read_at, target = self._known.get(key, (0.0, None))
            if target is not None and target.layout == layout and target.layout.snapshot_id < at:
                newer = replace(target, layout=replace(layout, snapshot_id=at))
                self._known[key] = (read_at, newer)

    def create(self, catalog: str, schema: str, name: str, columns: Sequence[ColumnSpec]) -> None:
        """Makes a table, unless somebody else was faster."""
        with suppress(AlreadyExists):
            self._lake.catalog(catalog).create_table(schema, name, columns)

    def forget(self) -> None:
        """Tables may have changed: the next to ask gets them as they are."""
        with self._lock:
            self._generation += 1
            self._known.clear()
