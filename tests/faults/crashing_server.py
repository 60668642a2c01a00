"""``swanlake serve`` that crashes, blocks or gets disk errors at a step of the queue.

The environment names a file with the fault. The file may change while the server runs:

    crash <step>/<passage>/<milliseconds>   SIGKILL this long after the nth time the step is reached
    hold <step>                             threads that reach the step block until the file changes
    refuse <name of an error>               every write to the queue's disk fails halfway

A file with the suffix ``.held`` is created when a thread blocks.
"""

from __future__ import annotations

import errno
import os
import pathlib
import signal
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from swanlake.cli import main
from swanlake.jobs.spark.runner import SparkRunner
from swanlake.lake.files import storage
from swanlake.lake.metastore import store as commits
from swanlake.queue import service
from swanlake.queue.flush import dead_letters, flusher, replay
from swanlake.queue.flush.units import FlushUnit
from swanlake.queue.storage import ownership, store

FAULT_FILE_VARIABLE = "CRASHING_SERVER_FAULT_FILE"

#: While the rows of a client become durable.
APPEND_STEPS = (
    "append: before the file",
    "append: file created",
    "append: half written",
    "append: written",
    "append: synced",
    "append: directory synced",
    "append: before the acknowledgement",
)
#: While a segment is flushed to the lake.
FLUSH_STEPS = (
    "seal: begins",
    "seal: done",
    "unit: begins",
    "unit: files written",
    "flush: before the commit",
    "flush: committed",
    "remove: begins",
    "remove: done",
)
#: Reached only when one flush stores several segments.
BETWEEN_REMOVALS = "remove: between two"
#: While a large upload becomes a segment.
BULK_STEPS = ("bulk: half written", "bulk: synced", "bulk: renamed")
#: While a server adopts the segments of another.
ADOPT_STEPS = ("adopt: before the rename", "adopt: renamed", "adopt: all renamed")
#: While a segment becomes a dead letter.
DEAD_LETTER_STEPS = ("letter: before a file", "letter: file written")
#: While a dead letter is replayed.
REPLAY_STEPS = ("replay: segment written", "replay: letter half removed")
#: Inside a commit; on SQLite it runs in another process.
COMMIT_STEPS = ("commit: locked", "commit: planned", "commit: written", "commit: committed")


class FaultInjector:
    """Reads the fault file, and counts how often the step of a fault was reached."""

    def __init__(self, fault_file: Path) -> None:
        self._fault_file = fault_file
        self._lock = threading.Lock()
        self._passages: Counter[str] = Counter()

    def should_crash(self, step: str) -> bool:
        """True if the process must crash at this step now; a delayed crash is scheduled here."""
        verb, argument = self._read()
        if verb != "crash" or argument.partition("/")[0] != step:
            return False
        _, passage, milliseconds = argument.split("/")
        with self._lock:
            self._passages[argument] += 1
            if self._passages[argument] != int(passage):
                return False
        if int(milliseconds):
            threading.Timer(int(milliseconds) / 1000, crash).start()
            return False
        return True

    def reach(self, step: str) -> None:
        """Called when a thread reaches a step: crashes or blocks if the fault says so."""
        if self.should_crash(step):
            crash()
        while self._read() == ("hold", step):
            self._fault_file.with_name(self._fault_file.name + ".held").touch()
            time.sleep(0.01)

    def write_error(self) -> OSError | None:
        """The error with which writes must fail, if any."""
        verb, argument = self._read()
        if verb != "refuse":
            return None
        number = getattr(errno, argument)
        return OSError(number, os.strerror(number))

    def _read(self) -> tuple[str, str]:
        try:
            verb, _, argument = self._fault_file.read_text().partition(" ")
        except FileNotFoundError:
            return "", ""
        return verb, argument


def crash() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


