"""Spark clusters from the pyspark package, on the loopback address."""

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

from tests.waiting import eventually

START_SECONDS = 300.0
_PR_SET_PDEATHSIG = 1
_HOME = Path(pyspark.__file__).parent
_LOOPBACK = "127.0.0.1"
#: Packages that Spark's workers need; everything else is shipped with the job.
_WORKER_PACKAGES = ("pyspark", "py4j", "pyarrow", "numpy", "numpy.libs")


def _exit_with_parent() -> None:
    """Makes the kernel kill the child when the test run is killed."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


class SparkDaemon:
    """A Spark JVM and the processes it starts."""

    def __init__(self, command: list[str], log: Path, python: str) -> None:
        self._command = command
        self._log = log
        self._python = python
        self._process: subprocess.Popen[bytes] | None = None

    def start(self, ready: str) -> None:
        """Starts the JVM and waits until its log contains a text."""
        self._log.unlink(missing_ok=True)
        environment = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(
                ("PYTHON", "SWANLAKE_")
            )  # a cluster has none of SwanLake's environment
        }
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                self._command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=self._log.parent,
                start_new_session=True,
                preexec_fn=_exit_with_parent,
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
            raise AssertionError(f"Spark did not start:\n{self.log_text[-4000:]}") from None

    def _is_ready(self, ready: str) -> bool:
        assert self.is_alive, self.log_text[-4000:]
        return ready in self.log_text

    @property
    def is_alive(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def log_text(self) -> str:
        return self._log.read_text(errors="replace") if self._log.exists() else ""

    def process_tree(self) -> list[psutil.Process]:
        """The JVM and all its descendants."""
        if self._process is None or self._process.poll() is not None:
            return []
        with suppress(psutil.NoSuchProcess):
            parent = psutil.Process(self._process.pid)
            return [parent, *parent.children(recursive=True)]
        return []

    def kill(self) -> None:
        """Kills the process tree, as a power failure would."""
        kill_together(self)

    def wait(self) -> None:
        """Waits until the JVM has ended."""
        if self._process is not None:
            self._process.wait(START_SECONDS)


def kill_together(*daemons: SparkDaemon) -> None:
    """Kills several daemons before any of them can react to the death of another."""
    processes = _signal(signal.SIGKILL, daemons)
    for daemon in daemons:
        daemon.wait()
    psutil.wait_procs(processes, START_SECONDS)


def freeze(*daemons: SparkDaemon) -> None:
    """Stops the processes until they are thawed or killed."""
    _signal(signal.SIGSTOP, daemons)


def thaw(*daemons: SparkDaemon) -> None:
    """Continues frozen processes."""
    _signal(signal.SIGCONT, daemons)


def _signal(number: signal.Signals, daemons: Iterable[SparkDaemon]) -> list[psutil.Process]:
    processes = [process for daemon in daemons for process in daemon.process_tree()]
    for process in processes:
        with suppress(psutil.NoSuchProcess):
            process.send_signal(number)
    return processes


class StandaloneCluster:
    """A standalone master, and workers with one core each."""

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
        """Settings of a server that uses this cluster."""
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
        """Kills the master and the workers."""
        kill_together(self._master, *self.workers)

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
    """A Spark Connect server in local mode."""

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
        """Settings of a server that uses this cluster."""
        return {"SWANLAKE_PIPELINE": "spark", "SWANLAKE_SPARK_REMOTE": self.url}

    def start(self) -> None:
        self.daemon.start("Spark Connect server started")

    def __enter__(self) -> ConnectServer:
        self.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self.daemon.kill()


def minimal_python(directory: Path) -> str:
    """A Python interpreter with only the packages of Spark's workers; returns its path."""
    packages = directory / "packages"
    packages.mkdir(parents=True)
    installed = Path(pyspark.__file__).parents[1]
    for name in _WORKER_PACKAGES:
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
    """A temporary directory with a path short enough for Unix sockets."""
    with tempfile.TemporaryDirectory(prefix="swanlake-spark-", ignore_cleanup_errors=True) as path:
        yield Path(path)


def find_writer_below(directory: Path, daemons: Iterable[SparkDaemon]) -> SparkDaemon | None:
    """The daemon with a process that has a file below a directory open."""
    for daemon in daemons:
        if any(_has_open(process, directory) for process in daemon.process_tree()):
            return daemon
    return None


def _has_open(process: psutil.Process, directory: Path) -> bool:
    with suppress(psutil.Error):
        return any(Path(file.path).is_relative_to(directory) for file in process.open_files())
    return False
