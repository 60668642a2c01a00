"""Python processes that are forked from one that has already imported SwanLake.

Importing SwanLake takes most of the CPU time of a server's start. The template process imports it
once, starts no thread and opens nothing, so a fork of it is a new interpreter after its imports.
Servers ask the same template for their SQLite workers. All forks die with the template, and the
template dies with the process that started it.
"""

from __future__ import annotations

import atexit
import contextlib
import gc
import importlib
import json
import os
import runpy
import select
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import traceback
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import IO, Any, NoReturn

from pyarrow import flight

#: Where the template listens; forks inherit it.
ADDRESS_VARIABLE = "PRELOADED_PYTHON_ADDRESS"
_MODULES = (
    "swanlake.cli.commands",
    "swanlake.server.app",
    "swanlake.jobs.inline",
    "swanlake.lake.metastore.sqlite_worker",
    "sqlalchemy.dialects.sqlite",
    "pyarrow.dataset",
)
_SPARK_DRIVER = "swanlake.jobs.spark.driver"
_ROOT = Path(__file__).resolve().parents[1]
_MESSAGE_BYTES = 128 * 1024
_START_SECONDS = 240.0
_STANDARD_STREAMS = 3


def install() -> None:
    """From now on, this process forks its servers and SQLite workers from a template."""
    rpc = importlib.import_module("swanlake._internal.subprocess_rpc")
    rpc.__dict__["subprocess"] = SimpleNamespace(**{**vars(subprocess), "Popen": popen})


def popen(command: Sequence[str], **options: Any) -> Any:
    """Starts ``python -m module …`` or ``python script …`` as a fork of the template.

    The options are those of ``subprocess.Popen`` that SwanLake and its tests use. Spark's driver
    remains a child of the caller: tests check which processes end with it.
    """
    if _SPARK_DRIVER in command:
        return subprocess.Popen(command, **options)
    assert command[0] == sys.executable
    return ForkedProcess(list(command[1:]), **options)


