"""Logs each statement that failed or was slow, in one line."""

from __future__ import annotations

import logging
from typing import Literal

from swanlake.sessions.activity.records import FinishedStatement
from swanlake.sql.fingerprint import redacted

log = logging.getLogger("swanlake.statements")

Texts = Literal["off", "redacted", "full"]

#: Logged with its traceback where it is raised.
_DEFECT = "INTERNAL_ERROR"


class StatementLogger:
    """A listener of the activity."""

    def __init__(self, slow_seconds: float, texts: Texts) -> None:
        """``slow_seconds`` of 0 is for no statement; ``texts`` is what to show of a text."""
        self._slow_seconds = slow_seconds
        self._texts = texts

    def __call__(self, statement: FinishedStatement) -> None:
        """Logs a statement that has ended, if it failed or was slow."""
        is_slow = bool(self._slow_seconds) and statement.seconds >= self._slow_seconds
        if statement.is_failed and statement.outcome != _DEFECT:
            what, level = f"failed: {statement.outcome}", logging.INFO
        elif is_slow:
            what, level = "was slow", logging.WARNING
        else:
            return
        log.log(
            level,
            "statement %s, user %s, %.3f s, query id %s%s",
            what,
            statement.user,
            statement.seconds,
            statement.query_id,
            self._text(statement),
        )

    def _text(self, statement: FinishedStatement) -> str:
        if self._texts == "off":
            return ""
        return f": {statement.sql if self._texts == 'full' else redacted(statement.sql)}"
