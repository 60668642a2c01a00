"""The job runner and transfer grants that the settings ask for."""

from __future__ import annotations

from swanlake.config import Settings
from swanlake.engine.host import EngineHost
from swanlake.errors import ConfigError
from swanlake.jobs.inline import InlineRunner
from swanlake.jobs.segment_transfer.grants import TransferGrants
from swanlake.jobs.spark.runner import SparkRunner
from swanlake.jobs.spark.session import SparkOptions

#: Beyond the job timeout: time to wait for Spark before a job, and for its answer after it.
_MARGIN_SECONDS = 600.0


def open_runner(
    settings: Settings, host: EngineHost, unit_modules: tuple[str, ...] = ()
) -> InlineRunner | SparkRunner:
    """A Spark runner, which starts in the background, or a runner on the server's engine."""
    if settings.pipeline == "inline" and settings.transforms:
        raise ConfigError("transforms are functions for Spark and need pipeline=spark.")
    if settings.pipeline == "inline":
        return InlineRunner(host)
    return SparkRunner(settings, unit_modules)


def open_transfer_grants(settings: Settings) -> TransferGrants | None:
    """Grants for remote workers; None if the workers see the files of this machine."""
    if settings.pipeline == "inline" or SparkOptions.from_settings(settings).is_local:
        return None
    return TransferGrants(settings.spark_job_timeout_seconds + _MARGIN_SECONDS)
