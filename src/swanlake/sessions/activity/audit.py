"""The audit log: who did what, when, from where, with which outcome and duration.

One JSON object a line, in a file that is rotated by size. A thread of its own writes it. Texts of
statements have ``?`` in place of their values.
"""

from __future__ import annotations

import json
import logging
import os
import threading
import time
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path
from typing import Any, Literal

from swanlake._internal.lru_cache import LruCache
from swanlake.errors import StartupError
from swanlake.sessions.activity.records import OK, FinishedStatement
from swanlake.sql.fingerprint import cache_key, redacted

log = logging.getLogger("swanlake.sessions")

Level = Literal["off", "changes", "all"]

#: Entries that wait to be written. Further ones are dropped, and an entry tells how many.
MAX_WAITING = 10_000
#: Older files that are kept, besides the current one.
_OLDER_FILES = 4
#: How long the thread lets entries gather.
_GATHER_SECONDS = 0.1
_CLOSE_SECONDS = 5.0
#: A denied statement is recorded whatever it would have done.
_DENIED = "ACCESS_DENIED"


@dataclass(frozen=True)
class AuditEntry:
    """One event. What does not apply to it is None."""

    #: ``statement``, ``login``, ``session``, or ``dropped`` for entries that were not written.
    event: str
    #: Seconds since 1970.
    at: float
    user: str | None = None
    role: str | None = None
    address: str | None = None
    session_id: str | None = None
    query_id: str | None = None
    #: The type of a statement; ``opened`` or ``closed`` of a session.
    kind: str | None = None
    #: The text of a statement without its values.
    text: str | None = None
    #: A procedure with its arguments, such as ``swanlake_kill_query(id='42')``.
    action: str | None = None
    #: ``ok``, or the identifier of an error; why a session was closed.
    outcome: str | None = None
    seconds: float | None = None
    rows: int | None = None


