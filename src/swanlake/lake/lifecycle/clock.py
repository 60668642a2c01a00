"""The time, for decisions that delete something.

A server's clock may be wrong by days. All servers share the database's clock; of the two, the one
by which less is deleted counts.
"""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from sqlalchemy import Connection, func, select


def local_time() -> datetime:
    """The time of this machine."""
    return datetime.now(UTC)


def earlier_now(connection: Connection) -> datetime:
    """Now, to tell what is old: by a fast clock everything would be."""
    return min(local_time(), _shared_time(connection))


def later_now(connection: Connection) -> datetime:
    """Now, as the start of an age: by a slow clock it would be old at once."""
    return max(local_time(), _shared_time(connection))


def time_before(now: datetime, age: timedelta) -> datetime:
    """The time ``age`` before ``now``, or the earliest datetime if there is none."""
    try:
        return now - age
    except OverflowError:
        return datetime.min.replace(tzinfo=UTC)


def _shared_time(connection: Connection) -> datetime:
    if connection.dialect.name != "postgresql":
        return local_time()  # every user of a SQLite lake is on this machine
    now: datetime = connection.execute(select(func.clock_timestamp())).scalar_one()
    return now
