"""The server as users run it, which dies, waits or finds a bad disk at a step of the queue.

The order is a file whose name the environment gives. It may come and go while the server runs:

    die <step>/<passage>/<milliseconds>     kill -9 so long after a step was reached so often
    hold <step>                             whoever reaches the step waits until the order changes
    refuse <name of an error>               every write to the queue's disk fails halfway

A file beside the order, ``….held``, says that somebody waits.
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
from swanlake.lake import files
from swanlake.lake import store as commits
from swanlake.pipeline.spark_runner import SparkRunner
from swanlake.queue import adoption, dead_letters, flush, runtime, store
from swanlake.queue.work import FlushUnit

ORDER = "DOOMED_SERVER_ORDER"

#: Where the rows of a client become durable.
APPEND_STEPS = (
    "append: before the file",
    "append: file made",
    "append: half written",
    "append: written",
    "append: synced",
    "append: directory synced",
    "append: before the acknowledgement",
)
#: Where a segment becomes a part of the lake.
FLUSH_STEPS = (
    "seal: begins",
    "seal: done",
    "unit: begins",
    "unit: files written",
    "flush: before the commit",
    "flush: committed",
    "remove: begins",
    "remove: between two",
    "remove: done",
)
#: Where a large upload becomes a segment.
BULK_STEPS = ("bulk: half written", "bulk: synced", "bulk: renamed")
#: Where a server takes over what another one left.
ADOPT_STEPS = ("adopt: before the rename", "adopt: renamed", "adopt: all renamed")
#: Where a segment that no table takes is put aside.
LETTER_STEPS = ("letter: before a file", "letter: file written")
#: Where it comes back.
REPLAY_STEPS = ("replay: segment written", "replay: letter half removed")
#: Inside the commit; with SQLite another process does it.
COMMIT_STEPS = ("commit: locked", "commit: planned", "commit: written", "commit: committed")


class Doom:
    """Knows the order, and how often its step was reached since it was given."""

    def __init__(self, order: Path) -> None:
        self._order = order
        self._lock = threading.Lock()
        self._passages: Counter[str] = Counter()

    def is_due(self, step: str) -> bool:
        """True when the process is to die at this step now; with a delay it dies by itself."""
        verb, what = self._read()
        if verb != "die" or what.partition("/")[0] != step:
            return False
        _, passage, milliseconds = what.split("/")
        with self._lock:
            self._passages[what] += 1
            if self._passages[what] != int(passage):
                return False
        if int(milliseconds):
            threading.Timer(int(milliseconds) / 1000, die).start()
            return False
        return True

    def reach(self, step: str) -> None:
        if self.is_due(step):
            die()
        while self._read() == ("hold", step):
            self._order.with_name(self._order.name + ".held").touch()
            time.sleep(0.01)

    def refusal(self) -> OSError | None:
        """The error that the disk answers with, if it is to answer with one."""
        verb, what = self._read()
        if verb != "refuse":
            return None
        number = getattr(errno, what)
        return OSError(number, os.strerror(number))

    def _read(self) -> tuple[str, str]:
        try:
            verb, _, what = self._order.read_text().partition(" ")
        except FileNotFoundError:
            return "", ""
        return verb, what


def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


class WatchedDisk:
    """The module ``os`` as the queue's store sees it."""

    def __init__(self, doom: Doom) -> None:
        self._doom = doom

    def __getattr__(self, name: str) -> Any:
        return getattr(os, name)

    def open(self, path: Path, flags: int, mode: int) -> int:
        refusal = self._doom.refusal()
        if refusal is not None and refusal.errno == errno.EROFS:
            raise refusal
        if not flags & os.O_CREAT:
            return os.open(path, flags, mode)
        self._doom.reach("append: before the file")
        descriptor = os.open(path, flags, mode)
        self._doom.reach("append: file made")
        return descriptor

    def pwrite(self, descriptor: int, data: memoryview, place: int) -> int:
        half = data[: len(data) // 2]
        refusal = self._doom.refusal()
        if refusal is not None:
            os.pwrite(descriptor, half, place)
            raise refusal
        if self._doom.is_due(f"{_kind(descriptor)}: half written"):
            os.pwrite(descriptor, half, place)
            die()
        return os.pwrite(descriptor, data, place)

    def fdatasync(self, descriptor: int) -> None:
        self._doom.reach(f"{_kind(descriptor)}: written")
        os.fdatasync(descriptor)
        self._doom.reach(f"{_kind(descriptor)}: synced")


def _kind(descriptor: int) -> str:
    path = os.readlink(f"/proc/self/fd/{descriptor}")
    return "bulk" if path.endswith(".partial") else "append"


class WatchedFiles:
    """The module ``lake.files`` as the dead letters see it."""

    def __init__(self, doom: Doom) -> None:
        self._doom = doom
        self._files = files

    def __getattr__(self, name: str) -> Any:
        return getattr(self._files, name)

    def write(self, path: str, pieces: Iterable[bytes]) -> None:
        self._doom.reach("letter: before a file")
        self._files.write(path, pieces)
        self._doom.reach("letter: file written")

    def delete(self, path: str) -> None:
        self._files.delete(path)
        self._doom.reach("replay: letter half removed")


def watch(place: Any, name: str, before: Callable[[], None], after: Callable[[], None]) -> None:
    """Replaces a function by one that also says when it begins and when it has succeeded."""
    original = getattr(place, name)

    def watched(*arguments: Any, **options: Any) -> Any:
        before()
        result = original(*arguments, **options)
        after()
        return result

    setattr(place, name, watched)


def watch_steps(doom: Doom) -> None:
    """Puts the doom into every step of the queue."""

    def at(step: str) -> Callable[[], None]:
        return lambda: doom.reach(step)

    def nothing() -> None:
        pass

    modules: Any = (store, dead_letters)
    modules[0].os = WatchedDisk(doom)
    modules[1].files = WatchedFiles(doom)
    commits._go_on = lambda step: doom.reach(f"commit: {step}")
    watch(store, "sync", nothing, at("append: directory synced"))
    watch(runtime.DucklingQueue, "enqueue", nothing, at("append: before the acknowledgement"))
    watch(store.OpenSegment, "seal", at("seal: begins"), at("seal: done"))
    for place in (FlushUnit, SparkRunner):  # with Spark, another process runs the unit itself
        watch(place, "run", at("unit: begins"), at("unit: files written"))
    watch(flush.Flusher, "_commit", at("flush: before the commit"), at("flush: committed"))
    watch(adoption.Adoption, "_examine", at("adopt: all renamed"), nothing)
    watch(runtime, "replayed", nothing, at("replay: segment written"))
    watch_removals(doom)
    watch_renames(doom)


def watch_removals(doom: Doom) -> None:
    """Segments are removed after a flush, by the thread that did it."""
    removed = threading.local()

    def before() -> None:
        doom.reach("remove: begins")
        if getattr(removed, "count", 0):
            doom.reach("remove: between two")

    def after() -> None:
        removed.count = getattr(removed, "count", 0) + 1
        doom.reach("remove: done")

    def begin() -> None:
        removed.count = 0

    watch(flush.Flusher, "flush", begin, lambda: None)
    watch(store.Store, "remove", before, after)


def watch_renames(doom: Doom) -> None:
    """A large upload gets its name, or a segment its new owner."""
    rename = pathlib.Path.rename

    def watched(path: Path, target: Path) -> Path:
        if path.suffix == ".partial":
            moved = rename(path, target)
            doom.reach("bulk: renamed")
            return moved
        if path.suffix == store.SUFFIX:
            doom.reach("adopt: before the rename")
            moved = rename(path, target)
            doom.reach("adopt: renamed")
            return moved
        return rename(path, target)

    pathlib.Path.rename = watched  # type: ignore[assignment, method-assign]


if __name__ == "__main__":
    sys.argv[0] = "swanlake"
    watch_steps(Doom(Path(os.environ[ORDER])))
    main()
