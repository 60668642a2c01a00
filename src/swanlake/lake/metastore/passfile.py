"""The password of the metadata database, for libpq inside of DuckDB.

In a statement or a secret, DuckDB would log the password, and send it to any host that another
statement names. A passfile binds it to the host, the port, the database and the user.
"""

from __future__ import annotations

import atexit
import contextlib
import fcntl
import os
import re
import shutil
import tempfile
import time
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path

_SPECIAL = re.compile(r"[\\:]")
_ANY = "*"
_PREFIX, _NAME = "swanlake-pgpass-", "pgpass"
#: A file that is younger may not be locked yet.
_STALE_SECONDS = 60.0
#: The files of this process and their descriptors, which hold locks on them.
_locked: dict[Path, int] = {}


def passfile_lines(conninfo: Mapping[str, str]) -> list[str]:
    """The lines of a passfile for each host of a connection string that has a password."""
    hosts = (conninfo.get("host") or conninfo.get("hostaddr") or _ANY).split(",")
    ports = conninfo.get("port", _ANY).split(",")
    if len(ports) == 1:
        ports *= len(hosts)
    last = [conninfo.get("dbname", _ANY), conninfo.get("user", _ANY), conninfo["password"]]
    return [
        ":".join(_SPECIAL.sub(r"\\\g<0>", field) for field in (host, port or _ANY, *last))
        for host, port in zip(hosts, ports, strict=True)
    ]


def write_passfile(conninfo: Mapping[str, str]) -> Path:
    """A file that only this user can read, and that is removed when the process ends."""
    return _write("\n".join(passfile_lines(conninfo)) + "\n")


@lru_cache(maxsize=8)
def _write(content: str) -> Path:
    remove_stale_passfiles(Path(tempfile.gettempdir()))
    path = Path(tempfile.mkdtemp(prefix=_PREFIX)) / _NAME  # in a directory with the mode 0700
    # libpq ignores a file that others can read.
    file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    fcntl.flock(file, fcntl.LOCK_EX)
    os.write(file, content.encode())
    _locked[path] = file
    return path


def remove_passfiles() -> None:
    """Removes the files of this process, which can open no more connections with them."""
    while _locked:
        path, file = _locked.popitem()
        shutil.rmtree(path.parent, ignore_errors=True)
        os.close(file)
    _write.cache_clear()


def remove_stale_passfiles(parent: Path) -> None:
    """Removes the files of processes that were killed: their locks are free."""
    for path in parent.glob(f"{_PREFIX}*/{_NAME}"):
        with contextlib.suppress(OSError), path.open() as file:  # gone, locked, or another user's
            if time.time() - path.stat().st_mtime > _STALE_SECONDS:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                shutil.rmtree(path.parent, ignore_errors=True)


atexit.register(remove_passfiles)
