"""A cache of where the rows of tables are, current at every read.

Every read asks once for the head of its catalog. What the snapshots since the last answer changed
says which states are still right, so a table without changes is never read again. Reads that arrive
while a question is under way share the next one: one thread at a time asks a catalog, however many
sessions read it.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from uuid import UUID

from swanlake._internal.waiting import wait
from swanlake.errors import SwanLakeError
from swanlake.lake.catalog import Catalog
from swanlake.lake.commit.changes import ChangeType, UnreadableChanges, parse_changes
from swanlake.lake.model.layout import folded
from swanlake.lake.model.table_state import Head, HeadRead, TableState
from swanlake.lake.read.inlined_scan import MAX_ROWS, as_scan, can_scan
from swanlake.lake.read.pruning import ColumnBounds
from swanlake.lake.read.table_states import StateRequest

#: Gives up after three stale reads: the tables keep changing.
_MAX_ATTEMPTS = 3
#: Rough sizes, in bytes.
_STATE_BYTES, _FILE_BYTES, _VALUE_BYTES, _BOUND_BYTES = 4000, 400, 80, 200
_MAX_CATALOGS = 1000
#: States that are read between two looks at what all of them occupy.
_LOADS_PER_TRIM = 50

#: Schema and table, folded.
Name = tuple[str, str]


@dataclass(frozen=True)
class CatalogRead:
    """The states of tables at one snapshot of their catalog."""

    catalog: CatalogStates
    snapshot_id: int
    states: Sequence[TableState]


@dataclass(eq=False)
class _Request:
    """A read that waits for the states of its tables."""

    names: Sequence[Name]
    is_done: bool = False
    read: CatalogRead | None = None
    error: SwanLakeError | None = None


@dataclass
class _Entry:
    """A cached state."""

    state: TableState
    #: What happened to the table since the state was read.
    changes: set[ChangeType] = field(default_factory=set)
    #: The number of schema changes that the state has seen.
    epoch: int = 0
    bounds: dict[int, ColumnBounds] = field(default_factory=dict)

    @property
    def bytes(self) -> int:
        """Roughly what the entry occupies."""
        inlined = self.state.inlined
        values = 0 if inlined is None else len(inlined.row_ids) * (len(inlined.values) + 1)
        texts = 0 if inlined is None else inlined.text_length
        bounds = sum(map(len, self.bounds.values()))
        return (
            _STATE_BYTES
            + len(self.state.files) * _FILE_BYTES
            + values * _VALUE_BYTES
            + texts
            + bounds * _BOUND_BYTES
        )


class CatalogStates:
    """The states of the tables of one catalog; one thread at a time asks for changes."""

    def __init__(self, catalog: Catalog, on_load: Callable[[], None] = lambda: None) -> None:
        self.catalog = catalog
        self._on_load = on_load
        self._condition = threading.Condition(threading.RLock())
        self._is_reading = False
        self._waiting: list[_Request] = []
        self._head: Head | None = None
        #: Counts the changes of the schema.
        self._epoch = 0
        #: Least recently used first.
        self._entries: OrderedDict[Name, _Entry] = OrderedDict()

    @property
    def bytes(self) -> int:
        """Roughly what the cached states occupy."""
        with self._condition:
            return sum(entry.bytes for entry in self._entries.values())

    def __len__(self) -> int:
        """The number of cached states."""
        return len(self._entries)

    def read(self, names: Sequence[Name], check: Callable[[], None]) -> CatalogRead | None:
        """The states of tables at the head; None if they keep changing, or one is unknown.

        The head is at least as new as any commit that was acknowledged before the call. ``check``
        raises when the caller gives up.
        """
        request = _Request(names)
        with self._condition:
            self._waiting.append(request)
        try:
            wait(partial(self._is_served, request), check)
        finally:
            with self._condition:
                if request in self._waiting:
                    self._waiting.remove(request)
        if request.error is not None:
            raise request.error
        return request.read

    def _is_served(self, request: _Request, seconds: float) -> bool:
        """True once a request has its answer; serves all that wait unless another thread does."""
        with self._condition:
            if self._is_reading and not request.is_done:
                self._condition.wait(seconds)
                return request.is_done
            if request.is_done:
                return True
            self._is_reading = True
            requests, self._waiting = self._waiting, []
        self._serve(requests)
        return True

    def bounds(self, name: Name, column_id: int) -> ColumnBounds | None:
        """The bounds of a column of a cached table, read when they are first needed."""
        with self._condition:
            entry = self._entries.get(name)
        if entry is None:
            return None
        table, files = entry.state.table, entry.state.files
        known = entry.bounds.get(column_id)
        newest = files[-1].id if files else -1
        if known is None or known.newest_file < newest:
            column = next((column for column in table.columns if column.id == column_id), None)
            if column is None:  # dropped since the caller read the state
                return None
            since = -1 if known is None else known.newest_file
            read = self.catalog.read_bounds(table.id, column_id, since)
            added = ColumnBounds.parse(column.type, read, newest)
            known = added if known is None else known.extended(added, files)
            with self._condition:  # other threads count what the bounds occupy
                entry.bounds[column_id] = known
        return known

    def forget(self, name: Name) -> None:
        """Drops the state of a table: options change without a snapshot."""
        with self._condition:
            self._entries.pop(name, None)

    def evict(self, bytes_to_free: int) -> int:
        """Drops the least recently used states; returns how many bytes they occupied."""
        freed = 0
        with self._condition:
            while self._entries and freed < bytes_to_free:
                freed += self._entries.popitem(last=False)[1].bytes
        return freed

    def _serve(self, requests: Sequence[_Request]) -> None:
        """Asks for changes and answers these requests."""
        try:
            names = list(dict.fromkeys(name for request in requests for name in request.names))
            is_current = self._refresh(names)
            for request in requests:
                request.read = self._answer(request.names) if is_current else None
        except SwanLakeError as error:  # each caller decides what it means
            for request in requests:
                request.error = error
        finally:
            with self._condition:
                self._is_reading = False
                for request in requests:
                    request.is_done = True
                self._condition.notify_all()

    def _answer(self, names: Sequence[Name]) -> CatalogRead | None:
        assert self._head is not None
        with self._condition:
            entries = [self._entries.get(name) for name in names]
        if not all(entries):
            return None
        states = [entry.state for entry in entries if entry is not None]
        return CatalogRead(self, self._head.snapshot_id, states)

    def _refresh(self, names: Sequence[Name]) -> bool:
        """Brings the states of these tables to one head; False if they keep changing."""
        for _ in range(_MAX_ATTEMPTS):
            since = -1 if self._head is None else self._head.snapshot_id
            with self._condition:
                entries = {name: self._entries.get(name) for name in names}
            sources = [
                entry.state.source_table
                for entry in entries.values()
                if entry is not None and entry.state.source_table is not None
            ]
            self._advance(self.catalog.read_head(since, sources))
            stale = [name for name in names if not self._is_current(name)]
            if stale:
                self._load(stale)
                stale = [name for name in names if not self._is_current(name)]
            if not stale:
                return True
        return False

    def _is_current(self, name: Name) -> bool:
        with self._condition:
            entry = self._entries.get(name)
            if entry is None or entry.changes or entry.epoch != self._epoch:
                return False
            self._entries.move_to_end(name)
            return True

    def _load(self, names: Sequence[Name]) -> None:
        assert self._head is not None
        requests = [self._request(name) for name in names]
        epoch = self._epoch
        read = self.catalog.read_states(requests, self._head.snapshot_id)
        self._advance(read.head)
        with self._condition:
            for name, request, state in zip(names, requests, read.states, strict=True):
                # The transaction may have seen more changes than those that the request knew of.
                is_sound = request.base is None or (
                    self._base(name) is request.base
                    and (request.is_doubtful or epoch == self._epoch)
                )
                old = self._entries.pop(name, None)
                if state is not None and is_sound:
                    entry = _Entry(state, epoch=self._epoch)
                    if old is not None and old.state.table.id == state.table.id:
                        entry.bounds = old.bounds
                    self._entries[name] = entry
        self._on_load()

    def _request(self, name: Name) -> StateRequest:
        with self._condition:
            entry = self._entries.get(name)
            is_doubtful = entry is not None and entry.epoch != self._epoch
            return StateRequest(*name, self._base(name), is_doubtful)

    def _base(self, name: Name) -> TableState | None:
        """The state of a table that only got rows; None if it must be read as a whole."""
        entry = self._entries.get(name)
        if entry is None or not entry.state.is_readable:
            return None
        only_rows = entry.changes <= {ChangeType.INSERTED, ChangeType.INLINED_INSERT}
        return entry.state if only_rows else None

    def _advance(self, read: HeadRead) -> None:
        """Takes note of what the snapshots up to a new head changed."""
        with self._condition:
            known, self._head = self._head, read.head
            if known is None or read.changes is None:
                self._entries.clear()
                return
            if known == read.head:
                return
            if known.schema_version != read.head.schema_version:
                self._epoch += 1
            by_id = {entry.state.table.id: entry for entry in self._entries.values()}
            try:
                for text in read.changes:
                    for change in parse_changes(text):
                        if change.id is not None and change.id in by_id:
                            by_id[change.id].changes.add(change.type)
            except UnreadableChanges:
                self._entries.clear()
                return
            for entry in self._entries.values():
                self._update_rows(entry, read)

    def _update_rows(self, entry: _Entry, read: HeadRead) -> None:
        """Replaces the inlined rows of a state of which nothing else changed."""
        source, state = entry.state.source_table, entry.state
        inlined_only = {ChangeType.INLINED_INSERT}
        if not state.files:  # else a delete may be one of rows in a file
            inlined_only.add(ChangeType.INLINED_DELETE)
        if source is None or source not in read.rows:
            return
        if not entry.changes or not entry.changes <= inlined_only:
            return
        rows = read.rows[source]
        can_take = len(rows) <= MAX_ROWS and (not rows or can_scan(state.table))
        if can_take and entry.epoch == self._epoch and state.is_readable:
            entry.state = replace(state, inlined=as_scan(state.table, [source], {source: rows}))
            entry.changes = set()


class SnapshotCache:
    """The cached states of all catalogs; safe for threads."""

    def __init__(self, max_bytes: int) -> None:
        self._max_bytes = max_bytes
        self._lock = threading.Lock()
        self._loads = 0
        #: Least recently used first.
        self._catalogs: OrderedDict[UUID, CatalogStates] = OrderedDict()

    @property
    def bytes(self) -> int:
        """Roughly what the cached states occupy."""
        with self._lock:
            catalogs = list(self._catalogs.values())
        return sum(catalog.bytes for catalog in catalogs)

    def catalog(self, catalog: Catalog) -> CatalogStates:
        """The cached states of a catalog."""
        with self._lock:
            states = self._catalogs.get(catalog.info.id)
            if states is None:
                states = self._catalogs[catalog.info.id] = CatalogStates(catalog, self._count_load)
                if len(self._catalogs) > _MAX_CATALOGS:
                    self._catalogs.popitem(last=False)
            self._catalogs.move_to_end(catalog.info.id)
            return states

    def _count_load(self) -> None:
        self._loads += 1
        if self._loads % _LOADS_PER_TRIM == 0:
            self.trim()

    def trim(self) -> None:
        """Drops states that were not used for long if all of them occupy too much."""
        with self._lock:
            catalogs = list(self._catalogs.values())
        excess = sum(catalog.bytes for catalog in catalogs) - self._max_bytes
        for catalog in catalogs:
            if excess <= 0:
                return
            excess -= catalog.evict(excess)


def folded_name(schema: str, table: str) -> Name:
    """A name as the cache compares it."""
    return folded(schema), folded(table)
