"""Single-flight reload of DuckLake's cached schema after a table changed.

DuckLake caches the schema of a catalog until a table is created, altered or dropped. Then it reads
all of it again, and every statement running at that moment would do so on its own.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field

from swanlake._internal.waiting import acquiring, wait


@dataclass
class _Catalog:
    lock: threading.Lock = field(default_factory=threading.Lock)
    changes: int = 0
    #: How many of the changes the cached schema includes.
    loaded: int = 0


class CatalogRefreshes:
    """The catalogs of one instance whose cached schema its own sessions made stale."""

    def __init__(self, load: Callable[[str], None]) -> None:
        self._load = load
        self._lock = threading.Lock()
        self._catalogs: dict[str, _Catalog] = {}

    def mark_changed(self, name: str) -> None:
        """Records that a session created, altered or dropped a table of the catalog."""
        with self._lock:
            self._catalogs.setdefault(name, _Catalog()).changes += 1

    @property
    def stale_catalogs(self) -> list[str]:
        """The catalogs with changes that are not loaded yet."""
        with self._lock:
            return [
                name for name, catalog in self._catalogs.items() if catalog.loaded < catalog.changes
            ]

    def refresh(self, name: str, check: Callable[[], None]) -> None:
        """Loads the changes of a catalog; concurrent callers wait for the first one.

        ``check`` is called while waiting and raises when the caller gave up.
        """
        catalog = self._catalogs.get(name)
        if catalog is None or catalog.loaded >= catalog.changes:
            return
        wait(acquiring(catalog.lock), check)
        try:
            changes = catalog.changes
            if catalog.loaded < changes:
                self._load(name)
                catalog.loaded = changes
        finally:
            catalog.lock.release()
