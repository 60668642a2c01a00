"""What every session of a server shares."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from swanlake.engine.host import EngineHost
from swanlake.lake.lake import Lake
from swanlake.pipeline.maintain import Maintenance
from swanlake.queue.runtime import DucklingQueue
from swanlake.sessions.counts import Counts, read_counts, write_counts


@dataclass(frozen=True)
class SessionServices:
    """What every session of a server shares."""

    host: EngineHost
    lake: Lake
    queue: DucklingQueue
    maintenance: Maintenance
    result_buffer_bytes: int
    spill_directory: Path
    writes: Counts = field(default_factory=write_counts)
    reads: Counts = field(default_factory=read_counts)
