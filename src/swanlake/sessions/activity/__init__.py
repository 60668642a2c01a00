"""What the server does: statements that run or have ended, and sessions.

``records`` are the values that others read. ``log`` keeps the statements that ended. ``activity``
answers questions about all of it, as far as the caller may know.
"""

from swanlake.sessions.activity.activity import Activity
from swanlake.sessions.activity.records import (
    OK,
    Cancelled,
    FinishedStatement,
    RunningStatement,
    SessionInfo,
    StatementGroup,
)

__all__ = [
    "OK",
    "Activity",
    "Cancelled",
    "FinishedStatement",
    "RunningStatement",
    "SessionInfo",
    "StatementGroup",
]
