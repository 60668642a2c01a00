"""DuckLake's options, set by stock DuckDB, hold for files that are written here."""

from __future__ import annotations

from typing import Any

import pytest

from tests.integration.lake.compacting import Lab, new_lab
from tests.integration.lake.world import World

TABLE = "CREATE TABLE {t} (id BIGINT, v VARCHAR)"


def set_option(lab: Lab, name: str, value: object, scope: str = "") -> None:
    lab(f"CALL {{c}}.set_option('{name}', {value!r}{scope})")


def insert(lab: Lab, ids: range) -> None:
    """As stock DuckDB does it."""
    lab(f"INSERT INTO {{t}} SELECT range, 'v' || range FROM range({ids.start}, {ids.stop})")


def paths(lab: Lab) -> list[str]:
    """The files of the table, oldest first."""
    return [file.path for file in lab.files.files]


def made(lab: Lab, path: str) -> tuple[Any, ...]:
    """How a file is encoded: codecs, encodings, rows of the first row group, version."""
    codecs, encodings, rows = lab(
        "SELECT list(DISTINCT compression ORDER BY compression), "
        "list(DISTINCT encodings ORDER BY encodings), max(row_group_num_rows) "
        f"FROM parquet_metadata('{path}')"
    )[0]
    [(version,)] = lab(f"SELECT format_version FROM parquet_file_metadata('{path}')")
    return codecs, encodings, rows, version


def codec(lab: Lab) -> str:
    """That of the newest file."""
    ((name,), *_) = made(lab, paths(lab)[-1])
    return str(name)


def test_a_table_goes_before_its_schema_and_that_before_the_catalog(world: World) -> None:
    lab = new_lab(world, TABLE)
    found = []
    for name, scope in {
        "gzip": "",
        "zstd": ", schema => 'main'",
        "brotli": ", schema => 'main', table_name => 't'",
    }.items():
        world.append(lab.catalog, range(3))
        found.append(codec(lab))
        set_option(lab, "parquet_compression", name, scope)
    world.append(lab.catalog, range(3))
    assert [*found, codec(lab)] == ["SNAPPY", "GZIP", "ZSTD", "BROTLI"]
    lab("CREATE SCHEMA {c}.other", "CREATE TABLE {c}.other.t (id BIGINT)")
    lab.catalog.append(world.duck, "SELECT 1", "other", "t")
    other = lab.catalog.files(lab.catalog.table("other", "t").id)
    assert made(lab, other.files[0].path)[0] == ["GZIP"]


def test_files_are_encoded_as_stock_duckdb_does_it(world: World) -> None:
    lab = new_lab(world, TABLE)
    set_option(lab, "parquet_compression", "zstd")
    set_option(lab, "parquet_compression_level", 9)
    set_option(lab, "parquet_row_group_size", 2048)
    set_option(lab, "parquet_version", 2)
    insert(lab, range(5000))
    world.append(lab.catalog, range(5000))
    theirs, ours = paths(lab)
    assert made(lab, ours) == made(lab, theirs)
    assert made(lab, ours)[0] == ["ZSTD"]
    assert made(lab, ours)[2:] == (2048, 2)
    sizes = [file.size_bytes for file in lab.files.files]
    assert sizes[0] == sizes[1]


def test_a_level_for_another_codec_is_no_reason_to_write_nothing(world: World) -> None:
    lab = new_lab(world, TABLE)
    set_option(lab, "parquet_compression", "gzip")
    set_option(lab, "parquet_compression_level", 9)
    world.append(lab.catalog, range(3))
    assert codec(lab) == "GZIP"


@pytest.mark.parametrize("folders", [True, False])
def test_partitions_have_folders_or_not(world: World, folders: bool) -> None:
    lab = new_lab(world, TABLE, "ALTER TABLE {t} SET PARTITIONED BY (id)")
    set_option(lab, "hive_file_pattern", folders)
    insert(lab, range(1))
    world.append(lab.catalog, range(1))
    world.inline(10)
    insert(lab, range(1))
    with lab.unchanged():
        lab.compact()
    directory = lab.table.directory
    inside = {path.removeprefix(directory).rpartition("/")[0] for path in paths(lab)}
    assert inside == {"id=0" if folders else ""}


def test_rows_are_sorted_at_once_or_by_compaction(world: World) -> None:
    lab = new_lab(world, TABLE, "ALTER TABLE {t} SET SORTED BY (id DESC)")

    def order() -> list[int]:
        return [row[0] for row in lab(f"SELECT id FROM read_parquet('{paths(lab)[-1]}')")]

    set_option(lab, "sort_on_insert", False)
    world.append(lab.catalog, range(5))
    assert order() == [0, 1, 2, 3, 4]
    set_option(lab, "sort_on_insert", True)
    world.append(lab.catalog, range(5, 10))
    assert order() == [9, 8, 7, 6, 5]
    lab.compact()
    assert order() == [9, 8, 7, 6, 5, 4, 3, 2, 1, 0]


def test_large_writes_are_split(world: World) -> None:
    lab = new_lab(world, TABLE)
    set_option(lab, "target_file_size", "1MB")
    world.append(lab.catalog, range(1_000_000))
    assert len(paths(lab)) > 1


# ---- compaction ----------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["merge", "rewrite", "fold"])
def test_compaction_writes_as_the_options_say(world: World, kind: str) -> None:
    lab = new_lab(world, TABLE, inlined=10 if kind == "fold" else 0)
    insert(lab, range(5))
    insert(lab, range(5, 10))
    if kind == "rewrite":
        lab("DELETE FROM {t} WHERE id IN (2, 7)")
    set_option(lab, "parquet_compression", "zstd")
    with lab.unchanged():
        report = lab.compact()
    assert {step.kind for step in report.steps} == {kind}
    assert codec(lab) == "ZSTD"


def test_files_are_merged_up_to_the_size_that_the_table_wants(world: World) -> None:
    lab = new_lab(world, TABLE)
    for number in range(4):
        insert(lab, range(number * 10, number * 10 + 10))
    assert all(334 <= file.size_bytes <= 500 for file in lab.files.files)
    set_option(lab, "target_file_size", "1KB")
    (table,) = lab.catalog.survey(1, 0.1).tables
    assert table.small_files == 0
    (table,) = lab.catalog.survey(1, 0.75).tables
    assert table.small_files == 4
    with lab.unchanged():
        report = lab.compact()
    assert [len(step.sources) for step in report.steps] == [2, 2]


def test_files_are_rewritten_when_the_table_wants_it(world: World) -> None:
    lab = new_lab(world, TABLE)
    insert(lab, range(10))
    lab("DELETE FROM {t} WHERE id < 3")
    set_option(lab, "rewrite_delete_threshold", 0.4)
    assert lab.compact().steps == ()
    set_option(lab, "rewrite_delete_threshold", 0.3)
    assert lab.compact().files_rewritten == 1
