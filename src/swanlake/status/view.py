"""What the pages of the status server read of the server."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

from swanlake._version import __version__
from swanlake.config import Settings
from swanlake.engine.host import EngineHost
from swanlake.jobs.runner import FlushRunner
from swanlake.lake.lake import Lake
from swanlake.maintenance.scheduler import Scheduler
from swanlake.maintenance.service import Maintenance
from swanlake.queue.service import DucklingQueue
from swanlake.sessions.registry import SessionRegistry


class ServerState(StrEnum):
    """Whether a server accepts statements."""

    STARTING = "starting"
    SERVING = "serving"
    DRAINING = "draining"


@dataclass(frozen=True)
class ServerView:
    """The parts of a running server, and facts about it."""

    settings: Settings
    registry: SessionRegistry
    scheduler: Scheduler
    runner: FlushRunner
    #: The URL of the Flight service.
    url: str
    #: In seconds since 1970.
    started_at: float
    state: Callable[[], ServerState]
    version: str = __version__

    @property
    def host(self) -> EngineHost:
        return self.registry.services.host

    @property
    def lake(self) -> Lake:
        return self.registry.services.lake

    @property
    def queue(self) -> DucklingQueue:
        return self.registry.services.queue

    @property
    def maintenance(self) -> Maintenance:
        return self.registry.services.maintenance
