"""Files and their names are on disk before anything refers to them."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from swanlake.lake.files import datafile, storage
from swanlake.lake.lifecycle.leases import FileLeases
from swanlake.lake.metastore.local import MetadataService, open_metastore
from swanlake.lake.model.layout import Column, Table
from swanlake.queue.storage.ownership import Ownership
from tests.stock_duckdb import stock_duckdb


class Disk:
    """What this process synced and renamed."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        #: ``sync`` and the path at that moment, or ``rename`` and the new path; in order.
        self.events: list[tuple[str, Path]] = []
        self._fsync = os.fsync
        monkeypatch.setattr(os, "fsync", self._sync)
        for name in ("rename", "replace"):
            monkeypatch.setattr(os, name, self._renames(getattr(os, name)))

    def _sync(self, descriptor: int) -> None:
        self.events.append(("sync", Path(os.readlink(f"/proc/self/fd/{descriptor}"))))
        self._fsync(descriptor)

    def _renames(self, rename: Any) -> Any:
        def renamed(source: Any, target: Any) -> None:
            rename(source, target)
            self.events.append(("rename", Path(target)))

        return renamed

    def synced_before(self, path: Path) -> list[Path]:
        """What was synced before a file got its name."""
        return self._synced(self.events[: self.events.index(("rename", path))])

    def synced_after(self, path: Path) -> list[Path]:
        """What was synced after a file got its name."""
        return self._synced(self.events[self.events.index(("rename", path)) :])

    @staticmethod
    def _synced(events: list[tuple[str, Path]]) -> list[Path]:
        return [path for kind, path in events if kind == "sync"]


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> Disk:
    return Disk(monkeypatch)


def test_data_file_is_synced_before_it_gets_its_name(disk: Disk, tmp_path: Path) -> None:
    table = Table(1, "main", "t", f"{tmp_path}/data/main/t/", (Column(1, "i", "int64"),))
    with stock_duckdb() as connection:
        [file] = datafile.write_files(connection, "SELECT 1 AS i", table)
        path = Path(table.directory) / file.path
        *directories, content = disk.synced_before(path)
        assert content.name == path.name
        # The directories that were created for it have names, too.
        assert set(directories) == {tmp_path, tmp_path / "data", tmp_path / "data" / "main"}
        assert disk.synced_after(path) == [path.parent]
        disk.events.clear()
        [file] = datafile.write_files(connection, "SELECT 2 AS i", table)
    path = Path(table.directory) / file.path
    assert [each.name for each in disk.synced_before(path)] == [path.name]
    assert disk.synced_after(path) == [path.parent]


def test_stored_file_is_synced_before_it_gets_its_name(disk: Disk, tmp_path: Path) -> None:
    path = tmp_path / "letters" / "one"
    storage.write(str(path), [b"rows"])
    assert disk.synced_before(path) == [path.with_name("one.partial")]
    assert set(disk.synced_after(path)) == {tmp_path, path.parent}


def test_name_of_a_new_catalog_is_synced(disk: Disk, tmp_path: Path) -> None:
    directory = tmp_path / "catalogs"
    metastore = open_metastore(directory, str(tmp_path / "data"))
    info = MetadataService(metastore).create("sales")
    assert directory in disk.synced_after(directory / f"{info.storage_name}.sqlite")
    metastore.close()


def test_name_of_a_queue_directory_is_synced(disk: Disk, tmp_path: Path) -> None:
    leases = FileLeases(tmp_path / "leases")
    ownership = Ownership(tmp_path / "a" / "queue", leases)
    synced = set(disk.synced_after(ownership.directory))
    assert synced == {tmp_path, tmp_path / "a", tmp_path / "a" / "queue"}
    ownership.release()
    leases.close()
