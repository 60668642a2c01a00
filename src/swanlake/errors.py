"""Every error SwanLake raises.

    SwanLakeError
    ├── ConfigError (ValueError)      a setting is unknown or unreadable
    ├── StartupError                  the server cannot start; carries the exit code
    │   ├── AddressInUse
    │   └── CatalogUnreachable
    ├── InvalidRequest                the message makes no sense: malformed, wrong type, wrong count
    ├── Unsupported                   understood, and not offered
    ├── NotAuthenticated              no credentials, or wrong ones
    ├── NotFound                      a handle, result or transaction that this caller does not have
    ├── TransactionAborted            a statement failed in it; ROLLBACK is the way out
    ├── SessionError
    │   ├── SessionLimitReached       no session is free
    │   └── SessionLost               the session, or the state it held, is gone
    ├── QueryError                    the engine refused or failed the statement
    │   ├── InvalidStatement          mend the text, or a name in it
    │   ├── InvalidValue              a value does not fit
    │   ├── ConstraintViolated
    │   ├── StatementUnsupported      the engine cannot do it
    │   ├── ResourceFailed            a file, an address, memory, a disk
    │   ├── EngineFailed              in a way it should not
    │   ├── QueryCancelled
    │   └── QueryTimeout (TimeoutError)
    ├── LakeError                     a catalog cannot do what was asked
    │   ├── AlreadyExists             the name is taken
    │   ├── CatalogNotWritable        no fence, or something wrote around it; reading goes on
    │   ├── CommitConflict            others changed what the commit was based on: do it again
    │   ├── CommitFailed              contention or lost connections outlasted the retries
    │   └── CommitStateUnknown        it cannot be found out whether the commit happened
    ├── PipelineFailed                a job on Spark failed; what it was for is as it was
    │   └── TransformFailed           a transform raised, or gave what the table cannot take
    ├── PoolError                     a client's pool of connections
    │   ├── PoolClosed
    │   ├── PoolTimeout (TimeoutError)  no connection became free in time
    │   └── TooManyRequests           more wait for a connection than may
    ├── WriterError                   a client's writer
    │   ├── WriterClosed
    │   ├── WriterTimeout (TimeoutError)  no room, or no acknowledgement, in time
    │   ├── RowRefused (ValueError)   a row does not fit the table; it was not taken
    │   └── RowsNotWritten            batches were given up; carries them
    ├── ClientClosed                  the connection was closed by its owner
    ├── ForkedProcess                 a child process uses what its parent had connected
    └── ServerUnavailable             draining or overloaded: try again, here or elsewhere
        ├── ServerUnreachable         no connection could be made: nothing was sent
        ├── ConnectionLost            it broke while a statement was under way: done, or not
        ├── MaintenanceRunning        somebody else maintains the catalog now
        ├── PipelineUnavailable       Spark is not there now
        └── QueueUnavailable          the queue cannot keep or flush rows now: its disk, its limits
            └── QueueStateUnknown     its disk does not answer: kept, or not

Each of them is one of PEP 249's as well: SwanLakeError is what PEP 249 calls ``Error``, and below
it stand

    InterfaceError                    of the client's own: closed, misconfigured, forked
    DatabaseError                     of the server
    ├── DataError                     a value does not fit
    ├── OperationalError              no fault of the program: networks, limits, conflicts
    ├── IntegrityError                a constraint
    ├── InternalError                 the server's own fault, or a transaction out of step
    ├── ProgrammingError              the statement, or a name in it
    └── NotSupportedError

An error is known by its ``identifier``: a stable word in capitals that begins every message on the
wire, so that a client in any language can match it. ``docs/errors.md`` lists them all.
"""

from __future__ import annotations

from enum import Enum
from typing import Any, ClassVar


class Code(Enum):
    """The gRPC status an error travels as, among those a Python Flight server can send."""

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
    """The root of the tree; catch it to catch everything SwanLake raises."""

    identifier: str = "SWANLAKE_ERROR"
    code: Code = Code.INTERNAL
    #: True when the same request may succeed later without being changed.
    retryable: ClassVar[bool] = False
    #: True when nobody can say whether the request was done.
    in_doubt: ClassVar[bool] = False
    #: The id of the statement that failed, where a client knows it.
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
        """The message as clients see it: the identifier, a colon, the sentence."""
        return f"{self.identifier}: {self.message}"


