"""Rows on their way into a table: what callers have, in the columns and types of the table.

A column that a row does not give gets the table's default, or NULL if there is none; None is NULL.
Rows that leave different defaults to the server cannot travel together; all others can, whichever
keys they have.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from itertools import groupby
from typing import Any

import pyarrow as pa

from swanlake.client.batching import Piece
from swanlake.client.requests import arrow_rows
from swanlake.client.values import UNFIT, fitted, quick_size
from swanlake.errors import RowRefused

#: Beyond so many sets of keys, what was found out about them is forgotten.
_MOST_PLANS = 1000


@dataclasses.dataclass(frozen=True)
class Column:
    """A column of a table, as a writer needs to know it."""

    name: str
    type: Any
    nullable: bool = True
    has_default: bool = False
    quick_size: Callable[[Any], int] = dataclasses.field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "quick_size", quick_size(self.type))

    def take(self, value: Any) -> tuple[Any, int]:
        """A value as it can be sent, and its bytes; raises RowRefused."""
        size = self.quick_size(value)
        if size >= 0:
            return value, size
        if value is None:
            if not self.nullable:
                raise RowRefused(f"The column {self.name!r} takes no NULL.")
            return None, 1
        try:
            return fitted(value, self.type)
        except UNFIT as unfit:
            raise RowRefused(
                f"The column {self.name!r} ({self.type}) does not take {_shown(value)}: {unfit}"
            ) from None


class RowShape:
    """The columns of rows that can be sent together."""

    def __init__(self, schema: Any) -> None:
        self.schema = schema

    def encode(self, pieces: list[Any]) -> Any:
        """One table of rows that are tuples of values, and of others that are Arrow already."""
        tables: list[Any] = []
        for is_arrow, run in groupby(pieces, lambda piece: isinstance(piece, pa.Table)):
            if is_arrow:
                tables.extend(run)
                continue
            columns = zip(*run, strict=True)
            arrays = [
                pa.array(values, field.type)
                for values, field in zip(columns, self.schema, strict=True)
            ]
            tables.append(pa.Table.from_arrays(arrays, schema=self.schema))
        return pa.concat_tables(tables).combine_chunks()


@dataclasses.dataclass(frozen=True)
class _Plan:
    """How rows with certain names become tuples: for each column the place of its value."""

    shape: RowShape
    columns: list[tuple[Column, int | None]]


class TargetTable:
    """A table as rows see it."""

    def __init__(self, name: str, columns: Sequence[Column]) -> None:
        self.name = name
        self.columns = tuple(columns)
        self._by_name = {column.name.lower(): column for column in columns}  # as SQL reads names
        self._plans: dict[tuple[str, ...], _Plan] = {}
        self._shapes: dict[Any, RowShape] = {}

    def take(self, row: Any, columns: Sequence[str] | None = None) -> Piece:
        """A row as it can be sent: a dict, a dataclass, a named tuple, or a tuple of ``columns``.

        Raises RowRefused.
        """
        names, values = self._named(row, columns)
        plan = self._plan(names)
        content = []
        size = 0
        for column, place in plan.columns:
            if place is None:
                value, more = None, 1
            else:
                value, more = column.take(values[place])
            content.append(value)
            size += more
        return Piece(plan.shape, tuple(content), 1, size)

    def take_arrow(self, batch: Any, max_rows: int, max_bytes: int) -> list[Piece]:
        """A batch of Arrow in pieces within the limits; raises RowRefused."""
        table = self._cast(batch)
        shape = self._shape(table.schema)
        step = max(1, min(max_rows, int(max_bytes * table.num_rows / max(1, table.nbytes))))
        parts = [table.slice(start, step) for start in range(0, table.num_rows, step)]
        return [Piece(shape, part, part.num_rows, part.nbytes) for part in parts]

    def _named(self, row: Any, columns: Sequence[str] | None) -> tuple[tuple[str, ...], list[Any]]:
        """The names and values of a row."""
        if isinstance(row, Mapping):
            return tuple(row), list(row.values())
        if dataclasses.is_dataclass(row) and not isinstance(row, type):
            names = _field_names(type(row))
            return names, [getattr(row, name) for name in names]
        if not isinstance(row, tuple | list):
            raise RowRefused(
                f"A row is a dict, a tuple or a dataclass, not {type(row).__name__}; Arrow tables "
                "and data frames go to write_many."
            )
        names = tuple(getattr(row, "_fields", columns or [one.name for one in self.columns]))
        if len(row) != len(names):
            raise RowRefused(
                f"The row has {len(row)} values for {len(names)} columns: {', '.join(names)}."
            )
        return names, list(row)

    def _plan(self, names: tuple[str, ...]) -> _Plan:
        plan = self._plans.get(names)
        if plan is None:
            if len(self._plans) >= _MOST_PLANS:
                self._plans.clear()
            plan = self._plans[names] = self._new_plan(names)
        return plan

    def _new_plan(self, names: tuple[str, ...]) -> _Plan:
        places = {self._column(name).name: place for place, name in enumerate(names)}
        if len(places) < len(names):
            raise RowRefused(f"A column is named twice: {', '.join(names)}.")
        columns: list[tuple[Column, int | None]] = []
        for column in self.columns:
            if column.name in places:
                columns.append((column, places[column.name]))
            elif not column.has_default:
                if not column.nullable:
                    raise RowRefused(
                        f"The column {column.name!r} takes no NULL and has no default; the row "
                        "must give it."
                    )
                columns.append((column, None))
        if not columns:
            raise RowRefused("A row gives at least one column.")
        schema = pa.schema([(column.name, column.type) for column, _ in columns])
        return _Plan(self._shape(schema), columns)

    def _shape(self, schema: Any) -> RowShape:
        return self._shapes.setdefault(schema, RowShape(schema))

    def _column(self, name: object) -> Column:
        found = self._by_name.get(str(name).lower())
        if found is None:
            raise RowRefused(
                f"The table {self.name} has no column {name!r}, only "
                f"{', '.join(column.name for column in self.columns)}."
            )
        return found

    def _cast(self, batch: Any) -> Any:
        """The columns of a batch that there are, in the table's types and order."""
        plan = self._plan(tuple(batch.schema.names))
        cast = {
            column.name: _cast(batch.column(place), column)
            for column, place in plan.columns
            if place is not None
        }
        return pa.table(cast)


