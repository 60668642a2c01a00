"""Python values on their way into a statement."""

from __future__ import annotations

import uuid
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeAlias

import pyarrow as pa

from swanlake.errors import InvalidRequest

#: One row as a sequence (``?``, ``$1``) or a dict (``$name``), or rows as Arrow.
Parameters: TypeAlias = "Sequence[Any] | Mapping[str, Any] | pa.RecordBatch | pa.Table | None"


def bound_rows(parameters: Parameters) -> Any | None:
    """The parameters as a table of one column each; None if there are none."""
    if parameters is None:
        return None
    if isinstance(parameters, pa.Table):
        return parameters
    if isinstance(parameters, pa.RecordBatch):
        return pa.Table.from_batches([parameters])
    if isinstance(parameters, str | bytes):
        raise InvalidRequest(
            "Parameters are a sequence, a dict or rows of Arrow; put a single value in a list."
        )
    if isinstance(parameters, Mapping):
        names, values = list(parameters), list(parameters.values())
    elif isinstance(parameters, Iterable):
        values = list(parameters)
        names = [str(number) for number in range(1, len(values) + 1)]
    else:
        raise InvalidRequest(
            f"Parameters are a sequence, a dict or rows of Arrow, not {type(parameters).__name__}."
        )
    if not values:
        return None
    columns = [_column(name, value) for name, value in zip(names, values, strict=True)]
    return pa.table(columns, names=names)


def _column(name: str, value: Any) -> Any:
    if isinstance(value, uuid.UUID):
        value = str(value)  # which DuckDB casts where a UUID is meant
    try:
        return pa.array([value])
    except (pa.ArrowException, TypeError, ValueError, OverflowError) as unfit:
        raise InvalidRequest(
            f"The value of parameter {name} ({type(value).__name__}) has no form in Arrow: {unfit}"
        ) from None
