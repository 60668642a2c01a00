"""What the pages of the status server read of the server."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

from swanlake._version import __version__
from swanlake.config import Settings
from swanlake.engine.host import EngineHost
from swanlake.jobs.runner import ServerRunner
from swanlake.lake.lake import Lake
from swanlake.maintenance.scheduler import Scheduler
from swanlake.maintenance.service import Maintenance
from swanlake.queue.service import DucklingQueue
from swanlake.sessions.registry import SessionRegistry
from swanlake.status.health import HealthMonitor


class ServerState(StrEnum):
    """Whether a server accepts statements."""

    STARTING = "starting"
    ACCEPTING = "accepting"
    DRAINING = "draining"


@dataclass(frozen=True)
class ServerView:
    """The parts of a running server, and facts about it."""

    settings: Settings
    registry: SessionRegistry
    scheduler: Scheduler
    runner: ServerRunner
    health: HealthMonitor
    #: The URL of the Flight service; empty until it listens.
    find_url: Callable[[], str]
    #: In seconds since 1970.
    started_at: float
    state: Callable[[], ServerState]
    version: str = __version__

    @property
    def url(self) -> str:
        return self.find_url()

    @property
    def uptime_seconds(self) -> float:
        return max(time.time() - self.started_at, 0.0)

    @property
    def not_ready_reasons(self) -> tuple[str, ...]:
        """Why the server should get no new callers, a sentence each; empty if it is ready."""
        state = self.state()
        if state is not ServerState.ACCEPTING:
            return (f"The server is {state}.",)
        return self.health.report().reasons

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
