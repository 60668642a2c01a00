"""Flush: segments of a table reach the lake exactly once.

Files and the ids of their segments are committed in one transaction. A segment is in the lake if
and only if its id is in the ledger.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from itertools import chain
from uuid import UUID

import duckdb

from swanlake.errors import (
    CommitConflict,
    InvalidRequest,
    InvalidValue,
    NotFound,
    SwanLakeError,
    TransformFailed,
    Unsupported,
)
from swanlake.jobs.runner import FlushRunner, TransformPlan
from swanlake.jobs.segment_transfer.grants import GrantedFile, TransferGrant, TransferGrants
from swanlake.jobs.shared_directories import check_files_visible, make_table_directories
from swanlake.lake.catalog import Catalog
from swanlake.lake.commit.protocol import Committed
from swanlake.lake.files import datafile
from swanlake.lake.lake import Lake
from swanlake.lake.model.layout import DataFile, Table
from swanlake.lake.model.operations import Commit, Insert
from swanlake.lake.model.table_ref import TableRef
from swanlake.queue.batch_ids import (
    BatchId,
    IntervalSet,
    ledger_notes,
    ledger_prefix,
    parse_ledger_notes,
)
from swanlake.queue.flush.dead_letters import DeadLetters
from swanlake.queue.flush.units import CheckUnit, FlushUnit, plan_units
from swanlake.queue.storage.segment import Damage, SegmentDamaged, SegmentRef
from swanlake.queue.storage.store import SegmentFile

log = logging.getLogger("swanlake.queue")

#: The size of the units into which a flush is split.
UNIT_BYTES = 1 << 30
#: How often a flush is attempted while the table is changed concurrently.
_ATTEMPTS = 5
#: Errors that no retry mends: the rows do not fit the table, or the table is gone.
_PERMANENT = (
    NotFound,
    InvalidRequest,
    InvalidValue,
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
#: The start of DuckDB's error for a value that Parquet cannot store.
_NOT_IN_PARQUET = "Parquet files do not support"


@dataclass(frozen=True)
class FlushReport:
    """What a flush of one table did."""

    table: TableRef
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
class _WrittenFiles:
    """The files written for segments: of one table or, after a transform, of several."""

    files: tuple[tuple[Table, tuple[DataFile, ...]], ...]
    damages: Mapping[UUID, tuple[Damage, ...]]

    def remove(self) -> None:
        """Deletes files that will not be committed."""
        for table, files in self.files:
            datafile.remove_files(table, files)


def ledger_entry(segment_id: UUID) -> str:
    """The ledger entry of a segment."""
    return f"segment:{segment_id}"


class Flusher:
    """Writes segments to files, commits them, and moves unusable segments to the dead letters.

    With transfer grants, units run on remote workers that may not see the files of the segments.
    """

    def __init__(
        self,
        lake: Lake,
        runner: FlushRunner,
        dead_letters: DeadLetters,
        grants: TransferGrants | None = None,
    ) -> None:
        self._lake = lake
        self._runner = runner
        self._dead_letters = dead_letters
        self._grants = grants

    def flush(self, table: TableRef, segments: Sequence[SegmentFile]) -> FlushReport:
        """Brings segments to the lake or, on a permanent error, to the dead letters.

        Raises when neither was possible; a retry does not repeat what was committed by then.
        """
        started = time.monotonic()
        report = self._flush(table, segments)
        seconds = time.monotonic() - started
        return report + FlushReport(table, milliseconds=round(seconds * 1000, 1))

    def _flush(self, table: TableRef, segments: Sequence[SegmentFile]) -> FlushReport:
        try:
            return self._commit_segments(table, segments)
        except (*_PERMANENT, duckdb.IOException) as error:
            if isinstance(error, duckdb.IOException) and _NOT_IN_PARQUET not in str(error):
                raise
            if len(segments) == 1:
                return self._add_dead_letter(segments[0], error)
            # One by one: a bad segment must not make dead letters of the good ones.
            report = FlushReport(table)
            for segment in segments:
                report += self._flush(table, [segment])
            return report

    def _commit_segments(self, table: TableRef, segments: Sequence[SegmentFile]) -> FlushReport:
        catalog = self._lake.catalog(table.catalog)
        if catalog.info.id != table.catalog_id:
            raise NotFound(
                f"The catalog {table.catalog} that the rows are for was dropped; another catalog "
                "has its name now."
            )
        known = catalog.find_in_ledger([ledger_entry(segment.id) for segment in segments])
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
        self, catalog: Catalog, table: TableRef, segments: Sequence[SegmentFile]
    ) -> FlushReport:
        layout = catalog.table_by_id(table.table_id)
        skips = _find_duplicates(catalog, table.table_id, segments)
        references = [segment.reference(skips[segment.id]) for segment in segments]
        title = f"flush {table.full_name}"
        plan = self._runner.find_transform(catalog.name, layout)
        with self._granted(references) as grant:
            units = plan_units(layout, references, UNIT_BYTES, grant)
            if plan is None:
                written = self._write_rows(layout, units, title)
            else:
                written = self._transform_rows(catalog, plan, units, title)
        if grant is not None:
            check_files_visible(written.files)
        # Before the commit: after it the segments are not read again.
        damaged = self._store_damaged(segments, written.damages)
        done = self._commit(catalog, layout, segments, written)
        files = [file for _, part in written.files for file in part] if done.applied else []
        return FlushReport(
            table,
            rows=sum(file.record_count for file in files),
            bytes=sum(file.file_size_bytes for file in files),
            files=len(files),
            snapshot_id=done.snapshot_id,
            dead_letters=damaged,
        )

    def _granted(
        self, segments: Sequence[SegmentRef]
    ) -> AbstractContextManager[TransferGrant | None]:
        """A grant by which remote workers fetch the segments."""
        if self._grants is None:
            return nullcontext()
        return self._grants.issue(
            {str(segment.id): GrantedFile(segment.path, segment.size) for segment in segments}
        )

    def _write_rows(self, layout: Table, units: Sequence[FlushUnit], title: str) -> _WrittenFiles:
        """Writes the rows unchanged, as files of their table."""
        if self._grants is not None:
            make_table_directories([layout])
        results = self._runner.run(units, title)
        files = tuple(file for result in results for file in result.files)
        damages = {id: found for result in results for id, found in result.damages.items()}
        return _WrittenFiles(((layout, files),), damages)

    def _transform_rows(
        self, catalog: Catalog, plan: TransformPlan, units: Sequence[FlushUnit], title: str
    ) -> _WrittenFiles:
        """Writes the results of a transform, as files of its target tables."""
        targets = {name: _find_target(catalog, plan, name) for name in plan.into}
        if self._grants is not None:
            make_table_directories(targets.values())
        checks = self._runner.run(
            [CheckUnit(unit.segments, unit.grant) for unit in units], f"check {title}"
        )
        files = self._runner.transform(plan, units, targets, title)
        damages = {id: found for check in checks for id, found in check.items()}
        return _WrittenFiles(tuple((targets[name], part) for name, part in files.items()), damages)

    def _commit(
        self,
        catalog: Catalog,
        layout: Table,
        segments: Sequence[SegmentFile],
        written: _WrittenFiles,
    ) -> Committed:
        notes = [ledger_notes(segment.batch_ids, layout.id, segment.id) for segment in segments]
        change = Commit(
            tuple(Insert(table, files, blind=True) for table, files in written.files if files),
            base=min([layout.snapshot_id, *(table.snapshot_id for table, _ in written.files)]),
            ledger=tuple(ledger_entry(segment.id) for segment in segments),
            notes=tuple(chain.from_iterable(notes)),
        )
        try:
            done = catalog.commit(change, f"flush of {layout.full_name}")
        except SwanLakeError as error:
            if not error.in_doubt:
                written.remove()
            raise
        if not done.applied:
            written.remove()
        return done

    def _add_dead_letter(self, segment: SegmentFile, error: Exception) -> FlushReport:
        text = error.message if isinstance(error, SwanLakeError) else str(error)
        reason = " ".join(text.split())
        if isinstance(error, SegmentDamaged):
            self._dead_letters.add_unreadable(segment.path, reason)
        else:
            self._dead_letters.add_segment(segment, reason)
        log.error(
            "segment %s of %s is a dead letter: %s", segment.id, segment.table.full_name, reason
        )
        return FlushReport(segment.table, dead_letters=1)

    def _store_damaged(
        self, segments: Sequence[SegmentFile], damages: Mapping[UUID, tuple[Damage, ...]]
    ) -> int:
        for segment in segments:
            if segment.id in damages:
                self._dead_letters.add_damaged_parts(segment, damages[segment.id], segment.rows)
                log.error(
                    "segment %s of %s is damaged: %s",
                    segment.id,
                    segment.table.full_name,
                    damages[segment.id],
                )
        return len(damages)


def _find_target(catalog: Catalog, plan: TransformPlan, name: str) -> Table:
    """The current layout of a transform's target table."""
    schema, _, table = name.partition(".")
    try:
        return catalog.table(schema, table)
    except NotFound as missing:
        raise TransformFailed(
            f"The transform of {plan.source.full_name} writes to {name}, which does not exist: "
            f"{missing.message}"
        ) from missing


def _find_duplicates(
    catalog: Catalog, table_id: int, segments: Sequence[SegmentFile]
) -> dict[UUID, frozenset[BatchId]]:
    """For each segment the batches that are in the lake already, or in an earlier segment.

    A producer whose server died may have sent a batch again to the server that replaced it.
    """
    ingested: dict[str, IntervalSet] = {}
    skips: dict[UUID, frozenset[BatchId]] = {}
    for segment in segments:
        skip: list[BatchId] = []
        for producer in segment.batch_ids.producers:
            if producer not in ingested:
                ingested[producer] = parse_ledger_notes(
                    catalog.list_ledger(ledger_prefix(producer, table_id))
                )
            skip += segment.batch_ids.intersection(producer, ingested[producer])
            for first, last in segment.batch_ids.intervals(producer):
                ingested[producer].add(first, last)
        skips[segment.id] = frozenset(skip)
    return skips