class FaultyOs:
    """Replaces the module ``os`` in the queue's store."""

    def __init__(self, faults: FaultInjector) -> None:
        self._faults = faults

    def __getattr__(self, name: str) -> Any:
        return getattr(os, name)

    def open(self, path: Path, flags: int, mode: int) -> int:
        refusal = self._faults.write_error()
        if refusal is not None and refusal.errno == errno.EROFS:
            raise refusal
        if not flags & os.O_CREAT:
            return os.open(path, flags, mode)
        self._faults.reach("append: before the file")
        descriptor = os.open(path, flags, mode)
        self._faults.reach("append: file created")
        return descriptor

    def pwrite(self, descriptor: int, data: memoryview, offset: int) -> int:
        half = data[: len(data) // 2]
        refusal = self._faults.write_error()
        if refusal is not None:
            os.pwrite(descriptor, half, offset)
            raise refusal
        if self._faults.should_crash(f"{_kind(descriptor)}: half written"):
            os.pwrite(descriptor, half, offset)
            crash()
        return os.pwrite(descriptor, data, offset)

    def fdatasync(self, descriptor: int) -> None:
        self._faults.reach(f"{_kind(descriptor)}: written")
        os.fdatasync(descriptor)
        self._faults.reach(f"{_kind(descriptor)}: synced")


def _kind(descriptor: int) -> str:
    path = os.readlink(f"/proc/self/fd/{descriptor}")
    return "bulk" if path.endswith(".partial") else "append"


class FaultyStorage:
    """Replaces the module ``lake.files.storage`` in the dead letters."""

    def __init__(self, faults: FaultInjector) -> None:
        self._faults = faults
        self._files = storage

    def __getattr__(self, name: str) -> Any:
        return getattr(self._files, name)

    def write(self, path: str, pieces: Iterable[bytes]) -> None:
        self._faults.reach("letter: before a file")
        self._files.write(path, pieces)
        self._faults.reach("letter: file written")

    def delete(self, path: str) -> None:
        self._files.delete(path)
        self._faults.reach("replay: letter half removed")


def replace(owner: Any, name: str, replacement: Any) -> None:
    """Replaces an attribute that must exist: a renamed one would disable its steps unnoticed."""
    getattr(owner, name)
    setattr(owner, name, replacement)


def watch(owner: Any, name: str, before: Callable[[], None], after: Callable[[], None]) -> None:
    """Wraps a function with calls before it and after its success."""
    original = getattr(owner, name)

    def watched(*arguments: Any, **options: Any) -> Any:
        before()
        result = original(*arguments, **options)
        after()
        return result

    replace(owner, name, watched)


def watch_steps(faults: FaultInjector) -> None:
    """Injects the faults into every step of the queue."""

    def at(step: str) -> Callable[[], None]:
        return lambda: faults.reach(step)

    def nothing() -> None:
        pass

    replace(store, "os", FaultyOs(faults))
    replace(dead_letters, "storage", FaultyStorage(faults))
    replace(commits, "_ignore_step", lambda step: faults.reach(f"commit: {step}"))
    watch(store, "fsync_path", nothing, at("append: directory synced"))
    watch(service.DucklingQueue, "enqueue", nothing, at("append: before the acknowledgement"))
    watch(store.OpenSegmentFile, "seal", at("seal: begins"), at("seal: done"))
    for owner in (FlushUnit, SparkRunner):  # on Spark another process runs the unit itself
        watch(owner, "run", at("unit: begins"), at("unit: files written"))
    watch(flusher.Flusher, "_commit", at("flush: before the commit"), at("flush: committed"))
    watch(ownership.Adoption, "_examine", at("adopt: all renamed"), nothing)
    watch(replay, "restore_segment", nothing, at("replay: segment written"))
    watch_removals(faults)
    watch_renames(faults)


def watch_removals(faults: FaultInjector) -> None:
    """Segments are removed after a flush, by the thread that flushed them."""
    removed = threading.local()

    def before() -> None:
        faults.reach("remove: begins")
        if getattr(removed, "count", 0):
            faults.reach(BETWEEN_REMOVALS)

    def after() -> None:
        removed.count = getattr(removed, "count", 0) + 1
        faults.reach("remove: done")

    def reset() -> None:
        removed.count = 0

    watch(flusher.Flusher, "flush", reset, lambda: None)
    watch(store.SegmentStore, "remove", before, after)


def watch_renames(faults: FaultInjector) -> None:
    """A rename ends a large upload, or moves a segment to its new owner."""
    rename = pathlib.Path.rename

    def watched(path: Path, target: Path) -> Path:
        if path.suffix == ".partial":
            moved = rename(path, target)
            faults.reach("bulk: renamed")
            return moved
        if path.suffix == store.SUFFIX:
            faults.reach("adopt: before the rename")
            moved = rename(path, target)
            faults.reach("adopt: renamed")
            return moved
        return rename(path, target)

    pathlib.Path.rename = watched  # type: ignore[assignment, method-assign]


if __name__ == "__main__":
    sys.argv[0] = "swanlake"
    watch_steps(FaultInjector(Path(os.environ[FAULT_FILE_VARIABLE])))
    main()
