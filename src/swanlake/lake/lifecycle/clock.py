"""What time it is, where a mistake cannot be undone.

A server's clock may be wrong by days. The database's is one that all servers share; of the two the
one counts by which less is deleted.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from sqlalchemy import Connection, func, select


def own_time() -> datetime:
    """The time of this machine."""
    return datetime.now(UTC)


def no_later(connection: Connection) -> datetime:
    """Now, to tell what is old: by a clock that is fast everything would be."""
    return min(own_time(), _shared_time(connection))


def no_earlier(connection: Connection) -> datetime:
    """Now, for what will count as old some day: by a clock that is slow it would be at once."""
    return max(own_time(), _shared_time(connection))


def before(now: datetime, age: timedelta) -> datetime:
    """The time so long ago; the first there is, if the age is beyond all calendars."""
    try:
        return now - age
    except OverflowError:
        return datetime.min.replace(tzinfo=UTC)


def _shared_time(connection: Connection) -> datetime:
    if connection.dialect.name != "postgresql":
        return own_time()  # who uses SQLite is on this machine
    found: datetime = connection.execute(select(func.clock_timestamp())).scalar_one()
    return found
