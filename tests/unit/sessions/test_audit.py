"""The audit log: private, bounded, rotated, readable after a restart and a crash."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import pytest

from swanlake.access.identity import Role
from swanlake.sessions.activity import FinishedStatement, audit
from swanlake.sessions.activity.audit import AuditLog
from tests.waiting import eventually

SIZE = 1 << 20


def statement(sql: str, **values: Any) -> FinishedStatement:
    fields: dict[str, Any] = {
        "query_id": "q",
        "session_id": "s",
        "user": "ann",
        "role": Role.WRITER,
        "address": "127.0.0.1:1",
        "sql": sql,
        "kind": "INSERT",
        "started": 1000.0,
        "seconds": 0.5,
        "rows": 2,
        "outcome": "ok",
        "error": None,
        "may_change": True,
    }
    return FinishedStatement(**fields | values)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "home" / "logs" / "audit.jsonl"


def test_statement_is_recorded_without_its_values(path: Path) -> None:
    log = AuditLog(path, "changes", SIZE)
    log.record_statement(statement("INSERT INTO t VALUES ('secret', 1)", action="f(x => 'y')"))
    log.close()
    [line] = path.read_text().splitlines()
    assert json.loads(line) == {
        "event": "statement",
        "at": "1970-01-01T00:16:40.500000+00:00",
        "user": "ann",
        "role": "writer",
        "address": "127.0.0.1:1",
        "session_id": "s",
        "query_id": "q",
        "kind": "INSERT",
        "text": "INSERT INTO t VALUES (?, ?)",
        "action": "f(x => 'y')",
        "outcome": "ok",
        "seconds": 0.5,
        "rows": 2,
    }
    assert path.stat().st_mode & 0o777 == 0o600
    assert path.parent.stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize(("level", "kinds"), [("off", 0), ("changes", 2), ("all", 3)])
def test_level_says_what_is_recorded(path: Path, level: audit.Level, kinds: int) -> None:
    log = AuditLog(path, level, SIZE)
    log.record_statement(statement("SELECT 1", may_change=False))
    log.record_statement(statement("SELECT 2", may_change=False, outcome="ACCESS_DENIED"))
    log.record_statement(statement("DELETE FROM t"))
    assert len(log.read(100)) == kinds
    log.close()
    assert path.exists() is (level != "off")


def test_entries_survive_a_restart_and_a_line_cut_off(path: Path) -> None:
    first = AuditLog(path, "all", SIZE)
    first.record_login("ann", "127.0.0.1", True)
    first.close()
    with path.open("a") as file:
        file.write('{"event": "stat')
    second = AuditLog(path, "all", SIZE)
    second.record_login("bob", "", False)
    assert [entry.user for entry in second.read(10)] == ["bob", "ann"]
    assert [entry.outcome for entry in second.read(1)] == ["NOT_AUTHENTICATED"]
    second.close()


def test_files_are_rotated_by_size(path: Path) -> None:
    log = AuditLog(path, "all", SIZE)
    for number in range(2000):
        log.record("session", user=f"user{number}", session_id="x" * 1000)
        if number % 100 == 0:
            log.read(1)
    assert log.read(1)[0].user == "user1999"
    log.close()
    files = sorted(path.parent.iterdir())
    assert [file.name for file in files] == [
        "audit.jsonl",
        *(f"audit.jsonl.{i}" for i in range(1, 5)),
    ]
    assert sum(file.stat().st_size for file in files) < 2 * SIZE
    assert all(file.stat().st_mode & 0o777 == 0o600 for file in files)


def test_entries_that_are_too_many_are_dropped_and_counted(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(audit, "MAX_WAITING", 10)
    log = AuditLog(path, "all", SIZE)
    may_write, append = threading.Event(), AuditLog._append

    def slow_append(self: AuditLog, lines: list[str], count: int) -> None:
        may_write.wait(120)
        append(self, lines, count)

    monkeypatch.setattr(AuditLog, "_append", slow_append)
    log.record("session", user="first")
    eventually(lambda: not log._waiting)  # the thread has it, and waits
    for number in range(15):
        log.record("session", user=f"user{number}")
    may_write.set()
    entries = log.read(100)
    assert [entry.rows for entry in entries if entry.event == "dropped"] == [5]
    assert len(entries) == 12
    log.close()


def test_disk_that_cannot_be_written_drops_entries_and_says_so(path: Path) -> None:
    log = AuditLog(path, "all", SIZE)
    path.mkdir()
    log.record("session", user="ann")
    assert log.read(10) == []
    path.rmdir()
    log.record("session", user="bob")
    assert [(entry.event, entry.rows) for entry in log.read(10)] == [
        ("dropped", 1),
        ("session", None),
    ]
    log.close()
