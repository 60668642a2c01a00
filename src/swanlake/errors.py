"""Every error SwanLake raises.

    SwanLakeError
    ├── ConfigError (ValueError)      a setting is unknown or unreadable
    ├── StartupError                  the server cannot start; carries the exit code
    │   ├── AddressInUse
    │   ├── HomeInUse
    │   └── CatalogUnreachable
    │       └── StorageUnreachable
    ├── InvalidRequest                malformed, or of the wrong type or count
    ├── Unsupported                   valid, but not supported
    ├── NotAuthenticated              no credentials, or wrong ones
    ├── AccessDenied                  the caller's role or grants do not allow it
    ├── NotFound                      the caller has no such handle, result or transaction
    ├── TransactionAborted            a statement failed in it; only ROLLBACK ends it
    ├── SessionError
    │   ├── SessionLimitReached       no session is free
    │   └── SessionLost               the session, or the state it held, is gone
    ├── QueryError                    the engine refused or failed the statement
    │   ├── InvalidStatement          the text, or a name in it, is wrong
    │   ├── InvalidValue              a value does not fit
    │   ├── ConstraintViolated
    │   ├── StatementUnsupported      the engine does not support it
    │   ├── ResourceFailed            a file, an address, memory or a disk failed
    │   ├── EngineFailed              an internal error of the engine
    │   ├── QueryCancelled
    │   └── QueryTimeout (TimeoutError)
    ├── LakeError                     a catalog refused the request
    │   ├── AlreadyExists             the name is in use
    │   ├── CatalogNotWritable        the fence is missing or was bypassed; reads still work
    │   ├── CommitConflict            a concurrent commit changed its basis: retry
    │   ├── CommitFailed              contention or lost connections outlasted the retries
    │   ├── WriterLockExceeded        it held the catalog's lock for too long; nothing was written
    │   └── CommitStateUnknown        it is not known whether the commit took effect
    ├── PipelineFailed                a Spark job failed; nothing was changed
    │   └── TransformFailed           a transform raised, or returned rows that do not fit the table
    ├── PoolError                     a client's pool of connections
    │   ├── PoolClosed
    │   ├── PoolTimeout (TimeoutError)  no connection became free in time
    │   └── TooManyRequests           the queue for connections is full
    ├── WriterError                   a client's writer
    │   ├── WriterClosed
    │   ├── WriterTimeout (TimeoutError)  no room, or no acknowledgement, in time
    │   ├── RowRefused (ValueError)   a row does not fit the table; the writer did not accept it
    │   └── RowsNotWritten            the writer gave up batches; carries them
    ├── ClientClosed                  the application closed the connection
    ├── ForkedProcess                 a child process uses a connection of its parent
    └── ServerUnavailable             draining or overloaded: retry, on this server or another
        ├── ServerUnreachable         no connection could be made: nothing was sent
        ├── ConnectionLost            it broke during a statement, which may have taken effect
        ├── MaintenanceRunning        another run maintains the catalog
        ├── PipelineUnavailable       Spark is not running
        └── QueueUnavailable          the queue cannot store or flush rows: its disk or its limits
            └── QueueStateUnknown     its disk does not answer: the rows may have been stored

Every error is also one of PEP 249's: SwanLakeError is its ``Error``, with these subclasses:

    InterfaceError                    of the client: closed, misconfigured, forked
    DatabaseError                     of the server
    ├── DataError                     a value does not fit
    ├── OperationalError              outside of the program's control: networks, limits, conflicts
    ├── IntegrityError                a constraint
    ├── InternalError                 a defect of the server, or a failed transaction
    ├── ProgrammingError              the statement, or a name in it
    └── NotSupportedError

The ``identifier`` of an error is a stable word in capitals. It begins every message that the server
sends, so that a client in any language can match it. ``docs/errors.md`` lists all identifiers.
"""

from __future__ import annotations

from enum import Enum
from typing import Any, ClassVar


class Code(Enum):
    """The gRPC status of an error, among those that a Python Flight server can send."""

    INVALID_ARGUMENT = "INVALID_ARGUMENT"
    NOT_FOUND = "NOT_FOUND"
    UNIMPLEMENTED = "UNIMPLEMENTED"
    UNAUTHENTICATED = "UNAUTHENTICATED"
    PERMISSION_DENIED = "PERMISSION_DENIED"
    CANCELLED = "CANCELLED"
    DEADLINE_EXCEEDED = "DEADLINE_EXCEEDED"
    UNAVAILABLE = "UNAVAILABLE"
    INTERNAL = "INTERNAL"


class SwanLakeError(Exception):
    """The base class of every error that SwanLake raises."""

    identifier: str = "SWANLAKE_ERROR"
    code: Code = Code.INTERNAL
    #: True if the same request may succeed later.
    retryable: ClassVar[bool] = False
    #: True if it is not known whether the request took effect.
    in_doubt: ClassVar[bool] = False
    #: The query id of the failed statement, if the client knows it.
    query_id: str | None = None

    def __init__(
        self, message: str, *, identifier: str | None = None, code: Code | None = None
    ) -> None:
        super().__init__(message)
        self.message = message
        if identifier is not None:
            self.identifier = identifier
        if code is not None:
            self.code = code

    def __str__(self) -> str:
        return self.message

    @property
    def wire_message(self) -> str:
        """The message as clients receive it: ``IDENTIFIER: sentence``."""
        return f"{self.identifier}: {self.message}"


