"""The process that keeps SQLite catalogs: nobody waits for it without a limit."""

from __future__ import annotations

import os
import signal
import struct
from pathlib import Path

import duckdb
import pytest

from swanlake import child
from swanlake.errors import ConfigError
from swanlake.lake.keeper import RemoteLake
from swanlake.lake.location import LakeLocation


def test_a_keeper_that_was_stopped_is_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(child, "_TRANSFER_TIMEOUT", struct.pack("ll", 0, 300_000))
    lake = RemoteLake(tmp_path / "catalogs", str(tmp_path / "data"))
    try:
        lake.create("sales")
        stopped = lake._child
        assert stopped is not None
        os.kill(stopped.pid, signal.SIGSTOP)
        os.waitpid(stopped.pid, os.WUNTRACED)  # until then its threads may answer
        for connection in stopped._free:
            connection.close()
        stopped._free.clear()  # the next question needs a new connection, and its handshake
        assert [info.name for info in lake.catalogs()] == ["sales"]
        assert lake._child is not stopped
        assert stopped._process.poll() is not None
    finally:
        lake.close()


def test_a_password_that_a_secret_cannot_hold_is_refused_and_not_shown(
    duck: duckdb.DuckDBPyConnection,
) -> None:
    url = "postgresql://user@127.0.0.1:1/db?sslpassword=hunter2"
    location = LakeLocation("sales", metabase_url=url, metadata_schema="lake_sales")
    with pytest.raises(ConfigError) as refused:
        location.attach(duck)
    assert "sslpassword" in str(refused.value)
    assert "hunter2" not in str(refused.value)
