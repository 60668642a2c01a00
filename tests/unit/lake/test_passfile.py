"""The passfile that binds a password to its server."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from swanlake.lake.metastore.passfile import (
    passfile_lines,
    remove_passfiles,
    remove_stale_passfiles,
    write_passfile,
)


def test_password_is_bound_to_its_server_and_role() -> None:
    conninfo = {"host": "db", "port": "5433", "dbname": "lake", "user": "ana", "password": "x"}
    assert passfile_lines(conninfo) == ["db:5433:lake:ana:x"]


def test_missing_fields_match_all_and_special_characters_are_escaped() -> None:
    conninfo = {"host": "/run/pg:1", "user": "a", "password": r"p:\w"}
    assert passfile_lines(conninfo) == [r"/run/pg\:1:*:*:a:p\:\\w"]


def test_each_of_several_hosts_has_a_line() -> None:
    conninfo = {"host": "a,b", "port": "1,2", "dbname": "d", "user": "u", "password": "p"}
    assert passfile_lines(conninfo) == ["a:1:d:u:p", "b:2:d:u:p"]
    assert passfile_lines(conninfo | {"port": "1"}) == ["a:1:d:u:p", "b:1:d:u:p"]


def test_file_is_private_and_written_once() -> None:
    conninfo = {"host": "db", "user": "ana", "password": "x"}
    path = write_passfile(conninfo)
    assert path == write_passfile(dict(conninfo))
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert stat.S_IMODE(path.parent.stat().st_mode) == 0o700


def test_file_of_a_killed_process_is_removed(tmp_path: Path) -> None:
    program = (
        "import os\n"
        "from swanlake.lake.metastore.passfile import write_passfile\n"
        "write_passfile({'password': 'x'})\n"
        "os.kill(os.getpid(), 9)\n"
    )
    environment = os.environ | {"TMPDIR": str(tmp_path)}
    killed = subprocess.run([sys.executable, "-c", program], env=environment, check=False)
    assert killed.returncode == -9
    [left] = tmp_path.glob("*/pgpass")
    remove_stale_passfiles(tmp_path)
    assert left.exists()  # it may just have been written
    os.utime(left, (0, 0))
    remove_stale_passfiles(tmp_path)
    assert not left.parent.exists()


def test_file_in_use_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    path = write_passfile({"password": "in use"})
    os.utime(path, (0, 0))
    remove_stale_passfiles(tmp_path)
    assert path.exists()
    remove_passfiles()
    assert not path.parent.exists()
    assert write_passfile({"password": "in use"}).exists()
