"""How a catalog is doing, in numbers, after stock DuckDB wrote to it."""

from __future__ import annotations

from datetime import UTC, datetime

from tests.integration.lake.compacting import new_lab
from tests.integration.lake.world import World

TABLE = "CREATE TABLE {t} (i INTEGER)"


def insert(first: int, end: int) -> str:
    return f"INSERT INTO {{t}} SELECT * FROM range({first}, {end})"


def test_files_and_deleted_rows(world: World) -> None:
    lab = new_lab(world, TABLE, insert(0, 1000), insert(1000, 1010))
    lab("DELETE FROM {t} WHERE i < 100")
    sizes = sorted(file.size_bytes for file in lab.files.files)
    survey = lab.catalog.survey(sizes[1])
    (table,) = survey.tables
    assert (table.full_name, table.id) == ("main.t", lab.table.id)
    assert (table.files, table.small_files, table.rows) == (2, 1, 1010)
    assert (table.deleted_rows, table.inlined_rows) == (100, 0)
    assert survey.snapshots == len(lab.catalog.snapshots())
    assert survey.oldest_snapshot == lab.catalog.snapshots()[0].time
    assert (survey.unneeded_files, survey.unneeded_since) == (0, None)


def test_rows_and_deletes_in_the_metadata(world: World) -> None:
    lab = new_lab(world, TABLE, insert(0, 100), insert(100, 105), inlined=10)
    lab("DELETE FROM {t} WHERE i < 3", "ALTER TABLE {t} ADD COLUMN j INTEGER")
    lab("INSERT INTO {t} VALUES (7, 7)")
    (table,) = lab.catalog.survey(1 << 20).tables
    assert (table.files, table.rows, table.deleted_rows, table.inlined_rows) == (1, 100, 3, 6)


def test_files_that_wait_to_be_deleted(world: World) -> None:
    before = datetime.now(UTC)
    lab = new_lab(world, TABLE, insert(0, 100), insert(100, 200))
    lab.compact()
    survey = lab.catalog.survey(1 << 20)
    assert survey.unneeded_files == 2
    assert survey.unneeded_since is not None
    assert before <= survey.unneeded_since <= datetime.now(UTC)


def test_tables_that_are_gone_are_left_out(world: World) -> None:
    lab = new_lab(world, TABLE, insert(0, 100))
    lab("DROP TABLE {t}")
    assert lab.catalog.survey(1 << 20).tables == ()
