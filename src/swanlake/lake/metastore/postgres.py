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
    Select,
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

from swanlake.errors import ConfigError
from swanlake.lake import bootstrap, forks
from swanlake.lake.metabase import CatalogInfo, Metabase
from swanlake.lake.postgres_batch import Batch
from swanlake.lake.postgres_turns import TURN_CLASS
from swanlake.lake.reading import newest_snapshot
from swanlake.lake.store import Answer, CatalogStore, Question, Trouble, Write
from swanlake.lake.tables import tables_in
from swanlake.sql.quoting import identifier
from swanlake.sql.quoting import literal as sql_literal

#: The second half of the lock's key; the stock extension's own proposal uses the same.
_LOCK_CLASS = 0x44754C4B
#: A committer that neither works nor dies loses its lock after this long.
_IDLE_SECONDS = 60
#: The lock is useless under REPEATABLE READ: what is read after it would be from before it.
_BEGIN = b"BEGIN ISOLATION LEVEL READ COMMITTED"
_BEGIN_READING = b"BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY"
#: Who finds tables locked reads in another way, in which it can be cancelled.
_READ_AT_ONCE = b"SET LOCAL lock_timeout = '100ms'"
#: Under the commit lock nobody waits for long: all other writers would wait too.
_HURRY = b"SET LOCAL lock_timeout = '2s'"
_CONNECT_TIMEOUT_SECONDS = 10
#: The same for the list of catalogs, whose lock is held while a collection deletes files.
_REGISTRY_IDLE_SECONDS = 900
#: Who drops a catalog waits for its readers, and all new readers wait behind the drop.
_DROP_SECONDS = 10
_TRANSIENT = {"23505", "40001", "40P01"}
_LOCK_TIMEOUT = {"55P03"}
_MISSING = {"42P01", "3F000"}
_REGISTRY_SCHEMA = "swanlake"
_FENCE_TRIGGER = "ducklake_fence"
_DEFERRAL_TRIGGER = "swanlake_defer"


def connect(url: str) -> psycopg.Connection[Any]:
    """A connection to a metabase; ``url`` is a libpq URL or connection string."""
    return psycopg.connect(**_parameters(url))


def _parameters(url: str) -> dict[str, Any]:
    try:
        return {
            "connect_timeout": _CONNECT_TIMEOUT_SECONDS,
            "application_name": "swanlake",
            # A peer that vanished is noticed in a minute, not in the kernel's two hours.
            "keepalives_idle": 30,
            "keepalives_interval": 10,
            "keepalives_count": 3,
            # So is one that does not acknowledge what was sent: no keepalives go out meanwhile.
            "tcp_user_timeout": 60_000,
        } | psycopg.conninfo.conninfo_to_dict(url)
    except psycopg.ProgrammingError:
        raise ConfigError("metabase_url is not a PostgreSQL URL or connection string.") from None


def postgres_engine(url: str) -> Engine:
    """The connections to a metabase for everything but turns."""
    # Who reads rolls back, and the driver then forgets what is prepared: all of it, a batch's too.
    parameters = _parameters(url) | {"prepare_threshold": None}
    return create_engine(
        "postgresql+psycopg://",
        creator=lambda: psycopg.connect(**parameters),
        isolation_level="READ COMMITTED",
        # Those above the size are closed after each use, and to open one takes milliseconds. The
        # last to come back is the first to go: what a quiet server does not need gets old.
        pool_size=16,
        max_overflow=9,
        pool_use_lifo=True,
        pool_recycle=1800,
    )


def _add_all(batch: Batch, writes: Sequence[Write]) -> None:
    for write in writes:
        if write.rows is None:
            batch.once(write.statement)
        else:
            batch.add(write.statement, write.rows)


def _answers(batch: Batch, questions: Sequence[Question]) -> Sequence[Answer]:
    places = [batch.add(question.statement, [question.parameters]) for question in questions]
    answer = batch.run()
    return [(question, answer(place)) for question, place in zip(questions, places, strict=True)]


def _sequence(schema: str) -> str:
    return f"{identifier(schema)}.ducklake_snapshot_id_seq"


