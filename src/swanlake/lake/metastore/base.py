"""Where all catalogs of a lake are, and the list of them.

A catalog is made whole or not at all: on PostgreSQL in one transaction, with SQLite in a file that
gets its name when it is complete. The place of a catalog (its schema or file, and its data
directory) is never used again after it is dropped, because forks may still need files in it.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import chain, count
from pathlib import Path
from typing import Any
from uuid import UUID

from sqlalchemy import Connection, Row, insert, select, update

from swanlake.errors import AlreadyExists, CatalogUnreachable, InvalidRequest, NotFound
from swanlake.lake.ids import uuid7
from swanlake.lake.store import CatalogStore, one_line
from swanlake.lake.tables import maintenance_table, registry_table

_NAME = re.compile(r"[a-z_][a-z0-9_]{0,47}")
#: Names that mean something else in a session.
_RESERVED = {"system", "temp", "memory", "main", "duckling_queue", "information_schema", "registry"}


@dataclass(frozen=True)
class CatalogInfo:
    """One catalog, as the registry knows it."""

    id: UUID
    name: str
    #: The name of its PostgreSQL schema or SQLite file, without prefix or suffix.
    place: str
    data_path: str
    #: Shared by a catalog and all its forks, and theirs.
    family: UUID
    parent: UUID | None = None
    parent_snapshot: int | None = None
    created_at: datetime | None = None
    dropped_at: datetime | None = None


def checked_name(name: str) -> str:
    """The name of a catalog in lower case; raises InvalidRequest if it cannot be one."""
    folded = name.lower()
    if not _NAME.fullmatch(folded) or folded.startswith("__"):
        raise InvalidRequest(
            f"{name!r} cannot be the name of a catalog: use up to 48 letters, digits and "
            "underscores, and begin with a letter.",
            identifier="CATALOG_NAME_INVALID",
        )
    if folded in _RESERVED:
        raise InvalidRequest(
            f"{name!r} cannot be the name of a catalog: it means something else in a session.",
            identifier="CATALOG_NAME_INVALID",
        )
    return folded


class Metabase(ABC):
    """The database, or the directory of databases, that keeps the catalogs of a lake."""

    #: Every error its drivers raise.
    errors: tuple[type[Exception], ...] = ()

    def __init__(self, schema: str | None, data_location: str) -> None:
        self._registry = registry_table(schema)
        #: What was done to the catalogs; lakes that are older than this table get it when opened.
        self.maintenance = maintenance_table(schema)
        self._data_location = data_location.rstrip("/")

    # ---- what a database must offer ------------------------------------------------------------

    @abstractmethod
    def registry(self, *, write: bool = False) -> AbstractContextManager[Connection]:
        """A transaction on the registry; with ``write`` nobody else changes it meanwhile."""

    @abstractmethod
    def store(self, info: CatalogInfo) -> CatalogStore:
        """The metadata of a catalog."""

    @abstractmethod
    def exists(self, place: str) -> bool:
        """True if there is a schema or file of that name, registered or not."""

    @abstractmethod
    def create(self, registry: Connection, info: CatalogInfo) -> None:
        """Makes a new, empty catalog in its place."""

    @abstractmethod
    def fork(
        self, registry: Connection, parent: CatalogInfo, info: CatalogInfo, at: int | None
    ) -> int:
        """Makes a catalog from another one; returns the snapshot at which they part."""

    @abstractmethod
    def adopt(self, registry: Connection, info: CatalogInfo) -> None:
        """Puts up the fence of a catalog that is there already."""

    @abstractmethod
    def remove(self, registry: Connection, info: CatalogInfo) -> None:
        """Removes the metadata of a catalog."""

    @abstractmethod
    def is_busy(self, error: Exception) -> bool:
        """True if an error of the drivers says that others held a lock for too long."""

    @abstractmethod
    def close(self) -> None:
        """Closes every connection."""

    # ---- the registry, the same for all --------------------------------------------------------

    def infos(self, registry: Connection, *, dropped: bool = False) -> list[CatalogInfo]:
        """The catalogs by name; those that were dropped on request."""
        table = self._registry
        wanted = table.c.dropped_at.is_not(None) if dropped else table.c.dropped_at.is_(None)
        rows = registry.execute(select(table).where(wanted).order_by(table.c.name))
        return [_info(row) for row in rows]

    def find(self, registry: Connection, name: str) -> CatalogInfo | None:
        """The catalog of that name; None if none is registered."""
        table = self._registry
        row = registry.execute(
            select(table).where(table.c.name == name.lower(), table.c.dropped_at.is_(None))
        ).one_or_none()
        return None if row is None else _info(row)

    def named(self, registry: Connection, name: str) -> CatalogInfo:
        """The catalog of that name; raises NotFound."""
        info = self.find(registry, name)
        if info is not None:
            return info
        if _NAME.fullmatch(name.lower()) and self.exists(name.lower()):
            raise NotFound(
                f"The catalog {name} is there but not in the registry: another program made it, or "
                f"its creation was cut short. `swanlake catalog adopt {name}` registers it.",
                identifier="CATALOG_NOT_FOUND",
            )
        raise NotFound(f"There is no catalog {name}.", identifier="CATALOG_NOT_FOUND")

    def new_info(
        self,
        registry: Connection,
        name: str,
        parent: CatalogInfo | None = None,
    ) -> CatalogInfo:
        """A name, a place and a data path that nobody has or had; raises AlreadyExists."""
        if self.find(registry, name) is not None:
            raise AlreadyExists(f"There is a catalog {name} already.")
        # Of all catalogs: the place of one may look like the name of another.
        used = set(registry.execute(select(self._registry.c.place)).scalars().all())
        if name not in used and self.exists(name):
            raise AlreadyExists(
                f"A catalog {name} is there but not in the registry: another program made it, or "
                f"its creation was cut short. `swanlake catalog adopt {name}` registers it."
            )
        place = next(
            candidate
            for candidate in chain([name], (f"{name}_{number}" for number in count(1)))
            if candidate not in used
            # What a creation that was cut short left in such a place cannot be adopted by its name.
            and not self.exists(candidate)
            # Another lake's, or an earlier one's: the collector of this one would delete its files.
            and not _is_there(self.data_path(candidate))
        )
        id = uuid7()
        return CatalogInfo(
            id=id,
            name=name,
            place=place,
            data_path=self.data_path(place),
            family=id if parent is None else parent.family,
            parent=None if parent is None else parent.id,
            created_at=datetime.now(UTC),
        )

    def data_path(self, place: str) -> str:
        """Where the files of the catalog in a place go."""
        return f"{self._data_location}/{place}/"

    def register(self, registry: Connection, info: CatalogInfo, at: int | None = None) -> None:
        """Makes a catalog known."""
        registry.execute(
            insert(self._registry).values(
                id=str(info.id),
                name=info.name,
                place=info.place,
                data_path=info.data_path,
                family=str(info.family),
                parent=None if info.parent is None else str(info.parent),
                parent_snapshot=at,
                created_at=info.created_at,
            )
        )

    def forget(self, registry: Connection, info: CatalogInfo) -> None:
        """Marks a catalog as dropped; its place stays taken."""
        table = self._registry
        registry.execute(
            update(table).where(table.c.id == str(info.id)).values(dropped_at=datetime.now(UTC))
        )

    def family(self, registry: Connection, info: CatalogInfo) -> list[CatalogInfo]:
        """The living relatives of a catalog, itself included, in the order of locking."""
        return [other for other in self.infos(registry) if other.family == info.family]

    @contextmanager
    def reachable(self, what: str = "lake's metadata") -> Iterator[None]:
        """Turns what the drivers say of a database that cannot be reached into one sentence."""
        try:
            yield
        except self.errors as error:
            if self.is_busy(error):
                raise CatalogUnreachable(
                    f"Others kept the {what} locked for too long ({one_line(error)}); nothing was "
                    "changed. Try again."
                ) from error
            raise CatalogUnreachable(f"The {what} cannot be reached: {one_line(error)}") from error


def _is_there(data_path: str) -> bool:
    """True for a directory that exists; what is in an object store is not looked at."""
    return "://" not in data_path and Path(data_path).exists()


def _info(row: Row[Any]) -> CatalogInfo:
    return CatalogInfo(
        id=UUID(row.id),
        name=row.name,
        place=row.place,
        data_path=row.data_path,
        family=UUID(row.family),
        parent=None if row.parent is None else UUID(row.parent),
        parent_snapshot=row.parent_snapshot,
        created_at=row.created_at,
        dropped_at=row.dropped_at,
    )
