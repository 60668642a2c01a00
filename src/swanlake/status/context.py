"""What the routes of the status server share."""

from __future__ import annotations

from dataclasses import dataclass

from swanlake.status.blocking import BlockingCalls, Snapshot
from swanlake.status.document import LakeFacts
from swanlake.status.view import ServerView


@dataclass(frozen=True)
class StatusContext:
    """The server, and what its pages need to read it without waiting for it."""

    view: ServerView
    #: Runs blocking calls into the server.
    calls: BlockingCalls
    #: The lake as it was some seconds ago.
    lake_facts: Snapshot[LakeFacts]
