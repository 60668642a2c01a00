"""The identity of a table of the lake."""

from __future__ import annotations

from dataclasses import dataclass, field
from uuid import UUID


@dataclass(frozen=True, order=True)
class TableRef:
    """A table by ids that are never reused.

    Its names are those it had when it was read; equality ignores them.
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
