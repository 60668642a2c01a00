"""Bringing segments of a table into the lake, exactly once.

Files and the ids of their segments are committed together: whatever happens, a segment whose id is
in the ledger is in the lake, and one whose id is not there is not.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from uuid import UUID

import duckdb

from swanlake.errors import (
    CommitConflict,
    InvalidRequest,
    NotFound,
    SwanLakeError,
    TransformFailed,
    Unsupported,
)
from swanlake.lake import datafile
from swanlake.lake.commit import Committed
from swanlake.lake.lake import Catalog, Lake
from swanlake.lake.layout import DataFile, Table
from swanlake.lake.operations import Commit, Insert
from swanlake.pipeline.loans import Lender, LentFile, Loan
from swanlake.pipeline.runner import FlushRunner, TransformPlan
from swanlake.pipeline.sharing import check_seen, share
from swanlake.queue import producers
from swanlake.queue.dead_letters import DeadLetters
from swanlake.queue.names import Ingest, QueueTable
from swanlake.queue.producers import Ranges, read_notes
from swanlake.queue.segment import Damage, SegmentDamaged
from swanlake.queue.store import SegmentFile
from swanlake.queue.work import CheckUnit, FlushUnit, SegmentRef, plan_units

log = logging.getLogger("swanlake.queue")

#: Segments of one flush are split into units of this size.
UNIT_BYTES = 1 << 30
#: How often a flush begins again because the table was changed under it.
_ATTEMPTS = 5
#: What no repetition can mend: the rows do not fit the table, or there is none.
_HOPELESS = (
    NotFound,
    InvalidRequest,
    Unsupported,
    SegmentDamaged,
    duckdb.ConversionException,
    duckdb.ConstraintException,
    duckdb.InvalidInputException,
    duckdb.OutOfRangeException,
    duckdb.TypeMismatchException,
    duckdb.BinderException,
    duckdb.NotImplementedException,
)
#: How DuckDB begins to say that a file cannot hold a value.
_NOT_IN_PARQUET = "Parquet files do not support"


@dataclass(frozen=True)
class FlushReport:
    """What a flush of one table did."""

    table: QueueTable
    rows: int = 0
    bytes: int = 0
    files: int = 0
    snapshot_id: int | None = None
    milliseconds: float = 0.0
    dead_letters: int = 0

    def __add__(self, other: FlushReport) -> FlushReport:
        ids = [id for id in (self.snapshot_id, other.snapshot_id) if id is not None]
        return FlushReport(
            self.table,
            self.rows + other.rows,
            self.bytes + other.bytes,
            self.files + other.files,
            max(ids, default=None),
            self.milliseconds + other.milliseconds,
            self.dead_letters + other.dead_letters,
        )


@dataclass(frozen=True)
class _Made:
    """What the rows of segments became: files of one table or, by a transform, of several."""

    files: tuple[tuple[Table, tuple[DataFile, ...]], ...]
    damages: Mapping[UUID, tuple[Damage, ...]]

    def remove(self) -> None:
        """Removes files that will not become part of the lake."""
        for table, files in self.files:
            datafile.remove_files(table, files)


def ledger_entry(segment_id: UUID) -> str:
    """What the ledger calls a segment."""
    return f"segment:{segment_id}"


class Flusher:
    """Knows the lake, who runs units, and where hopeless segments go.

    With a lender the units run elsewhere, where the files of segments may not be seen.
    """

    def __init__(
        self,
        lake: Lake,
        runner: FlushRunner,
        dead_letters: DeadLetters,
        lender: Lender | None = None,
    ) -> None:
        self._lake = lake
        self._runner = runner
        self._dead_letters = dead_letters
        self._lender = lender

    def flush(self, table: QueueTable, segments: Sequence[SegmentFile]) -> FlushReport:
        """Brings segments into the lake or, if that cannot be, to the dead letters.

        Raises when neither was possible; whatever was done by then is not done again.
        """
        started = time.monotonic()
        report = self._flush(table, segments)
        seconds = time.monotonic() - started
        return report + FlushReport(table, milliseconds=round(seconds * 1000, 1))

    def _flush(self, table: QueueTable, segments: Sequence[SegmentFile]) -> FlushReport:
        try:
            return self._bring(table, segments)
        except (*_HOPELESS, duckdb.IOException) as error:
            if isinstance(error, duckdb.IOException) and _NOT_IN_PARQUET not in str(error):
                raise
            if len(segments) == 1:
                return self._bury(segments[0], error)
            # Each for itself: one bad segment must not take the good ones with it.
            report = FlushReport(table)
            for segment in segments:
                report += self._flush(table, [segment])
            return report

    def _bring(self, table: QueueTable, segments: Sequence[SegmentFile]) -> FlushReport:
        catalog = self._lake.catalog(table.catalog)
        if catalog.info.id != table.catalog_id:
            raise NotFound(
                f"The catalog {table.catalog} that the rows are for was dropped; another one has "
                "its name now."
            )
        known = catalog.ledger([ledger_entry(segment.id) for segment in segments])
        waiting = [segment for segment in segments if ledger_entry(segment.id) not in known]
        report = FlushReport(table, snapshot_id=max(known.values(), default=None))
        if not waiting:
            return report
        for _ in range(_ATTEMPTS - 1):
            try:
                return report + self._write(catalog, table, waiting)
            except CommitConflict as conflict:
                log.info("%s was changed during a flush: %s", table.full_name, conflict)
        return report + self._write(catalog, table, waiting)

    def _write(
        self, catalog: Catalog, table: QueueTable, segments: Sequence[SegmentFile]
    ) -> FlushReport:
        layout = catalog.table_by_id(table.table_id)
        skips = _already_there(catalog, table.table_id, segments)
        references = [segment.reference(skips[segment.id]) for segment in segments]
        title = f"flush {table.full_name}"
        plan = self._runner.transform_of(catalog.name, layout)
        with self._lent(references) as loan:
            units = plan_units(layout, references, UNIT_BYTES, loan)
            if plan is None:
                made = self._written(layout, units, title)
            else:
                made = self._transformed(catalog, plan, units, title)
        if loan is not None:
            check_seen(made.files)
        # First what cannot be brought: after the commit nobody looks at the segments again.
        damaged = self._keep_damaged(segments, made.damages)
        done = self._commit(catalog, layout, segments, made)
        files = [file for _, part in made.files for file in part] if done.applied else []
        return FlushReport(
            table,
            rows=sum(file.record_count for file in files),
            bytes=sum(file.file_size_bytes for file in files),
            files=len(files),
            snapshot_id=done.snapshot_id,
            dead_letters=damaged,
        )

    @contextmanager
    def _lent(self, segments: Sequence[SegmentRef]) -> Iterator[Loan | None]:
        """What workers elsewhere need to read the segments."""
        if self._lender is None:
            yield None
            return
        files = {str(one.id): LentFile(one.path, one.size) for one in segments}
        with self._lender.lend(files) as loan:
            yield loan

    def _written(self, layout: Table, units: Sequence[FlushUnit], title: str) -> _Made:
        """The rows as they are, in files of their table."""
        if self._lender is not None:
            share([layout])
        results = self._runner.run(units, title)
        files = tuple(file for result in results for file in result.files)
        damages: dict[UUID, tuple[Damage, ...]] = {}
        for result in results:
            damages |= result.damages
        return _Made(((layout, files),), damages)

    def _transformed(
        self, catalog: Catalog, plan: TransformPlan, units: Sequence[FlushUnit], title: str
    ) -> _Made:
        """What a transform makes of the rows, in files of the tables that it goes into."""
        targets = {name: _target(catalog, plan, name) for name in plan.into}
        if self._lender is not None:
            share(targets.values())
        checks = self._runner.run(
            [CheckUnit(unit.segments, unit.loan) for unit in units], f"check {title}"
        )
        files = self._runner.transform(plan, units, targets, title)
        damages: dict[UUID, tuple[Damage, ...]] = {}
        for check in checks:
            damages |= check
        return _Made(tuple((targets[name], made) for name, made in files.items()), damages)

    def _commit(
        self,
        catalog: Catalog,
        layout: Table,
        segments: Sequence[SegmentFile],
        made: _Made,
    ) -> Committed:
        notes = [
            note
            for segment in segments
            for note in producers.notes(segment.taken, layout.id, segment.id)
        ]
        change = Commit(
            tuple(Insert(table, files, blind=True) for table, files in made.files if files),
            base=min([layout.snapshot_id, *(table.snapshot_id for table, _ in made.files)]),
            ledger=tuple(ledger_entry(segment.id) for segment in segments),
            notes=tuple(notes),
        )
        try:
            done = catalog.commit(change, f"flush of {layout.full_name}")
        except SwanLakeError as error:
            if not error.in_doubt:
                made.remove()
            raise
        if not done.applied:
            made.remove()
        return done

    def _bury(self, segment: SegmentFile, error: Exception) -> FlushReport:
        text = error.message if isinstance(error, SwanLakeError) else str(error)
        reason = " ".join(text.split())
        if isinstance(error, SegmentDamaged):
            self._dead_letters.put_unreadable(segment.path, reason)
        else:
            self._dead_letters.put(segment, reason)
        log.error(
            "segment %s of %s is a dead letter: %s", segment.id, segment.table.full_name, reason
        )
        return FlushReport(segment.table, dead_letters=1)

    def _keep_damaged(
        self, segments: Sequence[SegmentFile], damages: Mapping[UUID, tuple[Damage, ...]]
    ) -> int:
        for segment in segments:
            if segment.id in damages:
                self._dead_letters.put_damaged(segment, damages[segment.id], segment.rows)
                log.error(
                    "segment %s of %s is damaged: %s",
                    segment.id,
                    segment.table.full_name,
                    damages[segment.id],
                )
        return len(damages)


def _target(catalog: Catalog, plan: TransformPlan, name: str) -> Table:
    """A table that a transform goes into, as it is now."""
    schema, _, table = name.partition(".")
    try:
        return catalog.table(schema, table)
    except NotFound as missing:
        raise TransformFailed(
            f"The transform of {plan.source.full_name} goes into {name}, which is not there: "
            f"{missing.message}"
        ) from missing


def _already_there(
    catalog: Catalog, table_id: int, segments: Sequence[SegmentFile]
) -> dict[UUID, frozenset[Ingest]]:
    """For each segment the batches that are in the lake already, or in a segment before it.

    A producer whose server died may have sent a batch again to the one that took its place.
    """
    found: dict[str, Ranges] = {}
    skips: dict[UUID, frozenset[Ingest]] = {}
    for segment in segments:
        skip: list[Ingest] = []
        for producer in segment.taken.producers:
            if producer not in found:
                found[producer] = read_notes(
                    catalog.ledger_under(producers.prefix(producer, table_id))
                )
            skip += segment.taken.both(producer, found[producer])
            for first, last in segment.taken.ranges(producer):
                found[producer].add(first, last)
        skips[segment.id] = frozenset(skip)
    return skips
