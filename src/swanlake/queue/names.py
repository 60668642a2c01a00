"""What the queue calls things: the table rows are for, and the producer they come from."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import quote
from uuid import UUID

#: The catalog that clients name to write to the queue.
QUEUE = "duckling_queue"


@dataclass(frozen=True, order=True)
class QueueTable:
    """A table of the lake as the queue knows it: by ids that no other table gets.

    Its names are those it had; two are the same table whatever they are called.
    """

    catalog: str = field(compare=False)
    schema: str = field(compare=False)
    name: str = field(compare=False)
    catalog_id: UUID
    table_id: int

    @property
    def full_name(self) -> str:
        """``catalog.schema.table``, for messages."""
        return f"{self.catalog}.{self.schema}.{self.name}"

    @property
    def folder(self) -> Path:
        """Where its segments are, below the directory of a server."""
        return Path(_quoted(self.catalog)) / f"{_quoted(self.schema)}.{_quoted(self.name)}"


@dataclass(frozen=True, order=True)
class Ingest:
    """What a producer calls one batch of its own: sent again, it is the same batch."""

    producer: str
    sequence: int


def _quoted(name: str) -> str:
    """A name as a part of a path: dots separate names there, and file systems limit lengths."""
    return quote(name, safe="").replace(".", "%2E")[:100]
