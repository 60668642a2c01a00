"""The directories, the lake and its storage."""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

from swanlake.cli.activity import size_text
from swanlake.cli.doctor.finding import ANSWER_SECONDS, OK, PROBLEM, WARNING, Finding
from swanlake.config import Settings
from swanlake.errors import SwanLakeError

_MIN_FREE_BYTES = 1_000_000_000
_MAX_SKEW = 5.0


def check_home(settings: Settings) -> Iterator[Finding]:
    """The home directory, its modes and its disk."""
    home = settings.home.absolute()
    if not home.exists():
        parent = next(path for path in home.parents if path.exists())
        if os.access(parent, os.W_OK | os.X_OK):
            yield Finding("home", OK, f"{home} does not exist; `swanlake serve` creates it")
        else:
            yield Finding("home", PROBLEM, f"{home} cannot be created", "Choose another --home.")
        return
    if not os.access(home, os.W_OK | os.X_OK):
        yield Finding(
            "home", PROBLEM, f"{home} is not writable", f"chown it to user {os.getuid()}."
        )
        return
    mode = home.stat().st_mode & 0o777
    if mode & 0o077:
        yield Finding(
            "home", WARNING, f"{home} has mode {mode:03o}: other users can read it",
            f"chmod 700 {home}",
        )  # fmt: skip
    else:
        yield Finding("home", OK, f"{home}, mode {mode:03o}")
    for file in sorted((home / "tokens").glob("*")):
        if file.stat().st_mode & 0o077:
            yield Finding(
                "tokens", PROBLEM, f"others can read {file}, so it is refused", f"chmod 600 {file}"
            )
    yield disk_finding("disk", home, shutil.disk_usage(home).free)


def disk_finding(check: str, directory: Path, free: int) -> Finding:
    """Whether a file system has room."""
    text = f"{size_text(free)} free at {directory}"
    if free >= _MIN_FREE_BYTES:
        return Finding(check, OK, text)
    return Finding(check, WARNING, text, "Free space: inserts fail when the disk is full.")


def check_queue(settings: Settings) -> Iterator[Finding]:
    """Whether the queue can be written, and the clock of its file system."""
    root = (settings.duckling_queue_root or settings.home / "queue").absolute()
    directory = root if root.exists() else next(p for p in root.parents if p.exists())
    began = time.time()
    try:
        with tempfile.NamedTemporaryFile(dir=directory, prefix=".doctor-") as probe:
            probe.write(b"x")
            probe.flush()
            os.fsync(probe.fileno())
            milliseconds = 1000 * (time.time() - began)
            written_at = os.fstat(probe.fileno()).st_mtime
    except OSError as refused:
        yield Finding(
            "queue", PROBLEM, f"{directory} cannot be written: {refused.strerror}",
            "Give the server's user the directory, or set duckling_queue_root.",
        )  # fmt: skip
        return
    yield Finding("queue", OK, f"{root} is writable; a synced write took {milliseconds:.1f} ms")
    yield clock_finding("the file system of the queue", written_at - began)


def clock_finding(other: str, skew: float) -> Finding:
    """Whether this machine's clock agrees with another."""
    if abs(skew) <= _MAX_SKEW:
        return Finding("clock", OK, f"agrees with {other}")
    return Finding(
        "clock", PROBLEM, f"differs from {other} by {skew:.0f} s",
        "Run NTP (chrony, systemd-timesyncd) on both machines.",
    )  # fmt: skip


def check_catalog(settings: Settings) -> Iterator[Finding]:
    """The catalogs, the storage, and the clock of the database."""
    from swanlake.lake.files import storage
    from swanlake.lake.lake import Lake

    if not settings.metabase_url and not (settings.home / "catalogs").is_dir():
        yield Finding("catalog", OK, "there is no lake yet; `swanlake serve` creates it")
        return
    where = "PostgreSQL" if settings.metabase_url else str(settings.home / "catalogs")
    with ExitStack() as stack:
        try:
            lake = stack.enter_context(Lake.from_settings(settings))
            infos = lake.catalogs()
        except SwanLakeError as unreachable:
            yield Finding(
                "catalog", PROBLEM, " ".join(str(unreachable).split()),
                "Start the database, or correct metabase_url." if settings.metabase_url
                else "Restore the catalog's file from a backup.",
            )  # fmt: skip
            return
        damage = [
            f"{info.name}: {finding}"
            for info in infos
            for finding in lake.catalog(info.name).check()
        ]
        for finding in damage:
            yield Finding("catalog", PROBLEM, finding, "See docs/lake.md.")
        if not damage:
            count = len(infos)
            yield Finding("catalog", OK, f"{count} catalog{'' if count == 1 else 's'} in {where}")
        data = settings.data_location
        try:
            storage.check_reachable(data)
            yield Finding("storage", OK, f"{data} can be reached")
        except (OSError, SwanLakeError) as unreachable:
            yield Finding(
                "storage",
                PROBLEM,
                f"{data}: {unreachable}",
                "Correct data_path or its credentials.",
            )
    if settings.metabase_url:
        yield clock_finding("PostgreSQL", _postgres_time(settings.metabase_url) - time.time())


def _postgres_time(url: str) -> float:
    import psycopg

    try:
        with psycopg.connect(url, connect_timeout=int(ANSWER_SECONDS)) as connection:
            row = connection.execute("SELECT extract(epoch FROM clock_timestamp())").fetchone()
    except psycopg.Error as failed:
        raise OSError(str(failed)) from None
    assert row is not None
    return float(row[0])
