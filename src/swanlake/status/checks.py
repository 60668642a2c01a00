"""What a server needs to be ready."""

from __future__ import annotations

from swanlake.engine.host import EngineHost
from swanlake.lake.files import storage
from swanlake.lake.lake import DEFAULT_CATALOG, Lake
from swanlake.queue.service import DucklingQueue
from swanlake.status.health import Check

#: A request to an object store costs money.
_STORE_SECONDS = 30.0


def server_checks(
    host: EngineHost, lake: Lake, queue: DucklingQueue, data_location: str
) -> tuple[Check, ...]:
    """The checks of a server, in the order in which they are shown."""
    seconds = _STORE_SECONDS if storage.is_url(data_location) else Check.interval
    return (
        Check("engine", "The engine does not answer queries.", host.check_answers),
        Check("catalog", "The lake's metadata cannot be read.", lambda: lake.find(DEFAULT_CATALOG)),
        Check(
            "storage",
            "The lake's files cannot be reached.",
            lambda: storage.check_reachable(data_location),
            seconds,
        ),
        Check("queue", "The queue cannot store rows.", queue.check_writable),
    )
