"""Bound parameters: rows of Arrow that take the place of ``?`` and ``$name``."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import duckdb
import pyarrow as pa

from swanlake.errors import InvalidRequest

#: Arrow types whose Python values DuckDB binds exactly as the SQL type beside them.
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
    """For each parameter the column it takes: by number for ``?`` and ``$1``, else by name."""
    if len(schema) != len(parameters):
        raise InvalidRequest(
            f"The statement takes {_count(len(parameters), 'parameter')}, but "
            f"{_count(len(schema), 'column')} were bound."
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
    """The columns in the order of the parameters, named c0, c1, …, in types that DuckDB scans."""
    columns = [_scannable(batch.column(index)) for index in order]
    return pa.RecordBatch.from_arrays(columns, names=[f"c{i}" for i in range(len(columns))])


def scannable_reader(reader: Any) -> Any:
    """A stream of batches, names and order kept, in types that DuckDB scans."""

    def scannable(batch: Any) -> Any:
        columns = [_scannable(column) for column in batch.columns]
        return pa.RecordBatch.from_arrays(columns, names=batch.schema.names)

    schema = scannable(pa.RecordBatch.from_pylist([], schema=reader.schema)).schema
    if schema.equals(reader.schema):
        return reader
    return pa.RecordBatchReader.from_batches(schema, (scannable(batch) for batch in reader))


def bindable_reader(reader: Any, order: list[int]) -> Any:
    """A whole stream of batches as ``bindable`` makes them."""
    empty = pa.RecordBatch.from_pylist([], schema=reader.schema)
    schema = bindable(empty, order).schema
    return pa.RecordBatchReader.from_batches(schema, (bindable(b, order) for b in reader))


def _scannable(column: Any) -> Any:
    if pa.types.is_float16(column.type):
        return column.cast(pa.float32())
    if pa.types.is_decimal256(column.type):
        # DuckDB's widest decimal has 38 digits; text keeps the rest, and casts where it is used.
        return column.cast(pa.string())
    return column


def plain_values(batch: Any, row: int) -> list[Any] | None:
    """One row as typed DuckDB values, or None where a column has no exact Python form."""
    values: list[Any] = []
    for column in batch.columns:
        kind = column.type
        sql_type = _PLAIN_TYPES.get(kind)
        if pa.types.is_decimal128(kind):
            sql_type = f"DECIMAL({kind.precision},{kind.scale})"
        if pa.types.is_null(kind):
            values.append(None)
        elif sql_type is None:
            return None
        else:
            values.append(duckdb.Value(column[row].as_py(), duckdb.sqltype(sql_type)))
    return values


def rows(batches: list[Any]) -> Iterator[tuple[Any, int]]:
    """Every row of every batch, as (batch, position)."""
    for batch in batches:
        for row in range(batch.num_rows):
            yield batch, row
