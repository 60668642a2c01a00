"""Units in the server's own process, on a connection of its engine."""

from __future__ import annotations

from collections.abc import Sequence

import duckdb

from swanlake.engine.host import EngineHost
from swanlake.pipeline.runner import R, Unit, WithoutTransforms


class InlineRunner(WithoutTransforms):
    """Runs units one after the other."""

    def __init__(self, host: EngineHost) -> None:
        self._host = host

    def run(self, units: Sequence[Unit[R]], title: str) -> list[R]:
        """The results of all units; if one fails, the others are undone."""
        lease = self._host.lease()
        results: list[R] = []
        try:
            for unit in units:
                results.append(unit.run(lease.connection))
        except BaseException as error:
            for unit, result in zip(units, results, strict=False):
                unit.undo(result)
            if isinstance(error, duckdb.Error):
                self._host.report(lease, error)
            raise
        finally:
            self._host.release(lease)
        return results

    def close(self) -> None:
        """The engine is the server's, and stays."""
