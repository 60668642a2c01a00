"""What a caller can ask for: of one statement, of a pool, and of a writer."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, fields
from enum import Enum
from typing import TYPE_CHECKING, Any, Final

from swanlake.errors import ConfigError

if TYPE_CHECKING:
    from swanlake.client.batching import Acknowledged, Failure


class Unset(Enum):
    """Says that a caller left the choice to somebody else, where None already says "no limit"."""

    UNSET = "UNSET"

    def __repr__(self) -> str:
        return "UNSET"


UNSET: Final = Unset.UNSET
#: Seconds to connect in, and for a cancelled statement to end in before its connection is given up.
CONNECT_TIMEOUT = 10.0
CANCEL_GRACE = 5.0


@dataclass(frozen=True, kw_only=True, slots=True)
class QueryOptions:
    """What one statement asks for; what is not set here is as the client or the pool has it."""

    #: Seconds from the call to the last row; None is no limit.
    timeout: float | Unset | None = UNSET
    #: Run once more what certainly cannot write, if the connection breaks before the first row.
    retry_on_failure: bool | Unset = UNSET
    #: The statement's name in the server's log and status, and for whoever cancels it.
    query_id: str | None = None


def _default_max_size() -> int:
    return max(4, min(16, (os.cpu_count() or 1) * 2))


@dataclass(frozen=True, kw_only=True, slots=True)
class PoolConfig:
    """How a pool behaves; times are in seconds.

    >>> PoolConfig(max_size=8, acquire_timeout=2.5).max_size
    8
    """

    #: Connections that are opened at the start and kept however idle they are.
    min_idle: int = 1
    max_size: int = field(default_factory=_default_max_size)
    #: How many callers may wait for a connection; 0 is any number, else TooManyRequests.
    max_waiting: int = 0
    #: How long a caller waits for a connection; None is no limit.
    acquire_timeout: float | None = 30.0
    #: Idle connections beyond min_idle are closed after this time.
    idle_ttl: float = 300.0
    #: A connection is replaced at this age, up to a twentieth earlier, so that not all are at once.
    max_lifetime: float = 3600.0
    healthcheck_sql: str = "SELECT 1"
    #: A connection that was idle for so long is checked before it is given out; 0 is always.
    healthcheck_after_idle: float = 30.0
    default_query_timeout: float | None = None
    #: query() only, and only what certainly cannot write.
    retry_on_failure: bool = True
    connect_timeout: float = CONNECT_TIMEOUT
    #: How long the pool goes on trying to reach a server that is gone before it says so.
    reconnect_timeout: float = 300.0
    #: How long a cancelled statement may take to end before its connection is closed.
    cancel_grace: float = CANCEL_GRACE
    #: False: the connection of a SessionHandle is closed with it, and none of its state survives.
    #: True: it goes back to the pool if only statements on tables ran, which leave nothing behind.
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
            raise ConfigError(f"max_waiting is {self.max_waiting}; 0 stands for no limit.")
        _check_durations(self, _DURATIONS)

    @classmethod
    def from_env(cls, prefix: str = "SWANLAKE_POOL_") -> PoolConfig:
        """The configuration in the environment: ``SWANLAKE_POOL_MAX_SIZE=8`` and so on."""
        given = {}
        for one in fields(cls):
            text = os.environ.get(prefix + one.name.upper())
            if text is not None:
                given[one.name] = _read(prefix + one.name.upper(), str(one.type), text)
        return cls(**given)


_DURATIONS = (
    "acquire_timeout",
    "idle_ttl",
    "max_lifetime",
    "healthcheck_after_idle",
    "default_query_timeout",
    "connect_timeout",
    "reconnect_timeout",
    "cancel_grace",
)
_BOOLEANS = {"1": True, "true": True, "yes": True, "0": False, "false": False, "no": False}


def _read(name: str, type_: str, text: str) -> Any:
    """The value of a variable, by the type of its field."""
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
    """How a writer behaves; times are in seconds, sizes in bytes of Arrow, about.

    >>> WriterOptions(max_rows=500, max_delay=1.0).queue
    True
    """

    #: The table's schema and catalog; None is the one in which a new session is.
    schema: str | None = None
    catalog: str | None = None
    #: What the values of a tuple are; None is all columns of the table in their order.
    columns: Sequence[str] | None = None
    #: False: straight to the lake, a commit for every batch. Batches have no names there, so one
    #: that the server may have taken is not sent again.
    queue: bool = True
    #: A batch is sent when it has so many rows, or bytes, or when its first row is so old.
    max_rows: int = 10_000
    max_bytes: int = 8 * 1024 * 1024
    max_delay: float = 0.1
    #: While so much is not acknowledged, whoever writes waits.
    max_pending_rows: int = 100_000
    max_pending_bytes: int = 64 * 1024 * 1024
    #: How long a write waits for room; None is as long as it takes.
    write_timeout: float | None = None
    #: How long one attempt to send a batch may take.
    request_timeout: float = 30.0
    #: How long a batch is tried before it is given up; None is for ever.
    retry_timeout: float | None = 300.0
    #: How long the end of a ``with`` block, or of the program, waits for acknowledgements.
    close_timeout: float | None = 60.0
    #: The producer's name, its own for as long as the table lives; None is a new one.
    producer: str | None = None
    #: The number of the first batch; more than 0 goes on where the same producer ended.
    first_sequence: int = 0
    #: Called for each batch; from the sender's thread, or in the event loop of an AsyncWriter.
    on_acknowledged: Callable[[Acknowledged], None] | None = None
    #: Called for each batch that is given up; without it, the next call raises RowsNotWritten.
    on_error: Callable[[Failure], None] | None = None

    def __post_init__(self) -> None:
        for name in ("max_rows", "max_bytes", "max_pending_rows", "max_pending_bytes"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} is {getattr(self, name)}; it is at least 1.")
        if self.first_sequence < 0:
            raise ConfigError(f"first_sequence is {self.first_sequence}; numbers begin with 0.")
        if self.first_sequence and self.producer is None:
            raise ConfigError("first_sequence goes on with a producer's numbers: name it.")
        _check_durations(self, _WRITER_DURATIONS)


_WRITER_DURATIONS = (
    "max_delay",
    "write_timeout",
    "request_timeout",
    "retry_timeout",
    "close_timeout",
)


def _check_durations(options: PoolConfig | WriterOptions, names: Sequence[str]) -> None:
    for name in names:
        value = getattr(options, name)
        if value is not None and not value >= 0:
            raise ConfigError(f"{name} is {value}; it is a number of seconds.")
