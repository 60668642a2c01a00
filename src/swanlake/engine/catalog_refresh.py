"""One reads what has changed in a catalog, and the others wait for it.

DuckLake keeps what it has read of a catalog until a table is made, altered or dropped. Then it
reads all of it again, and every statement that runs at that moment does so for itself.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field

_CHECK_INTERVAL = 0.05


@dataclass
class _Catalog:
    lock: threading.Lock = field(default_factory=threading.Lock)
    changes: int = 0
    #: Of the changes, how many are known to have been read.
    read: int = 0


class CatalogReads:
    """What one instance has yet to read of its catalogs, as far as its own sessions changed it."""

    def __init__(self, read: Callable[[str], None]) -> None:
        self._read = read
        self._lock = threading.Lock()
        self._catalogs: dict[str, _Catalog] = {}

    def changed(self, name: str) -> None:
        """Somebody made, altered or dropped a table of the catalog."""
        with self._lock:
            self._catalogs.setdefault(name, _Catalog()).changes += 1

    @property
    def pending(self) -> list[str]:
        """The catalogs of which something has yet to be read."""
        with self._lock:
            return [name for name, one in self._catalogs.items() if one.read < one.changes]

    def catch_up(self, name: str, check: Callable[[], None]) -> None:
        """Has the changes read, by whoever is first.

        ``check`` is called while waiting and raises when the caller no longer wants to.
        """
        catalog = self._catalogs.get(name)
        if catalog is None or catalog.read >= catalog.changes:
            return
        while not catalog.lock.acquire(timeout=_CHECK_INTERVAL):
            check()
        try:
            changes = catalog.changes
            if catalog.read < changes:
                self._read(name)
                catalog.read = changes
        finally:
            catalog.lock.release()
