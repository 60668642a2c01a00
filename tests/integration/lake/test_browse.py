"""What the console shows of a catalog, in both metadata databases."""

from __future__ import annotations

import pytest

from swanlake.errors import NotFound
from swanlake.lake.commit.changes import parse_changes
from swanlake.lake.model.layout import PartitionKey
from swanlake.lake.read.browse import SIZE_BOUNDS, describe
from tests.integration.lake.compaction_harness import new_case
from tests.integration.lake.fixtures import LakeHarness

TABLE = "CREATE TABLE {t} (i INTEGER, s VARCHAR)"
SMALL = "INSERT INTO {t} SELECT i, 'x' FROM range(10) r(i)"
LARGE = "INSERT INTO {t} SELECT i, md5(i::VARCHAR) FROM range(100000) r(i)"


def test_profile_counts_live_files_by_size(harness: LakeHarness) -> None:
    case = new_case(harness, TABLE, "ALTER TABLE {t} SET PARTITIONED BY (i)".replace("(i)", "(s)"))
    case("ALTER TABLE {t} RESET PARTITIONED BY", SMALL, SMALL, LARGE)
    profile = case.catalog.profile("main", "t")
    assert (profile.table.name, profile.table.partition_keys) == ("t", ())
    assert [each.below for each in profile.sizes] == [*SIZE_BOUNDS, None]
    files = case.files.files
    assert len(files) == 3
    for lower, each in zip((0, *SIZE_BOUNDS), profile.sizes, strict=True):
        inside = [
            file.size_bytes
            for file in files
            if lower <= file.size_bytes and (each.below is None or file.size_bytes < each.below)
        ]
        assert (each.files, each.bytes) == (len(inside), sum(inside))
    case("DELETE FROM {t}")
    assert sum(each.files for each in case.catalog.profile("main", "t").sizes) == 0
    with pytest.raises(NotFound):
        case.catalog.profile("main", "missing")


def test_profile_has_the_partitioning(harness: LakeHarness) -> None:
    case = new_case(harness, TABLE, "ALTER TABLE {t} SET PARTITIONED BY (bucket(4, i))")
    assert case.catalog.profile("main", "t").table.partition_keys == (PartitionKey(1, "bucket(4)"),)


def test_survey_adds_up_the_bytes_of_live_files(harness: LakeHarness) -> None:
    case = new_case(harness, TABLE, SMALL, LARGE)
    (table,) = case.catalog.survey(1 << 20).tables
    assert table.bytes == sum(file.size_bytes for file in case.files.files)


def test_contents_are_schemas_and_views_of_the_head(harness: LakeHarness) -> None:
    case = new_case(harness, TABLE)
    case("CREATE SCHEMA {c}.old", "DROP SCHEMA {c}.old", "CREATE SCHEMA {c}.sales")
    case("CREATE VIEW {c}.sales.v AS SELECT 42 AS answer")
    contents = case.catalog.contents()
    assert contents.schemas == ("main", "sales")
    [view] = contents.views
    assert (view.schema, view.name) == ("sales", "v")
    assert "42" in view.sql


def test_latest_snapshots_are_newest_first_with_names(harness: LakeHarness) -> None:
    case = new_case(harness, TABLE, SMALL)
    case("CREATE SCHEMA {c}.old", "DROP SCHEMA {c}.old", "ALTER TABLE {t} ADD COLUMN j INTEGER")
    newest, dropped, created, inserted = case.catalog.latest_snapshots(4)
    assert newest.snapshot == case.catalog.snapshots()[-1]
    assert newest.changes == ("altered main.t",)
    assert dropped.changes == ("dropped schema old",)
    assert created.changes == ("created schema old",)
    assert inserted.changes == ("inserted into main.t",)
    assert len(case.catalog.latest_snapshots(1000)) == len(case.catalog.snapshots())


def test_table_without_a_name_is_described_by_its_id() -> None:
    (change,) = parse_changes("deleted_from_table:7")
    assert describe(change, {}) == "deleted from #7"
