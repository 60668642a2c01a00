"""The compaction plan: which files are merged, rewritten and skipped."""

from __future__ import annotations

from dataclasses import replace
from itertools import count
from typing import Any

import pytest

from swanlake.config import Settings
from swanlake.lake.model.layout import Column, Table, TableOptions
from swanlake.lake.model.table_files import InlinedTable, LiveDeletes, LiveFile, TableFiles
from swanlake.maintenance.compaction.plan import (
    CompactionPlan,
    CompactOptions,
    FileGroup,
    SkippedFile,
    plan_compaction,
)
from swanlake.maintenance.settings import MaintenanceSettings

COLUMNS = (Column(1, "id", "int64"), Column(2, "v", "varchar"))
TABLE = Table(5, "main", "t", "/lake/main/t/", COLUMNS, snapshot_id=9)
OPTIONS = CompactOptions(target_file_size=100, small_file_ratio=0.75, deleted_ratio=0.25)

_ids = count(1)


def file(size: int = 10, **more: Any) -> LiveFile:
    number = next(_ids)
    given: dict[str, Any] = {"record_count": 20, "columns": COLUMNS, "row_id_start": 0}
    return LiveFile(
        number, f"/lake/main/t/{number}.parquet", size_bytes=size, begin_snapshot=3, **given | more
    )


def worn(deleted: int, **more: Any) -> LiveFile:
    deletes = LiveDeletes(next(_ids), "/lake/main/t/d-delete.parquet", deleted, 4)
    return file(deletes=(deletes,), **more)


def plan(*files: LiveFile, options: CompactOptions = OPTIONS) -> Any:
    return plan_compaction(TableFiles(TABLE, files), options)


def test_plan_is_empty_without_files() -> None:
    assert not plan()
    assert not plan(file())
    assert not plan(file(80), file(80))


def test_plan_with_any_work_is_not_empty() -> None:
    group = FileGroup((file(),))
    assert CompactionPlan(merges=(group,))
    assert CompactionPlan(rewrites=(group,))
    assert CompactionPlan(inlined=(InlinedTable("inlined", 3, TABLE),))
    assert not CompactionPlan(skipped=(SkippedFile("f", "no"),))


def test_default_options_are_those_of_the_settings() -> None:
    options = CompactOptions()
    assert MaintenanceSettings.from_settings(Settings()).options == options
    assert (options.small_file_ratio, options.max_files) == (0.75, 10_000)


def test_options_of_a_table_override_the_settings() -> None:
    table = replace(TABLE, options=TableOptions(target_file_size=50, deleted_ratio=0.5))
    files = [file(30) for _ in range(3)]
    found = plan_compaction(TableFiles(table, (*files, worn(9), worn(10))), OPTIONS)
    assert found.merges == ()
    assert [group.rows for group in found.rewrites] == [10]


def test_small_files_are_merged_and_large_ones_stay() -> None:
    one, large, two, three = file(), file(75), file(), file()
    assert plan(one, large, two, three).merges == (FileGroup((one, two, three)),)


def test_merged_files_are_filled_up_to_the_target_in_order() -> None:
    files = [file(size) for size in (40, 40, 40, 30, 30, 70)]
    assert plan(*files).merges == (FileGroup(tuple(files[:2])), FileGroup(tuple(files[2:5])))


def test_group_may_have_exactly_the_target_size() -> None:
    files = [file(size) for size in (40, 60, 30, 70, 41, 60)]
    groups = [FileGroup(tuple(files[first : first + 2])) for first in (0, 2)]
    assert plan(*files).merges == tuple(groups)
    assert [group.size_bytes for group in groups] == [100, 100]
    assert not plan(file(41), file(60))


def test_file_without_rows_has_its_whole_size() -> None:
    assert FileGroup((file(10, record_count=0),)).size_bytes == 10


def test_single_file_is_not_merged() -> None:
    assert not plan(file())


@pytest.mark.parametrize(
    "other",
    [
        {"partition_id": 8, "partition_values": ("b",)},
        {"partition_id": 8, "partition_values": (None,)},
        {"partition_id": 7, "partition_values": ("a",)},
        {"columns": COLUMNS[:1]},
        {"columns": (Column(1, "id", "int32"), COLUMNS[1])},
        {"columns": (COLUMNS[0], Column(2, "v", "struct", children=(Column(3, "a", "int8"),)))},
    ],
)
def test_files_of_different_shape_are_not_merged(other: dict[str, Any]) -> None:
    same: dict[str, Any] = {"partition_id": 8, "partition_values": ("a",)}
    first, second, third = file(**same), file(**same | other), file(**same)
    assert plan(first, second, third).merges == (FileGroup((first, third)),)


