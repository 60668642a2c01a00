"""Options of a statement, of a pool and of a writer."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields
from enum import Enum
from typing import TYPE_CHECKING, Any, Final, TypeAlias

from swanlake.client.transport.connection import CANCEL_GRACE, CONNECT_TIMEOUT
from swanlake.errors import ConfigError

if TYPE_CHECKING:
    from swanlake.client.writer.batching import Acknowledged, Failure


class Unset(Enum):
    """The type of UNSET, "use the default", where None already means "no limit"."""

    UNSET = "UNSET"

    def __repr__(self) -> str:
        return "UNSET"


UNSET: Final = Unset.UNSET
#: Seconds; None is no limit, UNSET the default of the client or the pool.
Timeout: TypeAlias = float | Unset | None


@dataclass(frozen=True, kw_only=True, slots=True)
class QueryOptions:
    """Options of one statement; UNSET fields take the default of the client or the pool."""

    #: Seconds from the call to the last row; None is no limit.
    timeout: float | Unset | None = UNSET
    #: Retry a query that cannot write if its connection breaks before the first row.
    retry_on_failure: bool | Unset = UNSET
    #: The statement's id in the server's log and status, and for cancelling it.
    query_id: str | None = None


@dataclass(frozen=True, kw_only=True, slots=True)
class PoolConfig:
    """The settings of a pool; times are in seconds.

    >>> PoolConfig(max_size=8, acquire_timeout=2.5).max_size
    8
    """

    #: Connections that are opened at the start and not closed when idle.
    min_idle: int = 1
    max_size: int = field(default_factory=lambda: max(4, min(16, (os.cpu_count() or 1) * 2)))
    #: How many callers may wait for a connection before others get TooManyRequests; 0 is no limit.
    max_waiting: int = 0
    #: How long a caller waits for a connection; None is no limit.
    acquire_timeout: float | None = 30.0
    #: Idle connections above min_idle are closed after this time.
    idle_ttl: float = 300.0
    #: A connection is replaced at this age, or up to 5 % earlier, so that not all expire at once.
    max_lifetime: float = 3600.0
    healthcheck_sql: str = "SELECT 1"
    #: A connection that was idle this long is checked before it is used; 0 is always.
    healthcheck_after_idle: float = 30.0
    default_query_timeout: float | None = None
    #: Only query(), and only statements that cannot write.
    retry_on_failure: bool = True
    connect_timeout: float = CONNECT_TIMEOUT
    #: How long the pool tries to reach a lost server before it calls on_reconnect_failed.
    reconnect_timeout: float = 300.0
    #: How long a cancelled statement may take to end before its connection is closed.
    cancel_grace: float = CANCEL_GRACE
    #: False: the connection of a SessionHandle is closed with it, and its state is gone.
    #: True: it returns to the pool if only statements on tables ran, which leave no state behind.
    reuse_sessions: bool = False
    name: str | None = None

    def __post_init__(self) -> None:
        if self.max_size < 1:
            raise ConfigError(f"max_size is {self.max_size}; a pool needs at least 1 connection.")
        if not 0 <= self.min_idle <= self.max_size:
            raise ConfigError(
                f"min_idle is {self.min_idle}; it lies between 0 and max_size ({self.max_size})."
            )
        if self.max_waiting < 0:
            raise ConfigError(f"max_waiting is {self.max_waiting}; 0 is no limit.")
        _check_durations(self)

    @classmethod
    def from_env(cls, prefix: str = "SWANLAKE_POOL_") -> PoolConfig:
        """The configuration in the environment: ``SWANLAKE_POOL_MAX_SIZE=8`` and so on."""
        values = {}
        for option in fields(cls):
            variable = prefix + option.name.upper()
            text = os.environ.get(variable)
            if text is not None:
                values[option.name] = _parse(variable, str(option.type), text)
        return cls(**values)


_BOOLEANS = {"1": True, "true": True, "yes": True, "0": False, "false": False, "no": False}


def _parse(name: str, type_: str, text: str) -> Any:
    """The value of an environment variable, by the type of its field."""
    try:
        if type_.endswith("| None") and text.lower() in ("", "none"):
            return None
        if type_.startswith("int"):
            return int(text)
        if type_.startswith("float"):
            return float(text)
        return _BOOLEANS[text.lower()] if type_ == "bool" else text
    except (ValueError, KeyError):
        raise ConfigError(f"{name} is {text!r}, which is not a {type_}.") from None


@dataclass(frozen=True, kw_only=True, slots=True)
class WriterOptions:
    """The settings of a writer; times are in seconds, sizes in approximate bytes of Arrow.

    >>> WriterOptions(max_rows=500, max_delay=1.0).queue
    True
    """

    #: The table's schema and catalog; None is that of a new session.
    schema: str | None = None
    catalog: str | None = None
    #: The columns of tuple rows; None is all columns of the table in their order.
    columns: Sequence[str] | None = None
    #: False: straight to the lake, with a commit for every batch. Batches have no names there, so
    #: a batch whose outcome is unknown is not sent again.
    queue: bool = True
    #: A batch is sent when it has this many rows or bytes, or when its first row is this old.
    max_rows: int = 10_000
    max_bytes: int = 8 * 1024 * 1024
    max_delay: float = 0.1
    #: Writes wait while this much is not acknowledged.
    max_pending_rows: int = 100_000
    max_pending_bytes: int = 64 * 1024 * 1024
    #: How long a write waits for room; None is no limit.
    write_timeout: float | None = None
    #: How long one attempt to send a batch may take.
    request_timeout: float = 30.0
    #: How long a batch is retried before it fails; None is no limit.
    retry_timeout: float | None = 300.0
    #: How long the end of a ``with`` block or of the program waits for acknowledgements.
    close_timeout: float | None = 60.0
    #: The producer's name, unique for the life of the table; None generates one.
    producer: str | None = None
    #: The number of the first batch; above 0, continues the batches of the same producer.
    first_sequence: int = 0
    #: Called for each acknowledged batch, in the sender's thread or an AsyncWriter's event loop.
    on_acknowledged: Callable[[Acknowledged], None] | None = None
    #: Called for each failed batch; without it, the next call raises RowsNotWritten.
    on_error: Callable[[Failure], None] | None = None

    def __post_init__(self) -> None:
        for name in ("max_rows", "max_bytes", "max_pending_rows", "max_pending_bytes"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} is {getattr(self, name)}; it is at least 1.")
        if self.first_sequence < 0:
            raise ConfigError(f"first_sequence is {self.first_sequence}; numbers begin with 0.")
        if self.first_sequence and self.producer is None:
            raise ConfigError("first_sequence continues a producer's numbers: name the producer.")
        _check_durations(self)


def _check_durations(options: PoolConfig | WriterOptions) -> None:
    for option in fields(options):
        value = getattr(options, option.name)
        if str(option.type).startswith("float") and value is not None and not value >= 0:
            raise ConfigError(f"{option.name} is {value}; it is a number of seconds.")
