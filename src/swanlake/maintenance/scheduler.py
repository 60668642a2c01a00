"""The thread that sees to it that maintenance is done when it is due."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from datetime import UTC, datetime
from functools import partial
from typing import TypeVar

import duckdb

from swanlake.errors import MaintenanceRunning, QueryCancelled, SwanLakeError
from swanlake.lake.survey import CatalogSurvey
from swanlake.pipeline.maintain import Caller, Maintenance
from swanlake.pipeline.triggers import Due, Job, due, is_open

log = logging.getLogger("swanlake.maintenance")

T = TypeVar("T")


class Scheduler:
    """Looks at the catalogs every so often and has done what is due."""

    def __init__(
        self,
        maintenance: Maintenance,
        interval_seconds: float,
        clock: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._maintenance = maintenance
        self._rules = maintenance.settings.rules
        self._interval = interval_seconds
        self._clock = clock
        self._stopping = threading.Event()
        # Somebody else's turn is not waited for: what is still due then is due at the next look.
        self._caller = Caller(self._check, patience=0.0)
        self._thread = threading.Thread(
            target=self._keep_looking, name="swanlake-maintenance", daemon=True
        )

    def start(self) -> None:
        """Begins to look, for the first time after one interval."""
        self._thread.start()

    def ask_to_stop(self) -> None:
        """Begins nothing more; what is under way ends at its next step."""
        self._stopping.set()

    def stop(self, grace: float) -> None:
        """Begins nothing more, and waits for what is under way as long as the grace allows.

        What is not over then leaves the lake as it is: its files are not committed.
        """
        self.ask_to_stop()
        if self._thread.is_alive():
            self._thread.join(grace)

    def look(self) -> None:
        """Has done what is due now; one failure does not keep the rest from being done."""
        if not is_open(self._rules, self._clock()):
            return
        catalogs = self._guarded("the catalogs cannot be listed", self._maintenance.catalogs)
        surveys: dict[str, CatalogSurvey] = {}
        for name in catalogs or ():
            survey = self._guarded(
                f"the catalog {name} cannot be looked at", partial(self._maintenance.survey, name)
            )
            if survey is not None:
                surveys[name] = survey
        past = self._guarded("the history cannot be read", lambda: list(self._maintenance.past()))
        if past is None:
            return  # without it everything would be due
        for one in due(self._clock(), self._rules, surveys, past):
            if self._stopping.is_set() or not is_open(self._rules, self._clock()):
                return
            log.info("%s is due: %s", _title(one), one.reason)
            self._guarded(f"{_title(one)} failed", partial(self._do, one))

    def _do(self, one: Due) -> None:
        subject = one.subject
        match subject.job:
            case Job.COMPACT:
                assert subject.catalog is not None
                assert one.table is not None
                name = (one.table.schema, one.table.name)
                self._maintenance.compact(subject.catalog, name, self._caller)
            case Job.EXPIRE:
                assert subject.catalog is not None
                self._maintenance.expire(subject.catalog, self._caller)
            case Job.CLEANUP:
                self._maintenance.cleanup(self._caller)
            case Job.ORPHANS:
                self._maintenance.orphans(self._caller)

    def _keep_looking(self) -> None:
        while not self._stopping.wait(self._interval):
            self.look()

    def _check(self) -> None:
        if self._stopping.is_set():
            raise QueryCancelled("The server is shutting down.")

    def _guarded(self, what: str, work: Callable[[], T]) -> T | None:
        """None if it failed; the next look tries again."""
        try:
            return work()
        except (MaintenanceRunning, QueryCancelled) as not_now:
            log.info("%s", not_now)
        except (SwanLakeError, duckdb.Error, OSError) as error:
            log.warning("%s: %s", what, " ".join(str(error).split()))
        except Exception:
            log.exception("%s", what)
        return None


def _title(one: Due) -> str:
    subject = one.subject
    where = [part for part in (subject.catalog, subject.table) if part]
    return f"{subject.job} of {' '.join(where) or 'the lake'}"