class InterfaceError(SwanLakeError):
    """The client was misused, or is closed; the server was not involved."""


class DatabaseError(SwanLakeError):
    """The server failed the request, or could not be reached."""


class DataError(DatabaseError):
    """A value does not fit its type or column."""


class OperationalError(DatabaseError):
    """A failure outside of the program's control, such as a lost connection or a conflict."""


class IntegrityError(DatabaseError):
    """A constraint of the table rejects the change."""


class InternalError(DatabaseError):
    """The server has a defect, or the transaction has failed."""


class ProgrammingError(DatabaseError):
    """The statement is wrong, or names an object that does not exist."""


class NotSupportedError(DatabaseError):
    """The server does not support the request."""


class ConfigError(InterfaceError, ValueError):
    """A setting is unknown, or its value is invalid."""

    identifier = "CONFIG_INVALID"
    code = Code.INVALID_ARGUMENT


class StartupError(SwanLakeError):
    """The server cannot start."""

    identifier = "STARTUP_FAILED"
    exit_code: ClassVar[int] = 1


class AddressInUse(StartupError):
    """The server cannot listen on the address."""

    identifier = "ADDRESS_IN_USE"
    exit_code = 3


class HomeInUse(StartupError):
    """Another server uses the home directory."""

    identifier = "HOME_IN_USE"
    exit_code = 3


class CatalogUnreachable(StartupError, OperationalError):
    """The lake's metadata or data cannot be reached."""

    identifier = "CATALOG_UNREACHABLE"
    exit_code = 4
    code = Code.UNAVAILABLE


class StorageUnreachable(CatalogUnreachable):
    """The lake's files cannot be reached, or the credentials do not allow it."""

    identifier = "STORAGE_UNREACHABLE"


class InvalidRequest(ProgrammingError):
    """The request is malformed or contradicts itself."""

    identifier = "INVALID_REQUEST"
    code = Code.INVALID_ARGUMENT


class Unsupported(NotSupportedError):
    """The request is valid Flight SQL that SwanLake does not support."""

    identifier = "NOT_SUPPORTED"
    code = Code.UNIMPLEMENTED


class NotAuthenticated(OperationalError):
    """The caller gave no credentials, or wrong ones."""

    identifier = "UNAUTHENTICATED"
    code = Code.UNAUTHENTICATED


class AccessDenied(ProgrammingError):
    """The caller's role or grants do not allow the request. Nothing was done."""

    identifier = "ACCESS_DENIED"
    code = Code.PERMISSION_DENIED


class NotFound(ProgrammingError):
    """The caller has no such prepared statement, result or transaction."""

    identifier = "NOT_FOUND"
    code = Code.NOT_FOUND


class TransactionAborted(InternalError):
    """A statement of the transaction failed; only ROLLBACK ends it."""

    identifier = "TRANSACTION_ABORTED"
    code = Code.INVALID_ARGUMENT


class SessionError(OperationalError):
    """The session cannot serve the request."""

    identifier = "SESSION_ERROR"
    code = Code.INVALID_ARGUMENT


class SessionLimitReached(SessionError):
    """All sessions are in use and none could be closed."""

    identifier = "SESSION_LIMIT_REACHED"
    code = Code.UNAVAILABLE
    retryable = True


class SessionLost(SessionError):
    """The session of the caller, or its state, no longer exists."""

    identifier = "SESSION_LOST"
    code = Code.NOT_FOUND


class QueryError(DatabaseError):
    """The engine refused the statement or failed while running it."""

    identifier = "QUERY_FAILED"


class InvalidStatement(QueryError, ProgrammingError):
    """The text is not SQL, or names an object that does not exist or has the wrong type."""


class InvalidValue(QueryError, DataError):
    """A value cannot be converted, or is out of range."""


class ConstraintViolated(QueryError, IntegrityError):
    """A NOT NULL, CHECK, UNIQUE or key constraint rejects the change."""


class StatementUnsupported(QueryError, NotSupportedError):
    """DuckDB or DuckLake does not support the statement."""


class ResourceFailed(QueryError, OperationalError):
    """A file, an address, memory or a disk failed; the statement may succeed later."""


class EngineFailed(QueryError, InternalError):
    """An internal error of DuckDB or of the server."""


class QueryCancelled(QueryError, OperationalError):
    """The statement was cancelled by its client, another connection or a shutdown."""

    identifier = "QUERY_CANCELLED"
    code = Code.CANCELLED


class QueryTimeout(QueryError, OperationalError, TimeoutError):
    """The statement ran longer than its limit."""

    identifier = "QUERY_TIMEOUT"
    code = Code.DEADLINE_EXCEEDED


class ServerUnavailable(OperationalError):
    """The server is draining or overloaded."""

    identifier = "SERVER_UNAVAILABLE"
    code = Code.UNAVAILABLE
    retryable = True


