"""Rows that need no engine on their way into the queue: they are what the table's columns are.

A bound INSERT whose every value is a parameter, or a bulk ingestion, brings Arrow columns. Where
their types are those of the table already, DuckDB would only copy them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from swanlake.errors import Code, InvalidRequest, QueryError
from swanlake.lake.layout import Column, Table, folded
from swanlake.queue.names import QUEUE
from swanlake.sql.insert import InsertHead, insert_head

#: The view through which statements read the rows that a client sent.
BOUND = "__swanlake_bound"

_ALL = re.compile(rf"FROM\s+{BOUND}\s*;?\s*")
_CHOSEN = re.compile(rf"SELECT\s+((?:{BOUND}\.c\d+\s*,?\s*)+)\s+FROM\s+{BOUND}\s*;?\s*")
_NUMBER = re.compile(rf"{BOUND}\.c(\d+)")

Convert = Callable[[Any], Any]


@dataclass(frozen=True)
class DirectRows:
    """The rows of a client as batches of the queue."""

    rows: Any
    schema: Any
    layout: Table
    #: For each column of the table which of the rows' columns it is, and how it gets its type.
    columns: list[tuple[int | None, Convert]]

    @classmethod
    def of(cls, text: str, rows: Any, schema: Any, layout: Table) -> DirectRows | None:
        """The rows as they are, if the INSERT takes them so and their types are right."""
        if rows is None:
            return None
        head = insert_head(text)
        given = None if head is None else _given(text, head, rows.schema, layout)
        if given is None:
            return None
        columns: list[tuple[int | None, Convert]] = []
        for column, field in zip(layout.columns, schema, strict=True):
            place = given.get(folded(column.name))
            if place is None:
                if column.default is not None or not column.nullable:
                    return None
                columns.append((None, _same))
                continue
            convert = _conversion(rows.schema.field(place).type, field.type, column)
            if convert is None:
                return None
            columns.append((place, convert))
        return cls(rows, schema, layout, columns)

    def __iter__(self) -> Iterator[Any]:
        for batch in self.rows:
            try:
                batch.validate(full=True)
            except pa.ArrowInvalid as broken:
                raise InvalidRequest(f"The rows are not valid Arrow data: {broken}.") from None
            yield pa.RecordBatch.from_arrays(
                [
                    self._column(batch, place, convert, number)
                    for number, (place, convert) in enumerate(self.columns)
                ],
                schema=self.schema,
            )

    def _column(self, batch: Any, place: int | None, convert: Convert, number: int) -> Any:
        if place is None:
            return pa.nulls(batch.num_rows, self.schema.field(number).type)
        values = batch.column(place)
        column = self.layout.columns[number]
        if not column.nullable and values.null_count:
            raise QueryError(
                f"Constraint Error: NOT NULL constraint failed: {QUEUE}.{self.layout.full_name}."
                f"{column.name}",
                identifier="CONSTRAINT_ERROR",
                code=Code.INVALID_ARGUMENT,
            )
        return convert(values)


def _given(text: str, head: InsertHead, schema: Any, layout: Table) -> dict[str, int] | None:
    """Which column of the rows each named column of the table gets; None if DuckDB must say."""
    body = text.encode()[head.body :].decode()
    names = [folded(column.name) for column in layout.columns]
    if head.columns is not None:
        names = [folded(name) for name in head.columns]
    if head.by_name:
        if not _ALL.fullmatch(body) or head.columns is not None:
            return None
        sent = [folded(name) for name in schema.names]
        known = set(names)
        if len(set(sent)) < len(sent) or not set(sent) <= known:
            return None
        return {name: place for place, name in enumerate(sent)}
    if _ALL.fullmatch(body):
        places = list(range(len(schema)))
    elif chosen := _CHOSEN.fullmatch(body):
        places = [int(number) for number in _NUMBER.findall(chosen[1])]
    else:
        return None
    known = {folded(column.name) for column in layout.columns}
    if len(places) != len(names) or len(set(names)) < len(names) or not set(names) <= known:
        return None
    return dict(zip(names, places, strict=True))


def _conversion(given: Any, wanted: Any, column: Column) -> Convert | None:
    """How values get their type without any doubt; None if that is for DuckDB to decide."""
    if column.children or column.type not in _PLAIN:
        return None
    if pa.types.is_null(given):
        return lambda values: pa.nulls(len(values), wanted)
    if given == wanted:
        return _same
    if column.type == "boolean" and pa.types.is_boolean(given):
        return lambda values: pa.ExtensionArray.from_storage(wanted, values.cast(pa.int8()))
    if _widens(given, wanted):
        return lambda values: values.cast(wanted)
    return None


def _widens(given: Any, wanted: Any) -> bool:
    types = pa.types
    if types.is_signed_integer(given) and types.is_signed_integer(wanted):
        return bool(given.bit_width <= wanted.bit_width)
    if types.is_unsigned_integer(given) and types.is_unsigned_integer(wanted):
        return bool(given.bit_width <= wanted.bit_width)
    if types.is_string(wanted):
        return bool(types.is_large_string(given) or types.is_string_view(given))
    if types.is_binary(wanted):
        return bool(types.is_large_binary(given) or types.is_binary_view(given))
    if types.is_float64(wanted):
        return bool(types.is_float32(given))
    if types.is_timestamp(wanted) and types.is_timestamp(given):
        return bool(given.unit == wanted.unit and (given.tz is None) == (wanted.tz is None))
    return False


def _same(values: Any) -> Any:
    return values


#: Types whose every Arrow value is a value of theirs.
_PLAIN = frozenset(
    "boolean int8 int16 int32 int64 uint8 uint16 uint32 uint64 float32 float64 varchar blob date "
    "timestamp timestamptz".split()
)
