"""The server's log: one line per event, whatever its text contains."""

from __future__ import annotations

import json
import logging

from swanlake.cli.logs import JsonFormatter, TextFormatter

FORGED = "alice\n2026-11-18 00:00:00,000 INFO    swanlake.server: all is well\x1b[2K\u2028\r"


def record(text: str) -> logging.LogRecord:
    return logging.LogRecord("swanlake.server", logging.WARNING, "", 0, "user %s", (text,), None)


def test_text_of_a_caller_cannot_forge_a_line() -> None:
    for formatter in (TextFormatter(), JsonFormatter()):
        line = formatter.format(record(FORGED))
        assert len(line.splitlines()) == 1
        assert "\x1b" not in line
    assert json.loads(JsonFormatter().format(record(FORGED)))["msg"] == f"user {FORGED}"


def test_readable_text_is_not_changed() -> None:
    assert TextFormatter().format(record("Ünï 'x' \\n")).endswith("user Ünï 'x' \\n")
