"""The SQLite worker process is replaced when it stops responding."""

from __future__ import annotations

import struct
from pathlib import Path

import duckdb
import pytest

from swanlake._internal import subprocess_rpc
from swanlake.errors import ConfigError
from swanlake.lake.metastore.location import LakeLocation
from swanlake.lake.metastore.sqlite_worker import SqliteWorkerClient
from tests.waiting import freeze


def test_stopped_worker_is_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subprocess_rpc, "_TRANSFER_TIMEOUT", struct.pack("ll", 0, 300_000))
    lake = SqliteWorkerClient(tmp_path / "catalogs", str(tmp_path / "data"))
    try:
        lake.create("sales")
        stopped = lake._child
        assert stopped is not None
        freeze(stopped.pid)
        stopped._connections.close()  # the next call needs a new connection, and its handshake
        assert [info.name for info in lake.catalogs()] == ["sales"]
        assert lake._child is not stopped
        assert stopped._process.poll() is not None
    finally:
        lake.close()


def test_password_unusable_in_a_secret_is_refused_and_not_shown(
    duck: duckdb.DuckDBPyConnection,
) -> None:
    url = "postgresql://user@127.0.0.1:1/db?sslpassword=hunter2"
    location = LakeLocation("sales", metabase_url=url, metadata_schema="lake_sales")
    with pytest.raises(ConfigError) as refused:
        location.attach(duck)
    assert "sslpassword" in str(refused.value)
    assert "hunter2" not in str(refused.value)
