"""The settings of maintenance."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import timedelta

from swanlake.config import Settings
from swanlake.maintenance.compaction.plan import CompactOptions
from swanlake.maintenance.triggers import Rules, parse_window


@dataclass(frozen=True)
class MaintenanceSettings:
    """How jobs work, and when the scheduler runs them."""

    options: CompactOptions = field(default_factory=CompactOptions)
    rules: Rules = field(default_factory=Rules)
    orphan_age: timedelta = timedelta(days=2)
    #: How long a manual run waits for the maintenance lock, in seconds.
    lock_timeout: float = 30.0

    @classmethod
    def from_settings(cls, settings: Settings) -> MaintenanceSettings:
        """Reads the server's settings; raises ConfigError."""
        age = settings.maintenance_snapshot_max_age_seconds
        return cls(
            CompactOptions(
                target_file_size=settings.maintenance_target_file_size_bytes,
                deleted_ratio=settings.maintenance_deleted_ratio,
            ),
            Rules(
                small_files=settings.maintenance_small_files,
                small_file_ratio=settings.maintenance_small_file_ratio,
                deleted_ratio=settings.maintenance_deleted_ratio,
                inlined_rows=settings.maintenance_inlined_rows,
                snapshot_max_age=timedelta(seconds=age) if age else None,
                snapshot_keep_last=settings.maintenance_snapshot_keep_last or None,
                cleanup_age=timedelta(seconds=settings.maintenance_cleanup_age_seconds),
                pause=timedelta(seconds=settings.maintenance_pause_seconds),
                window=parse_window(settings.maintenance_window),
            ),
            timedelta(seconds=settings.maintenance_orphan_age_seconds),
            settings.commit_lock_timeout_seconds,
        )
