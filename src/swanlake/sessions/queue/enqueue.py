"""INSERTs into the queue.

The INSERT runs on the staging table of its target, and RETURNING gives the rows as they are to be
stored. Literals and rows of a client that have the table's own types need no engine: see
``passthrough``.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import duckdb

from swanlake.access.identity import Privilege
from swanlake.access.policy import check_new_name
from swanlake.errors import CommitConflict, InvalidRequest, NotFound
from swanlake.lake.model.types import ColumnSpec
from swanlake.lake.read.table_cache import CachedTable
from swanlake.queue.names import QUEUE
from swanlake.sessions.execution.engine_session import STATEMENT_ERRORS, EngineSession
from swanlake.sessions.execution.names import TableName
from swanlake.sessions.execution.router import Enqueue, enqueue_head, refused
from swanlake.sessions.queue.passthrough import ArrowPassthrough, ClientRowPlans
from swanlake.sessions.queue.tables import QueueTables, Views
from swanlake.sessions.results.spill import SpillBuffer
from swanlake.sessions.results.stream import Outcome
from swanlake.sessions.results.uploads import spill_failed
from swanlake.sessions.run import Run
from swanlake.sessions.staging_tables import StagingTable, StagingTables
from swanlake.sql.builtins import with_builtins
from swanlake.sql.references import references
from swanlake.sql.statement import Statement, parse

_INTO = re.compile(r"\bINSERT\s+INTO\s*$", re.IGNORECASE)
_BATCH_ROWS = 100_000


@dataclass(frozen=True)
class EnqueuePlan:
    """An INSERT as it runs on the staging table of its target."""

    statement: Statement
    staging: StagingTable
    views: Views


class EnqueueExecutor:
    """Executes the INSERTs of one session into the queue."""

    def __init__(self, session: EngineSession, tables: QueueTables) -> None:
        self._session = session
        self._tables = tables
        self._queue = session.services.queue
        self._takes_literals = session.services.native.literals
        self._staging = StagingTables(session, "__duckling_queue_staging_", checks_storable=True)
        self._client_rows = ClientRowPlans()
        #: The rows of several INSERTs that are stored together.
        self._batch: _Batch | None = None

    @property
    def creates_tables(self) -> bool:
        """True if an INSERT into a missing table creates it."""
        return self._queue.settings.auto_create_tables

    def run(self, run: Run, statement: Statement, route: Enqueue, parameters: Any) -> Outcome:
        """Stores the rows of an INSERT in the queue, or adds them to the batch that is open."""
        session = self._session
        self._check_transaction()
        try:
            with run.interruptible(session.connection):
                staging = self.stage(statement, route)
                passthrough = self._passthrough(statement, route, staging, parameters)
                if passthrough is not None:
                    return Outcome(affected=self._store(run, staging, iter(passthrough)))
                plan = self._plan(statement, route, staging)
                with self._tables.visible(run, plan.views):
                    rows = self._staged_rows(plan, parameters)
                    return Outcome(affected=self._store(run, staging, rows))
        except STATEMENT_ERRORS as error:
            session.fail(error, statement)

    def _check_transaction(self) -> None:
        if self._session.transaction.open and self._queue.settings.in_transaction == "refuse":
            raise InvalidRequest(
                f"INSERT into {QUEUE} is not part of a transaction: its rows are stored at once "
                "and cannot be rolled back. Turn autocommit on, or COMMIT first; or set "
                "duckling_queue_in_transaction to immediate.",
                identifier="QUEUE_IN_TRANSACTION",
            )

    def _store(self, run: Run, staging: StagingTable, rows: Iterator[Any]) -> int:
        if self._batch is not None:
            return self._batch.add(staging.target, rows)
        batch_id = run.batch_id(staging.display_name)
        account = self._session.memory
        return self._queue.enqueue(staging.target, rows, batch_id, run.check, account)

    @contextmanager
    def one_batch(self, run: Run) -> Iterator[None]:
        """Stores the rows of all INSERTs of the block together, at its end."""
        batch = self._batch = _Batch(self._session)
        try:
            yield
            if batch.target is not None and batch.rows:
                batch_id = run.batch_id(batch.target.table.full_name)
                account = self._session.memory
                self._queue.enqueue(batch.target, batch.rows, batch_id, run.check, account)
        finally:
            self._batch = None
            batch.close()

    def accepts_client_rows(self, statement: Statement) -> bool:
        """True for an INSERT whose client rows go into the queue without DuckDB."""
        head = enqueue_head(statement)
        if head is None:
            return False
        try:
            staging = self.stage(statement, Enqueue(head))
        except STATEMENT_ERRORS as error:
            self._session.fail(error, statement)
        return self._passthrough(statement, Enqueue(head), staging) is not None

    def plan(self, statement: Statement, route: Enqueue) -> EnqueuePlan:
        """The INSERT on the staging table of its target, which is created if that is allowed."""
        return self._plan(statement, route, self.stage(statement, route))

    def _plan(self, statement: Statement, route: Enqueue, staging: StagingTable) -> EnqueuePlan:
        head = route.head
        start, end = statement.split_at(head.target_start, head.target_end)
        sql = f"{start}temp.main.{staging.name}{end}"
        query = self._tables.rewrite(sql, references(sql, QUEUE) if route.reads_queue else [])
        return EnqueuePlan(query.statement, staging, query.views)

    def stage(self, statement: Statement, route: Enqueue) -> StagingTable:
        """The staging table of an INSERT's target, which is created if that is allowed."""
        name = self._tables.resolve(route.head.target)
        self._session.require(name[0], Privilege.WRITE)
        try:
            target = self._tables.find(name)
        except NotFound:
            if not self.creates_tables:
                raise
            self._create_table(statement, route, name)
            target = self._tables.find(name)
        return self._staging.get(name, target, f"{QUEUE}.{name[1]}.{name[2]}")

    def _create_table(self, statement: Statement, route: Enqueue, name: TableName) -> None:
        if statement.parameters:
            raise NotFound(
                f"The table {'.'.join(name)} does not exist, and this INSERT cannot create "
                "it: give its rows as VALUES of parameters alone, or create it first.",
                identifier="TABLE_NOT_FOUND",
            ) from None
        session, head = self._session, route.head
        start, body = statement.split_at(head.target_start, head.body)
        sql = f"DESCRIBE {_INTO.sub('', start)}{body}"
        query = self._tables.rewrite(sql, references(sql, QUEUE))
        session.client_rows.expose(session.connection)
        with self._tables.empty(query.views):
            session.execute(query.statement)
            described = session.connection.fetchall()
        names = head.columns or [row[0] for row in described]
        if len(names) != len(described):
            raise InvalidRequest(
                f"The INSERT names {len(names)} columns and has {len(described)}: it cannot create "
                f"the table {'.'.join(name)}."
            )
        columns = [ColumnSpec(column, row[1]) for column, row in zip(names, described, strict=True)]
        check_new_name("table", name[2])
        self._queue.table_cache.create_table(*name, columns)

    def _passthrough(
        self, statement: Statement, route: Enqueue, staging: StagingTable, parameters: Any = None
    ) -> ArrowPassthrough | None:
        """The rows of an INSERT that needs no engine; None for every other."""
        rows, head, layout = self._session.client_rows.rows, route.head, staging.target.layout
        if rows is not None:
            return self._client_rows.plan(statement, head, rows, staging.schema, layout)
        if not self._takes_literals or parameters or statement.parameters:
            return None
        return ArrowPassthrough.of_literals(statement, head, staging.schema, layout)

    def _staged_rows(self, plan: EnqueuePlan, parameters: Any) -> Iterator[Any]:
        connection, staging = self._session.connection, plan.staging
        self._session.client_rows.expose(connection)
        for batch in self._execute(plan, parameters):
            staging.bytes_seen += batch.nbytes
            yield batch
        staging.truncate_if_full(connection)

    def _execute(self, plan: EnqueuePlan, parameters: Any) -> Any:
        connection = self._session.connection
        try:
            self._session.execute(_returning(connection, plan.statement), parameters)
            return connection.to_arrow_reader(_BATCH_ROWS)
        except duckdb.Error as error:
            if isinstance(error, duckdb.BinderException) and plan.statement.has_conflict_clause:
                raise refused("ON CONFLICT cannot go through the queue") from None
            raise plan.staging.explain_error(error) from None


