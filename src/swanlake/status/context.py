"""What the routes of the status server share."""

from __future__ import annotations

from dataclasses import dataclass

from swanlake.status.blocking import BlockingCalls
from swanlake.status.view import ServerView


@dataclass(frozen=True)
class StatusContext:
    """The server, and the threads for blocking calls into it."""

    view: ServerView
    calls: BlockingCalls
