"""SQLite catalogs are kept by a process of their own.

DuckDB brings its own copy of SQLite. Two copies in one process break each other's file locks: POSIX
gives a lock to the process, and takes it away when *any* descriptor of the file is closed. Commits
were lost that way. So whoever attaches a SQLite catalog in DuckDB leaves everything else that
touches the file to the keeper, a child process that dies with its parent.
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
from collections.abc import Callable, Iterator
from functools import partial
from multiprocessing.connection import (
    Connection,
    Listener,
    answer_challenge,
    deliver_challenge,
)
from pathlib import Path
from typing import Any

from swanlake.errors import CatalogUnreachable, CommitStateUnknown, SwanLakeError
from swanlake.lake.commit import Committed, Retries
from swanlake.lake.local import LocalLake, open_metabase
from swanlake.lake.metabase import CatalogInfo
from swanlake.lake.operations import Commit

log = logging.getLogger("swanlake.lake")

_START_SECONDS = 30.0
#: No question takes longer; a commit says itself how long it may take.
_ANSWER_SECONDS = 300.0
_COMMIT_MARGIN_SECONDS = 30.0
_COMMIT_ATTEMPTS = 3
#: For one read or write of the connection, as the kernel takes it: seconds and microseconds.
_TRANSFER_TIMEOUT = struct.pack("ll", 30, 0)
_NEVER_TWICE = {"create", "fork", "drop", "adopt"}


class _KeeperLost(Exception):
    """The child ended, or did not answer, while it was asked something."""


class RemoteLake:
    """A LocalLake in a child process, started when it is first asked and again if it dies."""

    def __init__(self, directory: Path, data_location: str) -> None:
        self._directory = directory
        self._data_location = data_location
        self._lock = threading.Lock()
        self._child: _Child | None = None

    def close(self) -> None:
        """Ends the child."""
        with self._lock:
            child, self._child = self._child, None
        if child is not None:
            child.end()

    def __getattr__(self, method: str) -> Callable[..., Any]:
        """Every other method of LocalLake, done by the child."""
        if method.startswith("_") or not hasattr(LocalLake, method):
            raise AttributeError(method)
        return partial(self._change if method in _NEVER_TWICE else self._read, method)

    def commit(self, info: CatalogInfo, change: Commit, retries: Retries) -> Committed:
        """Makes all of a commit visible at once; raises a LakeError and leaves no trace."""
        patience = retries.timeout + _COMMIT_MARGIN_SECONDS
        times_lost = 0
        while times_lost < _COMMIT_ATTEMPTS:
            try:
                return self._ask(patience, "commit", info, change, retries, times_lost > 0)  # type: ignore[no-any-return]
            except _KeeperLost as lost:
                times_lost += 1
                log.warning("the keeper of %s was lost during a commit: %s", info.name, lost)
            except CatalogUnreachable:
                if times_lost == 0:
                    raise
                break  # no new keeper, and the old one may have committed before it was lost
        raise CommitStateUnknown(
            f"The process that keeps the catalog {info.name} was lost {times_lost} times during "
            "this commit. It is either there whole or not at all: look before you repeat it."
        )

    def _read(self, method: str, *arguments: Any) -> Any:
        """What can be asked twice."""
        try:
            return self._ask(_ANSWER_SECONDS, method, *arguments)
        except _KeeperLost:
            return self._change(method, *arguments)

    def _change(self, method: str, *arguments: Any) -> Any:
        try:
            return self._ask(_ANSWER_SECONDS, method, *arguments)
        except _KeeperLost as lost:
            raise CatalogUnreachable(
                f"The process that keeps the catalogs in {self._directory} was lost while it was "
                f"asked to {method}: {lost}. Look whether it was done before you repeat it."
            ) from lost

    def _ask(self, patience: float, method: str, *arguments: Any) -> Any:
        child = self._running()
        try:
            return child.ask(patience, method, arguments)
        except _KeeperLost:
            with self._lock:
                if self._child is child:
                    self._child = None
            child.end()
            raise

    def _running(self) -> _Child:
        with self._lock:
            # A forked process must not share its parent's pipes.
            if self._child is None or self._child.owner != os.getpid():
                self._child = _Child(self._directory, self._data_location)
            return self._child


class _Child:
    """The process, and the connections to it that are free."""

    def __init__(self, directory: Path, data_location: str) -> None:
        self.owner = os.getpid()
        self._folder = tempfile.mkdtemp(prefix="swanlake-keeper-")
        self._address = f"{self._folder}/socket"
        self._key = secrets.token_bytes(32)
        self._lock = threading.Lock()
        self._free: list[Connection] = []
        self._process = subprocess.Popen(
            [sys.executable, "-m", "swanlake.lake.keeper", self._address, directory, data_location],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,  # a Ctrl-C in the terminal is for the server to handle
        )
        self._start()

    def _start(self) -> None:
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
            log.error("the keeper could not be started: %s", broken)
        finally:
            timer.cancel()
        if not ready:
            self.end()
            raise CatalogUnreachable("The process that keeps the catalogs could not be started.")

    def ask(self, patience: float, method: str, arguments: tuple[Any, ...]) -> Any:
        try:
            with self._connection() as connection:
                connection.send((method, arguments))
                if not connection.poll(patience):
                    raise _KeeperLost(f"no answer in {patience:g} s")
                answer = connection.recv()
        except (EOFError, OSError) as broken:
            raise _KeeperLost(str(broken) or "it ended") from broken
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

    def end(self) -> None:
        """Ends the process; what it was committing is there whole or not at all."""
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
        try:
            self._process.wait(timeout=5)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        with contextlib.suppress(OSError):
            Path(self._address).unlink(missing_ok=True)
            Path(self._folder).rmdir()


def _serve(lake: LocalLake, connection: Connection) -> None:
    """Answers one connection until it ends."""
    with connection, contextlib.suppress(EOFError, OSError):
        while True:
            method, arguments = connection.recv()
            try:
                answer = getattr(lake, method)(*arguments)
            except SwanLakeError as error:
                answer = error
            except Exception as error:
                log.exception("the keeper failed to %s", method)
                answer = CatalogUnreachable(f"The catalog's keeper failed: {error}")
            connection.send(answer)


def _accept(lake: LocalLake, listener: Listener) -> None:
    while True:
        try:
            connection = listener.accept()
        except Exception:  # someone who does not know the key, or went away
            log.debug("a connection was refused", exc_info=True)
            continue
        threading.Thread(target=_serve, args=(lake, connection), daemon=True).start()


def main() -> None:
    """The child: serves its parent until the parent's end of the pipe is closed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    address, directory, data_location = sys.argv[1:]
    key = sys.stdin.buffer.read(32)
    lake = LocalLake(open_metabase(Path(directory), data_location))
    with Listener(address, "AF_UNIX", backlog=128, authkey=key) as listener:
        threading.Thread(target=_accept, args=(lake, listener), daemon=True).start()
        sys.stdout.write("ready\n")
        sys.stdout.flush()
        sys.stdin.buffer.read()
    os._exit(0)


if __name__ == "__main__":
    main()
