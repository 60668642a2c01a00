"""What the routes of the status server share."""

from __future__ import annotations

from dataclasses import dataclass

from swanlake.engine.instance import EngineMemory
from swanlake.status.blocking import BlockingCalls, SharedAnswers, Snapshot
from swanlake.status.document import LakeFacts
from swanlake.status.history import History, read_counters
from swanlake.status.statements import StatementCounters
from swanlake.status.view import ServerView

#: In the home directory.
HISTORY_FILE = "status-history.json"
_CALL_THREADS = 4
#: How old the facts about the lake and the engines may be.
_LAKE_SECONDS, _ENGINE_SECONDS = 10.0, 2.0


@dataclass(frozen=True)
class StatusContext:
    """The server, and what its pages need to read it without waiting for it."""

    view: ServerView
    #: Runs blocking calls into the server.
    calls: BlockingCalls
    #: Answers that many callers get.
    answers: SharedAnswers
    #: The lake as it was some seconds ago.
    lake_facts: Snapshot[LakeFacts]
    #: The memory of the engines, likewise: a busy engine may take its time to tell.
    engines: Snapshot[tuple[EngineMemory, ...]]
    #: The statements that ended since the server started.
    statements: StatementCounters
    #: The points of the charts.
    history: History

    @classmethod
    def open(cls, view: ServerView, statements: StatementCounters) -> StatusContext:
        """The context of a server."""
        calls = BlockingCalls("swanlake-status-call", _CALL_THREADS)
        return cls(
            view,
            calls,
            SharedAnswers(calls),
            Snapshot(lambda: LakeFacts.read(view), calls, max_age=_LAKE_SECONDS),
            Snapshot(lambda: tuple(view.host.memory()), calls, max_age=_ENGINE_SECONDS),
            statements,
            History(
                lambda: read_counters(view, statements),
                view.settings.home.absolute() / HISTORY_FILE,
            ),
        )
