"""The runner that the settings ask for."""

from __future__ import annotations

from swanlake.config import Settings
from swanlake.engine.host import EngineHost
from swanlake.errors import ConfigError
from swanlake.pipeline.inline import InlineRunner
from swanlake.pipeline.loans import Lender
from swanlake.pipeline.spark import SparkOptions
from swanlake.pipeline.spark_runner import SparkRunner

#: Before a job there may be a wait for Spark, and after it one for its answer.
_WAITS_SECONDS = 600.0


def open_runner(settings: Settings, host: EngineHost) -> InlineRunner | SparkRunner:
    """Spark, which starts in the background, or the server's own engine."""
    if settings.pipeline == "inline" and settings.transforms:
        raise ConfigError("transforms are functions for Spark and need pipeline=spark.")
    return InlineRunner(host) if settings.pipeline == "inline" else SparkRunner(settings)


def open_lender(settings: Settings) -> Lender | None:
    """For units that run elsewhere; those of this machine see its files."""
    if settings.pipeline == "inline" or SparkOptions.from_settings(settings).is_local:
        return None
    return Lender(settings.spark_job_timeout_seconds + _WAITS_SECONDS)