@lru_cache(maxsize=256)
def _next_snapshot_id(schema: str) -> ColumnElement[int]:
    # A commit that was undone leaves the sequence ahead. Ids without gaps let a commit see that a
    # snapshot it must be checked against has been expired.
    snapshot_id = tables_in(schema).snapshot.c.snapshot_id
    newest = select(func.max(snapshot_id)).correlate(None).scalar_subquery()
    aligned = select(func.setval(_sequence(schema), newest).label("newest")).cte("aligned")
    return select(func.nextval(_sequence(schema))).select_from(aligned).scalar_subquery()


class PostgresStore(CatalogStore):
    """The metadata of one catalog, in a schema of its own."""

    errors = (*CatalogStore.errors, psycopg.Error)

    def __init__(self, name: str, schema: str, engine: Engine) -> None:
        super().__init__(name, tables_in(schema), engine)
        self.schema = schema
        self._sequence = _sequence(schema)

    def lock(
        self, connection: Connection, timeout: float, ahead: Sequence[Question], *, has_turn: bool
    ) -> Sequence[Answer]:
        connection.begin()
        batch = Batch(connection)
        batch.command(_BEGIN)
        # As a statement of its own: one that also read would read the state from before the wait.
        settings = {
            "patience": f"{int(timeout * 1000)}ms",
            "idle": f"{_IDLE_SECONDS}s",
            "schema": f'"{self.schema}"',
        }
        batch.add(_LOCK if has_turn else _TURN_AND_LOCK, [settings])
        batch.command(_HURRY)
        # One round trip with the questions. The server begins with a question when it has the lock,
        # and each sees what is committed by then.
        return _answers(batch, ahead)

    def ask(
        self,
        connection: Connection,
        questions: Sequence[Question],
        *,
        is_first: bool,
        is_last: bool,
    ) -> list[Sequence[Any]]:
        batch = Batch(connection)
        if is_first:
            connection.begin()
            batch.command(_BEGIN_READING)
            batch.command(_READ_AT_ONCE)
        places = [batch.add(one.statement, [one.parameters]) for one in questions]
        if is_last:
            batch.command(b"COMMIT")
        answer = batch.run()
        if is_last:
            connection.commit()  # for SQLAlchemy's books
        return [answer(place, one.has_names) for place, one in zip(places, questions, strict=True)]

    def send(
        self, connection: Connection, writes: Sequence[Write], ahead: Sequence[Question] = ()
    ) -> Sequence[Answer]:
        batch = Batch(connection)
        _add_all(batch, writes)
        return _answers(batch, ahead)

    def commit(self, connection: Connection, writes: Sequence[Write]) -> None:
        batch = Batch(connection)
        _add_all(batch, writes)
        self.reached("written")
        batch.command(b"COMMIT")
        batch.run()
        if batch.did != b"COMMIT":  # a transaction that failed is rolled back, without an error
            raise psycopg.errors.InFailedSqlTransaction(f"COMMIT was answered with {batch.did!r}")
        connection.commit()  # for SQLAlchemy's books: there is nothing left to be committed

    def wait_at_most(self, connection: Connection, seconds: int) -> None:
        _wait_at_most(connection, seconds)

    def delete_unlocked(self, table: SqlTable, condition: ColumnElement[bool]) -> Executable:
        place: ColumnElement[Any] = literal_column("ctid")
        free = select(place).select_from(table).where(condition).with_for_update(skip_locked=True)
        return delete(table).where(place.in_(free))

    @property
    def next_snapshot_id(self) -> ColumnElement[int]:
        return _next_snapshot_id(self.schema)

    now = func.greatest(
        func.clock_timestamp(), bindparam("earliest", type_=DateTime(timezone=True))
    )

    def earliest(self, head: datetime) -> datetime:
        return head

    def trouble(self, error: Exception) -> Trouble:
        cause = getattr(error, "orig", None) or error
        state = _sqlstate(error)
        if state in _TRANSIENT:
            return Trouble.TRANSIENT
        if state in _LOCK_TIMEOUT:
            return Trouble.LOCK_TIMEOUT
        if state in _MISSING:
            return Trouble.MISSING_TABLE
        # Class 57P: the server ends the connection; no state at all: it went without a word.
        if isinstance(cause, psycopg.OperationalError) and (
            state is None or state.startswith(("08", "57P"))
        ):
            return Trouble.LOST
        if state == "25P03" or isinstance(cause, psycopg.InterfaceError):
            return Trouble.LOST
        return Trouble.FATAL

    def fence_statements(self) -> Sequence[Executable]:
        return [text(statement.replace(":", r"\:")) for statement in self._fence()]

    def has_fence(self, connection: Connection) -> bool:
        triggers = connection.execute(
            text(
                "SELECT count(*) FROM pg_trigger t JOIN pg_class c ON c.oid = t.tgrelid "
                "JOIN pg_namespace n ON n.oid = c.relnamespace "
                "WHERE n.nspname = :schema AND t.tgenabled <> 'D' AND t.tgname IN (:one, :two)"
            ),
            {"schema": self.schema, "one": _FENCE_TRIGGER, "two": _DEFERRAL_TRIGGER},
        ).scalar_one()
        guards = {str(index.name) for index in self.tables.guards}
        indexes = connection.execute(
            text(
                "SELECT count(*) FROM pg_indexes WHERE schemaname = :schema "
                "AND indexname = ANY(:names)"
            ),
            {"schema": self.schema, "names": list(guards)},
        ).scalar_one()
        return bool(triggers == 2 and indexes == len(guards))

    def _fence(self) -> list[str]:
        """The statements that make writers of any kind obey the order of commits."""
        schema = identifier(self.schema)
        return [
            f"CREATE SEQUENCE IF NOT EXISTS {self._sequence} MINVALUE 0 START 1",
            f"SELECT setval({sql_literal(self._sequence)}, greatest(1, snapshot_id), "
            f"snapshot_id > 0) FROM {schema}.ducklake_head",
            # The message is fixed English with the words after which the stock extension retries.
            f"""
CREATE OR REPLACE FUNCTION {schema}.ducklake_fence() RETURNS trigger LANGUAGE plpgsql AS $fence$
DECLARE moved int;
BEGIN
  PERFORM pg_advisory_xact_lock(hashtext(format('"%s"', TG_TABLE_SCHEMA)), {_LOCK_CLASS});
  BEGIN
    UPDATE {schema}.ducklake_head
       SET snapshot_id = NEW.snapshot_id, next_catalog_id = NEW.next_catalog_id,
           next_file_id = NEW.next_file_id
     WHERE snapshot_id < NEW.snapshot_id AND next_catalog_id <= NEW.next_catalog_id
       AND next_file_id <= NEW.next_file_id;
    GET DIAGNOSTICS moved = ROW_COUNT;
  EXCEPTION WHEN serialization_failure THEN
    moved := 0;  -- a REPEATABLE READ writer whose base is stale
  END;
  IF moved = 0 THEN
    RAISE EXCEPTION 'snapshot % conflict: concurrent commit moved the DuckLake head',
      NEW.snapshot_id USING ERRCODE = '40001';
  END IF;
  PERFORM setval({sql_literal(self._sequence)}, NEW.snapshot_id);
  RETURN NEW;
END $fence$""",
            f"CREATE OR REPLACE TRIGGER {_FENCE_TRIGGER} BEFORE INSERT ON "
            f"{schema}.ducklake_snapshot FOR EACH ROW EXECUTE FUNCTION {schema}.ducklake_fence()",
            # Files that a fork can see are never handed to the clean-up of one catalog alone.
            f"""
CREATE OR REPLACE FUNCTION {schema}.swanlake_defer() RETURNS trigger LANGUAGE plpgsql AS $defer$
DECLARE whole text;
BEGIN
  -- A fork updates this row: who began before it, and cannot see what it shares, fails here.
  BEGIN
    SELECT CASE WHEN NEW.path_is_relative THEN value || NEW.path ELSE NEW.path END INTO whole
      FROM {schema}.ducklake_metadata WHERE key = 'data_path' AND scope IS NULL FOR SHARE;
  EXCEPTION WHEN serialization_failure THEN
    RAISE EXCEPTION 'file % conflict: concurrent fork of the DuckLake catalog', NEW.path
      USING ERRCODE = '40001';
  END;
  IF EXISTS (SELECT 1 FROM {schema}.swanlake_shared_file WHERE path = whole) THEN
    INSERT INTO {schema}.swanlake_deferred_file VALUES (whole, clock_timestamp())
      ON CONFLICT DO NOTHING;
    RETURN NULL;
  END IF;
  RETURN NEW;
END $defer$""",
            f"CREATE OR REPLACE TRIGGER {_DEFERRAL_TRIGGER} BEFORE INSERT ON "
            f"{schema}.ducklake_files_scheduled_for_deletion FOR EACH ROW "
            f"EXECUTE FUNCTION {schema}.swanlake_defer()",
        ]


