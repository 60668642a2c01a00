"""The programs and the limits of the machine."""

from __future__ import annotations

import os
import re
import resource
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

from swanlake._version import __version__
from swanlake.cli.doctor.finding import ANSWER_SECONDS, OK, PROBLEM, WARNING, Finding
from swanlake.config import Settings

_MIN_JAVA = 17
_MIN_FILES = 4096
_JAVA_VERSION = re.compile(r'"(\d+)')
_EXTENSIONS = ("ducklake", "postgres_scanner", "sqlite_scanner", "httpfs", "aws")


def check_versions(settings: Settings) -> Iterator[Finding]:
    """SwanLake, Python, DuckDB and its extensions."""
    duckdb = _version("duckdb")
    yield Finding("versions", OK, f"SwanLake {__version__}, Python {sys.version.split()[0]}, "
                                  f"DuckDB {duckdb}")  # fmt: skip
    yield from extension_findings(
        duckdb, {name: _version(f"duckdb-extension-{name.replace('_', '-')}")
                 for name in _EXTENSIONS}
    )  # fmt: skip


def extension_findings(duckdb: str | None, extensions: dict[str, str | None]) -> Iterator[Finding]:
    """Every extension must have exactly DuckDB's version."""
    wrong = {name: found for name, found in extensions.items() if found != duckdb}
    if not wrong:
        yield Finding("extensions", OK, f"{', '.join(extensions)}: {duckdb}")
        return
    listed = ", ".join(f"{name} {found or 'missing'}" for name, found in wrong.items())
    yield Finding(
        "extensions", PROBLEM, f"DuckDB is {duckdb}, but {listed}",
        "Run `make install`, or pip install '.[server]' in the checkout.",
    )  # fmt: skip


def _version(distribution: str) -> str | None:
    from importlib.metadata import PackageNotFoundError, version  # slow to load

    try:
        return version(distribution)
    except PackageNotFoundError:
        return None


def check_java(settings: Settings) -> Iterator[Finding]:
    """Java, if Spark runs here."""
    if settings.pipeline != "spark":
        yield Finding("java", OK, f"not needed: pipeline is {settings.pipeline}")
        return
    if settings.spark_remote:
        yield Finding("java", OK, "not needed: Spark Connect runs elsewhere")
        return
    home = os.environ.get("JAVA_HOME")
    program = str(Path(home, "bin", "java")) if home else shutil.which("java")
    yield java_finding(program, _java_text(program))


def _java_text(program: str | None) -> str:
    if program is None:
        return ""
    try:
        shown = subprocess.run(
            [program, "-version"], capture_output=True, text=True, timeout=30, check=False
        )
    except OSError:
        return ""
    return shown.stderr


def java_finding(program: str | None, text: str) -> Finding:
    """Whether the Java at this path, with this output of ``-version``, can run Spark."""
    remedy = (
        f"Install Java {_MIN_JAVA} or newer (apt-get install openjdk-17-jre-headless), or run "
        "without Spark: --pipeline inline."
    )
    match = _JAVA_VERSION.search(text)
    if match is None:
        return Finding("java", PROBLEM, f"no Java at {program or 'PATH'}", remedy)
    major = int(match[1])
    state = OK if major >= _MIN_JAVA else PROBLEM
    return Finding("java", state, f"Java {major} at {program}", "" if state == OK else remedy)


def check_spark(settings: Settings) -> Iterator[Finding]:
    """PySpark, and the cluster if there is one."""
    if settings.pipeline != "spark":
        return
    where = settings.spark_remote or settings.spark_master
    parts = urlsplit(where)
    if parts.hostname and parts.port and parts.scheme in ("spark", "sc"):
        try:
            socket.create_connection((parts.hostname, parts.port), ANSWER_SECONDS).close()
        except OSError as refused:
            yield Finding(
                "spark", PROBLEM, f"PySpark {_version('pyspark')}; {where}: {refused}",
                "Start the cluster, or correct spark_master or spark_remote.",
            )  # fmt: skip
            return
    yield Finding("spark", OK, f"PySpark {_version('pyspark')} on {where}")


def check_open_files(settings: Settings) -> Iterator[Finding]:
    """The limit of open files."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    text = f"{'unlimited' if soft == resource.RLIM_INFINITY else soft} (hard limit {hard})"
    if soft == resource.RLIM_INFINITY or soft >= _MIN_FILES:
        yield Finding("open files", OK, text)
    else:
        yield Finding(
            "open files", WARNING, text, f"ulimit -n {_MIN_FILES}, or LimitNOFILE= of systemd."
        )