def test_renamed_columns_do_not_prevent_a_merge() -> None:
    renamed = (Column(1, "number", "int64"), COLUMNS[1])
    assert len(plan(file(), file(columns=renamed)).merges) == 1


def test_file_is_rewritten_at_the_deleted_ratio() -> None:
    few, many, small = worn(4), worn(5), file()
    found = plan(few, many, small)
    assert found.merges == ()
    assert found.rewrites == (FileGroup((many,)),)
    assert found.rewrites[0].rows == 15


def test_file_without_deleted_rows_is_not_rewritten_at_any_ratio() -> None:
    assert not plan(file(80), file(80), options=replace(OPTIONS, deleted_ratio=0.0))


def test_file_larger_than_the_target_is_rewritten_alone() -> None:
    large, small = worn(5, size=200), worn(5)
    assert plan(large, small).rewrites == (FileGroup((large,)), FileGroup((small,)))


def test_inlined_deletes_count() -> None:
    both = replace(worn(4), inlined_deletes=((7, 5),))
    assert both.deleted_count == 5
    assert plan(both).rewrites == (FileGroup((both,)),)


def test_ended_deletes_do_not_count() -> None:
    ended = LiveDeletes(99, "/d", 18, 4, end_snapshot=5)
    assert not plan(file(deletes=(ended,)))


def test_large_file_is_rewritten_by_its_remaining_size() -> None:
    files = [worn(10, size=size) for size in (120, 60, 60)]
    assert plan(*files).rewrites == (FileGroup((files[0], files[1])), FileGroup((files[2],)))


@pytest.mark.parametrize(
    ("obstacle", "reason"),
    [
        ({"mapping_id": 3}, "it was added by name, and its columns have no ids"),
        ({"encrypted": True}, "it is encrypted"),
        ({"format": "orc"}, "it is a orc file"),
        (
            {"deletes": (LiveDeletes(9, "/d", 10, 4, format="puffin"),)},
            "its deleted rows are in a puffin file",
        ),
    ],
)
def test_unreadable_file_is_skipped_with_a_reason(obstacle: dict[str, Any], reason: str) -> None:
    odd, one, two = file(**obstacle), file(), file()
    found = plan(odd, one, two)
    assert found.merges == (FileGroup((one, two)),)
    assert found.skipped == (SkippedFile(odd.path, reason),)


def test_unreadable_file_is_reported_only_if_it_needs_compaction() -> None:
    small, large = file(mapping_id=3), file(80, mapping_id=3)
    deleted = worn(1, size=80, mapping_id=3)
    assert [one.path for one in plan(small, large, deleted).skipped] == [small.path, deleted.path]


def test_encrypted_table_is_skipped() -> None:
    found = plan_compaction(TableFiles(replace(TABLE, encrypted=True), (file(), file())), OPTIONS)
    assert not found
    assert [one.reason for one in found.skipped] == ["encrypted files cannot be written"]


def test_table_with_an_internal_column_name_is_skipped() -> None:
    (column, *others) = TABLE.columns
    table = replace(TABLE, columns=(replace(column, name="_SwanLake_Dead"), *others))
    found = plan_compaction(TableFiles(table, (file(), file())), OPTIONS)
    assert not found
    assert "_swanlake_dead" in found.skipped[0].reason


def test_inlined_rows_are_flushed() -> None:
    inlined = tuple(InlinedTable(f"inlined_{n}", n, TABLE) for n in (3, 4))
    table = TableFiles(TABLE, inlined=inlined)
    assert plan_compaction(table, OPTIONS).inlined == inlined


def test_max_files_limits_a_plan() -> None:
    files = [file(40) for _ in range(6)]
    limited = replace(OPTIONS, max_files=5)
    assert [len(group.files) for group in plan(*files, options=limited).merges] == [2, 2]


def test_max_files_limits_a_group() -> None:
    files = [file(1) for _ in range(12)]
    limited = replace(OPTIONS, max_files=5)
    assert plan(*files, options=limited).merges == (FileGroup(tuple(files[:5])),)


def test_rewrites_do_not_depend_on_merges() -> None:
    small, deleted = [file(40) for _ in range(4)], [worn(10) for _ in range(4)]
    limited = replace(OPTIONS, max_files=4)
    before = plan(*small, *deleted, options=limited)
    assert before.merges
    after = plan(file(80), file(80), *deleted, options=limited)
    assert before.rewrites == after.rewrites == (FileGroup(tuple(deleted)),)