class InterfaceError(SwanLakeError):
    """The client was used wrongly, or is of no use any more; the server had no part in it."""


class DatabaseError(SwanLakeError):
    """The server could not do what it was asked, or could not be asked."""


class DataError(DatabaseError):
    """A value does not fit where it was to go."""


class OperationalError(DatabaseError):
    """Something went wrong that the program can do nothing about."""


class IntegrityError(DatabaseError):
    """A constraint of the table forbids the change."""


class InternalError(DatabaseError):
    """The server failed in a way it should not, or the transaction is out of step."""


class ProgrammingError(DatabaseError):
    """The statement is wrong, or what it names is not there."""


class NotSupportedError(DatabaseError):
    """The server understands what is wanted and does not offer it."""


class ConfigError(InterfaceError, ValueError):
    """A setting is unknown or its value cannot be read."""

    identifier = "CONFIG_INVALID"
    code = Code.INVALID_ARGUMENT


class StartupError(SwanLakeError):
    """The server cannot start."""

    identifier = "STARTUP_FAILED"
    exit_code: ClassVar[int] = 1


class AddressInUse(StartupError):
    """Another process listens on the address."""

    identifier = "ADDRESS_IN_USE"
    exit_code = 3


class CatalogUnreachable(StartupError, OperationalError):
    """The lake's metadata or data cannot be reached."""

    identifier = "CATALOG_UNREACHABLE"
    exit_code = 4
    code = Code.UNAVAILABLE


class InvalidRequest(ProgrammingError):
    """The request is malformed or contradicts itself."""

    identifier = "INVALID_REQUEST"
    code = Code.INVALID_ARGUMENT


class Unsupported(NotSupportedError):
    """The request is valid Flight SQL that SwanLake does not offer."""

    identifier = "NOT_SUPPORTED"
    code = Code.UNIMPLEMENTED


class NotAuthenticated(OperationalError):
    """The caller gave no credentials, or wrong ones."""

    identifier = "UNAUTHENTICATED"
    code = Code.UNAUTHENTICATED


class NotFound(ProgrammingError):
    """The caller has no such prepared statement, result or transaction."""

    identifier = "NOT_FOUND"
    code = Code.NOT_FOUND


class TransactionAborted(InternalError):
    """The transaction failed earlier and only ROLLBACK can end it."""

    identifier = "TRANSACTION_ABORTED"
    code = Code.INVALID_ARGUMENT


class SessionError(OperationalError):
    """The session cannot serve the request."""

    identifier = "SESSION_ERROR"
    code = Code.INVALID_ARGUMENT


class SessionLimitReached(SessionError):
    """All sessions are taken and none could be freed."""

    identifier = "SESSION_LIMIT_REACHED"
    code = Code.UNAVAILABLE
    retryable = True


class SessionLost(SessionError):
    """The session the caller meant, or the state it held, no longer exists."""

    identifier = "SESSION_LOST"
    code = Code.NOT_FOUND


class QueryError(DatabaseError):
    """The engine refused the statement or failed while running it."""

    identifier = "QUERY_FAILED"


class InvalidStatement(QueryError, ProgrammingError):
    """The text is not SQL, or what it names is not there or not of the right kind."""


class InvalidValue(QueryError, DataError):
    """A value cannot be what it is taken for."""


class ConstraintViolated(QueryError, IntegrityError):
    """A NOT NULL, CHECK, UNIQUE or key constraint."""


class StatementUnsupported(QueryError, NotSupportedError):
    """DuckDB or DuckLake cannot do it."""


class ResourceFailed(QueryError, OperationalError):
    """A file, an address, memory or a disk failed the statement, which may work another time."""


class EngineFailed(QueryError, InternalError):
    """DuckDB or the server failed in a way it should not."""


class QueryCancelled(QueryError, OperationalError):
    """The statement was stopped: by its client, by another connection, or by a shutdown."""

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
    """The connection broke while a statement was under way: it was done whole, or not at all."""

    identifier = "CONNECTION_LOST"
    retryable = False
    in_doubt = True


class ClientClosed(InterfaceError):
    """The connection, or what came from it, was closed by its owner."""

    identifier = "CLIENT_CLOSED"


