"""Converts rows to the columns and types of their table.

A column that a row does not name gets the table's default, or NULL if there is none; None is NULL.
Rows that leave different defaults to the server go into different batches; their keys do not matter
otherwise.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import groupby
from typing import Any

import pyarrow as pa

from swanlake.client.api.requests import arrow_rows
from swanlake.client.writer.batching import RowChunk
from swanlake.client.writer.values import CONVERSION_ERRORS, convert_value, field_names, size_check
from swanlake.errors import RowRefused

#: The cache of plans is cleared when it holds this many sets of names.
_MAX_PLANS = 1000


@dataclasses.dataclass(frozen=True)
class Column:
    """A column of the target table."""

    name: str
    type: Any
    nullable: bool = True
    has_default: bool = False
    size_check: Callable[[Any], int] = dataclasses.field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "size_check", size_check(self.type))

    def convert(self, value: Any) -> tuple[Any, int]:
        """A value that ``size_check`` does not know, in the column's type, and its size in bytes.

        Raises RowRefused.
        """
        if value is None:
            if not self.nullable:
                raise RowRefused(f"The column {self.name!r} takes no NULL.")
            return None, 1
        try:
            return convert_value(value, self.type)
        except CONVERSION_ERRORS as reason:
            raise RowRefused(
                f"The column {self.name!r} ({self.type}) does not take {_shown(value)}: {reason}"
            ) from None


class RowShape:
    """The columns of rows that can be sent together."""

    def __init__(self, schema: Any) -> None:
        self.schema = schema

    def encode(self, contents: list[Any]) -> Any:
        """One table from tuples of values and Arrow tables."""
        tables: list[Any] = []
        for is_arrow, run in groupby(contents, lambda piece: isinstance(piece, pa.Table)):
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
    """How rows with certain names become tuples: for each column, the index of its value."""

    shape: RowShape
    columns: list[tuple[Column, int | None]]


class TargetTable:
    """The columns of a table, and the plans to convert rows to them."""

    def __init__(self, name: str, columns: Sequence[Column]) -> None:
        self.name = name
        self.columns = tuple(columns)
        self._names = tuple(column.name for column in columns)
        self._by_name = {column.name.lower(): column for column in columns}  # as SQL reads names
        self._plans: dict[tuple[str, ...], _Plan] = {}
        self._shapes: dict[Any, RowShape] = {}

    def convert_row(self, row: Any, columns: Sequence[str] | None = None) -> RowChunk:
        """Converts a dict, a dataclass, a named tuple, or a tuple of ``columns``.

        Raises RowRefused.
        """
        names, values = self._named(row, columns)
        plan = self._plan(names)
        content = []
        size = 0
        for column, index in plan.columns:
            value = None if index is None else values[index]
            value_size = 1 if index is None else column.size_check(value)
            if value_size < 0:
                value, value_size = column.convert(value)
            content.append(value)
            size += value_size
        return RowChunk(plan.shape, tuple(content), 1, size)

    def convert_arrow(self, batch: Any, max_rows: int, max_bytes: int) -> list[RowChunk]:
        """Converts an Arrow batch, in chunks within the limits; raises RowRefused."""
        plan = self._plan(tuple(batch.schema.names))
        table = pa.table(
            {
                column.name: _cast(batch.column(index), column)
                for column, index in plan.columns
                if index is not None
            }
        )
        shape = self._shape(table.schema)
        step = max(1, min(max_rows, int(max_bytes * table.num_rows / max(1, table.nbytes))))
        parts = [table.slice(start, step) for start in range(0, table.num_rows, step)]
        return [RowChunk(shape, part, part.num_rows, part.nbytes) for part in parts]

    def _named(
        self, row: Any, columns: Sequence[str] | None
    ) -> tuple[tuple[str, ...], Sequence[Any]]:
        """The names and values of a row."""
        kind = type(row)  # the general checks take longer than the rest
        if kind is dict or isinstance(row, Mapping):
            return tuple(row), list(row.values())
        if kind is not tuple and dataclasses.is_dataclass(row) and not isinstance(row, type):
            names = field_names(type(row))
            return names, [getattr(row, name) for name in names]
        if not isinstance(row, tuple | list):
            raise RowRefused(
                f"A row is a dict, a tuple or a dataclass, not {type(row).__name__}; Arrow tables "
                "and data frames go to write_many."
            )
        names = tuple(getattr(row, "_fields", columns or self._names))
        if len(row) != len(names):
            raise RowRefused(
                f"The row has {len(row)} values for {len(names)} columns: {', '.join(names)}."
            )
        return names, row

    def _plan(self, names: tuple[str, ...]) -> _Plan:
        plan = self._plans.get(names)
        if plan is None:
            if len(self._plans) >= _MAX_PLANS:
                self._plans.clear()
            plan = self._plans[names] = self._new_plan(names)
        return plan

    def _new_plan(self, names: tuple[str, ...]) -> _Plan:
        indexes = {self._column(name).name: index for index, name in enumerate(names)}
        if len(indexes) < len(names):
            raise RowRefused(f"A column is named twice: {', '.join(names)}.")
        columns: list[tuple[Column, int | None]] = []
        for column in self.columns:
            if column.name in indexes:
                columns.append((column, indexes[column.name]))
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
        column = self._by_name.get(str(name).lower())
        if column is None:
            raise RowRefused(
                f"The table {self.name} has no column {name!r}, only {', '.join(self._names)}."
            )
        return column


def arrow_batches(rows: Any) -> Iterable[Any] | None:
    """The Arrow batches of a table or data frame; None for individual rows."""
    is_arrow = isinstance(rows, pa.Table | pa.RecordBatch | pa.RecordBatchReader)
    is_frame = hasattr(rows, "__arrow_c_stream__") or hasattr(rows, "to_arrow_table")
    if not (is_arrow or is_frame):
        return None
    source = arrow_rows(rows)
    batches: Iterable[Any] = source.to_batches() if isinstance(source, pa.Table) else source
    if is_arrow:
        return batches
    # Copied: the owner of a data frame may change it before the rows are sent.
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
        return values  # the server supports more casts
    except pa.ArrowException as reason:
        raise RowRefused(
            f"The column {column.name!r} ({column.type}) does not take {values.type}: {reason}"
        ) from None


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."


def target_table(name: str, schema: Any, described: list[dict[str, Any]]) -> TargetTable:
    """A table from its Arrow schema and the rows of DESCRIBE."""
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
            if row["column_name"] in types  # otherwise it was added between the two requests
        ],
    )
