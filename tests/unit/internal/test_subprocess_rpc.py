"""Directories of worker processes do not stay behind."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import pytest

from swanlake._internal.subprocess_rpc import WorkerProcess, remove_stale_directories
from tests.waiting import eventually

_WORKER = "swanlake.lake.metastore.sqlite_worker"
_LONG_AGO = 3600.0


def make_directory(parent: Path, name: str, *, age: float = _LONG_AGO) -> Path:
    directory = parent / f"swanlake-worker-{name}"
    directory.mkdir()
    os.utime(directory, (time.time() - age,) * 2)
    return directory


def test_directory_of_a_dead_worker_is_removed(tmp_path: Path) -> None:
    directory = make_directory(tmp_path, "dead")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(directory / "socket"))  # the file outlives its listener
    os.utime(directory, (time.time() - _LONG_AGO,) * 2)
    make_directory(tmp_path, "unused")
    remove_stale_directories(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_directory_of_a_live_worker_is_kept(tmp_path: Path) -> None:
    directory = make_directory(tmp_path, "live")
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(directory / "socket"))
        listener.listen()
        os.utime(directory, (time.time() - _LONG_AGO,) * 2)
        remove_stale_directories(tmp_path)
        assert (directory / "socket").exists()


def test_directory_of_a_starting_worker_is_kept(tmp_path: Path) -> None:
    directory = make_directory(tmp_path, "starting", age=0)
    remove_stale_directories(tmp_path)
    assert directory.exists()


def test_directories_of_other_programs_are_kept(tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    os.utime(other, (0, 0))
    remove_stale_directories(tmp_path)
    assert other.exists()


def test_closed_worker_leaves_no_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    worker = WorkerProcess(_WORKER, str(tmp_path / "catalogs"), str(tmp_path / "data"))
    worker.wait_until_ready()
    assert list(tmp_path.glob("swanlake-worker-*"))
    worker.close()
    assert not list(tmp_path.glob("swanlake-worker-*"))


def test_worker_of_a_killed_parent_leaves_no_directory(tmp_path: Path) -> None:
    program = (
        "import os, sys\n"
        "from swanlake._internal.subprocess_rpc import WorkerProcess\n"
        f"worker = WorkerProcess({_WORKER!r}, '{tmp_path}/catalogs', '{tmp_path}/data')\n"
        "worker.wait_until_ready()\n"
        "os.kill(os.getpid(), 9)\n"
    )
    environment = os.environ | {"TMPDIR": str(tmp_path)}
    parent = subprocess.run([sys.executable, "-c", program], env=environment, check=False)
    assert parent.returncode == -9
    eventually(lambda: not list(tmp_path.glob("swanlake-worker-*")))