class AuditLog:
    """Writes and reads the audit log of one server."""

    def __init__(self, path: Path, level: Level, max_bytes: int) -> None:
        """The files take at most about ``max_bytes``."""
        self._path = path
        self._level = level
        self._file_bytes = max_bytes // (_OLDER_FILES + 1)
        self._lock = threading.Condition()
        self._waiting: deque[AuditEntry | FinishedStatement] = deque()
        self._dropped = 0
        self._closed = False
        #: Held while entries are written, or files are renamed.
        self._files = threading.Lock()
        self._redacted: LruCache[str] = LruCache()
        self._has_failed = False
        #: True once the file is known to end with a whole line.
        self._is_whole = False
        self._thread: threading.Thread | None = None
        if level != "off":
            try:
                path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            except OSError as unusable:
                raise StartupError(
                    f"The audit log cannot use its directory {path.parent}: {unusable.strerror}."
                ) from None
            self._thread = threading.Thread(target=self._run, name="swanlake-audit", daemon=True)
            self._thread.start()

    def record_statement(self, statement: FinishedStatement) -> None:
        """Records a statement that has ended, if its kind is recorded."""
        is_recorded = self._level == "all" or (
            self._level == "changes" and (statement.may_change or statement.outcome == _DENIED)
        )
        if is_recorded:
            self._add(statement)

    def record(self, event: str, **values: Any) -> None:
        """Records an event now; ``values`` are fields of an entry."""
        if self._level != "off":
            self._add(AuditEntry(event, time.time(), **values))

    def record_login(self, user: str | None, address: str, succeeded: bool) -> None:
        """Records a login; the address is that of the client without its port, if it is known."""
        outcome = OK if succeeded else "NOT_AUTHENTICATED"
        self.record("login", user=user, address=address or None, outcome=outcome)

    def read(self, last: int) -> list[AuditEntry]:
        """The latest entries, newest first."""
        self._write_waiting()
        with self._files:
            return list(islice(self._read_files(), last))

    def close(self) -> None:
        """Writes what still waits, and ends the thread."""
        with self._lock:
            self._closed = True
            self._lock.notify_all()
        if self._thread is not None:
            self._thread.join(_CLOSE_SECONDS)

    def _add(self, entry: AuditEntry | FinishedStatement) -> None:
        with self._lock:
            if len(self._waiting) >= MAX_WAITING:
                self._dropped += 1
                return
            self._waiting.append(entry)
            if len(self._waiting) == 1:
                self._lock.notify_all()

    def _run(self) -> None:
        while True:
            with self._lock:
                while not self._waiting and not self._closed:
                    self._lock.wait()
                if not self._closed:
                    self._lock.wait(_GATHER_SECONDS)
                is_last = self._closed
            self._write_waiting()
            if is_last:
                return

    def _write_waiting(self) -> None:
        with self._files:
            with self._lock:
                entries, dropped = list(self._waiting), self._dropped
                self._waiting.clear()
                self._dropped = 0
            lines = [self._line(entry) for entry in entries]
            if dropped:
                log.warning("%d audit entries were dropped", dropped)
                lines.append(_line(AuditEntry("dropped", time.time(), rows=dropped)))
            if lines:
                self._append(lines, len(entries) + dropped)

    def _append(self, lines: list[str], count: int) -> None:
        try:
            if self._path.exists() and self._path.stat().st_size >= self._file_bytes:
                self._rotate()
            if not self._is_whole:  # a crash may have cut off the last line
                _end_line(self._path)
                self._is_whole = True
            flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC
            with os.fdopen(os.open(self._path, flags, 0o600), "w", encoding="utf-8") as file:
                file.writelines(lines)
        except OSError as error:
            with self._lock:
                self._dropped += count
            if not self._has_failed:
                log.error("the audit log %s cannot be written: %s", self._path, error)
            self._has_failed, self._is_whole = True, False
        else:
            self._has_failed = False

    def _rotate(self) -> None:
        for number in range(_OLDER_FILES - 1, 0, -1):
            if self._older(number).exists():
                self._older(number).replace(self._older(number + 1))
        self._path.replace(self._older(1))

    def _older(self, number: int) -> Path:
        return self._path.with_name(f"{self._path.name}.{number}")

    def _read_files(self) -> Iterator[AuditEntry]:
        files = [self._path, *map(self._older, range(1, _OLDER_FILES + 1))]
        for file in files:
            try:
                lines = file.read_text(encoding="utf-8").splitlines()
            except OSError:
                continue
            for line in reversed(lines):
                entry = _parse(line)
                if entry is not None:
                    yield entry

    def _redacted_text(self, sql: str) -> str:
        return self._redacted.get_or_compute(cache_key(sql), lambda key: redacted(sql))

    def _line(self, entry: AuditEntry | FinishedStatement) -> str:
        if isinstance(entry, AuditEntry):
            return _line(entry)
        return _line(
            AuditEntry(
                "statement",
                entry.started + entry.seconds,
                user=entry.user,
                role=entry.role.value,
                address=entry.address,
                session_id=entry.session_id,
                query_id=entry.query_id,
                kind=entry.kind,
                text=self._redacted_text(entry.sql),
                action=entry.action,
                outcome=entry.outcome,
                seconds=round(entry.seconds, 6),
                rows=entry.rows,
            )
        )


def _end_line(path: Path) -> None:
    """Ends the last line of a file, if there is one without an end."""
    if path.exists() and path.stat().st_size:
        with path.open("rb+") as file:
            file.seek(-1, os.SEEK_END)
            if file.read(1) != b"\n":
                file.write(b"\n")


def _line(entry: AuditEntry) -> str:
    values = {name: value for name, value in vars(entry).items() if value is not None}
    values["at"] = datetime.fromtimestamp(entry.at, UTC).isoformat(timespec="microseconds")
    return json.dumps(values) + "\n"


def _parse(line: str) -> AuditEntry | None:
    """The entry of a line; None if it was cut off by a crash."""
    try:
        values = json.loads(line)
        return AuditEntry(**values | {"at": datetime.fromisoformat(values["at"]).timestamp()})
    except (ValueError, TypeError, KeyError):
        return None
