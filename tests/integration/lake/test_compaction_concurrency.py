"""Compaction beside others who write: no update is lost, and no row comes back."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import duckdb
import pytest

from swanlake.errors import CommitConflict, CommitStateUnknown
from swanlake.lake.commit import Retries
from swanlake.lake.operations import Commit
from swanlake.pipeline.runner import R, Unit
from tests.integration.lake.compacting import Lab, PlainRunner, Version, new_lab
from tests.integration.lake.world import World, attach

TABLE = "CREATE TABLE {t} (i INTEGER, s VARCHAR)"


def insert(first: int, end: int) -> str:
    return f"INSERT INTO {{t}} SELECT range, 'v' || range FROM range({first}, {end})"


#: Something for each kind of work: files to merge, deleted rows, inlined rows.
WORK = {
    "merge": [insert(0, 5), insert(5, 9)],
    "rewrite": [insert(0, 9), "DELETE FROM {t} WHERE i = 8"],
    "fold": [insert(0, 3), insert(3, 5), "UPDATE {t} SET s = 'x' WHERE i = 0"],
}

THEIRS = {
    "delete": "DELETE FROM {t} WHERE i = 3",
    "update": "UPDATE {t} SET s = 'new' WHERE i = 4",
    "insert": insert(50, 53),
    "merge": "CALL ducklake_merge_adjacent_files('{c}')",
    "flush": "CALL ducklake_flush_inlined_data('{c}')",
    "alter": "ALTER TABLE {t} ADD COLUMN z INTEGER DEFAULT 7",
    "delete all": "DELETE FROM {t}",
}


#: Those that may be inlined.
ROWS = ("delete", "update", "insert")


class MeetingRunner(PlainRunner):
    """Lets somebody else commit after the files are written and before ours is."""

    def __init__(self, meet: Callable[[], None]) -> None:
        super().__init__()
        self._meet = meet
        self.times = 0

    def run(self, units: Sequence[Unit[R]], title: str) -> list[R]:
        results = super().run(units, title)
        self.times += 1
        self._meet()
        return results


def start(world: World, work: str) -> Lab:
    return new_lab(world, TABLE, *WORK[work], inlined=10 if work == "fold" else 0)


@pytest.mark.parametrize(
    ("theirs", "inlined"),
    [*((theirs, 0) for theirs in THEIRS), *((theirs, 10) for theirs in ROWS)],
)
@pytest.mark.parametrize("work", WORK)
def test_what_they_commit_meanwhile_is_there_afterwards(
    world: World, work: str, theirs: str, inlined: int
) -> None:
    lab = start(world, work)
    seen: dict[int, Version] = {}

    def meet() -> None:
        if runner.times == 1:
            world.inline(inlined)
            lab(THEIRS[theirs])
            seen.update(lab.history())

    lab.runner = runner = MeetingRunner(meet)
    lab.compact(retries=Retries(attempts=3), sleep=lambda seconds: None)
    lab.check(seen)


@pytest.mark.parametrize("inlined", [0, 10], ids=["files", "inlined"])
@pytest.mark.parametrize("theirs", ROWS)
@pytest.mark.parametrize("work", WORK)
def test_a_transaction_that_began_before_is_there_whole_or_not_at_all(
    world: World, work: str, theirs: str, inlined: int
) -> None:
    lab = start(world, work)
    other = world.engine(1)
    other.execute(f"SET ducklake_default_data_inlining_row_limit = {inlined}")
    attach(other, world.lake, lab.catalog)
    before = lab.version(lab.catalog.snapshot_id()).rows
    other.execute("BEGIN")
    statement = THEIRS[theirs].replace("{t}", lab.name)
    other.execute(statement)
    mine = {
        row[0]: repr(row[1:])
        for row in other.execute(f"SELECT rowid, * FROM {lab.name}").fetchall()
    }
    lab.compact()
    expected = mine
    try:
        other.execute("COMMIT")
    except duckdb.Error:
        expected = before
    after = lab.version(lab.catalog.snapshot_id()).rows
    # Rows of a transaction get their ids when it is committed.
    assert sorted(after.values()) == sorted(expected.values())
    other.execute(f"DETACH {lab.catalog.name}")
    with lab.unchanged():
        lab.compact()


@pytest.mark.parametrize("work", WORK)
def test_it_gives_up_when_others_are_always_faster_and_leaves_no_file(
    world: World, work: str
) -> None:
    lab = start(world, work)
    if work == "merge":
        lab(*(insert(n, n + 5) for n in (10, 15, 20)))
    ids = iter((0, 5, 10) if work == "merge" else (0, 1, 2))

    def meet() -> None:
        lab(f"DELETE FROM {{t}} WHERE i = {next(ids)}")

    lab.runner = runner = MeetingRunner(meet)
    waits: list[float] = []
    with pytest.raises(CommitConflict, match="Read the table again and repeat it"):
        lab.compact(retries=Retries(attempts=3), sleep=waits.append)
    assert runner.times == 3
    assert len(waits) == 2
    left = {path for path in world.parquet() if not path.endswith("-delete.parquet")}
    assert left == {file.path for file in lab.files.files}
    lab.runner = PlainRunner()
    with lab.unchanged():
        lab.compact()


def test_files_of_a_commit_in_doubt_are_kept(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    lab = start(world, "merge")

    def lost(self: object, change: Commit, writer: str) -> None:
        raise CommitStateUnknown("Nobody knows.")

    before = world.parquet()
    with monkeypatch.context() as patch:
        patch.setattr(type(lab.catalog), "commit", lost)
        with pytest.raises(CommitStateUnknown):
            lab.compact()
    assert len(world.parquet() - before) == 1
