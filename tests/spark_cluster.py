"""Spark as others run it, from the pyspark package, on the loopback address of this machine."""

from __future__ import annotations

import ctypes
import os
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import psutil
import pyspark

from tests.flight import eventually

START_SECONDS = 120.0
_PR_SET_PDEATHSIG = 1
_HOME = Path(pyspark.__file__).parent
_LOOPBACK = "127.0.0.1"
#: What Spark's workers need of their own; everything else comes with the job.
_WORKERS_HAVE = ("pyspark", "py4j", "pyarrow", "numpy", "numpy.libs")


def _die_with_parent() -> None:
    """A run of the tests that is killed leaves no cluster behind."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


class SparkDaemon:
    """A JVM of Spark with everything it starts."""

    def __init__(self, command: list[str], log: Path, python: str) -> None:
        self._command = command
        self._log = log
        self._python = python
        self._process: subprocess.Popen[bytes] | None = None

    def start(self, ready: str) -> None:
        """Returns when its log says so."""
        self._log.unlink(missing_ok=True)
        environment = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("PYTHON", "SWANLAKE_"))  # nothing of ours is on a cluster
        }
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                self._command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self._log.parent,
                start_new_session=True,
                preexec_fn=_die_with_parent,
                env=environment
                | {
                    "SPARK_HOME": str(_HOME),
                    "SPARK_LOCAL_IP": _LOOPBACK,
                    "PYSPARK_PYTHON": self._python,
                },
            )
        try:
            eventually(lambda: self._is_ready(ready), START_SECONDS)
        except AssertionError:
            self.kill()
            raise AssertionError(f"it did not start:\n{self.log_text[-4000:]}") from None

    def _is_ready(self, ready: str) -> bool:
        assert self.is_alive, self.log_text[-4000:]
        return ready in self.log_text

    @property
    def is_alive(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def log_text(self) -> str:
        return self._log.read_text(errors="replace") if self._log.exists() else ""

    def family(self) -> list[psutil.Process]:
        """The JVM and all processes that it started, in its name or in that of others."""
        if self._process is None or self._process.poll() is not None:
            return []
        with suppress(psutil.NoSuchProcess):
            parent = psutil.Process(self._process.pid)
            return [parent, *parent.children(recursive=True)]
        return []

    def kill(self) -> None:
        """As if its machine were switched off."""
        kill_at_once(self)

    def reap(self) -> None:
        """Returns when it is dead."""
        if self._process is not None:
            self._process.wait(START_SECONDS)


def kill_at_once(*daemons: SparkDaemon) -> None:
    """Nobody lives long enough to notice that the others are dead."""
    family = [process for daemon in daemons for process in daemon.family()]
    for process in family:
        with suppress(psutil.NoSuchProcess):
            process.send_signal(signal.SIGKILL)
    for daemon in daemons:
        daemon.reap()
    psutil.wait_procs(family, START_SECONDS)


class StandaloneCluster:
    """A master, and workers with a core each."""

    def __init__(self, directory: Path, python: str = sys.executable, workers: int = 2) -> None:
        self.port = free_port()
        self.master_url = f"spark://{_LOOPBACK}:{self.port}"
        self._master = SparkDaemon(
            [
                *(str(_HOME / "bin" / "spark-class"), "org.apache.spark.deploy.master.Master"),
                *("--host", _LOOPBACK, "--port", str(self.port), "--webui-port", "0"),
            ],
            directory / "master.log",
            python,
        )
        self.workers = [
            SparkDaemon(
                [
                    *(str(_HOME / "bin" / "spark-class"), "org.apache.spark.deploy.worker.Worker"),
                    *("--host", _LOOPBACK, "--webui-port", "0", "-c", "1", "-m", "1g"),
                    *("-d", str(directory / f"work{number}"), self.master_url),
                ],
                directory / f"worker{number}.log",
                python,
            )
            for number in range(workers)
        ]
        self.python = python

    def environment(self) -> dict[str, str]:
        """What a server is told to use it."""
        return {
            "SWANLAKE_PIPELINE": "spark",
            "SWANLAKE_SPARK_MASTER": self.master_url,
            "SPARK_LOCAL_IP": _LOOPBACK,
            "PYSPARK_PYTHON": self.python,
        }

    def start(self) -> None:
        self._master.start("I have been elected leader")
        for worker in self.workers:
            worker.start("Successfully registered with master")

    def kill(self) -> None:
        """All of it."""
        kill_at_once(self._master, *self.workers)

    def __enter__(self) -> StandaloneCluster:
        try:
            self.start()
        except BaseException:
            self.kill()
            raise
        return self

    def __exit__(self, *exception: object) -> None:
        self.kill()


class ConnectServer:
    """A Spark Connect server whose executors are its own threads."""

    def __init__(self, directory: Path, python: str = sys.executable) -> None:
        self.port = free_port()
        self.url = f"sc://{_LOOPBACK}:{self.port}"
        self.daemon = SparkDaemon(
            [
                *(str(_HOME / "bin" / "spark-submit"), "--master", "local[2]"),
                *("--class", "org.apache.spark.sql.connect.service.SparkConnectServer"),
                *("--conf", f"spark.connect.grpc.binding.address={_LOOPBACK}"),
                *("--conf", f"spark.connect.grpc.binding.port={self.port}"),
                *("--conf", "spark.ui.enabled=false", "spark-internal"),
            ],
            directory / "connect.log",
            python,
        )

    def environment(self) -> dict[str, str]:
        """What a server is told to use it."""
        return {"SWANLAKE_PIPELINE": "spark", "SWANLAKE_SPARK_REMOTE": self.url}

    def start(self) -> None:
        self.daemon.start("Spark Connect server started")

    def __enter__(self) -> ConnectServer:
        self.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self.daemon.kill()


def bare_python(directory: Path) -> str:
    """An interpreter of this version that has what Spark's workers need, and nothing of ours."""
    packages = directory / "packages"
    packages.mkdir(parents=True)
    installed = Path(pyspark.__file__).parents[1]
    for name in _WORKERS_HAVE:
        (packages / name).symlink_to(installed / name)
    base = Path(sys.base_prefix) / "bin" / f"python3.{sys.version_info.minor}"
    wrapper = directory / "python"
    wrapper.write_text(f'#!/bin/sh\nPYTHONPATH={packages} exec {base} -s "$@"\n')
    wrapper.chmod(0o755)
    for name in ("swanlake", "duckdb"):
        answer = subprocess.run([wrapper, "-c", f"import {name}"], capture_output=True, timeout=60)
        assert b"ModuleNotFoundError" in answer.stderr
    return str(wrapper)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind((_LOOPBACK, 0))
        port: int = probe.getsockname()[1]
        return port


@contextmanager
def short_directory() -> Iterator[Path]:
    """One whose path leaves room for the names of Unix sockets."""
    with tempfile.TemporaryDirectory(prefix="swanlake-spark-", ignore_cleanup_errors=True) as place:
        yield Path(place)


def writer_below(directory: Path, daemons: Iterable[SparkDaemon]) -> SparkDaemon | None:
    """The one in whose family somebody has a file below a directory open."""
    for daemon in daemons:
        if any(_has_open(process, directory) for process in daemon.family()):
            return daemon
    return None


def _has_open(process: psutil.Process, directory: Path) -> bool:
    with suppress(psutil.Error):
        return any(Path(file.path).is_relative_to(directory) for file in process.open_files())
    return False
