"""Turns at a file: who gives up waiting leaves nothing behind."""

from __future__ import annotations

import fcntl
import os
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from swanlake.lake.turns import FileTurns, TurnTimeout


def soon() -> float:
    return time.monotonic() + 30


@pytest.fixture
def elsewhere(tmp_path: Path) -> FileTurns:
    """The same file, as another process sees it."""
    return FileTurns(tmp_path / "turns")


@pytest.fixture
def late(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Threads that wait for a lock do not come to ask for it before this is set."""
    go = threading.Event()
    flock: Callable[[int, int], None] = fcntl.flock

    def wait_first(descriptor: int, operation: int) -> None:
        if not operation & fcntl.LOCK_NB:
            assert go.wait(30)
        flock(descriptor, operation)

    monkeypatch.setattr(fcntl, "flock", wait_first)
    return go


def test_a_thread_that_comes_late_locks_no_other_file(
    tmp_path: Path, elsewhere: FileTurns, late: threading.Event
) -> None:
    before = set(threading.enumerate())
    with elsewhere.turn(soon()):
        with pytest.raises(TurnTimeout), FileTurns(elsewhere.path).turn(time.monotonic() + 0.01):
            pytest.fail("both had the turn")
        # They get the numbers that were given back.
        others = [os.open(tmp_path / f"other{i}", os.O_CREAT | os.O_RDWR) for i in range(8)]
        late.set()
    for thread in set(threading.enumerate()) - before:
        thread.join(30)
    for i, descriptor in enumerate(others):
        probe = os.open(tmp_path / f"other{i}", os.O_RDWR)
        fcntl.flock(probe, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.close(probe)
        os.close(descriptor)


def test_who_gave_up_does_not_keep_the_turn_when_it_comes(elsewhere: FileTurns) -> None:
    with elsewhere.turn(soon()):
        with pytest.raises(TurnTimeout), FileTurns(elsewhere.path).turn(time.monotonic() + 0.01):
            pytest.fail("both had the turn")
    with FileTurns(elsewhere.path).turn(soon()):
        pass


def test_a_lock_that_fails_is_no_turn(
    monkeypatch: pytest.MonkeyPatch, elsewhere: FileTurns
) -> None:
    flock: Callable[[int, int], None] = fcntl.flock

    def fail(descriptor: int, operation: int) -> None:
        if not operation & fcntl.LOCK_NB:
            raise OSError("no locks available")
        flock(descriptor, operation)

    monkeypatch.setattr(fcntl, "flock", fail)
    with (
        elsewhere.turn(soon()),
        pytest.raises(OSError, match="no locks available"),
        FileTurns(elsewhere.path).turn(soon()),
    ):
        pytest.fail("both had the turn")