class ForkedProcess:
    """What ``subprocess.Popen`` is for a process that another process started."""

    def __init__(
        self,
        arguments: Sequence[str],
        *,
        stdin: int | None = None,
        stdout: int | IO[bytes] | None = None,
        stderr: int | IO[bytes] | None = None,
        env: Mapping[str, str] | None = None,
        cwd: str | Path | None = None,
        start_new_session: bool = False,
    ) -> None:
        self.args = [sys.executable, *arguments]
        self.returncode: int | None = None
        self.stdin: IO[bytes] | None = None
        self.stdout: IO[bytes] | None = None
        address = start()
        request = {
            "arguments": list(arguments),
            "environment": {**(os.environ if env is None else env), ADDRESS_VARIABLE: address},
            "directory": str(Path.cwd() if cwd is None else cwd),
            "new_session": start_new_session,
            "umask": _umask(),
        }
        with contextlib.ExitStack() as passed:
            streams = [
                self._open_stream(passed, number, stream)
                for number, stream in enumerate((stdin, stdout, stderr))
            ]
            self._template = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            self._template.connect(address)
            socket.send_fds(self._template, [json.dumps(request).encode()], streams)
        self._template.settimeout(_START_SECONDS)
        self.pid = int(self._template.recv(_MESSAGE_BYTES))

    def _open_stream(
        self, passed: contextlib.ExitStack, number: int, stream: int | IO[bytes] | None
    ) -> int:
        """The descriptor that the process gets as a standard stream."""
        if stream is None:
            return number
        if not isinstance(stream, int):
            return stream.fileno()
        if stream == subprocess.DEVNULL:
            descriptor = os.open(os.devnull, os.O_RDWR)
        elif stream == subprocess.PIPE:
            reader, writer = os.pipe()
            descriptor, own = (reader, writer) if number == 0 else (writer, reader)
            if number == 0:
                self.stdin = os.fdopen(own, "wb")
            else:
                self.stdout = os.fdopen(own, "rb")
        else:
            return stream
        passed.callback(os.close, descriptor)
        return descriptor

    def poll(self) -> int | None:
        """The exit code, or None while the process runs."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.wait(0)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Waits for the end of the process; raises TimeoutExpired."""
        if self.returncode is None:
            ready, _, _ = select.select([self._template], [], [], timeout)
            if not ready:
                raise subprocess.TimeoutExpired(self.args, timeout or 0.0)
            code = self._template.recv(_MESSAGE_BYTES)
            self.returncode = int(code) if code else -signal.SIGKILL  # the template is gone
            self._template.close()
        return self.returncode

    def send_signal(self, number: int) -> None:
        """Sends a signal, unless the process has ended."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def __enter__(self) -> ForkedProcess:
        return self

    def __exit__(self, *exception: object) -> None:
        self.wait()


def _umask() -> int:
    """The umask, which a child of this process would inherit; ``os.umask`` would change it."""
    status = Path("/proc/self/status").read_text()
    return int(status.partition("\nUmask:")[2].split()[0], 8)


_lock = threading.Lock()


def start() -> str:
    """The address of the template of this process and its children; starts the template once."""
    with _lock:
        if ADDRESS_VARIABLE not in os.environ:
            os.environ[ADDRESS_VARIABLE] = _start_template()
        return os.environ[ADDRESS_VARIABLE]


def _start_template() -> str:
    address = f"{tempfile.mkdtemp(prefix='swanlake-preloaded-')}/socket"
    template = subprocess.Popen(
        [sys.executable, "-m", "tests.preloaded", address],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        cwd=_ROOT,
        start_new_session=True,  # a Ctrl-C in the terminal is for pytest to handle
    )
    assert template.stdout is not None
    if not template.stdout.readline():
        raise AssertionError("the template process did not start")
    owner = os.getpid()

    def stop() -> None:
        if os.getpid() == owner and template.stdin is not None:
            template.stdin.close()
            template.wait()

    atexit.register(stop)
    return address


# ---- the template ------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Program:
    """What a fork is to run."""

    arguments: Sequence[str]

    def run(self) -> NoReturn:
        """Runs the program as the interpreter would, and exits.

        The destructors of C++ libraries do not run: those of Arrow abort in a forked process.
        """
        code = 1
        try:
            self._run()
            code = 0
        except SystemExit as exit:
            if isinstance(exit.code, int | None):
                code = exit.code or 0
            else:
                print(exit.code, file=sys.stderr)  # noqa: T201
        except BaseException:  # noqa: BLE001
            traceback.print_exc()
        for thread in threading.enumerate():
            if thread is not threading.current_thread() and not thread.daemon:
                thread.join()
        atexit._run_exitfuncs()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)

    def _run(self) -> None:
        if self.arguments[0] == "-m":
            sys.argv = list(self.arguments[1:])
            # The template has imported the module; runpy executes it once more and warns.
            warnings.filterwarnings("ignore", ".* found in sys.modules", RuntimeWarning)
            runpy.run_module(self.arguments[1], run_name="__main__", alter_sys=True)
        else:
            sys.argv = list(self.arguments)
            runpy.run_path(self.arguments[0], run_name="__main__")


def _serve(address: str) -> _Program:
    """Forks a process for each request; returns in the forks."""
    for module in _MODULES:
        importlib.import_module(module)
    install()  # forks start their workers through the template, too
    if threading.gettrace() is not None:
        _trace_flight_calls()
    assert threading.active_count() == 1, "a fork would lose the other threads"
    gc.collect()
    gc.freeze()  # a collection in a fork would copy the pages of all imported objects
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    listener.bind(address)
    listener.listen(128)
    woken, wake = os.pipe()
    os.set_blocking(woken, False)
    os.set_blocking(wake, False)
    signal.set_wakeup_fd(wake)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    os.write(sys.stdout.fileno(), b"ready\n")
    waiting: dict[int, socket.socket] = {}
    while True:
        ready, _, _ = select.select([sys.stdin.fileno(), listener, woken], [], [])
        if sys.stdin.fileno() in ready:
            for pid in waiting:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            shutil.rmtree(Path(address).parent)
            os._exit(0)
        if woken in ready:
            with contextlib.suppress(BlockingIOError):
                os.read(woken, 4096)
            _reap(waiting)
        if listener in ready:
            connection, _ = listener.accept()
            message, streams, _, _ = socket.recv_fds(connection, _MESSAGE_BYTES, _STANDARD_STREAMS)
            if len(streams) != _STANDARD_STREAMS:
                connection.close()
                continue
            pid = os.fork()
            if pid == 0:
                return _become(json.loads(message), streams)
            waiting[pid] = connection
            for descriptor in streams:
                os.close(descriptor)
            with contextlib.suppress(OSError):
                connection.send(str(pid).encode())


def _trace_flight_calls() -> None:
    """Coverage observes the threads that Python starts; those of gRPC must ask for it."""
    from swanlake.server.service import SwanLakeService

    def traced(handler: Callable[..., Any]) -> Callable[..., Any]:
        def handle(*arguments: Any) -> Any:
            sys.settrace(threading.gettrace())
            return handler(*arguments)

        return handle

    for name, handler in list(vars(SwanLakeService).items()):
        if callable(handler) and hasattr(flight.FlightServerBase, name):
            setattr(SwanLakeService, name, traced(handler))


def _reap(waiting: dict[int, socket.socket]) -> None:
    """Tells those who wait for ended forks their exit codes."""
    with contextlib.suppress(ChildProcessError):
        while True:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                return
            with waiting.pop(pid) as connection, contextlib.suppress(OSError):
                connection.send(str(os.waitstatus_to_exitcode(status)).encode())


def _become(request: dict[str, Any], streams: Sequence[int]) -> _Program:
    """Makes a fork of the template the requested process."""
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    if request["new_session"]:
        os.setsid()
    for number, descriptor in enumerate(streams):
        os.dup2(descriptor, number)
    os.closerange(_STANDARD_STREAMS, os.sysconf("SC_OPEN_MAX"))
    os.environ.clear()
    os.environ.update(request["environment"])
    time.tzset()
    os.chdir(request["directory"])
    os.umask(request["umask"])
    return _Program(request["arguments"])


if __name__ == "__main__":
    _serve(sys.argv[1]).run()
