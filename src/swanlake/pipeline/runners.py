"""The runner that the settings ask for."""

from __future__ import annotations

from swanlake.config import Settings
from swanlake.engine.host import EngineHost
from swanlake.errors import ConfigError
from swanlake.pipeline.inline import InlineRunner
from swanlake.pipeline.spark_runner import SparkRunner


def open_runner(settings: Settings, host: EngineHost) -> InlineRunner | SparkRunner:
    """Spark, which starts in the background, or the server's own engine."""
    if settings.pipeline == "inline" and settings.transforms:
        raise ConfigError("transforms are functions for Spark and need pipeline=spark.")
    return InlineRunner(host) if settings.pipeline == "inline" else SparkRunner(settings)
