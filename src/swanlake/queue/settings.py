"""The settings of the queue."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from swanlake.config import Settings
from swanlake.queue.coordinator import Limits


@dataclass(frozen=True)
class QueueSettings:
    """Where the queue stores segments, how much it accepts, and when it flushes."""

    root: Path
    limits: Limits = field(default_factory=Limits)
    max_bytes: int = 10_000_000_000
    retention_seconds: float = 0.0
    dead_letters: str = ""
    target_catalog: str = "swanlake"
    auto_create_tables: bool = False
    in_transaction: Literal["refuse", "immediate"] = "refuse"

    @property
    def pause_file(self) -> Path:
        """While this file exists, no server on the root flushes."""
        return self.root / "paused"

    @classmethod
    def from_settings(cls, settings: Settings) -> QueueSettings:
        root = (settings.duckling_queue_root or settings.home / "queue").absolute()
        return cls(
            root,
            Limits(
                max_rows=settings.duckling_queue_buffer_max_rows,
                max_bytes=settings.duckling_queue_rotate_size_bytes,
                max_age_seconds=settings.duckling_queue_rotate_interval_seconds,
                sweep_seconds=settings.duckling_queue_flush_interval_seconds,
                max_parallel_flushes=settings.duckling_queue_max_parallel_flushes,
            ),
            settings.duckling_queue_max_bytes,
            settings.duckling_queue_retention_seconds,
            settings.duckling_queue_dlq_target or str(root / "dead-letters"),
            settings.duckling_queue_target_catalog,
            settings.duckling_queue_auto_create_tables,
            settings.duckling_queue_in_transaction,
        )
