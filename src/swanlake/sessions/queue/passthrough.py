"""Arrow passthrough: rows that go into the queue without DuckDB.

A bound INSERT whose every value is a parameter, or a bulk ingestion, brings Arrow columns, and
literals are read into Arrow columns. If they have the types of the table already, DuckDB would only
copy them.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from swanlake._internal.lru_cache import LruCache
from swanlake.errors import Code, InvalidRequest, QueryError
from swanlake.lake.model.layout import Column, Table
from swanlake.queue.names import QUEUE
from swanlake.sessions.execution.client_rows import CLIENT_ROWS
from swanlake.sessions.native.insert_rows import literal_insert, match_columns
from swanlake.sql.insert import InsertHead
from swanlake.sql.statement import Statement

_ALL = re.compile(rf"FROM\s++{CLIENT_ROWS}\s*+;?\s*+")
_COLUMN = rf"{CLIENT_ROWS}\.c\d++"
_CHOSEN = re.compile(
    rf"SELECT\s++({_COLUMN}(?:\s*+,\s*+{_COLUMN})*+)\s++FROM\s++{CLIENT_ROWS}\s*+;?\s*+"
)
_NUMBER = re.compile(rf"{CLIENT_ROWS}\.c(\d+)")

Convert = Callable[[Any], Any]
#: For each column of the table the index of its column among the rows, and the conversion.
Columns = Sequence[tuple[int | None, Convert]]


@dataclass(frozen=True)
class ArrowPassthrough:
    """Rows as batches of the queue."""

    rows: Any
    schema: Any
    layout: Table
    columns: Columns

    @classmethod
    def of_literals(
        cls, statement: Statement, head: InsertHead, schema: Any, layout: Table
    ) -> ArrowPassthrough | None:
        """The rows of an INSERT of literals; None if DuckDB must evaluate it."""
        rows = literal_insert(statement, head, layout)
        if rows is None:
            return None
        columns = _conversions(range(rows.num_columns), rows.schema, schema, layout)
        return None if columns is None else cls(rows.to_batches(), schema, layout, columns)

    def __iter__(self) -> Iterator[Any]:
        for batch in self.rows:
            try:
                batch.validate(full=True)
            except pa.ArrowInvalid as broken:
                raise InvalidRequest(f"The rows are not valid Arrow data: {broken}.") from None
            yield pa.RecordBatch.from_arrays(
                [
                    self._column(batch, index, convert, position)
                    for position, (index, convert) in enumerate(self.columns)
                ],
                schema=self.schema,
            )

    def _column(self, batch: Any, index: int | None, convert: Convert, position: int) -> Any:
        if index is None:
            return pa.nulls(batch.num_rows, self.schema.field(position).type)
        values = batch.column(index)
        column = self.layout.columns[position]
        if not column.nullable and values.null_count:
            raise QueryError(
                f"Constraint Error: NOT NULL constraint failed: {QUEUE}.{self.layout.full_name}."
                f"{column.name}",
                identifier="CONSTRAINT_ERROR",
                code=Code.INVALID_ARGUMENT,
            )
        return convert(values)


@dataclass(frozen=True)
class _ClientRowPlan:
    """The columns of an INSERT of client rows, for rows and a table of these types."""

    sent: Any
    schema: Any
    layout_columns: tuple[Column, ...]
    #: None if DuckDB must evaluate the INSERT.
    columns: Columns | None

    def fits(self, sent: Any, schema: Any, layout: Table) -> bool:
        is_same_table = self.schema == schema and self.layout_columns == layout.columns
        return is_same_table and bool(self.sent == sent)


class ClientRowPlans:
    """How the client rows of INSERTs become rows of the queue; each text is looked at once."""

    def __init__(self) -> None:
        self._plans: LruCache[_ClientRowPlan] = LruCache()

    def plan(
        self, statement: Statement, head: InsertHead, rows: Any, schema: Any, layout: Table
    ) -> ArrowPassthrough | None:
        """The client's rows; None if DuckDB must evaluate the INSERT or convert a value."""
        plan = self._plans.get(statement.text)
        if plan is None or not plan.fits(rows.schema, schema, layout):
            _, body = statement.split_at(0, head.body)
            sources = _match_columns(body, head, rows.schema, layout)
            columns = (
                None if sources is None else _conversions(sources, rows.schema, schema, layout)
            )
            plan = _ClientRowPlan(rows.schema, schema, layout.columns, columns)
            self._plans.put(statement.text, plan)
        return (
            None if plan.columns is None else ArrowPassthrough(rows, schema, layout, plan.columns)
        )


def _conversions(
    sources: Sequence[int | None], sent: Any, schema: Any, layout: Table
) -> Columns | None:
    """The column and the conversion for each column of the table; None if DuckDB must convert."""
    columns: list[tuple[int | None, Convert]] = []
    for column, field, index in zip(layout.columns, schema, sources, strict=True):
        if index is None:
            if column.default is not None or not column.nullable:
                return None
            columns.append((None, _unchanged))
            continue
        convert = _conversion(sent.field(index).type, field.type, column)
        if convert is None:
            return None
        columns.append((index, convert))
    return columns


def _match_columns(
    body: str, head: InsertHead, schema: Any, layout: Table
) -> list[int | None] | None:
    """The index of the client column for each column of the table; None if DuckDB must decide."""
    if _ALL.fullmatch(body):
        return match_columns(layout, head, schema.names)
    chosen = _CHOSEN.fullmatch(body)
    if chosen is None or head.by_name:
        return None
    indexes = [int(number) for number in _NUMBER.findall(chosen[1])]
    positions = match_columns(layout, head, [schema.names[index] for index in indexes])
    if positions is None:
        return None
    return [None if position is None else indexes[position] for position in positions]


def _conversion(sent: Any, wanted: Any, column: Column) -> Convert | None:
    """The lossless conversion of a column's values; None if DuckDB must convert them."""
    if column.children or column.type not in _PLAIN:
        return None
    if pa.types.is_null(sent):
        return lambda values: pa.nulls(len(values), wanted)
    if sent == wanted:
        return _unchanged
    if column.type == "boolean" and pa.types.is_boolean(sent):
        return lambda values: pa.ExtensionArray.from_storage(wanted, values.cast(pa.int8()))
    if _widens(sent, wanted):
        return lambda values: values.cast(wanted)
    return None


def _widens(sent: Any, wanted: Any) -> bool:
    types = pa.types
    if types.is_signed_integer(sent) and types.is_signed_integer(wanted):
        return bool(sent.bit_width <= wanted.bit_width)
    if types.is_unsigned_integer(sent) and types.is_unsigned_integer(wanted):
        return bool(sent.bit_width <= wanted.bit_width)
    if types.is_string(wanted):
        return bool(types.is_large_string(sent) or types.is_string_view(sent))
    if types.is_binary(wanted):
        return bool(types.is_large_binary(sent) or types.is_binary_view(sent))
    if types.is_float64(wanted):
        return bool(types.is_float32(sent))
    if types.is_timestamp(wanted) and types.is_timestamp(sent):
        return bool(sent.unit == wanted.unit and (sent.tz is None) == (wanted.tz is None))
    return False


def _unchanged(values: Any) -> Any:
    return values


#: Types that accept every value of their Arrow type.
_PLAIN = frozenset(
    "boolean int8 int16 int32 int64 uint8 uint16 uint32 uint64 float32 float64 varchar blob date "
    "timestamp timestamptz".split()
)
