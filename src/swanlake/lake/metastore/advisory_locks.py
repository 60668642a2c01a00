"""PostgreSQL's advisory locks, on which the commit lock, the writer lock and leases are built.

The commit lock belongs to a transaction and is taken by SQL that runs in it. The others belong to
a connection that does nothing else, and end with it.
"""

from __future__ import annotations

import hashlib
import select
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from typing import Any

import psycopg
from psycopg.pq import ExecStatus
from sqlalchemy import Executable, Select, bindparam, func
from sqlalchemy import select as sql_select

from swanlake._internal.waiting import never_cancelled, wait
from swanlake.lake.metastore.fence import COMMIT_LOCK_CLASS

#: The second half of a writer lock's key; the first half is that of the commit lock.
WRITER_LOCK_CLASS = 0x5377616E
_CANCEL_SECONDS = 2.0


@dataclass(frozen=True)
class LockKey:
    """The key of an advisory lock: SQL with placeholders, and their values."""

    sql: str
    values: tuple[str, ...]

    @classmethod
    def for_writers(cls, schema: str) -> LockKey:
        """The writer lock of the catalog in a schema."""
        return cls("hashtext($1), $2::int", (_quoted(schema), str(WRITER_LOCK_CLASS)))

    @classmethod
    def for_name(cls, name: str) -> LockKey:
        """The lease of a name: 64 bits of its hash."""
        digest = hashlib.blake2b(f"swanlake:{name}".encode(), digest_size=8).digest()
        return cls("$1::bigint", (str(int.from_bytes(digest, "big", signed=True)),))


class LockConnection:
    """A connection that holds advisory locks; they are free when it is closed or lost."""

    def __init__(self, connection: psycopg.Connection[Any]) -> None:
        connection.autocommit = True
        self._connection = connection

    @property
    def is_open(self) -> bool:
        """False if the connection is known to be closed."""
        return not self._connection.closed

    def is_alive(self) -> bool:
        """False if the server no longer answers on this connection."""
        try:
            self._connection.execute("SELECT true")
        except psycopg.Error:
            return False
        return True

    def try_acquire(self, key: LockKey) -> bool:
        """Takes a lock if it is free."""
        return self._call("pg_try_advisory_lock", key)

    def release(self, key: LockKey) -> bool:
        """Releases a lock; False if this connection did not hold it."""
        return self._call("pg_advisory_unlock", key)

    def acquire(
        self, key: LockKey, deadline: float, check: Callable[[], None] = never_cancelled
    ) -> bool:
        """Waits for a lock, first come, first served; False at the deadline.

        ``check`` is called while waiting and raises when the caller gives up. After anything but
        True the connection is of no further use.
        """
        # Not connection.execute(): it could not be interrupted by the check.
        server = self._connection.pgconn
        values = [value.encode() for value in key.values]
        server.send_query_params(f"SELECT pg_advisory_lock({key.sql})".encode(), values)
        server.flush()

        def is_answered(seconds: float) -> bool:
            if server.is_busy():
                select.select([server.socket], [], [], seconds)
                server.consume_input()
            return not server.is_busy()

        try:
            is_acquired = wait(is_answered, check, deadline)
        except psycopg.Error:
            raise
        except BaseException:
            self._cancel()
            raise
        if not is_acquired:
            self._cancel()
            return False
        while (result := server.get_result()) is not None:
            if result.status != ExecStatus.TUPLES_OK:
                raise psycopg.OperationalError(result.error_message.decode(errors="replace"))
        return True

    def close(self) -> None:
        """Releases all locks."""
        self._connection.close()

    def _cancel(self) -> None:
        # Otherwise the server keeps the place in the wait queue until the lock is free.
        with suppress(psycopg.Error):
            self._connection.cancel_safe(timeout=_CANCEL_SECONDS)

    def _call(self, function: str, key: LockKey) -> bool:
        with psycopg.RawCursor(self._connection) as cursor:
            cursor.execute(f"SELECT {function}({key.sql})".encode(), key.values)
            row = cursor.fetchone()
        assert row is not None
        return bool(row[0])


def lock_catalog(schema: str) -> Executable:
    """Waits for the commit lock of the catalog in a schema, until the end of the transaction."""
    return sql_select(func.pg_advisory_xact_lock(func.hashtext(_quoted(schema)), COMMIT_LOCK_CLASS))


@cache
def commit_locks(*, holds_writer_lock: bool) -> Select[Any]:
    """The statement that takes the locks of a commit, with ``commit_lock_parameters``.

    One object each time: statements are compiled and prepared once.
    """
    schema = func.hashtext(bindparam("schema"))
    classes = [COMMIT_LOCK_CLASS] if holds_writer_lock else [WRITER_LOCK_CLASS, COMMIT_LOCK_CLASS]
    return sql_select(
        func.set_config("lock_timeout", bindparam("lock_timeout"), True),
        func.set_config("idle_in_transaction_session_timeout", bindparam("idle_timeout"), True),
        *(func.pg_advisory_xact_lock(schema, lock_class) for lock_class in classes),
    )


def commit_lock_parameters(schema: str, wait_seconds: float, idle_seconds: int) -> dict[str, str]:
    """The parameters of ``commit_locks``; an idle holder loses its locks after a while."""
    return {
        "lock_timeout": f"{int(wait_seconds * 1000)}ms",
        "idle_timeout": f"{idle_seconds}s",
        "schema": _quoted(schema),
    }


def _quoted(schema: str) -> str:
    """What the fence's trigger hashes, too."""
    return f'"{schema}"'
