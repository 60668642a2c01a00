"""Results that are held in memory."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from swanlake.client.api.rows import row_dicts, row_tuples

if TYPE_CHECKING:
    import pandas
    import polars


@dataclass(frozen=True, slots=True)
class UpdateResult:
    """How many rows a change affected."""

    affected_rows: int
    query_id: str


class QueryResult:
    """All rows of a statement, as an Arrow table in memory.

    It supports Arrow's C stream interface: ``polars.DataFrame(result)``,
    ``duckdb.sql("FROM result")``, ``pyarrow.table(result)``.
    """

    __slots__ = ("affected_rows", "query_id", "table")

    def __init__(self, table: Any, query_id: str, affected_rows: int = -1) -> None:
        self.table = table
        self.query_id = query_id
        #: Rows that the statement changed; -1 if unknown.
        self.affected_rows = affected_rows

    @property
    def schema(self) -> Any:
        """The columns, as an Arrow schema."""
        return self.table.schema

    @property
    def column_names(self) -> list[str]:
        return list(self.table.column_names)

    @property
    def row_count(self) -> int:
        return int(self.table.num_rows)

    def to_arrow(self) -> Any:
        """A ``pyarrow.Table``."""
        return self.table

    def to_pandas(self, **options: Any) -> pandas.DataFrame:
        """A pandas data frame; the options are those of ``pyarrow.Table.to_pandas``."""
        return self.table.to_pandas(**options)

    def to_polars(self) -> polars.DataFrame:
        """A Polars data frame."""
        import polars

        return polars.DataFrame(self.table)

    def to_pylist(self) -> list[dict[str, Any]]:
        """A list of dicts, one per row."""
        return row_dicts(self.table)

    def rows(self) -> list[tuple[Any, ...]]:
        """A list of tuples, one per row."""
        return row_tuples(self.table)

    def scalar(self) -> Any:
        """The first value of the first row; None if there is no row."""
        return self.table.column(0)[0].as_py() if self.table.num_rows else None

    def __len__(self) -> int:
        return self.row_count

    def __iter__(self) -> Iterator[dict[str, Any]]:
        for batch in self.table.to_batches():
            yield from row_dicts(batch)

    def __arrow_c_stream__(self, requested_schema: Any = None) -> Any:
        return self.table.__arrow_c_stream__(requested_schema)

    def __repr__(self) -> str:
        return f"QueryResult({self.row_count} rows, columns={self.column_names})"
