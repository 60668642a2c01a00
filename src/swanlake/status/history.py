"""What the charts show: the last hour, a point for each minute, kept over a restart.

A point is the difference of two readings of counters, so statements pay nothing for it.
"""

from __future__ import annotations

import json
import logging
import os
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from swanlake._internal.histogram import HistogramCounts
from swanlake._internal.memory import resident_bytes
from swanlake.sessions.activity import OK
from swanlake.status.statements import StatementCounters
from swanlake.status.view import ServerView

log = logging.getLogger("swanlake.status")

MINUTES = 60
_SECONDS = 60.0
#: The format of the file.
_VERSION = 1
#: A shorter time gives no useful rates.
_SHORTEST_SECONDS = 2.0


@dataclass(frozen=True)
class Reading:
    """The counters and gauges at a moment."""

    #: In seconds since 1970.
    at: float
    statements: HistogramCounts
    errors: int
    rows: int
    flushes: HistogramCounts
    commits: HistogramCounts
    queue_rows: int
    queue_bytes: int
    memory_bytes: int
    sessions: int


@dataclass(frozen=True)
class Point:
    """A minute, or the part of the current one that is over; None where nothing happened."""

    #: Its end, in seconds since 1970.
    at: float
    seconds: float
    statements_per_second: float
    errors_per_second: float
    statement_p50_seconds: float | None
    statement_p99_seconds: float | None
    #: Rows that the queue acknowledged.
    rows_per_second: float
    flushes: int
    flush_p50_seconds: float | None
    flush_p99_seconds: float | None
    commits_per_second: float
    #: How long commits held the commit lock.
    commit_p50_seconds: float | None
    commit_p99_seconds: float | None
    queue_rows: int
    queue_bytes: int
    memory_bytes: int
    sessions: int


def point_between(before: Reading, after: Reading) -> Point:
    """What happened between two readings, and the gauges of the later one."""
    seconds = max(after.at - before.at, 0.001)
    statements = after.statements.since(before.statements)
    flushes, commits = after.flushes.since(before.flushes), after.commits.since(before.commits)
    return Point(
        at=after.at,
        seconds=round(seconds, 3),
        statements_per_second=round(statements.count / seconds, 3),
        errors_per_second=round((after.errors - before.errors) / seconds, 3),
        statement_p50_seconds=statements.quantile(0.5),
        statement_p99_seconds=statements.quantile(0.99),
        rows_per_second=round((after.rows - before.rows) / seconds, 3),
        flushes=flushes.count,
        flush_p50_seconds=flushes.quantile(0.5),
        flush_p99_seconds=flushes.quantile(0.99),
        commits_per_second=round(commits.count / seconds, 3),
        commit_p50_seconds=commits.quantile(0.5),
        commit_p99_seconds=commits.quantile(0.99),
        queue_rows=after.queue_rows,
        queue_bytes=after.queue_bytes,
        memory_bytes=after.memory_bytes,
        sessions=after.sessions,
    )


def read_counters(view: ServerView, statements: StatementCounters) -> Reading:
    """The counters and gauges now."""
    outcomes = statements.outcomes.as_dict()
    queued = view.queue.status()
    return Reading(
        at=time.time(),
        statements=statements.seconds.read(),
        errors=sum(count for outcome, count in outcomes.items() if outcome != OK),
        rows=view.queue.counters.inserts.as_dict()["rows"],
        flushes=view.queue.counters.flush_seconds.read(),
        commits=view.lake.commit_counters.hold_seconds.read(),
        queue_rows=sum(table.rows for table in queued),
        queue_bytes=sum(table.bytes for table in queued),
        memory_bytes=resident_bytes() or 0,
        sessions=view.registry.metrics().active,
    )


class History:
    """The points of the last hour; a thread adds one at the end of each minute."""

    def __init__(self, read: Callable[[], Reading], file: Path) -> None:
        self._read = read
        self._file = file
        self._lock = threading.Lock()
        self._last = read()
        self._points = deque(load(file, self._last.at), maxlen=MINUTES)
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="swanlake-history", daemon=True)

    def start(self) -> None:
        """Starts the thread."""
        self._thread.start()

    def stop(self) -> None:
        """Ends the thread, which stores the current minute too."""
        self._stopping.set()
        self._thread.join(timeout=5)

    def points(self) -> list[Point]:
        """The minutes of the last hour, oldest first, and the current one so far."""
        now = self._read()
        with self._lock:
            points = [point for point in self._points if point.at > now.at - MINUTES * _SECONDS]
            if now.at - self._last.at >= _SHORTEST_SECONDS:
                points.append(point_between(self._last, now))
        return points

    def end_minute(self) -> None:
        """Adds a point for the time since the last one, and stores the points."""
        reading = self._read()
        with self._lock:
            if reading.at - self._last.at < _SHORTEST_SECONDS:
                return  # the clock was set back, or the server stops at once
            self._points.append(point_between(self._last, reading))
            self._last = reading
            points = list(self._points)
        try:
            store(self._file, points)
        except OSError as error:
            log.warning("the history for the charts cannot be stored: %s", error)

    def _run(self) -> None:
        while not self._stopping.is_set():
            self._stopping.wait(_SECONDS - time.time() % _SECONDS)
            try:
                self.end_minute()
            except Exception:
                log.exception("the history for the charts misses a minute")


def store(file: Path, points: list[Point]) -> None:
    """Replaces the file: a reader never sees a part of it."""
    partial = file.with_name(file.name + ".partial")
    content = {"version": _VERSION, "points": [asdict(point) for point in points]}
    descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    with os.fdopen(descriptor, "w") as sink:
        json.dump(content, sink)
    partial.replace(file)


def load(file: Path, now: float) -> list[Point]:
    """The points of the hour before; none if there is no file, or it is damaged."""
    try:
        content = json.loads(file.read_text())
        if content["version"] != _VERSION:
            return []
        points = [_point(values) for values in content["points"]]
    except FileNotFoundError:
        return []
    except (OSError, ValueError, LookupError, TypeError) as damaged:
        log.warning("the history for the charts in %s cannot be read: %s", file, damaged)
        return []
    return [point for point in points if now - MINUTES * _SECONDS < point.at <= now][-MINUTES:]


def _point(values: dict[str, Any]) -> Point:
    point = Point(**values)
    for each in fields(Point):
        value = getattr(point, each.name)
        if not isinstance(value, int | float | None):
            raise TypeError(f"{each.name} is {value!r}")
    return point
