"""Taking over the segments of servers that are gone."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from pathlib import Path

from swanlake.errors import CatalogUnreachable
from swanlake.queue.dead_letters import DeadLetters
from swanlake.queue.ownership import Ownership
from swanlake.queue.segment import SegmentDamaged
from swanlake.queue.store import SegmentFile, Store

log = logging.getLogger("swanlake.queue")


class Adoption:
    """Moves what others left behind into our directory, and says what it found."""

    def __init__(
        self,
        ownership: Ownership,
        store: Store,
        dead_letters: DeadLetters,
        found: Callable[[SegmentFile], None],
    ) -> None:
        self._ownership = ownership
        self._store = store
        self._dead_letters = dead_letters
        self._found = found
        #: Files that are ours by now and were not yet looked at.
        self._unexamined: list[Path] = []

    def adopt(self) -> None:
        """One look around; what cannot be taken or read now is tried again with the next."""
        for directory in self._ownership.abandoned():
            try:
                taken = list(self._take_over(directory))
            except OSError as failed:
                log.error("the segments in %s cannot be taken over: %s", directory, failed)
                continue
            if taken:
                log.info("%d segments of the server %s were adopted", len(taken), directory.name)
        for path in list(self._unexamined):
            try:
                self._examine(path)
                self._unexamined.remove(path)
            except (CatalogUnreachable, OSError) as failed:
                log.error("%s stays where it is: %s", path, failed)

    def _take_over(self, directory: Path) -> Iterator[Path]:
        for path in self._store.take_over(directory):
            self._unexamined.append(path)  # at once: should the next one fail, this one is ours
            yield path

    def _examine(self, path: Path) -> None:
        try:
            segment = self._store.examine(path)
        except SegmentDamaged as damaged:
            log.error("%s cannot be read: %s", path, damaged)
            self._dead_letters.put_unreadable(path, str(damaged))
            path.unlink()
            return
        self._found(segment)
