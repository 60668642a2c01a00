"""Runs units in the server process, on a connection of its engine."""

from __future__ import annotations

from collections.abc import Sequence

import duckdb

from swanlake.engine.host import EngineHost
from swanlake.jobs.runner import R, RunnerStatus, Unit, WithoutTransforms


class InlineRunner(WithoutTransforms):
    """Runs units one after another."""

    def __init__(self, host: EngineHost) -> None:
        self._host = host

    def run(self, units: Sequence[Unit[R]], title: str) -> list[R]:
        lease = self._host.acquire()
        results: list[R] = []
        try:
            for unit in units:
                results.append(unit.run(lease.connection))
        except BaseException as error:
            for unit, result in zip(units, results, strict=False):
                unit.undo(result)
            if isinstance(error, duckdb.Error):
                self._host.report_error(lease, error)
            raise
        finally:
            self._host.release(lease)
        return results

    def status(self) -> RunnerStatus:
        """It is always ready."""
        return RunnerStatus("inline", "ready")

    def close(self) -> None:
        """Does nothing: the engine belongs to the server."""
