"""Calls to the methods of an object in a worker process.

The worker exits with its parent, and every call has a timeout. Threads may call concurrently: each
call has a connection to itself.
"""

from __future__ import annotations

import contextlib
import logging
import os
import secrets
import shutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from multiprocessing.connection import Connection, Listener, answer_challenge, deliver_challenge
from pathlib import Path
from typing import IO, Any

from swanlake._internal.free_list import FreeList
from swanlake.errors import SwanLakeError

ToError = Callable[[str, Exception], SwanLakeError]

log = logging.getLogger("swanlake._internal.subprocess_rpc")

_START_SECONDS = 30.0
_EXIT_SECONDS = 5.0
_KEY_BYTES = 32
_PREFIX = "swanlake-worker-"
#: A directory of this age has the socket of a worker that started, or belongs to none.
_STALE_SECONDS = 2 * _START_SECONDS
#: For one read or write on the socket, as the kernel takes it: seconds and microseconds.
_TRANSFER_TIMEOUT = struct.pack("ll", 30, 0)


class WorkerProcessLost(Exception):
    """The worker process could not be started, exited, or did not answer."""


class WorkerProcess:
    """A worker process and the connections to it; it takes calls once it is ready."""

    def __init__(
        self,
        module: str,
        *arguments: str,
        environment: Mapping[str, str] | None = None,
        errors: IO[bytes] | None = None,
    ) -> None:
        self.owner = os.getpid()
        remove_stale_directories(Path(tempfile.gettempdir()))
        self._directory = tempfile.mkdtemp(prefix=_PREFIX)
        self._address = f"{self._directory}/socket"
        self._key = secrets.token_bytes(_KEY_BYTES)
        self._connections: FreeList[Connection] = FreeList(self._connect)
        self._process = subprocess.Popen(
            [sys.executable, "-m", module, self._address, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            env=environment,
            start_new_session=True,  # a Ctrl-C in the terminal is for the parent to handle
        )

    @property
    def pid(self) -> int:
        return self._process.pid

    def wait_until_ready(self) -> None:
        """Waits until the worker takes calls; raises WorkerProcessLost if it exits instead."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        timer = threading.Timer(_START_SECONDS, self._process.kill)
        timer.start()
        try:
            self._process.stdin.write(self._key)
            self._process.stdin.flush()
            ready = self._process.stdout.readline()
        except OSError as broken:
            ready = b""
            log.error("a worker process could not be started: %s", broken)
        finally:
            timer.cancel()
        if not ready:
            self.close()
            raise WorkerProcessLost("it could not be started")

    def call(self, timeout: float, method: str, *arguments: Any) -> Any:
        """The result of a method of the worker's handler; its SwanLakeErrors are raised here."""
        try:
            with self._connections.borrow() as connection:
                connection.send((method, arguments))
                if not connection.poll(timeout):
                    raise WorkerProcessLost(f"no answer in {timeout:g} s")
                result = connection.recv()
        except (EOFError, OSError) as broken:
            raise WorkerProcessLost(str(broken) or "it exited") from broken
        if isinstance(result, BaseException):
            raise result
        return result

    def _connect(self) -> Connection:
        """Connects as multiprocessing's Client() does, with timeouts: a worker that was stopped
        must not block the caller in a read or a write."""
        with socket.socket(socket.AF_UNIX) as channel:
            for direction in (socket.SO_RCVTIMEO, socket.SO_SNDTIMEO):
                channel.setsockopt(socket.SOL_SOCKET, direction, _TRANSFER_TIMEOUT)
            channel.connect(self._address)
            connection = Connection(channel.detach())
        try:
            answer_challenge(connection, self._key)
            deliver_challenge(connection, self._key)
        except BaseException:
            connection.close()
            raise
        return connection

    def wait(self, timeout: float | None = None) -> bool:
        """Waits for the process to exit; False if it did not in time."""
        try:
            self._process.wait(timeout)
        except subprocess.TimeoutExpired:
            return False
        return True

    def kill(self) -> None:
        """Kills the process; calls that are under way raise WorkerProcessLost."""
        self._process.kill()

    def close(self) -> None:
        """Ends the process; a call that is under way may have taken effect."""
        if self.owner != os.getpid():
            return
        self._connections.close()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()
        if not self.wait(_EXIT_SECONDS):
            self._process.kill()
            self._process.wait()
        _remove_directory(Path(self._directory))


def remove_stale_directories(parent: Path) -> None:
    """Removes what is left of workers that were killed together with their parents."""
    for directory in parent.glob(f"{_PREFIX}*"):
        with contextlib.suppress(OSError):  # it is gone, or another user's
            is_old = time.time() - directory.stat().st_mtime > _STALE_SECONDS
            if is_old and not _is_listening(directory / "socket"):
                _remove_directory(directory)


def _is_listening(address: Path) -> bool:
    with socket.socket(socket.AF_UNIX) as channel:
        channel.settimeout(_EXIT_SECONDS)
        try:
            channel.connect(str(address))
        except (ConnectionRefusedError, FileNotFoundError):
            return False
    return True


def _remove_directory(directory: Path) -> None:
    shutil.rmtree(directory, ignore_errors=True)


def serve(handler: object, to_error: ToError) -> None:
    """The worker's side: serves the public methods of ``handler`` until the parent exits.

    ``to_error`` gives the error to send in place of an exception that is not SwanLake's.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    key = sys.stdin.buffer.read(_KEY_BYTES)
    with Listener(sys.argv[1], "AF_UNIX", backlog=128, authkey=key) as listener:
        threading.Thread(target=_accept, args=(listener, handler, to_error), daemon=True).start()
        sys.stdout.write("ready\n")
        sys.stdout.flush()
        os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # the parent stops reading the pipe
        sys.stdin.buffer.read()
    _remove_directory(Path(sys.argv[1]).parent)  # the parent was killed, or does it now
    os._exit(0)


def _accept(listener: Listener, handler: object, to_error: ToError) -> None:
    while True:
        try:
            connection = listener.accept()
        except Exception:  # a peer that does not know the key, or hung up
            log.debug("a connection was refused", exc_info=True)
            continue
        arguments = (handler, to_error, connection)
        threading.Thread(target=_serve_connection, args=arguments, daemon=True).start()


def _serve_connection(handler: object, to_error: ToError, connection: Connection) -> None:
    with connection, contextlib.suppress(EOFError, OSError):
        while True:
            method, arguments = connection.recv()
            try:
                result = getattr(handler, method)(*arguments)
            except SwanLakeError as error:
                result = error
            except Exception as error:
                log.exception("failed to %s", method)
                result = to_error(method, error)
            connection.send(result)
