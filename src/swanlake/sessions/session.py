"""A session: one DuckDB connection and everything that lives with it."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, TypeVar

from swanlake.errors import (
    InvalidRequest,
    NotFound,
    QueryCancelled,
    SessionLost,
)
from swanlake.sessions import binding
from swanlake.sessions.bound import BoundRuns
from swanlake.sessions.catalogs import LakeCatalogs
from swanlake.sessions.direct import BOUND
from swanlake.sessions.execution import Execution
from swanlake.sessions.ids import SessionKey
from swanlake.sessions.prepared import PreparedStatement
from swanlake.sessions.results import Outcome
from swanlake.sessions.runs import Run
from swanlake.sessions.services import SessionServices
from swanlake.sessions.transaction import TransactionState
from swanlake.sessions.uploads import received
from swanlake.sql.statement import Kind, Statement

log = logging.getLogger("swanlake.sessions")

T = TypeVar("T")

_TURN_POLL = 0.05
_CLOSE_PATIENCE = 5.0


class Session:
    """One connection's worth of state. Statements take turns; results outlive their turn."""

    def __init__(self, key: SessionKey, services: SessionServices) -> None:
        self.key = key
        self.created = self.last_used = time.monotonic()
        self.query_timeout: float | None = None
        #: Options set through the protocol, as they were given.
        self.options: dict[str, str | bool | int | float] = {}
        self._services = services
        self._execution = Execution(services, self.touch)
        self._bound = BoundRuns(self._execution)
        self._busy = threading.Lock()
        self._closed = False
        self._current: Run | None = None
        self._prepared: dict[bytes, PreparedStatement] = {}

    @property
    def transaction(self) -> TransactionState:
        """The transaction that is open, if one is."""
        return self._execution.transaction

    # ---- statements ------------------------------------------------------------------------------

    def execute(self, run: Run, sql: str, transaction: bytes | None = None) -> Outcome:
        """Runs a text once, statement by statement; the outcome is that of the last one."""
        with self._turn(run, transaction):
            return self._execution.run_all(run, self._execution.parse(sql))

    def query(self, run: Run, sql: str, parameters: list[Any] | None = None) -> Any:
        """The whole result of a query of the server's own, as a table."""
        return self.inspect(run, lambda con: con.execute(sql, parameters).to_arrow_table())

    def inspect(self, run: Run, look: Callable[..., T], *arguments: Any) -> T:
        """What ``look`` finds out with the session's connection, in a turn of its own."""
        with self._turn(run):
            return self._execution.look(run, look, *arguments)

    def ingest(
        self,
        run: Run,
        reader: Any,
        load: Callable[[str], list[str]],
        transaction: bytes | None = None,
    ) -> int:
        """Runs the statements that ``load`` builds around the name of the incoming rows, as one.

        The last of them loads the rows, and its count is the answer.
        """
        with self._turn(run, transaction), self._upload(run, reader) as rows:
            return self._bound.load(run, load(BOUND), rows)

    # ---- prepared statements ---------------------------------------------------------------------

    def prepare(self, run: Run, sql: str, transaction: bytes | None = None) -> PreparedStatement:
        """Parses a text and describes it without executing any of it."""
        with self._turn(run, transaction):
            prepared = PreparedStatement(sql, self._execution.parse(sql))
            self.transaction.admit(prepared.last)
            self._execution.look(run, self._execution.describe, prepared, run)
            self._prepared[prepared.handle] = prepared
            return prepared

    def prepared(self, handle: bytes) -> PreparedStatement:
        """The prepared statement of that handle, if this session made it."""
        try:
            return self._prepared[handle]
        except KeyError:
            raise NotFound(
                "This session has no such prepared statement: it was closed, or belongs to another "
                "session.",
                identifier="STATEMENT_NOT_FOUND",
            ) from None

    def close_prepared(self, handle: bytes) -> None:
        self._prepared.pop(handle, None)

    def execute_prepared(
        self, run: Run, prepared: PreparedStatement, transaction: bytes | None = None
    ) -> Outcome:
        """Runs a prepared statement with what is bound to it, once per bound row."""
        with self._turn(run, transaction):
            return self._run_bound(run, prepared.statements, prepared.bound)

    def execute_bound(
        self, run: Run, sql: str, bound: list[Any], transaction: bytes | None = None
    ) -> Outcome:
        """Runs a text with what is bound to it, once per bound row, without preparing it first."""
        with self._turn(run, transaction):
            prepared = PreparedStatement(sql, self._execution.parse(sql))
            if not prepared.last.parameters:
                binding.arrange(bound[0].schema, ())  # says that nothing can be bound
            return self._run_bound(run, prepared.statements, bound)

    def _run_bound(self, run: Run, statements: list[Statement], bound: list[Any] | None) -> Outcome:
        last = statements[-1]
        if not last.parameters or bound is None:
            return self._execution.run_all(run, statements)
        batches = _arranged(bound, last)
        rows = sum(batch.num_rows for batch in batches)
        if rows == 0 and (probe := last.probe()) is not None:
            [columns] = self._execution.parse(probe)
            return self._execution.run_one(run, columns, dict.fromkeys(columns.parameters))
        once_per_row = rows == 1 or (rows > 1 and last.kind is Kind.QUERY)
        if once_per_row and not self._execution.queue.is_insert(last.text):
            return self._bound.run_rows(run, statements, batches)
        return self._bound.run_bulk(run, statements, iter(batches), batches[0].schema)

    def update_prepared(self, run: Run, prepared: PreparedStatement, reader: Any) -> int:
        """Runs a prepared change for every row of the stream, as one transaction."""
        with self._turn(run):
            last = prepared.last
            if not last.parameters:
                return self._execution.run_all(run, prepared.statements).affected or 0
            order = binding.arrange(reader.schema, last.parameters)
            with self._upload(run, binding.bindable_reader(reader, order)) as rows:
                outcome = self._bound.run_bulk(run, prepared.statements, rows, rows.schema)
            if outcome.stream is not None:
                outcome.stream.close()
            return outcome.affected or 0

    # ---- transactions ----------------------------------------------------------------------------

    def begin(self, run: Run) -> bytes:
        """Opens a transaction and names it."""
        with self._turn(run):
            if self.transaction.open:
                raise InvalidRequest(
                    "This session already has an open transaction; commit or roll back first.",
                    identifier="TRANSACTION_ACTIVE",
                )
            self._execution.run_all(run, self._execution.parse("BEGIN TRANSACTION"))
            return self.transaction.handle

    def end(self, run: Run, handle: bytes, commit: bool) -> None:
        """Commits or rolls back the named transaction."""
        with self._turn(run, handle):
            self._execution.run_all(run, self._execution.parse("COMMIT" if commit else "ROLLBACK"))

    # ---- settings --------------------------------------------------------------------------------

    @property
    def catalogs(self) -> LakeCatalogs:
        """The catalogs of the lake; they are attached when they are first named."""
        return self._execution.catalogs

    def location(self, run: Run) -> tuple[str, str]:
        """The current catalog and schema."""
        table = self.query(run, "SELECT current_catalog() AS c, current_schema() AS s")
        return table["c"][0].as_py(), table["s"][0].as_py()

    # ---- life ------------------------------------------------------------------------------------

    @property
    def running(self) -> bool:
        """True while a statement executes, or waits to, or DuckDB works on a result."""
        live = self._execution.live
        return self._busy.locked() or (live is not None and live.run.engaged_now)

    @property
    def idle_seconds(self) -> float:
        return 0.0 if self.running else time.monotonic() - self.last_used

    def touch(self) -> None:
        self.last_used = time.monotonic()

    def close(self, reason: str) -> None:
        """Stops what runs and frees the connection; bounded, idempotent."""
        if self._closed:
            return
        self._closed = True
        stop = QueryCancelled(f"The session was closed ({reason}).")
        deadline = time.monotonic() + _CLOSE_PATIENCE
        while not self._busy.acquire(timeout=_TURN_POLL):
            for run in (self._current, self._execution.live.run if self._execution.live else None):
                if run is not None:
                    run.cancel(stop)
            if time.monotonic() > deadline:
                log.warning(
                    "session %s is still busy; its statement frees it when it ends", self.key
                )
                return
        try:
            self._execution.release()
        finally:
            self._busy.release()

    # ---- inside ----------------------------------------------------------------------------------

    @contextmanager
    def _turn(self, run: Run, transaction: bytes | None = None) -> Iterator[None]:
        """One statement at a time, on a working connection that holds no live result."""
        while not self._busy.acquire(timeout=_TURN_POLL):
            run.check()
        try:
            self._current = run
            self.touch()
            if self._closed:
                raise SessionLost(f"The session {self.key.id} is closed.")
            self._execution.renew()
            if transaction is not None:
                self.transaction.check_handle(transaction)
            self._execution.settle(run.check)
            yield
        finally:
            self._current = None
            self.touch()
            if self._closed:
                self._execution.release()
            self._busy.release()

    def _upload(self, run: Run, reader: Any) -> AbstractContextManager[Any]:
        services = self._services
        return received(run, reader, services.result_buffer_bytes, services.spill_directory)


def _arranged(batches: list[Any], statement: Statement) -> list[Any]:
    order = binding.arrange(batches[0].schema, statement.parameters)
    return [binding.bindable(batch, order) for batch in batches]
