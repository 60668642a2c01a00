"""The password of the metadata database, for libpq inside of DuckDB.

In a statement or a secret, DuckDB would log the password, and send it to any host that another
statement names. A passfile binds it to the host, the port, the database and the user.
"""

from __future__ import annotations

import atexit
import os
import re
import shutil
import tempfile
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path

_SPECIAL = re.compile(r"[\\:]")
_ANY = "*"


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
    directory = tempfile.mkdtemp(prefix="swanlake-")  # with the mode 0700
    atexit.register(shutil.rmtree, directory, ignore_errors=True)
    path = Path(directory) / "pgpass"
    # libpq ignores a file that others can read.
    with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
        file.write(content)
    return path
