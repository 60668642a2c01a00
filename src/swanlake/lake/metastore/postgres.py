"""Catalogs in PostgreSQL: a schema for each, and one for the registry."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime
from functools import lru_cache
from typing import Any

import psycopg
from sqlalchemy import (
    ColumnElement,
    Connection,
    DateTime,
    Engine,
    Executable,
    bindparam,
    create_engine,
    delete,
    func,
    inspect,
    literal_column,
    select,
    text,
    update,
)
from sqlalchemy import Table as SqlTable
from sqlalchemy.schema import CreateSchema, DropSchema

from swanlake.lake.lifecycle import forks
from swanlake.lake.metastore import bootstrap
from swanlake.lake.metastore.advisory_locks import (
    commit_lock_parameters,
    commit_locks,
    lock_catalog,
)
from swanlake.lake.metastore.base import CatalogInfo, Metastore
from swanlake.lake.metastore.fence import FENCE_TRIGGERS, postgres_fence, snapshot_sequence
from swanlake.lake.metastore.postgres_batch import StatementPipeline
from swanlake.lake.metastore.postgres_connection import connection_parameters
from swanlake.lake.metastore.store import CatalogStore, ErrorKind, Query, QueryResult, Write
from swanlake.lake.metastore.tables import tables_in
from swanlake.lake.read.metadata import newest_snapshot

#: A committer that neither works nor dies loses its lock after this long.
_IDLE_SECONDS = 60
#: The lock is useless under REPEATABLE READ: what is read after it would be from before it.
_BEGIN = b"BEGIN ISOLATION LEVEL READ COMMITTED"
_BEGIN_READING = b"BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY"
#: A read that finds tables locked is repeated in a way that can be cancelled.
_READ_LOCK_TIMEOUT = b"SET LOCAL lock_timeout = '100ms'"
#: Under the commit lock waits are short: all other writers wait too.
_COMMIT_LOCK_TIMEOUT = b"SET LOCAL lock_timeout = '2s'"
#: The same for the registry, whose lock is held while a clean-up deletes files.
_REGISTRY_IDLE_SECONDS = 900
#: A drop waits for the readers of the catalog, and new readers wait behind the drop.
_DROP_SECONDS = 10
_TRANSIENT = {"23505", "40001", "40P01"}
_LOCK_TIMEOUT = "55P03"
_MISSING = {"42P01", "3F000"}
_REGISTRY_SCHEMA = "swanlake"


def postgres_engine(url: str) -> Engine:
    """The connections for everything but writer locks and leases."""
    # Reads end with a rollback, after which the driver would deallocate all that is prepared, the
    # statements of a pipeline included.
    parameters = connection_parameters(url, prepare_threshold=None)
    return create_engine(
        "postgresql+psycopg://",
        creator=lambda: psycopg.connect(**parameters),
        isolation_level="READ COMMITTED",
        # Connections above the size are closed after use; opening one takes milliseconds. LIFO
        # lets those that a quiet server does not need grow old and be recycled.
        pool_size=16,
        max_overflow=9,
        pool_use_lifo=True,
        pool_recycle=1800,
    )


def _add_writes(pipeline: StatementPipeline, writes: Sequence[Write]) -> None:
    for write in writes:
        if write.rows is None:
            pipeline.add_once(write.statement)
        else:
            pipeline.add(write.statement, write.rows)


def _run_prefetch(pipeline: StatementPipeline, prefetch: Sequence[Query]) -> list[QueryResult]:
    indexes = [pipeline.add(query.statement, [query.parameters]) for query in prefetch]
    rows_of = pipeline.run()
    return [(query, rows_of(index)) for query, index in zip(prefetch, indexes, strict=True)]


@lru_cache(maxsize=256)
def _next_snapshot_id(schema: str) -> ColumnElement[int]:
    # A rolled-back commit leaves the sequence ahead. Ids without gaps let a commit see that a
    # snapshot it must be checked against has been expired.
    snapshot_id = tables_in(schema).snapshot.c.snapshot_id
    newest = select(func.max(snapshot_id)).correlate(None).scalar_subquery()
    aligned = select(func.setval(snapshot_sequence(schema), newest).label("newest")).cte("aligned")
    return select(func.nextval(snapshot_sequence(schema))).select_from(aligned).scalar_subquery()


class PostgresStore(CatalogStore):
    """The metadata of one catalog, in its own schema."""

    errors = (*CatalogStore.errors, psycopg.Error)

    def __init__(self, name: str, schema: str, engine: Engine) -> None:
        super().__init__(name, tables_in(schema), engine)
        self.schema = schema

    def lock(
        self,
        connection: Connection,
        timeout: float,
        prefetch: Sequence[Query],
        *,
        holds_writer_lock: bool,
    ) -> Sequence[QueryResult]:
        connection.begin()
        pipeline = StatementPipeline(connection)
        pipeline.add_command(_BEGIN)
        # A statement of its own: one that also read would read the state from before the wait.
        parameters = commit_lock_parameters(self.schema, timeout, _IDLE_SECONDS)
        pipeline.add(commit_locks(holds_writer_lock=holds_writer_lock), [parameters])
        pipeline.add_command(_COMMIT_LOCK_TIMEOUT)
        # One round trip with the prefetched queries. The server runs them once it has the lock,
        # and each sees what is committed by then.
        return _run_prefetch(pipeline, prefetch)

    def run_queries(
        self, connection: Connection, queries: Sequence[Query], *, is_first: bool, is_last: bool
    ) -> list[Sequence[Any]]:
        pipeline = StatementPipeline(connection)
        if is_first:
            connection.begin()
            pipeline.add_command(_BEGIN_READING)
            pipeline.add_command(_READ_LOCK_TIMEOUT)
        indexes = [pipeline.add(query.statement, [query.parameters]) for query in queries]
        if is_last:
            pipeline.add_command(b"COMMIT")
        rows_of = pipeline.run()
        if is_last:
            connection.commit()  # tells SQLAlchemy that the transaction is over
        return [rows_of(index, q.has_names) for index, q in zip(indexes, queries, strict=True)]

    def send(
        self, connection: Connection, writes: Sequence[Write], prefetch: Sequence[Query] = ()
    ) -> Sequence[QueryResult]:
        pipeline = StatementPipeline(connection)
        _add_writes(pipeline, writes)
        return _run_prefetch(pipeline, prefetch)

    def commit(self, connection: Connection, writes: Sequence[Write]) -> None:
        pipeline = StatementPipeline(connection)
        _add_writes(pipeline, writes)
        self.reached("written")
        pipeline.add_command(b"COMMIT")
        pipeline.run()
        # A failed transaction is rolled back without an error.
        if pipeline.command_status != b"COMMIT":
            raise psycopg.errors.InFailedSqlTransaction(
                f"COMMIT was answered with {pipeline.command_status!r}"
            )
        connection.commit()  # tells SQLAlchemy that the transaction is over

    def set_lock_timeout(self, connection: Connection, seconds: int) -> None:
        connection.execute(select(func.set_config("lock_timeout", f"{seconds}s", True)))

    def delete_unlocked(self, table: SqlTable, condition: ColumnElement[bool]) -> Executable:
        row_address: ColumnElement[Any] = literal_column("ctid")
        free = (
            select(row_address)
            .select_from(table)
            .where(condition)
            .with_for_update(skip_locked=True)
        )
        return delete(table).where(row_address.in_(free))

    @property
    def next_snapshot_id(self) -> ColumnElement[int]:
        return _next_snapshot_id(self.schema)

    now = func.greatest(
        func.clock_timestamp(), bindparam("earliest", type_=DateTime(timezone=True))
    )

    def earliest(self, head: datetime) -> datetime:
        return head

    @staticmethod
    def classify(error: Exception) -> ErrorKind:
        cause = getattr(error, "orig", None) or error
        state = getattr(cause, "sqlstate", None)
        if state in _TRANSIENT:
            return ErrorKind.TRANSIENT
        if state == _LOCK_TIMEOUT:
            return ErrorKind.LOCK_TIMEOUT
        if state in _MISSING:
            return ErrorKind.MISSING_TABLE
        # Class 57P: the server closes the connection. No state: it vanished without an answer.
        if isinstance(cause, psycopg.OperationalError) and (
            state is None or state.startswith(("08", "57P"))
        ):
            return ErrorKind.LOST
        if state == "25P03" or isinstance(cause, psycopg.InterfaceError):
            return ErrorKind.LOST
        return ErrorKind.FATAL

    def fence_statements(self) -> Sequence[Executable]:
        return [text(statement.replace(":", r"\:")) for statement in postgres_fence(self.schema)]

    def has_fence(self, connection: Connection) -> bool:
        triggers = connection.execute(
            text(
                "SELECT count(*) FROM pg_trigger t JOIN pg_class c ON c.oid = t.tgrelid "
                "JOIN pg_namespace n ON n.oid = c.relnamespace "
                "WHERE n.nspname = :schema AND t.tgenabled <> 'D' AND t.tgname = ANY(:names)"
            ),
            {"schema": self.schema, "names": list(FENCE_TRIGGERS)},
        ).scalar_one()
        guards = {str(index.name) for index in self.tables.guards}
        indexes = connection.execute(
            text(
                "SELECT count(*) FROM pg_indexes WHERE schemaname = :schema "
                "AND indexname = ANY(:names)"
            ),
            {"schema": self.schema, "names": list(guards)},
        ).scalar_one()
        return bool(triggers == len(FENCE_TRIGGERS) and indexes == len(guards))


class PostgresMetastore(Metastore):
    """All catalogs of a lake in one PostgreSQL database."""

    store_type = PostgresStore
    errors = PostgresStore.errors

    def __init__(self, url: str, data_location: str) -> None:
        super().__init__(_REGISTRY_SCHEMA, data_location)
        self._url = url
        self._engine = postgres_engine(url)
        self._prepared = False

    @contextmanager
    def registry(self, *, write: bool = False) -> Iterator[Connection]:
        with self._engine.connect() as connection:
            self._prepare(connection)
            connection.execute(_REGISTRY_TIMEOUTS)
            if write:
                connection.execute(lock_catalog(_REGISTRY_SCHEMA))
            yield connection
            connection.commit()

    def _prepare(self, connection: Connection) -> None:
        """Makes the registry's schema, once; two servers may start at the same time."""
        if self._prepared:
            return
        present = inspect(connection).get_table_names(schema=_REGISTRY_SCHEMA)
        if not {table.name for table in self.shared_tables} <= set(present):
            connection.execute(_REGISTRY_TIMEOUTS)
            connection.execute(lock_catalog(_REGISTRY_SCHEMA))
            connection.execute(CreateSchema(_REGISTRY_SCHEMA, if_not_exists=True))
            for table in self.shared_tables:
                table.create(connection, checkfirst=True)
            connection.commit()
        self._prepared = True

    def store(self, info: CatalogInfo) -> PostgresStore:
        return PostgresStore(info.name, _schema(info.storage_name), self._engine)

    def exists(self, storage_name: str) -> bool:
        with self._engine.connect() as connection:
            return inspect(connection).has_schema(_schema(storage_name))

    def create(self, registry: Connection, info: CatalogInfo) -> None:
        registry.execute(CreateSchema(_schema(info.storage_name)))
        bootstrap.create(registry, self.store(info), info.data_path)

    def fork(
        self, registry: Connection, parent: CatalogInfo, info: CatalogInfo, at: int | None
    ) -> int:
        source, target = self.store(parent).tables, self.store(info).tables
        registry.execute(lock_catalog(_schema(parent.storage_name)))
        # Conflicts with the fence's read of this row: waits for transactions that list files for
        # deletion, and fails those that began to.
        data_path = source.metadata.c.key == "data_path"
        registry.execute(
            update(source.metadata).where(data_path).values(value=source.metadata.c.value)
        )
        registry.execute(CreateSchema(_schema(info.storage_name)))
        target.everything.create_all(registry, checkfirst=False)
        snapshot = newest_snapshot(registry, source) if at is None else at
        shared = forks.ForkCopy(registry, source, target, snapshot, info.data_path).run()
        forks.mark_shared(registry, source, shared)
        bootstrap.install_fence(registry, self.store(info))
        return snapshot

    def adopt(self, registry: Connection, info: CatalogInfo) -> None:
        registry.execute(lock_catalog(_schema(info.storage_name)))
        bootstrap.adopt(registry, self.store(info))

    def remove(self, registry: Connection, info: CatalogInfo) -> None:
        self.store(info).set_lock_timeout(registry, _DROP_SECONDS)
        registry.execute(lock_catalog(_schema(info.storage_name)))
        registry.execute(DropSchema(_schema(info.storage_name), cascade=True, if_exists=True))

    def close(self) -> None:
        self._engine.dispose()


def _schema(storage_name: str) -> str:
    return f"lake_{storage_name}"


#: A holder that neither works nor dies must not block the others forever.
_REGISTRY_TIMEOUTS = select(
    func.set_config("lock_timeout", f"{_IDLE_SECONDS}s", True),
    func.set_config("idle_in_transaction_session_timeout", f"{_REGISTRY_IDLE_SECONDS}s", True),
)
