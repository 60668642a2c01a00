"""Opens the Spark session of a server: local, on a cluster, or through Spark Connect."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from swanlake.config import Settings, child_environment
from swanlake.errors import ConfigError, StartupError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_LOCAL = "local"
_LOOPBACK = "127.0.0.1"
_REMOTE = re.compile(r"sc://(\[[0-9A-Fa-f:.]+\]|[^\s/:;@\[\]]+)(:[0-9]{1,5})?(/(;[^;=]+=[^;=]*)*)?")
_SUBMIT_ARGUMENTS = "PYSPARK_SUBMIT_ARGS"
_SHELL = "pyspark-shell"
_SPECIAL_IN_NAMES = re.compile(r"[\\\s:=#!]")
_SPECIAL_IN_VALUES = re.compile(r"\\|[\n\r\f]|\A[ \t]")
_ESCAPES = {"\n": "n", "\r": "r", "\f": "f"}
_JAVA = 17
_JAVA_SECONDS = 30.0
#: Defaults for short jobs and a quiet log; spark_conf overrides them.
_DEFAULTS = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.log.level": "WARN",
    "spark.python.unix.domain.socket.enabled": "true",
    "spark.python.worker.reuse": "true",
    "spark.sql.session.timeZone": "UTC",
    # Rows that cross the JVM do so in few batches.
    "spark.sql.execution.arrow.maxRecordsPerBatch": "100000",
}


@dataclass(frozen=True)
class SparkOptions:
    """Which Spark to use, and its configuration."""

    master: str = "local[*]"
    #: A Spark Connect server, ``sc://…``; then no JVM runs on this machine.
    remote: str = ""
    memory: str = "1g"
    conf: Mapping[str, str] = field(default_factory=dict, repr=False)
    local_directory: str = ""
    #: For the sockets between the JVM and its Python workers; only this user can enter it.
    socket_directory: str = ""

    @classmethod
    def from_settings(cls, settings: Settings) -> SparkOptions:
        """Reads the server's settings; raises ConfigError."""
        return cls(
            settings.spark_master,
            _checked_remote(settings.spark_remote),
            settings.spark_memory,
            _properties(settings.spark_conf),
            str(settings.temp_directory / "spark"),
        )

    @property
    def is_local(self) -> bool:
        """True if the workers are on this machine and in this installation."""
        return not self.remote and self.master.startswith(_LOCAL)

    @property
    def location(self) -> str:
        """The master or server, for messages; without URL parameters, which may be secret."""
        return self.remote.split(";")[0].rstrip("/") or self.master


def open_session(options: SparkOptions) -> SparkSession:
    """Opens the session of this process; raises Spark's errors."""
    from pyspark.sql import SparkSession

    conf = {**_conf(options), **options.conf}
    builder = SparkSession.builder
    if options.remote:
        for key, value in conf.items():
            builder = builder.config(key, value)
        return builder.remote(options.remote).getOrCreate()
    # Properties of the builder would become arguments of the JVM, which process lists show.
    with _properties_file(conf) as path:
        arguments = os.environ.get(_SUBMIT_ARGUMENTS, _SHELL)
        os.environ[_SUBMIT_ARGUMENTS] = (
            f"--load-spark-defaults --properties-file {shlex.quote(path)} {arguments}"
        )
        return builder.getOrCreate()


@contextmanager
def _properties_file(properties: Mapping[str, str]) -> Iterator[str]:
    """A file that only this user can read, for as long as Spark starts."""
    with tempfile.NamedTemporaryFile("w", encoding="utf-8", suffix=".properties") as file:
        file.writelines(map(property_line, properties, properties.values()))
        file.flush()
        yield file.name


def property_line(name: str, value: str) -> str:
    """A line of a Java properties file."""
    return f"{_escape(name, _SPECIAL_IN_NAMES)}={_escape(value, _SPECIAL_IN_VALUES)}\n"


def _escape(text: str, special: re.Pattern[str]) -> str:
    return special.sub(lambda found: "\\" + _ESCAPES.get(found[0], found[0]), text)


def _conf(options: SparkOptions) -> dict[str, str]:
    if options.remote:  # a shared server has its own configuration
        return {}
    conf = {
        **_DEFAULTS,
        "spark.app.name": f"SwanLake on {socket.gethostname()}",
        "spark.master": options.master,
        "spark.driver.memory": options.memory,
    }
    if options.is_local:
        conf["spark.driver.host"] = conf["spark.driver.bindAddress"] = _LOOPBACK
        conf["spark.authenticate"] = "true"  # other users reach the loopback address too
    if options.local_directory:
        Path(options.local_directory).mkdir(parents=True, exist_ok=True)
        conf["spark.local.dir"] = options.local_directory
    if options.socket_directory:
        conf["spark.python.unix.domain.socket.dir"] = options.socket_directory
    return conf


def _checked_remote(url: str) -> str:
    """The URL of a Spark Connect server; raises ConfigError.

    Spark's own error would quote the URL, which may contain a token.
    """
    if url and not _REMOTE.fullmatch(url):
        raise ConfigError(
            "spark_remote is not a URL such as sc://host:15002 or sc://host:15002/;token=value. "
            "Inside of a value `;` is written %3B and `=` is written %3D."
        )
    return url


def _properties(text: str) -> dict[str, str]:
    """Lines ``name=value`` as a mapping; raises ConfigError."""
    properties = {}
    for line in filter(None, map(str.strip, text.splitlines())):
        name, equals, value = line.partition("=")
        if not equals or not name.strip():
            raise ConfigError("spark_conf: every line is a property, name=value.")
        properties[name.strip()] = value.strip()
    return properties


def environment(options: SparkOptions) -> dict[str, str]:
    """The environment of the process that starts Spark."""
    # Remote workers have another Python, which the cluster or the user names.
    variables = {**child_environment(), "PYSPARK_DRIVER_PYTHON": sys.executable}
    if options.is_local:
        return variables | {"PYSPARK_PYTHON": sys.executable, "SPARK_LOCAL_IP": _LOOPBACK}
    named = options.conf.get("spark.pyspark.python") or os.environ.get("PYSPARK_PYTHON")
    return variables | {"PYSPARK_PYTHON": named or "python3"}


def check_java(options: SparkOptions) -> None:
    """Raises StartupError if Spark needs Java and there is none that is new enough."""
    if options.remote:
        return
    home = os.environ.get("JAVA_HOME")
    java = f"{home}/bin/java" if home else shutil.which("java")
    version = _java_version(java) if java else None
    if version is None or version < _JAVA:
        found = "none was found" if version is None else f"found is {version}"
        raise StartupError(
            f"Spark needs Java {_JAVA} or newer, and {found}. Install it (apt-get install "
            f"openjdk-{_JAVA}-jre-headless), use a Spark Connect server with "
            "SWANLAKE_SPARK_REMOTE, or do without Spark: SWANLAKE_PIPELINE=inline."
        )


def _java_version(java: str) -> int | None:
    try:
        said = subprocess.run(
            [java, "-version"], capture_output=True, text=True, timeout=_JAVA_SECONDS, check=True
        ).stderr
        return int(said.split('"')[1].split(".")[0])
    except (OSError, subprocess.SubprocessError, IndexError, ValueError):
        return None
