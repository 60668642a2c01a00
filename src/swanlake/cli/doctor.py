"""``swanlake doctor``: checks what a server needs, and says what to fix."""

from __future__ import annotations

import json
import os
import re
import resource
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit
from urllib.request import urlopen

import click

from swanlake import config
from swanlake._version import __version__
from swanlake.cli.activity import json_option, size_text
from swanlake.cli.options import config_option, setting_option
from swanlake.cli.output import text_style
from swanlake.cli.remote import connect
from swanlake.errors import ConfigError, NotAuthenticated, ServerUnavailable, SwanLakeError

OK, WARNING, PROBLEM = "ok", "warning", "problem"
EXIT_PROBLEM, EXIT_CONFIG = 1, 2
_SETTINGS = ("home", "host", "port", "data_path", "pipeline")
_MIN_JAVA = 17
_MIN_FILES = 4096
_MIN_FREE_BYTES = 1_000_000_000
_MAX_SKEW = 5.0
_SECONDS = 5.0
_JAVA_VERSION = re.compile(r'"(\d+)')
_EXTENSIONS = ("ducklake", "postgres_scanner", "sqlite_scanner", "httpfs", "aws")


@dataclass(frozen=True)
class Finding:
    """The outcome of one check, and what to do if it is not ok."""

    check: str
    state: str
    text: str
    remedy: str = ""


@click.command()
@config_option
@json_option
@click.option("--token-file", type=click.Path(path_type=Path), help="For a running server.")
@click.option("--tls-ca", type=click.Path(path_type=Path), help="For a running server.")
def doctor(
    config_file: Path | None,
    output: str,
    token_file: Path | None,
    tls_ca: Path | None,
    **flags: str | None,
) -> None:
    """Check everything that a server with these settings needs, whether or not it runs.

    Exit codes: 0 nothing is wrong, 1 a problem was found, 2 the settings are wrong.
    """
    try:
        settings = config.load(flags, config_file=config_file).settings
    except ConfigError as wrong:
        findings = [Finding("settings", PROBLEM, str(wrong), "Correct the setting.")]
        _print(findings, output)
        raise SystemExit(EXIT_CONFIG) from None
    server = _ask_server(settings, token_file, tls_ca)
    findings = [Finding("settings", OK, "all settings are valid")]
    for check in _CHECKS:
        findings += _safely(check, settings)
    findings += server_findings(server, settings)
    _print(findings, output)
    if any(finding.state == PROBLEM for finding in findings):
        raise SystemExit(EXIT_PROBLEM)


for _name in reversed(_SETTINGS):
    doctor = setting_option(config.SETTINGS[_name])(doctor)  # type: ignore[assignment]


def _print(findings: list[Finding], output: str) -> None:
    if output == "json":
        click.echo(json.dumps([asdict(finding) for finding in findings], indent=2))
        return
    style = text_style(sys.stdout)
    for finding in findings:
        mark = {OK: "ok     ", WARNING: "warning", PROBLEM: "PROBLEM"}[finding.state]
        emphasis = "" if finding.state == OK else style.heading
        end = style.reset if emphasis else ""
        click.echo(f"{emphasis}{mark}{end}  {finding.check:<12} {finding.text}")
        if finding.remedy:
            click.echo(f"{'':<22} → {finding.remedy}")
    problems = sum(1 for finding in findings if finding.state == PROBLEM)
    click.echo(f"{problems or 'No'} problem{'' if problems == 1 else 's'} found.")


def _safely(
    check: Callable[[config.Settings], Iterator[Finding]], settings: config.Settings
) -> list[Finding]:
    """The findings of a check; one that cannot be made is a finding too."""
    name = check.__name__.lstrip("_")
    try:
        return list(check(settings))
    except (SwanLakeError, OSError, subprocess.SubprocessError) as failed:
        return [Finding(name, PROBLEM, " ".join(str(failed).split()))]


# ---- the machine ---------------------------------------------------------------------------------


def _versions(settings: config.Settings) -> Iterator[Finding]:
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
    try:
        return version(distribution)
    except PackageNotFoundError:
        return None


def _java(settings: config.Settings) -> Iterator[Finding]:
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


def _spark(settings: config.Settings) -> Iterator[Finding]:
    if settings.pipeline != "spark":
        return
    where = settings.spark_remote or settings.spark_master
    parts = urlsplit(where)
    if parts.hostname and parts.port and parts.scheme in ("spark", "sc"):
        try:
            socket.create_connection((parts.hostname, parts.port), _SECONDS).close()
        except OSError as refused:
            yield Finding(
                "spark", PROBLEM, f"PySpark {_version('pyspark')}; {where}: {refused}",
                "Start the cluster, or correct spark_master or spark_remote.",
            )  # fmt: skip
            return
    yield Finding("spark", OK, f"PySpark {_version('pyspark')} on {where}")