class ServerUnreachable(ServerUnavailable):
    """No connection to the server could be made. Nothing was sent."""

    identifier = "SERVER_UNREACHABLE"


class ConnectionLost(ServerUnavailable):
    """The connection broke during a statement, which took effect entirely or not at all."""

    identifier = "CONNECTION_LOST"
    retryable = False
    in_doubt = True


class ClientClosed(InterfaceError):
    """The application closed the connection, or the object that belonged to it."""

    identifier = "CLIENT_CLOSED"


class ForkedProcess(InterfaceError):
    """A child process uses a client of its parent; gRPC does not support that."""

    identifier = "FORKED_PROCESS"


class PoolError(OperationalError):
    """The pool cannot provide a connection."""

    identifier = "POOL_ERROR"


class PoolClosed(PoolError):
    """The pool is closed, or was closed while the caller waited."""

    identifier = "POOL_CLOSED"


class PoolTimeout(PoolError, TimeoutError):
    """No connection became free in time."""

    identifier = "POOL_TIMEOUT"
    code = Code.DEADLINE_EXCEEDED
    retryable = True


class TooManyRequests(PoolError):
    """The pool's queue of waiting callers is full."""

    identifier = "TOO_MANY_REQUESTS"
    code = Code.UNAVAILABLE
    retryable = True


class WriterError(SwanLakeError):
    """The writer cannot accept rows, or could not write them."""

    identifier = "WRITER_ERROR"
    #: The number of rows of the call that the writer accepted before the error.
    rows_taken: int = 0


class WriterClosed(WriterError):
    """The writer is closed and accepts no more rows."""

    identifier = "WRITER_CLOSED"


class WriterTimeout(WriterError, TimeoutError):
    """The server did not accept rows before the timeout; the writer keeps trying."""

    identifier = "WRITER_TIMEOUT"
    code = Code.DEADLINE_EXCEEDED
    retryable = True


class RowRefused(WriterError, ValueError):
    """A row does not fit the table. The writer did not accept it."""

    identifier = "ROW_REFUSED"
    code = Code.INVALID_ARGUMENT


class RowsNotWritten(WriterError):
    """The writer gave up batches; ``failures`` has a ``Failure`` for each."""

    identifier = "ROWS_NOT_WRITTEN"
    failures: tuple[Any, ...] = ()


class MaintenanceRunning(ServerUnavailable):
    """Another statement or server maintains the catalog. Nothing was changed."""

    identifier = "MAINTENANCE_RUNNING"


class PipelineUnavailable(ServerUnavailable):
    """Spark is starting, or was lost. The work is retried later."""

    identifier = "PIPELINE_UNAVAILABLE"


class PipelineFailed(OperationalError):
    """A Spark job failed. Nothing was committed."""

    identifier = "PIPELINE_FAILED"
    retryable = True


class TransformFailed(PipelineFailed):
    """A transform raised an error, or returned rows that do not fit; the rows stay queued."""

    identifier = "TRANSFORM_FAILED"


class QueueUnavailable(ServerUnavailable):
    """The queue cannot store or flush rows at the moment. Nothing was written."""

    identifier = "QUEUE_UNAVAILABLE"


class QueueStateUnknown(QueueUnavailable):
    """The queue's disk does not answer: the rows were stored entirely or not at all."""

    identifier = "QUEUE_STATE_UNKNOWN"
    in_doubt = True


class LakeError(DatabaseError):
    """A catalog of the lake refused the request."""

    identifier = "LAKE_ERROR"
    code = Code.INVALID_ARGUMENT


class AlreadyExists(LakeError, ProgrammingError):
    """A catalog, schema, table or view of that name exists."""

    identifier = "ALREADY_EXISTS"


class CatalogNotWritable(LakeError, OperationalError):
    """The catalog can be read, but a commit could damage it."""

    identifier = "CATALOG_NOT_WRITABLE"


class CommitConflict(LakeError, OperationalError):
    """A concurrent commit changed the basis of this one. Nothing was written."""

    identifier = "COMMIT_CONFLICT"
    code = Code.UNAVAILABLE
    retryable = True


class CommitFailed(LakeError, OperationalError):
    """Contention or lost connections outlasted the retries. Nothing was written."""

    identifier = "COMMIT_FAILED"
    code = Code.UNAVAILABLE
    retryable = True


class CommitLockTimeout(CommitFailed):
    """Other writers held the catalog's lock until the deadline. Nothing was written."""

    identifier = "COMMIT_LOCK_TIMEOUT"


class WriterLockExceeded(LakeError, OperationalError):
    """The statement held the catalog's lock for too long while others waited; it was undone."""

    identifier = "COMMIT_LOCK_EXCEEDED"
    code = Code.DEADLINE_EXCEEDED


class CommitStateUnknown(LakeError, OperationalError):
    """The connection was lost during COMMIT, and the catalog cannot be read to find out."""

    identifier = "COMMIT_STATE_UNKNOWN"
    code = Code.INTERNAL
    in_doubt = True
