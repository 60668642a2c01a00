"""The metastore: the database, or directory of databases, with all catalogs and their registry.

A catalog is created atomically: in PostgreSQL by one transaction, with SQLite in a file that gets
its name when it is complete. Its storage name and data directory are never reused after a drop,
because forks may still need the files.
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
from swanlake.lake.metastore.store import CatalogStore, ErrorKind, one_line
from swanlake.lake.metastore.tables import (
    credential_table,
    maintenance_table,
    registry_table,
    store_table,
)
from swanlake.lake.model.ids import uuid7

_NAME = re.compile(r"[a-z_][a-z0-9_]{0,47}")
#: Names that have another meaning in a session.
_RESERVED = {"system", "temp", "memory", "main", "duckling_queue", "information_schema", "registry"}


@dataclass(frozen=True)
class CatalogInfo:
    """One catalog in the registry."""

    id: UUID
    name: str
    #: The name of its PostgreSQL schema (without ``lake_``) or SQLite file (without suffix).
    storage_name: str
    data_path: str
    #: Shared by a catalog, its forks, and their forks.
    family: UUID
    parent: UUID | None = None
    parent_snapshot: int | None = None
    created_at: datetime | None = None
    dropped_at: datetime | None = None


def checked_name(name: str) -> str:
    """A catalog name in lower case; raises InvalidRequest if it is not allowed."""
    folded = name.lower()
    if not _NAME.fullmatch(folded) or folded.startswith("__"):
        raise InvalidRequest(
            f"{name!r} cannot be the name of a catalog: use up to 48 letters, digits and "
            "underscores, and start with a letter or an underscore.",
            identifier="CATALOG_NAME_INVALID",
        )
    if folded in _RESERVED:
        raise InvalidRequest(
            f"{name!r} cannot be the name of a catalog: it is reserved.",
            identifier="CATALOG_NAME_INVALID",
        )
    return folded


class Metastore(ABC):
    """Where the metadata of all catalogs of a lake is stored."""

    store_type: type[CatalogStore]
    #: The errors that its driver raises.
    errors: tuple[type[Exception], ...] = ()

    def __init__(self, schema: str | None, data_location: str) -> None:
        self._registry = registry_table(schema)
        self.maintenance = maintenance_table(schema)
        self.credentials = credential_table(schema)
        self.stores = store_table(schema)
        #: The tables next to the registry, and itself; an older lake gets them when it is opened.
        self.shared_tables = (self._registry, self.maintenance, self.credentials, self.stores)
        self._data_location = data_location.rstrip("/")

    @abstractmethod
    def registry(self, *, write: bool = False) -> AbstractContextManager[Connection]:
        """A transaction on the registry; ``write`` excludes other writers."""

    @abstractmethod
    def store(self, info: CatalogInfo) -> CatalogStore:
        """The metadata of a catalog."""

    @abstractmethod
    def exists(self, storage_name: str) -> bool:
        """True if the schema or file exists, registered or not."""

    @abstractmethod
    def create(self, registry: Connection, info: CatalogInfo) -> None:
        """Creates an empty catalog."""

    @abstractmethod
    def fork(
        self, registry: Connection, parent: CatalogInfo, info: CatalogInfo, at: int | None
    ) -> int:
        """Creates a fork of a catalog; returns the snapshot at which they part."""

    @abstractmethod
    def adopt(self, registry: Connection, info: CatalogInfo) -> None:
        """Installs the fence in an existing catalog."""

    @abstractmethod
    def remove(self, registry: Connection, info: CatalogInfo) -> None:
        """Removes the metadata of a catalog."""

    @abstractmethod
    def close(self) -> None:
        """Closes every connection."""

    def catalogs(self, registry: Connection, *, dropped: bool = False) -> list[CatalogInfo]:
        """The catalogs in order of name; with ``dropped`` only those that were dropped."""
        table = self._registry
        wanted = table.c.dropped_at.is_not(None) if dropped else table.c.dropped_at.is_(None)
        rows = registry.execute(select(table).where(wanted).order_by(table.c.name))
        return [_info(row) for row in rows]

    def find(self, registry: Connection, name: str) -> CatalogInfo | None:
        """The catalog with that name; None if there is none."""
        table = self._registry
        row = registry.execute(
            select(table).where(table.c.name == name.lower(), table.c.dropped_at.is_(None))
        ).one_or_none()
        return None if row is None else _info(row)

    def get(self, registry: Connection, name: str) -> CatalogInfo:
        """The catalog with that name; raises NotFound."""
        info = self.find(registry, name)
        if info is not None:
            return info
        if _NAME.fullmatch(name.lower()) and self.exists(name.lower()):
            raise NotFound(_not_registered(name), identifier="CATALOG_NOT_FOUND")
        raise NotFound(f"There is no catalog {name}.", identifier="CATALOG_NOT_FOUND")

    def allocate(
        self, registry: Connection, name: str, parent: CatalogInfo | None = None
    ) -> CatalogInfo:
        """A new catalog with an unused storage name and data path; raises AlreadyExists."""
        if self.find(registry, name) is not None:
            raise AlreadyExists(f"The catalog {name} exists already.")
        # Dropped ones included: their files may still be needed.
        used = set(registry.execute(select(self._registry.c.place)).scalars().all())
        if name not in used and self.exists(name):
            raise AlreadyExists(_not_registered(name))
        storage_name = next(
            candidate
            for candidate in chain([name], (f"{name}_{number}" for number in count(1)))
            if candidate not in used
            # Left by an interrupted creation; it cannot be adopted under another name.
            and not self.exists(candidate)
            # Files of another lake: a clean-up of this one would delete them.
            and not _exists(self.data_path(candidate))
        )
        id = uuid7()
        return CatalogInfo(
            id=id,
            name=name,
            storage_name=storage_name,
            data_path=self.data_path(storage_name),
            family=id if parent is None else parent.family,
            parent=None if parent is None else parent.id,
            created_at=datetime.now(UTC),
        )

    def data_path(self, storage_name: str) -> str:
        """Where the files of a catalog go."""
        return f"{self._data_location}/{storage_name}/"

    def register(self, registry: Connection, info: CatalogInfo, at: int | None = None) -> None:
        """Adds a catalog to the registry."""
        registry.execute(
            insert(self._registry).values(
                id=str(info.id),
                name=info.name,
                place=info.storage_name,
                data_path=info.data_path,
                family=str(info.family),
                parent=None if info.parent is None else str(info.parent),
                parent_snapshot=at,
                created_at=info.created_at,
            )
        )

    def mark_dropped(self, registry: Connection, info: CatalogInfo) -> None:
        """Marks a catalog as dropped; its storage name stays reserved."""
        table = self._registry
        registry.execute(
            update(table).where(table.c.id == str(info.id)).values(dropped_at=datetime.now(UTC))
        )

    def data_paths(self, registry: Connection) -> list[str]:
        """The data paths of all catalogs, dropped ones too, that no other program uses.

        An adopted catalog's directory may hold files of others, which would look like orphans.
        """
        infos = (*self.catalogs(registry), *self.catalogs(registry, dropped=True))
        own = (info for info in infos if info.data_path == self.data_path(info.storage_name))
        return [info.data_path for info in own]

    @contextmanager
    def translate_errors(self, what: str = "lake's metadata") -> Iterator[None]:
        """Raises CatalogUnreachable, with one sentence, for a driver's errors."""
        try:
            yield
        except self.errors as error:
            if self.store_type.classify(error) is ErrorKind.LOCK_TIMEOUT:
                raise CatalogUnreachable(
                    f"The {what} was locked for too long ({one_line(error)}); nothing was changed. "
                    "Try again."
                ) from error
            raise CatalogUnreachable(f"The {what} cannot be reached: {one_line(error)}") from error


def _not_registered(name: str) -> str:
    return (
        f"The catalog {name} exists but is not in the registry: another program created it, or its "
        f"creation was interrupted. `swanlake catalog adopt {name}` registers it."
    )


def _exists(data_path: str) -> bool:
    """True for an existing directory; object stores are not checked."""
    return "://" not in data_path and Path(data_path).exists()


def _info(row: Row[Any]) -> CatalogInfo:
    return CatalogInfo(
        id=UUID(row.id),
        name=row.name,
        storage_name=row.place,
        data_path=row.data_path,
        family=UUID(row.family),
        parent=None if row.parent is None else UUID(row.parent),
        parent_snapshot=row.parent_snapshot,
        created_at=row.created_at,
        dropped_at=row.dropped_at,
    )
