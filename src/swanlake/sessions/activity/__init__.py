"""What the server does: statements that run or have ended, and sessions.

``records`` are the values that others read. ``log`` keeps the statements that ended. ``activity``
lists and stops them, as far as the caller may. ``audit`` and ``statement_logger`` record statements
when they end.
"""

from swanlake.sessions.activity.activity import Activity
from swanlake.sessions.activity.audit import AuditEntry, AuditLog
from swanlake.sessions.activity.records import (
    OK,
    Cancelled,
    FinishedStatement,
    RunningStatement,
    SessionInfo,
    StatementGroup,
)
from swanlake.sessions.activity.statement_logger import StatementLogger

__all__ = [
    "OK",
    "Activity",
    "AuditEntry",
    "AuditLog",
    "Cancelled",
    "FinishedStatement",
    "RunningStatement",
    "SessionInfo",
    "StatementGroup",
    "StatementLogger",
]
