"""A compacted table is the same table: to every snapshot, to its change feed, to stock DuckDB."""

from __future__ import annotations

from tests.integration.lake.compacting import new_lab
from tests.integration.lake.world import World

TABLE = "CREATE TABLE {t} (i INTEGER, s VARCHAR)"


def insert(first: int, end: int) -> str:
    return f"INSERT INTO {{t}} SELECT range, 'v' || range FROM range({first}, {end})"


def test_small_files_become_one(world: World) -> None:
    lab = new_lab(world, TABLE, insert(0, 5), insert(5, 9), insert(9, 12))
    with lab.unchanged():
        report = lab.compact()
    assert (report.files_merged, report.files_made) == (3, 1)
    assert len(lab.files.files) == 1
    assert lab.compact().steps == ()


def test_files_with_deleted_rows_are_split(world: World) -> None:
    lab = new_lab(
        world,
        TABLE,
        insert(0, 10),
        insert(10, 14),
        "DELETE FROM {t} WHERE i < 3",
        "DELETE FROM {t} WHERE i IN (3, 11)",
    )
    with lab.unchanged():
        report = lab.compact()
    assert (report.files_rewritten, report.files_made) == (2, 2)
    (file,) = lab.files.files
    assert (file.record_count, file.deletes) == (9, ())


def test_inlined_rows_are_folded(world: World) -> None:
    lab = new_lab(
        world,
        TABLE,
        insert(0, 3),
        insert(3, 5),
        "DELETE FROM {t} WHERE i = 1",
        "UPDATE {t} SET s = 'new' WHERE i = 2",
        inlined=10,
    )
    with lab.unchanged():
        report = lab.compact()
    assert report.rows_folded == 6
    assert lab.files.inlined_rows == 0