class PostgresMetabase(Metabase):
    """All catalogs of a lake in one PostgreSQL database."""

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
            connection.execute(_PATIENTLY)
            if write:
                connection.execute(lock_schema(_REGISTRY_SCHEMA))
            yield connection
            connection.commit()

    def _prepare(self, connection: Connection) -> None:
        """Makes the registry's schema, once; two servers may start at the same time."""
        if self._prepared:
            return
        ours = (self._registry, self.maintenance)
        present = inspect(connection).get_table_names(schema=_REGISTRY_SCHEMA)
        if not {table.name for table in ours} <= set(present):
            connection.execute(_PATIENTLY)
            connection.execute(lock_schema(_REGISTRY_SCHEMA))
            connection.execute(CreateSchema(_REGISTRY_SCHEMA, if_not_exists=True))
            for table in ours:
                table.create(connection, checkfirst=True)
            connection.commit()
        self._prepared = True

    def store(self, info: CatalogInfo) -> PostgresStore:
        return PostgresStore(info.name, _schema(info.place), self._engine)

    def exists(self, place: str) -> bool:
        with self._engine.connect() as connection:
            return inspect(connection).has_schema(_schema(place))

    def create(self, registry: Connection, info: CatalogInfo) -> None:
        registry.execute(CreateSchema(_schema(info.place)))
        bootstrap.create(registry, self.store(info), info.data_path)

    def fork(
        self, registry: Connection, parent: CatalogInfo, info: CatalogInfo, at: int | None
    ) -> int:
        source, target = self.store(parent).tables, self.store(info).tables
        registry.execute(lock_schema(_schema(parent.place)))
        # Whoever is letting go of files now is waited for, and whoever began to, fails.
        data_path = source.metadata.c.key == "data_path"
        registry.execute(
            update(source.metadata).where(data_path).values(value=source.metadata.c.value)
        )
        registry.execute(CreateSchema(_schema(info.place)))
        target.everything.create_all(registry, checkfirst=False)
        snapshot = newest_snapshot(registry, source) if at is None else at
        shared = forks.Copy(registry, source, target, snapshot, info.data_path).run()
        forks.share(registry, source, shared)
        bootstrap.raise_fence(registry, self.store(info))
        return snapshot

    def adopt(self, registry: Connection, info: CatalogInfo) -> None:
        registry.execute(lock_schema(_schema(info.place)))
        bootstrap.adopt(registry, self.store(info))

    def remove(self, registry: Connection, info: CatalogInfo) -> None:
        _wait_at_most(registry, _DROP_SECONDS)
        registry.execute(lock_schema(_schema(info.place)))
        registry.execute(DropSchema(_schema(info.place), cascade=True, if_exists=True))

    def is_busy(self, error: Exception) -> bool:
        return _sqlstate(error) in _LOCK_TIMEOUT

    def close(self) -> None:
        self._engine.dispose()


