"""Compaction with concurrent writers loses no update and revives no row."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import duckdb
import pytest

from swanlake.errors import CommitConflict, CommitStateUnknown
from swanlake.jobs.runner import R, Unit
from swanlake.lake.commit.protocol import Retries
from swanlake.lake.model.operations import Commit
from tests.integration.lake.compaction_harness import CompactionCase, PlainRunner, Version, new_case
from tests.integration.lake.fixtures import LakeHarness, attach

pytestmark = pytest.mark.covering(2)

TABLE = "CREATE TABLE {t} (i INTEGER, s VARCHAR)"


def insert(first: int, end: int) -> str:
    return f"INSERT INTO {{t}} SELECT range, 'v' || range FROM range({first}, {end})"


#: Tables for each kind of unit: files to merge, deleted rows, inlined rows.
WORK = {
    "merge": [insert(0, 5), insert(5, 9)],
    "rewrite": [insert(0, 9), "DELETE FROM {t} WHERE i = 8"],
    "fold": [insert(0, 3), insert(3, 5), "UPDATE {t} SET s = 'x' WHERE i = 0"],
}

CHANGES = {
    "delete": "DELETE FROM {t} WHERE i = 3",
    "update": "UPDATE {t} SET s = 'new' WHERE i = 4",
    "insert": insert(50, 53),
    "merge": "CALL ducklake_merge_adjacent_files('{c}')",
    "flush": "CALL ducklake_flush_inlined_data('{c}')",
    "alter": "ALTER TABLE {t} ADD COLUMN z INTEGER DEFAULT 7",
    "delete all": "DELETE FROM {t}",
}


#: Changes that may be inlined.
ROWS = ("delete", "update", "insert")
#: All changes on PostgreSQL, and one on SQLite: conflicts are checked by the same code.
CONFLICTS = [
    *(("postgres", change, 0) for change in CHANGES),
    *(("postgres", change, 10) for change in ROWS),
    *(("sqlite", "update", inlined) for inlined in (0, 10)),
]
on_each_metabase = pytest.mark.parametrize(
    ("shared_harness", "change", "inlined"), CONFLICTS, indirect=["shared_harness"]
)
on_rows_in_each_metabase = pytest.mark.parametrize(
    ("shared_harness", "change", "inlined"),
    [case for case in CONFLICTS if case[1] in ROWS],
    indirect=["shared_harness"],
)


class InterleavingRunner(PlainRunner):
    """Calls ``interfere`` between writing the files and committing them."""

    def __init__(self, interfere: Callable[[], None]) -> None:
        super().__init__()
        self._interfere = interfere
        self.times = 0

    def run(self, units: Sequence[Unit[R]], title: str) -> list[R]:
        results = super().run(units, title)
        self.times += 1
        self._interfere()
        return results


def start(harness: LakeHarness, work: str) -> CompactionCase:
    return new_case(harness, TABLE, *WORK[work], inlined=10 if work == "fold" else 0)


@on_each_metabase
@pytest.mark.parametrize("work", WORK)
def test_changes_committed_during_compaction_are_preserved(
    harness: LakeHarness, work: str, change: str, inlined: int
) -> None:
    case = start(harness, work)
    seen: dict[int, Version] = {}

    def interfere() -> None:
        if runner.times == 1:
            harness.inline(inlined)
            case(CHANGES[change])
            seen.update(case.history())

    case.runner = runner = InterleavingRunner(interfere)
    case.compact(retries=Retries(attempts=3), sleep=lambda seconds: None)
    case.check(seen)


@on_rows_in_each_metabase
@pytest.mark.parametrize("work", WORK)
def test_overlapping_transaction_is_applied_whole_or_not_at_all(
    harness: LakeHarness, work: str, change: str, inlined: int
) -> None:
    case = start(harness, work)
    other = harness.engine(1)
    other.execute(f"SET ducklake_default_data_inlining_row_limit = {inlined}")
    attach(other, harness.lake, case.catalog)
    before = case.version(case.catalog.newest_snapshot()).rows
    other.execute("BEGIN")
    statement = CHANGES[change].replace("{t}", case.name)
    other.execute(statement)
    changed = {
        row[0]: repr(row[1:])
        for row in other.execute(f"SELECT rowid, * FROM {case.name}").fetchall()
    }
    case.compact()
    expected = changed
    try:
        other.execute("COMMIT")
    except duckdb.Error:
        expected = before
    after = case.version(case.catalog.newest_snapshot()).rows
    # Rows get their ids at the commit of their transaction.
    assert sorted(after.values()) == sorted(expected.values())
    other.execute(f"DETACH {case.catalog.name}")
    with case.unchanged():
        case.compact()


@pytest.mark.parametrize("work", WORK)
def test_compaction_gives_up_after_repeated_conflicts_and_leaves_no_file(
    harness: LakeHarness, work: str
) -> None:
    case = start(harness, work)
    if work == "merge":
        case(*(insert(n, n + 5) for n in (10, 15, 20)))
    ids = iter((0, 5, 10) if work == "merge" else (0, 1, 2))

    def interfere() -> None:
        case(f"DELETE FROM {{t}} WHERE i = {next(ids)}")

    case.runner = runner = InterleavingRunner(interfere)
    waits: list[float] = []
    with pytest.raises(CommitConflict, match="Read the table again and repeat it"):
        case.compact(retries=Retries(attempts=3), sleep=waits.append)
    assert runner.times == 3
    assert len(waits) == 2
    left = {path for path in harness.parquet() if not path.endswith("-delete.parquet")}
    assert left == {file.path for file in case.files.files}
    case.runner = PlainRunner()
    with case.unchanged():
        case.compact()


def test_files_of_a_commit_with_unknown_outcome_are_not_deleted(
    harness: LakeHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    case = start(harness, "merge")

    def lost(self: object, change: Commit, writer: str) -> None:
        raise CommitStateUnknown("The outcome is unknown.")

    before = harness.parquet()
    with monkeypatch.context() as patch:
        patch.setattr(type(case.catalog), "commit", lost)
        with pytest.raises(CommitStateUnknown):
            case.compact()
    assert len(harness.parquet() - before) == 1