def _open_files(settings: config.Settings) -> Iterator[Finding]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    text = f"{'unlimited' if soft == resource.RLIM_INFINITY else soft} (hard limit {hard})"
    if soft == resource.RLIM_INFINITY or soft >= _MIN_FILES:
        yield Finding("open files", OK, text)
    else:
        yield Finding(
            "open files", WARNING, text, f"ulimit -n {_MIN_FILES}, or LimitNOFILE= of systemd."
        )


# ---- directories ---------------------------------------------------------------------------------


def _home(settings: config.Settings) -> Iterator[Finding]:
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


def _queue(settings: config.Settings) -> Iterator[Finding]:
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


# ---- the lake ------------------------------------------------------------------------------------


def _catalog(settings: config.Settings) -> Iterator[Finding]:
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
        with psycopg.connect(url, connect_timeout=int(_SECONDS)) as connection:
            row = connection.execute("SELECT extract(epoch FROM clock_timestamp())").fetchone()
    except psycopg.Error as failed:
        raise OSError(str(failed)) from None
    assert row is not None
    return float(row[0])


# ---- the server ----------------------------------------------------------------------------------


def _ask_server(
    settings: config.Settings, token_file: Path | None, tls_ca: Path | None
) -> dict[str, Any] | SwanLakeError:
    """What the server at the settings' address says, or why it says nothing."""
    scheme = "grpc" if settings.tls_cert is None else "grpc+tls"
    host = "127.0.0.1" if settings.host in ("0.0.0.0", "::") else settings.host
    host = f"[{host}]" if ":" in host else host
    try:
        ca = tls_ca or settings.tls_cert
        with connect(f"{scheme}://{host}:{settings.port}", token_file, ca, _SECONDS) as client:
            return dict(client.status())
    except SwanLakeError as failed:
        return failed


def server_findings(
    server: dict[str, Any] | SwanLakeError, settings: config.Settings
) -> Iterator[Finding]:
    """The state of the port and of the server behind it."""
    where = f"{settings.host}:{settings.port}"
    if isinstance(server, NotAuthenticated):
        yield Finding("server", OK, f"a server answers at {where}; --token-file shows more")
        return
    if isinstance(server, SwanLakeError):
        if _is_free(settings.host, settings.port):
            yield Finding("server", OK, f"none runs; the address {where} is free")
        else:
            yield Finding(
                "server", PROBLEM, f"{where} is used by a program that does not answer",
                "Stop it, or choose another --port." if isinstance(server, ServerUnavailable)
                else str(server),
            )  # fmt: skip
        return
    yield Finding("server", OK if server.get("state") == "accepting" else WARNING,
                  f"{server.get('version')} at {where} is {server.get('state')}")  # fmt: skip
    if server.get("version") != __version__:
        yield Finding(
            "server", WARNING, f"it runs {server.get('version')}; {__version__} is installed",
            "Restart it.",
        )  # fmt: skip
    for check in server.get("health", {}).get("checks", ()):
        if not check["ok"]:
            detail = check.get("detail") or check.get("reason", "")
            yield Finding(f"server {check['name']}", PROBLEM, detail, "See the server's log.")
    pipeline = server.get("pipeline")
    if pipeline and pipeline.get("state") != "ready":
        yield Finding("server spark", WARNING, str(pipeline.get("state")), "See the server's log.")


def _console(settings: config.Settings) -> Iterator[Finding]:
    if settings.status == "off" or settings.status_port == 0:
        return
    where = f"{settings.status_host}:{settings.status_port}"
    if _is_free(settings.status_host, settings.status_port):
        yield Finding("console", OK, f"the address {where} is free")
        return
    scheme = "http" if settings.tls_cert is None else "https"
    if scheme == "https" or _answers(f"{scheme}://{where}/livez"):
        yield Finding("console", OK, f"{scheme}://{where}/ answers")
    else:
        yield Finding(
            "console", WARNING, f"another program uses {where}", "Choose another --status-port."
        )


def _answers(url: str) -> bool:
    try:
        with urlopen(url, timeout=_SECONDS) as response:
            return bool(response.status == 200)
    except OSError:
        return False


def _is_free(host: str, port: int) -> bool:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        socket.create_server((host, port), family=family).close()
    except OSError:
        return False
    return True


_CHECKS: tuple[Callable[[config.Settings], Iterator[Finding]], ...] = (
    _versions, _java, _spark, _open_files, _home, _queue, _catalog, _console,
)  # fmt: skip
