"""A child process that answers questions.

It dies with its parent, and a question has a deadline. Several threads may ask at once; each
question has a connection to itself.
"""

from __future__ import annotations

import contextlib
import logging
import os
import secrets
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping
from multiprocessing.connection import (
    Connection,
    Listener,
    answer_challenge,
    deliver_challenge,
)
from pathlib import Path
from typing import IO, Any

from swanlake.errors import SwanLakeError

log = logging.getLogger("swanlake.child")

_START_SECONDS = 30.0
_END_SECONDS = 5.0
_KEY_BYTES = 32
#: For one read or write of the connection, as the kernel takes it: seconds and microseconds.
_TRANSFER_TIMEOUT = struct.pack("ll", 30, 0)


class ChildLost(Exception):
    """The child could not be started, ended, or did not answer."""


class Child:
    """The process, and the connections to it that are free; it can be asked once it is ready."""

    def __init__(
        self,
        module: str,
        *arguments: str,
        environment: Mapping[str, str] | None = None,
        errors: IO[bytes] | None = None,
    ) -> None:
        self.owner = os.getpid()
        self._folder = tempfile.mkdtemp(prefix="swanlake-child-")
        self._address = f"{self._folder}/socket"
        self._key = secrets.token_bytes(_KEY_BYTES)
        self._lock = threading.Lock()
        self._free: list[Connection] = []
        self._process = subprocess.Popen(
            [sys.executable, "-m", module, self._address, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=errors,
            env={**os.environ, **(environment or {})},
            start_new_session=True,  # a Ctrl-C in the terminal is for the parent to handle
        )

    @property
    def pid(self) -> int:
        return self._process.pid

    def await_ready(self) -> None:
        """Waits until it can be asked; raises ChildLost if it ends instead."""
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
            log.error("a child process could not be started: %s", broken)
        finally:
            timer.cancel()
        if not ready:
            self.end()
            raise ChildLost("it could not be started")

    def ask(self, patience: float, method: str, *arguments: Any) -> Any:
        """What a method of the child's answers; its SwanLakeErrors are raised here."""
        try:
            with self._connection() as connection:
                connection.send((method, arguments))
                if not connection.poll(patience):
                    raise ChildLost(f"no answer in {patience:g} s")
                answer = connection.recv()
        except (EOFError, OSError) as broken:
            raise ChildLost(str(broken) or "it ended") from broken
        if isinstance(answer, BaseException):
            raise answer
        return answer

    @contextlib.contextmanager
    def _connection(self) -> Iterator[Connection]:
        with self._lock:
            connection = self._free.pop() if self._free else None
        if connection is None:
            connection = self._connect()
        try:
            yield connection
        except BaseException:
            connection.close()
            raise
        with self._lock:
            self._free.append(connection)

    def _connect(self) -> Connection:
        """What Client() does, but a child that was stopped cannot hold us in it, or in a send."""
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
        """Waits for the process to end; False if it did not in time."""
        try:
            self._process.wait(timeout)
        except subprocess.TimeoutExpired:
            return False
        return True

    def kill(self) -> None:
        """Ends the process, at whatever it is; those who wait for it find that it is lost."""
        self._process.kill()

    def end(self) -> None:
        """Ends the process; what it was doing, it may have done."""
        if self.owner != os.getpid():
            return
        with self._lock:
            for connection in self._free:
                connection.close()
            self._free.clear()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()
        if not self.wait(_END_SECONDS):
            self._process.kill()
            self._process.wait()
        with contextlib.suppress(OSError):
            Path(self._address).unlink(missing_ok=True)
            Path(self._folder).rmdir()


def serve_parent(answers: object, failed: Callable[[str, Exception], SwanLakeError]) -> None:
    """The child's side: public methods of ``answers`` are called until the parent is gone.

    ``failed`` makes an error for the parent of one that is not SwanLake's.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    key = sys.stdin.buffer.read(_KEY_BYTES)
    with Listener(sys.argv[1], "AF_UNIX", backlog=128, authkey=key) as listener:
        threading.Thread(target=_accept, args=(listener, answers, failed), daemon=True).start()
        sys.stdout.write("ready\n")
        sys.stdout.flush()
        os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # nobody reads the pipe any more
        sys.stdin.buffer.read()
    os._exit(0)


def _accept(
    listener: Listener, answers: object, failed: Callable[[str, Exception], SwanLakeError]
) -> None:
    while True:
        try:
            connection = listener.accept()
        except Exception:  # someone who does not know the key, or went away
            log.debug("a connection was refused", exc_info=True)
            continue
        serving = (answers, failed, connection)
        threading.Thread(target=_serve, args=serving, daemon=True).start()


def _serve(
    answers: object, failed: Callable[[str, Exception], SwanLakeError], connection: Connection
) -> None:
    """Answers one connection until it ends."""
    with connection, contextlib.suppress(EOFError, OSError):
        while True:
            method, arguments = connection.recv()
            try:
                answer = getattr(answers, method)(*arguments)
            except SwanLakeError as error:
                answer = error
            except Exception as error:
                log.exception("failed to %s", method)
                answer = failed(method, error)
            connection.send(answer)
