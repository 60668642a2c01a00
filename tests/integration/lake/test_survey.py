"""The survey counts what stock DuckDB wrote."""

from __future__ import annotations

from datetime import UTC, datetime

from tests.integration.lake.compaction_harness import new_case
from tests.integration.lake.fixtures import LakeHarness

TABLE = "CREATE TABLE {t} (i INTEGER)"


def insert(first: int, end: int) -> str:
    return f"INSERT INTO {{t}} SELECT * FROM range({first}, {end})"


def test_survey_counts_files_and_deleted_rows(harness: LakeHarness) -> None:
    case = new_case(harness, TABLE, insert(0, 1000), insert(1000, 1010))
    case("DELETE FROM {t} WHERE i < 100")
    sizes = sorted(file.size_bytes for file in case.files.files)
    survey = case.catalog.survey(sizes[1])
    (table,) = survey.tables
    assert (table.full_name, table.id) == ("main.t", case.table.id)
    assert (table.files, table.small_files, table.rows) == (2, 1, 1010)
    assert (table.deleted_rows, table.inlined_rows) == (100, 0)
    assert survey.snapshots == len(case.catalog.snapshots())
    assert survey.oldest_snapshot == case.catalog.snapshots()[0].time
    assert (survey.unneeded_files, survey.unneeded_since) == (0, None)


def test_survey_counts_inlined_rows_and_deletes(harness: LakeHarness) -> None:
    case = new_case(harness, TABLE, insert(0, 100), insert(100, 105), inlined=10)
    case("DELETE FROM {t} WHERE i < 3", "ALTER TABLE {t} ADD COLUMN j INTEGER")
    case("INSERT INTO {t} VALUES (7, 7)")
    (table,) = case.catalog.survey(1 << 20).tables
    assert (table.files, table.rows, table.deleted_rows, table.inlined_rows) == (1, 100, 3, 6)


def test_survey_counts_files_scheduled_for_deletion(harness: LakeHarness) -> None:
    before = datetime.now(UTC)
    case = new_case(harness, TABLE, insert(0, 100), insert(100, 200))
    case.compact()
    survey = case.catalog.survey(1 << 20)
    assert survey.unneeded_files == 2
    assert survey.unneeded_since is not None
    assert before <= survey.unneeded_since <= datetime.now(UTC)


def test_survey_excludes_dropped_tables(harness: LakeHarness) -> None:
    case = new_case(harness, TABLE, insert(0, 100))
    case("DROP TABLE {t}")
    assert case.catalog.survey(1 << 20).tables == ()
