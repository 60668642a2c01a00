"""Files follow DuckLake's options as set by stock DuckDB."""

from __future__ import annotations

from typing import Any

import pytest

from tests.integration.lake.compaction_harness import CompactionCase, new_case
from tests.integration.lake.fixtures import LakeHarness

TABLE = "CREATE TABLE {t} (id BIGINT, v VARCHAR)"


def set_option(case: CompactionCase, name: str, value: object, scope: str = "") -> None:
    case(f"CALL {{c}}.set_option('{name}', {value!r}{scope})")


def insert(case: CompactionCase, ids: range) -> None:
    """Inserts with stock DuckDB."""
    case(f"INSERT INTO {{t}} SELECT range, 'v' || range FROM range({ids.start}, {ids.stop})")


def paths(case: CompactionCase) -> list[str]:
    """The files of the table, oldest first."""
    return [file.path for file in case.files.files]


def made(case: CompactionCase, path: str) -> tuple[Any, ...]:
    """How a file is encoded: codecs, encodings, rows of the first row group, version."""
    codecs, encodings, rows = case(
        "SELECT list(DISTINCT compression ORDER BY compression), "
        "list(DISTINCT encodings ORDER BY encodings), max(row_group_num_rows) "
        f"FROM parquet_metadata('{path}')"
    )[0]
    [(version,)] = case(f"SELECT format_version FROM parquet_file_metadata('{path}')")
    return codecs, encodings, rows, version


def codec(case: CompactionCase) -> str:
    """The codec of the newest file."""
    ((name,), *_) = made(case, paths(case)[-1])
    return str(name)


def test_table_option_overrides_schema_and_catalog_options(harness: LakeHarness) -> None:
    case = new_case(harness, TABLE)
    codecs = []
    for name, scope in {
        "gzip": "",
        "zstd": ", schema => 'main'",
        "brotli": ", schema => 'main', table_name => 't'",
    }.items():
        harness.append(case.catalog, range(3))
        codecs.append(codec(case))
        set_option(case, "parquet_compression", name, scope)
    harness.append(case.catalog, range(3))
    assert [*codecs, codec(case)] == ["SNAPPY", "GZIP", "ZSTD", "BROTLI"]
    case("CREATE SCHEMA {c}.other", "CREATE TABLE {c}.other.t (id BIGINT)")
    case.catalog.append(harness.duck, "SELECT 1", "other", "t")
    other = case.catalog.files(case.catalog.table("other", "t").id)
    assert made(case, other.files[0].path)[0] == ["GZIP"]


def test_files_are_encoded_as_by_stock_duckdb(harness: LakeHarness) -> None:
    case = new_case(harness, TABLE)
    set_option(case, "parquet_compression", "zstd")
    set_option(case, "parquet_compression_level", 9)
    set_option(case, "parquet_row_group_size", 2048)
    set_option(case, "parquet_version", 2)
    insert(case, range(5000))
    harness.append(case.catalog, range(5000))
    stock, ours = paths(case)
    assert made(case, ours) == made(case, stock)
    assert made(case, ours)[0] == ["ZSTD"]
    assert made(case, ours)[2:] == (2048, 2)
    sizes = [file.size_bytes for file in case.files.files]
    assert sizes[0] == sizes[1]


def test_compression_level_of_another_codec_is_ignored(harness: LakeHarness) -> None:
    case = new_case(harness, TABLE)
    set_option(case, "parquet_compression", "gzip")
    set_option(case, "parquet_compression_level", 9)
    harness.append(case.catalog, range(3))
    assert codec(case) == "GZIP"


@pytest.mark.parametrize("folders", [True, False])
def test_partition_folders_follow_the_option(harness: LakeHarness, folders: bool) -> None:
    case = new_case(harness, TABLE, "ALTER TABLE {t} SET PARTITIONED BY (id)")
    set_option(case, "hive_file_pattern", folders)
    insert(case, range(1))
    harness.append(case.catalog, range(1))
    harness.inline(10)
    insert(case, range(1))
    with case.unchanged():
        case.compact()
    directory = case.table.directory
    inside = {path.removeprefix(directory).rpartition("/")[0] for path in paths(case)}
    assert inside == {"id=0" if folders else ""}


def test_rows_are_sorted_on_insert_or_by_compaction(harness: LakeHarness) -> None:
    case = new_case(harness, TABLE, "ALTER TABLE {t} SET SORTED BY (id DESC)")

    def order() -> list[int]:
        return [row[0] for row in case(f"SELECT id FROM read_parquet('{paths(case)[-1]}')")]

    set_option(case, "sort_on_insert", False)
    harness.append(case.catalog, range(5))
    assert order() == [0, 1, 2, 3, 4]
    set_option(case, "sort_on_insert", True)
    harness.append(case.catalog, range(5, 10))
    assert order() == [9, 8, 7, 6, 5]
    case.compact()
    assert order() == [9, 8, 7, 6, 5, 4, 3, 2, 1, 0]


def test_large_writes_are_split_into_files(harness: LakeHarness) -> None:
    case = new_case(harness, TABLE)
    set_option(case, "target_file_size", "1MB")
    harness.append(case.catalog, range(1_000_000))
    assert len(paths(case)) > 1


# ---- compaction ----------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["merge", "rewrite", "fold"])
def test_compaction_follows_the_options(harness: LakeHarness, kind: str) -> None:
    case = new_case(harness, TABLE, inlined=10 if kind == "fold" else 0)
    insert(case, range(5))
    insert(case, range(5, 10))
    if kind == "rewrite":
        case("DELETE FROM {t} WHERE id IN (2, 7)")
    set_option(case, "parquet_compression", "zstd")
    with case.unchanged():
        report = case.compact()
    assert {step.kind for step in report.steps} == {kind}
    assert codec(case) == "ZSTD"


def test_files_are_merged_up_to_the_target_size(harness: LakeHarness) -> None:
    case = new_case(harness, TABLE)
    for number in range(4):
        insert(case, range(number * 10, number * 10 + 10))
    assert all(334 <= file.size_bytes <= 500 for file in case.files.files)
    set_option(case, "target_file_size", "1KB")
    (table,) = case.catalog.survey(1, 0.1).tables
    assert table.small_files == 0
    (table,) = case.catalog.survey(1, 0.75).tables
    assert table.small_files == 4
    with case.unchanged():
        report = case.compact()
    assert [len(step.sources) for step in report.steps] == [2, 2]


def test_files_are_rewritten_at_the_delete_threshold(harness: LakeHarness) -> None:
    case = new_case(harness, TABLE)
    insert(case, range(10))
    case("DELETE FROM {t} WHERE id < 3")
    set_option(case, "rewrite_delete_threshold", 0.4)
    assert case.compact().steps == ()
    set_option(case, "rewrite_delete_threshold", 0.3)
    assert case.compact().files_rewritten == 1
