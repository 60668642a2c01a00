"""Converts bound Arrow rows to the parameters ``?`` and ``$name`` of a statement."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from decimal import Decimal
from typing import Any

import duckdb
import pyarrow as pa

from swanlake._internal.arrow_sizes import decoded_bytes
from swanlake._internal.memory_budget import Charge
from swanlake.errors import InvalidRequest
from swanlake.sessions.results.uploads import batch_too_large

#: The prefix of the DuckDB variable that holds the value of a parameter.
VARIABLE_PREFIX = "__swanlake_bound_"
_PARAMETERS = "The parameters"
_MAX_DIGITS = 38
#: Arrow types whose Python values DuckDB binds exactly, and their SQL types.
_PLAIN_TYPES: dict[Any, str] = {
    pa.bool_(): "BOOLEAN",
    pa.int8(): "TINYINT",
    pa.int16(): "SMALLINT",
    pa.int32(): "INTEGER",
    pa.int64(): "BIGINT",
    pa.uint8(): "UTINYINT",
    pa.uint16(): "USMALLINT",
    pa.uint32(): "UINTEGER",
    pa.uint64(): "UBIGINT",
    pa.float32(): "FLOAT",
    pa.float64(): "DOUBLE",
    pa.string(): "VARCHAR",
    pa.large_string(): "VARCHAR",
    pa.binary(): "BLOB",
    pa.date32(): "DATE",
    pa.timestamp("us"): "TIMESTAMP",
}


def arrange(schema: Any, parameters: tuple[str, ...]) -> list[int]:
    """The column of each parameter: by position for ``?`` and ``$1``, else by name."""
    if len(schema) != len(parameters):
        raise InvalidRequest(
            f"The statement takes {_count(len(parameters), 'parameter')}; the client bound "
            f"{_count(len(schema), 'column')}."
        )
    if all(name.isdigit() for name in parameters):
        return list(range(len(parameters)))
    columns = {name.removeprefix("$"): index for index, name in enumerate(schema.names)}
    missing = [name for name in parameters if name not in columns]
    if missing:
        raise InvalidRequest(
            f"No bound column is named after the parameter ${missing[0]}; the columns are "
            f"{', '.join(schema.names)}."
        )
    return [columns[name] for name in parameters]


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


def bindable(batch: Any, order: list[int]) -> Any:
    """The columns in the order of the parameters, as c0, c1, …, in types that DuckDB scans."""
    schema = _bindable_schema(batch.schema, order)
    return _recast([batch.column(index) for index in order], schema)


def bindable_reader(reader: Any, order: list[int]) -> Any:
    """A whole upload, its batches as ``bindable`` makes them."""
    batches = (bindable(batch, order) for batch in reader.to_reader())
    return pa.RecordBatchReader.from_batches(_bindable_schema(reader.schema, order), batches)


def scannable_reader(reader: Any) -> Any:
    """A stream of batches, names and order kept, in types that DuckDB scans."""
    schema = pa.schema([pa.field(f.name, _scannable(f.type)) for f in reader.schema])
    if schema.types == reader.schema.types:
        return reader
    batches = (_recast(batch.columns, schema) for batch in reader)
    return pa.RecordBatchReader.from_batches(schema, batches)


def _bindable_schema(schema: Any, order: list[int]) -> Any:
    kinds = [_scannable(schema.field(index).type) for index in order]
    return pa.schema([pa.field(f"c{i}", kind) for i, kind in enumerate(kinds)])


def _recast(columns: list[Any], schema: Any) -> Any:
    columns = [
        column if column.type == kind else column.cast(kind)
        for column, kind in zip(columns, schema.types, strict=True)
    ]
    return pa.RecordBatch.from_arrays(columns, schema=schema)


def _scannable(kind: Any) -> Any:
    """The nearest type that DuckDB scans: another one only for half floats and some decimals."""
    if pa.types.is_float16(kind):
        return pa.float32()
    if pa.types.is_decimal(kind):
        return _scannable_decimal(kind)
    if pa.types.is_struct(kind):
        return pa.struct([field.with_type(_scannable(field.type)) for field in kind])
    if pa.types.is_map(kind):
        return pa.map_(_scannable(kind.key_type), _scannable(kind.item_type))
    if pa.types.is_list(kind):
        return pa.list_(kind.value_field.with_type(_scannable(kind.value_type)))
    if pa.types.is_large_list(kind):
        return pa.large_list(kind.value_field.with_type(_scannable(kind.value_type)))
    if pa.types.is_fixed_size_list(kind):
        inner = kind.value_field.with_type(_scannable(kind.value_type))
        return pa.list_(inner, kind.list_size)
    return kind


def _scannable_decimal(kind: Any) -> Any:
    if kind.scale >= 0 and not pa.types.is_decimal256(kind):
        return kind
    # A scale below zero is fatal to a whole DuckDB instance.
    width, scale = kind.precision - min(kind.scale, 0), max(kind.scale, 0)
    # DuckDB's widest decimal has 38 digits; text keeps all, and is cast where it is used.
    return pa.decimal128(width, scale) if width <= _MAX_DIGITS else pa.string()


def plain_values(batch: Any, row: int) -> list[Any] | None:
    """One row as typed DuckDB values; None if a column has no exact Python form."""
    values: list[Any] = []
    for column in batch.columns:
        if pa.types.is_null(column.type):
            values.append(None)
            continue
        value = _plain_value(column[row])
        if value is None:
            return None
        values.append(value)
    return values


def _plain_value(scalar: Any) -> Any | None:
    kind = scalar.type
    sql_type = _PLAIN_TYPES.get(kind)
    if pa.types.is_decimal128(kind):
        sql_type = f"DECIMAL({kind.precision},{kind.scale})"
    elif pa.types.is_timestamp(kind) and kind.unit == "us" and kind.tz:
        sql_type = "TIMESTAMPTZ"
    # DuckDB gives a NULL no type, and the results of several rows must have one type.
    if sql_type is None or not scalar.is_valid:
        return None
    try:
        value = scalar.as_py()
    except (OverflowError, ValueError):  # a date beyond Python's calendar
        return None
    if isinstance(value, float) and math.isnan(value):
        value = "nan"  # as a float, DuckDB takes it for a NULL
    elif isinstance(value, Decimal):
        if len(value.as_tuple().digits) > _MAX_DIGITS:  # a HUGEINT on its way back
            return None
        value = format(value, "f")  # as a Decimal, its type would be that of its own digits
    return duckdb.Value(value, duckdb.sqltype(sql_type))


class BoundRows(list[Any]):
    """The batches of bound rows: at least one. Their memory is charged as long as they exist."""

    def __init__(self, schema: Any, batches: Iterable[Any], memory: Charge) -> None:
        super().__init__(batches)
        if not self:
            self.append(pa.RecordBatch.from_pylist([], schema=schema))
        self._memory = memory


def receive_rows(reader: Any, memory: Charge, check: Callable[[], None]) -> BoundRows:
    """The rows of a stream, which ends with the first batch that is too much for the caller."""

    def batches() -> Iterator[Any]:
        for batch in reader:
            check()
            memory.demand(batch.nbytes, _PARAMETERS)
            yield batch

    try:
        return BoundRows(reader.schema, batches(), memory)
    except MemoryError as bomb:
        raise batch_too_large(_PARAMETERS) from bomb
    except pa.ArrowException as broken:
        raise InvalidRequest(f"The parameters cannot be read: {broken}.") from broken


def decode_rows(stream: bytes, memory: Charge) -> BoundRows:
    """The rows of an Arrow stream inside a message, if the caller may have their memory."""
    try:
        memory.demand(decoded_bytes(stream), _PARAMETERS)
        with pa.ipc.open_stream(stream) as reader:
            return BoundRows(reader.schema, reader, memory)
    except MemoryError as bomb:
        raise batch_too_large(_PARAMETERS) from bomb
    except (ValueError, pa.ArrowException, OSError):
        raise InvalidRequest("The parameters are not an Arrow stream.") from None


def rows(batches: list[Any]) -> Iterator[tuple[Any, int]]:
    """Every row of every batch, as (batch, position)."""
    for batch in batches:
        for row in range(batch.num_rows):
            yield batch, row
