"""A store proves that it is the one with the lake's files, before anything in it is deleted.

The same bucket name or directory may lead to another store tomorrow: another endpoint, a disk that
is not mounted. What looks like an orphan there is not the lake's. So the lake has an id, and writes
it to a marker in its data path when it first uses it; the metadata records that it did.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from itertools import islice
from typing import Protocol
from uuid import UUID

from swanlake.errors import CatalogUnreachable
from swanlake.lake.files import storage
from swanlake.lake.metastore.base import CatalogInfo

#: The marker's name in a data path. It contains the id of the lake.
MARKER = ".swanlake-lake"
#: Files of the lake that are looked for in a store without a marker; one of them proves it.
_SAMPLE = 100


@dataclass(frozen=True)
class StoreClaims:
    """The id of a lake, and the locations where it has written its marker."""

    lake_id: UUID
    locations: frozenset[str] = frozenset()


class Claims(Protocol):
    """What the metadata of a lake tells about its stores."""

    def store_claims(self) -> StoreClaims:
        """The id of the lake, created if it has none, and its stores."""

    def record_store(self, location: str) -> None:
        """Takes note that the lake has written its marker to a location."""

    def catalogs(self) -> list[CatalogInfo]:
        """Every catalog, by name."""

    def referenced(self, info: CatalogInfo) -> set[str]:
        """The absolute paths of the files that a snapshot of a catalog can see."""


def store_of(path: str, claimed: Collection[str], data_paths: Iterable[str]) -> str | None:
    """The location whose marker speaks for a file; None if none does.

    That is the innermost location around the file, else one in the same bucket or on this machine,
    else the data path of its catalog.
    """
    around = [location for location in claimed if path.startswith(f"{location}/")]
    if around:
        return max(around, key=len)
    beside = [location for location in claimed if _bucket(location) == _bucket(path)]
    if beside:
        return min(beside)
    own = [data_path.rstrip("/") for data_path in data_paths if path.startswith(data_path)]
    return max(own, key=len, default=None)


def prove(metadata: Claims, location: str) -> str | None:
    """None if a store is the one of this lake, else a sentence that says why it is not known to be.

    A store that the lake has not used yet is marked, if it has files of the lake, or no files.
    """
    claims = metadata.store_claims()
    path, expected = f"{location}/{MARKER}", str(claims.lake_id)
    try:
        found = storage.read_if_exists(path)
        if found is None and location in claims.locations:
            return (
                f"{location} has no marker of this lake: it may be another store of the same name, "
                f"or not mounted. Nothing in it is deleted. If it is the right one, create {path} "
                f"with the content {expected}."
            )
        if found is None:
            reason = _refusal(metadata, location)
            if reason is not None:
                return reason
            if not storage.create(path, f"{expected}\n".encode()):
                found = storage.read_if_exists(path)  # another server was faster
    except CatalogUnreachable as unreachable:
        return f"Nothing in {location} is deleted: {unreachable.message}"
    if found is not None and found.decode(errors="replace").strip() != expected:
        return (
            f"{location} belongs to another lake, as {path} says, so nothing in it is deleted. "
            "Give each lake a data path of its own."
        )
    if location not in claims.locations:
        metadata.record_store(location)
    return None


def _refusal(metadata: Claims, location: str) -> str | None:
    """Why a store without a marker must not be marked."""
    paths = (path for info in metadata.catalogs() for path in metadata.referenced(info))
    sample = list(islice((path for path in paths if path.startswith(f"{location}/")), _SAMPLE))
    if sample:
        if storage.file_sizes(sample):
            return None
        return (
            f"{location} has no marker of this lake, and none of the files that the catalogs list, "
            f"such as {sample[0]}: it is another store, or not mounted. Nothing in it is deleted."
        )
    for path in storage.files_under(location):
        if path.endswith(".parquet"):
            return (
                f"{location} has no marker of this lake, and contains files that none of its "
                f"catalogs lists, such as {path}. Nothing in it is deleted, for they may belong to "
                "another lake."
            )
    return None


class Proofs:
    """The proofs of the stores of some files, each read once."""

    def __init__(
        self, metadata: Claims, location: str, prove: Callable[[Claims, str], str | None] = prove
    ) -> None:
        self._metadata = metadata
        self._prove = prove
        self._claimed = {location, *metadata.store_claims().locations}
        self._data_paths = [info.data_path for info in metadata.catalogs()]
        self._problems: dict[str, str | None] = {}

    def problem(self, path: str) -> str | None:
        """Why a file must not be deleted."""
        store = store_of(path, self._claimed, self._data_paths)
        if store is None:
            return f"{path} is in a store without a marker of this lake, so it is not deleted."
        if store not in self._problems:
            self._problems[store] = self._prove(self._metadata, store)
        return self._problems[store]


def _bucket(path: str) -> str:
    """``s3://bucket``; empty for a local path."""
    if not storage.is_url(path):
        return ""
    scheme, _, rest = path.partition("://")
    return f"{scheme}://{rest.partition('/')[0]}"
