"""What interrupted writes leave in an object store is found and deleted."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from swanlake.lake.files import storage
from swanlake.lake.lake import Lake
from swanlake.lake.lifecycle.file_cleanup import DeletionReason
from tests.integration.object_storage.lakes import duck_at, open_lake, table
from tests.object_store import S3Server

NOW = timedelta(0)


@pytest.fixture
def data(s3: S3Server) -> str:
    return f"{s3.new_bucket()}/lake"


@pytest.fixture
def s3_lake(metabase: str | Path, s3: S3Server, data: str) -> Iterator[Lake]:
    """A lake in a bucket."""
    with open_lake(metabase, s3, data) as lake:
        yield lake


def test_unfinished_uploads_and_folder_objects_are_orphans(
    s3_lake: Lake, s3: S3Server, data: str, tmp_path: Path
) -> None:
    with duck_at(s3, tmp_path / "duck") as duck:
        catalog = table(s3_lake)
        catalog.append(duck, "SELECT 1", "main", "t")
    bucket = data.removeprefix("s3://").removesuffix("/lake")
    client = s3.botocore()
    key = "lake/sales/main/t/ducklake-unfinished.parquet"
    client.create_multipart_upload(Bucket=bucket, Key=key)
    client.put_object(Bucket=bucket, Key="lake/sales/main/empty/")
    expected = {DeletionReason.UNFINISHED, DeletionReason.ORPHANED}
    assert s3_lake.delete_orphans() == []  # they are young
    found = s3_lake.delete_orphans(age=NOW, dry_run=True)
    assert {file.reason for file in found} == expected
    assert {file.path.partition("?")[0] for file in found} == {
        f"s3://{bucket}/{key}",
        f"{data}/sales/main/empty/",
    }
    deleted = s3_lake.delete_orphans(age=NOW)
    assert [file.problem for file in deleted] == [None, None]
    assert s3_lake.delete_orphans(age=NOW, dry_run=True) == []
    assert not list(storage.unfinished_uploads(data))
    assert catalog.missing_files() == []


def test_catalogs_are_created_while_a_bucket_is_listed(
    s3_lake: Lake, data: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    table(s3_lake)
    is_listing, may_go_on = threading.Event(), threading.Event()
    list_entries = storage.entries_under

    def list_slowly(directory: str) -> Iterator[Any]:
        is_listing.set()
        assert may_go_on.wait(120)
        return list_entries(directory)

    monkeypatch.setattr(storage, "entries_under", list_slowly)
    cleaning = threading.Thread(target=s3_lake.delete_orphans)
    cleaning.start()
    try:
        assert is_listing.wait(120)
        assert s3_lake.create_catalog("meanwhile").name == "meanwhile"
        assert s3_lake.fork_catalog("sales", "a_fork").name == "a_fork"
    finally:
        may_go_on.set()
        cleaning.join()