def arrow_batches(rows: Any) -> Iterable[Any] | None:
    """The batches of what is rows in columns; None for rows one by one."""
    if not (
        isinstance(rows, pa.Table | pa.RecordBatch | pa.RecordBatchReader)
        or hasattr(rows, "__arrow_c_stream__")
        or hasattr(rows, "to_arrow_table")
    ):
        return None
    source = arrow_rows(rows)
    batches: Iterable[Any] = source.to_batches() if isinstance(source, pa.Table) else source
    if isinstance(rows, pa.Table | pa.RecordBatch | pa.RecordBatchReader):
        return batches
    # A frame lends its memory, and its owner may go on to change it before it is sent.
    memory = pa.default_cpu_memory_manager()
    return (batch.copy_to(memory) for batch in batches)


def _cast(values: Any, column: Column) -> Any:
    if not column.nullable and values.null_count:
        raise RowRefused(f"The column {column.name!r} takes no NULL.")
    if values.type == column.type or isinstance(values.type, pa.BaseExtensionType):
        return values
    try:
        return values.cast(column.type)
    except pa.ArrowNotImplementedError:
        return values  # the server knows more casts, and says what it thinks of this one
    except pa.ArrowException as unfit:
        raise RowRefused(
            f"The column {column.name!r} ({column.type}) does not take {values.type}: {unfit}"
        ) from None


@lru_cache(maxsize=256)
def _field_names(kind: Any) -> tuple[str, ...]:
    return tuple(field.name for field in dataclasses.fields(kind))


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."


def target_table(name: str, schema: Any, described: list[dict[str, Any]]) -> TargetTable:
    """A table from the columns of its result and from what DESCRIBE says of them."""
    types = {field.name: field.type for field in schema}
    return TargetTable(
        name,
        [
            Column(
                row["column_name"],
                types[row["column_name"]],
                nullable=row["null"] != "NO",
                has_default=row["default"] not in (None, "NULL"),
            )
            for row in described
            if row["column_name"] in types  # else it was added between the two questions
        ],
    )
