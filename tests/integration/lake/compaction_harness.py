"""A table to compact, and checks that stock DuckDB sees no difference."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any

import duckdb

from swanlake.jobs.runner import R, Runner, Unit
from swanlake.lake.catalog import Catalog
from swanlake.lake.commit.protocol import Retries
from swanlake.lake.model.layout import Table
from swanlake.lake.model.table_files import TableFiles
from swanlake.maintenance.compaction.plan import CompactOptions
from swanlake.maintenance.compaction.run import CompactReport, compact
from tests.integration.lake.fixtures import LakeHarness, attach

#: Compacts everything that can be compacted.
EAGER = CompactOptions(deleted_ratio=0.0)


class PlainRunner:
    """Runs units on DuckDB without any lake, as a worker on another machine would."""

    def __init__(self) -> None:
        self.ran: list[Unit[Any]] = []

    def run(self, units: Sequence[Unit[R]], title: str) -> list[R]:
        self.ran += units
        with duckdb.connect(":memory:", config={"threads": 1}) as connection:
            return [unit.run(connection) for unit in units]


@dataclass(frozen=True)
class Version:
    """A table as it was at one snapshot: the values of its rows by their ids."""

    columns: tuple[str, ...]
    rows: dict[int, str]


@dataclass
class CompactionCase:
    """The table ``t`` of one catalog, and its checks."""

    harness: LakeHarness
    catalog: Catalog
    runner: PlainRunner = field(default_factory=PlainRunner)
    #: The versions that were read last. No later statement may change them, so ``unchanged``
    #: compares with them and reads each version once.
    known: dict[int, Version] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return f"{self.catalog.name}.t"

    @property
    def table(self) -> Table:
        return self.catalog.table("main", "t")

    @property
    def files(self) -> TableFiles:
        return self.catalog.files(self.table.id)

    def __call__(self, *statements: str) -> list[tuple[Any, ...]]:
        """Runs statements on stock DuckDB; ``{t}`` is the table and ``{c}`` the catalog."""
        rows: list[tuple[Any, ...]] = []
        for sql in statements:
            rows = self.harness.sql(sql.replace("{t}", self.name).replace("{c}", self.catalog.name))
        return rows

    def compact(
        self, options: CompactOptions = EAGER, runner: Runner | None = None, **more: Any
    ) -> CompactReport:
        more.setdefault("retries", Retries(attempts=1))
        return compact(self.catalog, self.table.id, runner or self.runner, options, **more)

    @contextmanager
    def unchanged(self) -> Iterator[None]:
        """Checks that the block changes no row of any snapshot and leaves a valid catalog."""
        before = self.history(self.known)
        yield
        self.check(before)

    def check(self, before: dict[int, Version]) -> None:
        after = self.known = self.history()
        newest = before[max(before)]
        for number, version in after.items():
            assert version == before.get(number, newest), f"snapshot {number}"
        assert set(before) <= set(after)
        self.check_feed(after)
        assert self.catalog.check() == []
        assert self.catalog.missing_files() == []

    def history(self, known: Mapping[int, Version] | None = None) -> dict[int, Version]:
        """The table at every snapshot that has it; ``known`` versions are not read again."""
        [(first,)] = self.harness.sql(
            "SELECT min(begin_snapshot) FROM "
            f"{self.harness.metadata(self.catalog, 'ducklake_table')} WHERE table_id = 1"
        )
        known = known or {}
        return {
            snapshot.id: known.get(snapshot.id) or self.version(snapshot.id)
            for snapshot in self.catalog.snapshots()
            if snapshot.id >= first
        }

    def version(self, at: int) -> Version:
        result = self.harness.duck.execute(f"SELECT rowid, * FROM {self.name} AT (VERSION => {at})")
        columns = tuple(f"{column[0]} {column[1]}" for column in result.description or ())
        rows = result.fetchall()
        assert len({row[0] for row in rows}) == len(rows), f"row ids twice at snapshot {at}"
        assert self(f"SELECT count(*) FROM {{t}} AT (VERSION => {at})") == [(len(rows),)]
        return Version(columns, {row[0]: repr(row[1:]) for row in rows})

    # ---- the change feed -----------------------------------------------------------------------

    def check_feed(self, history: dict[int, Version]) -> None:
        """Compares stock DuckDB's change feed with the differences between versions."""
        snapshots = sorted(history)
        assert snapshots == list(range(snapshots[0], snapshots[-1] + 1))
        for _, run in groupby(snapshots, key=lambda number: history[number].columns):
            _, *later = run
            changed = {
                number: _changes(number, history[number - 1], history[number]) for number in later
            }
            for number, changes in changed.items():
                if changes:
                    assert self.feed(number, number) == changes, f"snapshot {number}"
            if later:
                whole, expected = self.feed(later[0], later[-1]), sum(changed.values(), Counter())
                assert whole == expected, f"{whole - expected} more, {expected - whole} missing"

    def feed(self, first: int, last: int) -> Counter[tuple[Any, ...]]:
        # Stock DuckDB has one thread here: with several, DuckLake rarely reports an insert as half
        # of an update.
        rows = self(f"FROM ducklake_table_changes('{{c}}', 'main', 't', {first}, {last})")
        return Counter((*row[:3], repr(row[3:])) for row in rows)


def _changes(number: int, before: Version, after: Version) -> Counter[tuple[Any, ...]]:
    changes: list[tuple[Any, ...]] = []
    for row_id in before.rows.keys() | after.rows.keys():
        old, new = before.rows.get(row_id), after.rows.get(row_id)
        if old == new:
            continue
        both = old is not None and new is not None
        if old is not None:
            changes.append((number, row_id, "update_preimage" if both else "delete", old))
        if new is not None:
            changes.append((number, row_id, "update_postimage" if both else "insert", new))
    return Counter(changes)


def new_case(harness: LakeHarness, *statements: str, inlined: int = 0) -> CompactionCase:
    """An attached catalog with a table that the statements create and fill."""
    catalog = harness.lake.create_catalog("c")
    harness.inline(inlined)
    attach(harness.duck, harness.lake, catalog)
    case = CompactionCase(harness, catalog)
    case(*statements)
    return case
