"""Nothing is deleted in a store that does not prove that it is the lake's."""

from __future__ import annotations

import os
import shutil
import sqlite3
import time
from datetime import timedelta
from pathlib import Path

import duckdb
import pytest

from swanlake.lake.lake import Lake
from swanlake.lake.lifecycle.store_claims import MARKER, store_of
from tests.integration.object_storage.lakes import duck_at, open_lake, table
from tests.object_store import S3Server, gateway_program

NOW = timedelta(0)


def lose_a_file(directory: Path) -> Path:
    """An old file that no catalog knows."""
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / "ducklake-lost.parquet"
    path.write_bytes(b"lost")
    long_ago = time.time() - 10 * 86_400
    os.utime(path, (long_ago, long_ago))
    return path


def test_a_store_that_has_the_name_of_the_lakes_bucket_loses_nothing(
    s3: S3Server, metabase: str | Path, tmp_path: Path
) -> None:
    bucket = s3.new_bucket()
    data = f"{bucket}/lake"
    with (
        S3Server(gateway_program()) as impostor,
        duck_at(s3, tmp_path / "duck") as duck,
    ):
        impostor.new_bucket(bucket.removeprefix("s3://"))
        foreign = lose_a_file(impostor.path(f"{data}/sales/main/t"))
        with open_lake(metabase, s3, data) as lake:
            sales = table(lake)
            sales.append(duck, "SELECT 1", "main", "t")
            sales.drop_table("main", "t")
            sales.expire(keep_last=1)
        with open_lake(metabase, impostor, data) as lake:
            refused = lake.collect(age=NOW)
            assert {"no marker of this lake" in str(file.problem) for file in refused} == {True}
            assert len(refused) == 2
            assert foreign.exists()
        with open_lake(metabase, s3, data) as lake:
            (deleted,) = lake.collect(age=NOW)  # what the impostor did not have is still listed
            assert deleted.problem is None
        assert not list(s3.path(data).rglob("*.parquet"))


def lake_with_rows(tmp_path: Path, duck: duckdb.DuckDBPyConnection) -> Path:
    """A lake in a directory; returns the table's directory."""
    with Lake.open(tmp_path / "catalogs", tmp_path / "data") as lake:
        table(lake).append(duck, "SELECT 1", "main", "t")
    return tmp_path / "data" / "sales" / "main" / "t"


def orphans(tmp_path: Path) -> list[str | None]:
    """The problems of deleting the orphans of a lake in a directory; None if it was deleted."""
    with Lake.open(tmp_path / "catalogs", tmp_path / "data") as lake:
        return [file.problem for file in lake.delete_orphans()]


def forget_marker(tmp_path: Path) -> None:
    """Makes it the lake of an older version, which has no marker."""
    (tmp_path / "data" / MARKER).unlink()
    with sqlite3.connect(tmp_path / "catalogs" / "registry.sqlite") as registry:
        registry.execute("DROP TABLE swanlake_store")


def test_directory_without_the_marker_loses_nothing(
    tmp_path: Path, duck: duckdb.DuckDBPyConnection
) -> None:
    lost = lose_a_file(lake_with_rows(tmp_path, duck))
    marker = tmp_path / "data" / MARKER
    content = marker.read_text()
    marker.unlink()
    (problem,) = orphans(tmp_path)
    assert f"create {marker} with the content {content.strip()}" in str(problem)
    assert lost.exists()
    assert not marker.exists()
    marker.write_text(content)
    assert orphans(tmp_path) == [None]
    assert not lost.exists()


def test_directory_of_another_lake_loses_nothing(
    tmp_path: Path, duck: duckdb.DuckDBPyConnection
) -> None:
    lost = lose_a_file(lake_with_rows(tmp_path, duck))
    (tmp_path / "data" / MARKER).write_text("01a1f05e-1981-7662-add0-6f23f3630f7c\n")
    (problem,) = orphans(tmp_path)
    assert "belongs to another lake" in str(problem)
    assert lost.exists()


def test_lake_of_an_older_version_marks_the_directory_with_its_files(
    tmp_path: Path, duck: duckdb.DuckDBPyConnection
) -> None:
    lose_a_file(lake_with_rows(tmp_path, duck))
    forget_marker(tmp_path)
    assert orphans(tmp_path) == [None]
    assert (tmp_path / "data" / MARKER).exists()


def test_lake_of_an_older_version_does_not_mark_a_directory_without_its_files(
    tmp_path: Path, duck: duckdb.DuckDBPyConnection
) -> None:
    directory = lake_with_rows(tmp_path, duck)
    forget_marker(tmp_path)
    shutil.move(directory, tmp_path / "not mounted")
    lost = lose_a_file(directory)
    (problem,) = orphans(tmp_path)
    assert "none of the files that the catalogs list" in str(problem)
    assert lost.exists()
    assert not (tmp_path / "data" / MARKER).exists()


def test_new_lake_does_not_mark_a_directory_with_files_of_another_one(
    tmp_path: Path, duck: duckdb.DuckDBPyConnection
) -> None:
    lake_with_rows(tmp_path, duck)
    forget_marker(tmp_path)
    shutil.rmtree(tmp_path / "catalogs")
    with Lake.open(tmp_path / "catalogs", tmp_path / "data") as lake:
        lake.create_catalog("sales")
        problem = lake.prove_store()
    assert "contains files that none of its catalogs lists" in str(problem)
    assert not (tmp_path / "data" / MARKER).exists()


@pytest.mark.parametrize(
    ("path", "store"),
    [
        ("/data/sales/t/f.parquet", "/data"),
        ("/data/inner/sales/f.parquet", "/data/inner"),
        ("/elsewhere/f.parquet", "/data"),  # on the same machine
        ("s3://a/lake/f.parquet", "s3://a/lake"),
        ("s3://a/other/f.parquet", "s3://a/lake"),
        ("s3://b/own/f.parquet", "s3://b/own"),  # the data path of an adopted catalog
        ("s3://b/f.parquet", None),
    ],
)
def test_innermost_marker_speaks_for_a_file(path: str, store: str | None) -> None:
    claimed = {"/data", "/data/inner", "s3://a/lake"}
    assert store_of(path, claimed, ["/data/sales/", "s3://b/own/"]) == store
