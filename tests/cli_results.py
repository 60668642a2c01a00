"""Checks of the output of CLI commands."""

from __future__ import annotations

import json
import re
from typing import Any

from click.testing import Result


def assert_failed(result: Result, code: int, sentence: str) -> None:
    """Checks that the command exited with this code and printed one matching error line only."""
    assert result.exit_code == code, result.output
    assert re.search(sentence, result.stderr), result.stderr
    assert result.stderr.startswith("swanlake: ")
    assert result.stderr.count("\n") == 1
    assert result.stdout == ""


def assert_succeeded(result: Result) -> str:
    """Checks that the command succeeded without warnings; returns its output."""
    assert result.exit_code == 0, result.output
    assert result.stderr == ""
    return result.stdout


def json_rows(result: Result, *, shows_progress: bool = False) -> list[dict[str, Any]]:
    """The rows that a successful command printed with ``--format json``.

    Its standard error must be empty, unless it shows its progress there.
    """
    assert result.exit_code == 0, result.output
    assert shows_progress or result.stderr == ""
    rows: list[dict[str, Any]] = json.loads(result.stdout)
    return rows
