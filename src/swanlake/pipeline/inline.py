"""Work units in the server's own process, on a connection of its engine."""

from __future__ import annotations

from collections.abc import Sequence

import duckdb

from swanlake.engine.host import EngineHost
from swanlake.lake.datafile import remove_files
from swanlake.queue.work import UnitResult, WorkUnit, run_unit


class InlineRunner:
    """Runs units one after the other."""

    def __init__(self, host: EngineHost) -> None:
        self._host = host

    def run(self, units: Sequence[WorkUnit], title: str) -> list[UnitResult]:
        """The results of all units; if one fails, the files of the others are removed."""
        lease = self._host.lease()
        results: list[UnitResult] = []
        try:
            for unit in units:
                results.append(run_unit(lease.connection, unit))
        except BaseException as error:
            for unit, result in zip(units, results, strict=False):
                remove_files(unit.table, result.files)
            if isinstance(error, duckdb.Error):
                self._host.report(lease, error)
            raise
        finally:
            self._host.release(lease)
        return results
