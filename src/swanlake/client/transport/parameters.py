"""Converts the parameters of a statement from Python values to Arrow."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Mapping, Sequence
from decimal import Decimal
from typing import Any, TypeAlias

import pyarrow as pa

from swanlake.errors import InvalidRequest

#: One row as a sequence (``?``, ``$1``) or a dict (``$name``), or rows as Arrow.
Parameters: TypeAlias = "Sequence[Any] | Mapping[str, Any] | pa.RecordBatch | pa.Table | None"
ParameterRow: TypeAlias = "Sequence[Any] | Mapping[str, Any]"


def parameter_table(parameters: Parameters) -> Any | None:
    """The parameters as a table with one column for each; None if there are none."""
    if parameters is None:
        return None
    if isinstance(parameters, pa.Table):
        return parameters
    if isinstance(parameters, pa.RecordBatch):
        return pa.Table.from_batches([parameters])
    return table_from_rows([parameters])


def table_from_rows(rows: Sequence[ParameterRow]) -> Any | None:
    """Rows of Python values as one table; None if they have no columns.

    >>> table_from_rows([(1, "a"), (2, None)]).schema.types
    [DataType(int64), DataType(string)]
    """
    if isinstance(rows[0], Mapping):
        names = list(rows[0])
        values: list[Sequence[Any]] = [[_value(row, name) for name in names] for row in rows]
    else:
        values = [_values(row) for row in rows]
        names = [str(number) for number in range(1, len(values[0]) + 1)]
    if any(len(row) != len(names) for row in values):
        raise InvalidRequest("The rows of parameters are not all of one length.")
    if not names:
        return None
    columns = zip(*values, strict=True)
    return pa.table(
        [_column(name, list(column)) for name, column in zip(names, columns, strict=True)],
        names=names,
    )


def _values(row: ParameterRow) -> Sequence[Any]:
    if isinstance(row, list | tuple):
        return row
    if isinstance(row, str | bytes):
        raise InvalidRequest(
            "Parameters are a sequence, a dict or rows of Arrow; put a single value in a list."
        )
    if isinstance(row, Mapping) or not isinstance(row, Iterable):
        raise InvalidRequest(
            f"Parameters are a sequence, a dict or rows of Arrow, not {type(row).__name__}."
        )
    return list(row)


def _value(row: ParameterRow, name: str) -> Any:
    if not isinstance(row, Mapping) or name not in row:
        raise InvalidRequest(f"Not every row of parameters has a value for ${name}.")
    return row[name]


def _column(name: str, values: list[Any]) -> Any:
    # DuckDB casts the text to UUID where needed.
    values = [str(value) if isinstance(value, uuid.UUID) else value for value in values]
    try:
        try:
            array = pa.array(values)
            if pa.types.is_duration(array.type):
                # Days apart from the time, of which Parquet stores 32 bits of milliseconds.
                return pa.array(values, pa.month_day_nano_interval())
            return array
        except (OverflowError, TypeError, pa.ArrowException):
            if not all(isinstance(value, int | float | Decimal | None) for value in values):
                raise
            # Integers of more than 64 bits, and floats next to decimals, become decimals.
            return pa.array([_decimal(value) for value in values])
    except (pa.ArrowException, TypeError, ValueError, OverflowError) as reason:
        kinds = ", ".join(sorted({type(value).__name__ for value in values}))
        raise InvalidRequest(
            f"The value of parameter {name} ({kinds}) has no form in Arrow: {reason}"
        ) from None


def _decimal(value: float | Decimal | None) -> Decimal | None:
    # str() gives a float's shortest digits: 0.1, not 0.1000000000000000055.
    return None if value is None else Decimal(str(value))