def _sqlstate(error: Exception) -> str | None:
    return getattr(getattr(error, "orig", None) or error, "sqlstate", None)


def _wait_at_most(connection: Connection, seconds: int) -> None:
    """Bounds every wait for a lock, from now to the end of the transaction."""
    connection.execute(select(func.set_config("lock_timeout", f"{seconds}s", True)))


def _schema(place: str) -> str:
    return f"lake_{place}"


#: Whoever holds a lock and neither works nor dies must not hold up the others for ever.
_PATIENTLY = select(
    func.set_config("lock_timeout", f"{_IDLE_SECONDS}s", True),
    func.set_config("idle_in_transaction_session_timeout", f"{_REGISTRY_IDLE_SECONDS}s", True),
)


def _locking(*classes: int) -> Select[Any]:
    return select(
        func.set_config("lock_timeout", bindparam("patience"), True),
        func.set_config("idle_in_transaction_session_timeout", bindparam("idle"), True),
        *(func.pg_advisory_xact_lock(func.hashtext(bindparam("schema")), one) for one in classes),
    )


_LOCK = _locking(_LOCK_CLASS)
_TURN_AND_LOCK = _locking(TURN_CLASS, _LOCK_CLASS)


def lock_schema(schema: str) -> Executable:
    """Waits for the commit lock of the catalog in a schema, to the end of the transaction."""
    return select(func.pg_advisory_xact_lock(func.hashtext(f'"{schema}"'), _LOCK_CLASS))