class _Batch:
    """The rows of several INSERTs into one table, in memory or on disk."""

    def __init__(self, session: EngineSession) -> None:
        self._session = session
        self.target: CachedTable | None = None
        self.rows: SpillBuffer | tuple[()] = ()

    def add(self, target: CachedTable, rows: Iterator[Any]) -> int:
        """Adds the rows of one INSERT; returns their number."""
        if self.target is not None and self.target.layout.columns != target.layout.columns:
            raise CommitConflict(
                f"The table {target.table.full_name} was changed during the INSERT. No row was "
                "stored; send the rows again."
            )
        self.target = target
        count = 0
        for batch in rows:
            if isinstance(self.rows, tuple):
                self.rows = self._session.buffer(batch.schema)
            try:
                self.rows.append(batch)
            except OSError as full:
                raise spill_failed("The INSERT", full) from full
            count += batch.num_rows
        return count

    def close(self) -> None:
        """Frees memory and disk."""
        if isinstance(self.rows, SpillBuffer):
            self.rows.close()


def _returning(connection: duckdb.DuckDBPyConnection, statement: Statement) -> Statement:
    """The INSERT with RETURNING, which gives its rows."""
    text = statement.text.rstrip().removesuffix(";")
    try:
        [returning] = parse(connection, f"{with_builtins(text)}\nRETURNING *")
    except duckdb.ParserException:  # a comment follows the semicolon
        [returning] = parse(connection, f"{statement.body}\nRETURNING *")
    return returning