class ForkedProcess(InterfaceError):
    """A child process uses a client after its parent did, which gRPC does not survive."""

    identifier = "FORKED_PROCESS"


class PoolError(OperationalError):
    """A pool has no connection to give."""

    identifier = "POOL_ERROR"


class PoolClosed(PoolError):
    """The pool is closed, or was while a caller waited."""

    identifier = "POOL_CLOSED"


class PoolTimeout(PoolError, TimeoutError):
    """No connection became free in time."""

    identifier = "POOL_TIMEOUT"
    code = Code.DEADLINE_EXCEEDED
    retryable = True


class TooManyRequests(PoolError):
    """More callers wait for a connection than may."""

    identifier = "TOO_MANY_REQUESTS"
    code = Code.UNAVAILABLE
    retryable = True


class WriterError(SwanLakeError):
    """A writer cannot take rows, or could not bring them to the server."""

    identifier = "WRITER_ERROR"
    #: How many rows of the call were taken before it was raised.
    rows_taken: int = 0


class WriterClosed(WriterError):
    """The writer is closed and takes no more rows."""

    identifier = "WRITER_CLOSED"


class WriterTimeout(WriterError, TimeoutError):
    """The server did not take rows in the time that the caller gave; the writer goes on."""

    identifier = "WRITER_TIMEOUT"
    code = Code.DEADLINE_EXCEEDED
    retryable = True


class RowRefused(WriterError, ValueError):
    """A row does not fit the table. It was not taken."""

    identifier = "ROW_REFUSED"
    code = Code.INVALID_ARGUMENT


class RowsNotWritten(WriterError):
    """Batches were given up, as the client's ``Failure`` says of each."""

    identifier = "ROWS_NOT_WRITTEN"
    failures: tuple[Any, ...] = ()


class MaintenanceRunning(ServerUnavailable):
    """Another statement, or another server, maintains the catalog now. Nothing was done."""

    identifier = "MAINTENANCE_RUNNING"


class PipelineUnavailable(ServerUnavailable):
    """Spark is being started, or was lost. What was to be done is done later."""

    identifier = "PIPELINE_UNAVAILABLE"


class PipelineFailed(OperationalError):
    """A job on Spark failed. Nothing was committed."""

    identifier = "PIPELINE_FAILED"
    retryable = True


class TransformFailed(PipelineFailed):
    """A transform raised an error, or gave rows that the table cannot take; they stay queued."""

    identifier = "TRANSFORM_FAILED"


class QueueUnavailable(ServerUnavailable):
    """The queue cannot keep rows, or bring them to the lake, for now. Nothing was written."""

    identifier = "QUEUE_UNAVAILABLE"


class QueueStateUnknown(QueueUnavailable):
    """The queue's disk does not answer: the rows are kept whole or not at all."""

    identifier = "QUEUE_STATE_UNKNOWN"
    in_doubt = True


class LakeError(DatabaseError):
    """A catalog of the lake cannot do what was asked."""

    identifier = "LAKE_ERROR"
    code = Code.INVALID_ARGUMENT


class AlreadyExists(LakeError, ProgrammingError):
    """A catalog, schema, table or view of that name is there already."""

    identifier = "ALREADY_EXISTS"


class CatalogNotWritable(LakeError, OperationalError):
    """The catalog can be read, but a commit could damage it."""

    identifier = "CATALOG_NOT_WRITABLE"


class CommitConflict(LakeError, OperationalError):
    """Others changed what the commit was based on. Nothing was written."""

    identifier = "COMMIT_CONFLICT"
    code = Code.UNAVAILABLE
    retryable = True


class CommitFailed(LakeError, OperationalError):
    """The commit met contention or lost connections more often than it may. Nothing was written."""

    identifier = "COMMIT_FAILED"
    code = Code.UNAVAILABLE
    retryable = True


class CommitLockTimeout(CommitFailed):
    """Other writers had the catalog until the deadline. Nothing was written."""

    identifier = "COMMIT_LOCK_TIMEOUT"


class CommitStateUnknown(LakeError, OperationalError):
    """The connection was lost during COMMIT, and the catalog cannot be asked what became of it."""

    identifier = "COMMIT_STATE_UNKNOWN"
    code = Code.INTERNAL
    in_doubt = True
