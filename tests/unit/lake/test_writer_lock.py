"""The file writer lock: a waiter that times out holds nothing."""

from __future__ import annotations

import fcntl
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from swanlake.lake.commit.writer_lock import FileWriterLock, WriterLockTimeout


def soon() -> float:
    return time.monotonic() + 30


@pytest.fixture
def elsewhere(tmp_path: Path) -> FileWriterLock:
    """The same file, as another process sees it."""
    return FileWriterLock(tmp_path / "sales.turns")


@pytest.fixture
def late(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Delays blocking flock calls until it is set."""
    go = threading.Event()
    flock: Callable[[int, int], None] = fcntl.flock

    def wait_first(descriptor: int, operation: int) -> None:
        if not operation & fcntl.LOCK_NB:
            assert go.wait(120)
        flock(descriptor, operation)

    monkeypatch.setattr(fcntl, "flock", wait_first)
    return go


def test_delayed_lock_thread_locks_no_reused_descriptor(
    tmp_path: Path, elsewhere: FileWriterLock, late: threading.Event
) -> None:
    before = set(threading.enumerate())
    with elsewhere.hold(soon()):
        with (
            pytest.raises(WriterLockTimeout),
            FileWriterLock(elsewhere.path).hold(time.monotonic() + 0.01),
        ):
            pytest.fail("both hold the lock")
        # These reuse the numbers of closed descriptors.
        others = [os.open(tmp_path / f"other{i}", os.O_CREAT | os.O_RDWR) for i in range(8)]
        late.set()
    for thread in set(threading.enumerate()) - before:
        thread.join(120)
    for i, descriptor in enumerate(others):
        probe = os.open(tmp_path / f"other{i}", os.O_RDWR)
        fcntl.flock(probe, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.close(probe)
        os.close(descriptor)


def test_timed_out_waiter_does_not_keep_the_lock(elsewhere: FileWriterLock) -> None:
    with elsewhere.hold(soon()):
        with (
            pytest.raises(WriterLockTimeout),
            FileWriterLock(elsewhere.path).hold(time.monotonic() + 0.01),
        ):
            pytest.fail("both hold the lock")
    with FileWriterLock(elsewhere.path).hold(soon()):
        pass


def test_failing_flock_raises_and_does_not_grant_the_lock(
    monkeypatch: pytest.MonkeyPatch, elsewhere: FileWriterLock
) -> None:
    flock: Callable[[int, int], None] = fcntl.flock

    def fail(descriptor: int, operation: int) -> None:
        if not operation & fcntl.LOCK_NB:
            raise OSError("no locks available")
        flock(descriptor, operation)

    monkeypatch.setattr(fcntl, "flock", fail)
    with (
        elsewhere.hold(soon()),
        pytest.raises(OSError, match="no locks available"),
        FileWriterLock(elsewhere.path).hold(soon()),
    ):
        pytest.fail("both hold the lock")
