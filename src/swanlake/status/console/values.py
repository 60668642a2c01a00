"""Arrow values as JSON values, and columns as pages show them."""

from __future__ import annotations

import json
import math
from typing import Any

import pyarrow as pa

from swanlake.sessions.results.columns import PREFIX

#: Larger integers lose digits in a browser.
_MAX_INTEGER = 2**53
#: Longer texts are cut off; a download has them whole.
_MAX_TEXT = 4000
#: DuckDB's infinite dates and timestamps.
_INFINITIES = (2**31 - 1, 1 - 2**31, 2**63 - 1, 1 - 2**63)
_TYPE_NAME = f"{PREFIX}TYPE_NAME".encode()


def column_facts(schema: Any) -> list[dict[str, Any]]:
    """The columns of a schema: name, type, and whether their values are numbers."""
    return [
        {
            "name": field.name,
            "type": (field.metadata or {}).get(_TYPE_NAME, str(field.type).encode()).decode(),
            "numeric": _is_number(field.type),
        }
        for field in schema
    ]


def row_values(batch: Any) -> list[list[Any]]:
    """The rows of a batch."""
    columns = [[json_value(value) for value in python_values(each)] for each in batch.columns]
    return [list(row) for row in zip(*columns, strict=True)]


def python_values(column: Any) -> list[Any]:
    """The values of a column; times that Python has not are texts."""
    try:
        values: list[Any] = column.to_pylist()
    except (ValueError, OverflowError):
        return [_python_value(scalar) for scalar in column]
    return values


def _python_value(scalar: Any) -> Any:
    try:
        return scalar.as_py()
    except (ValueError, OverflowError):
        value = getattr(scalar, "value", None)
    if value in _INFINITIES:
        return "infinity" if value > 0 else "-infinity"
    try:
        return scalar.cast(pa.string()).as_py()
    except pa.ArrowException:
        return "<value out of range>"


def json_value(value: Any) -> Any:
    """The JSON form of a value; text if JSON has none."""
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, int):
        return value if abs(value) <= _MAX_INTEGER else str(value)
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    return text_value(value, _MAX_TEXT)


def text_value(value: Any, limit: int | None = None) -> str:
    """A value as text: bytes as hexadecimal digits, nested values as JSON."""
    if isinstance(value, bytes):
        text = value.hex()
    elif isinstance(value, dict | list):
        text = json.dumps(value, default=text_value, ensure_ascii=False)
    else:
        text = str(value)
    return text if limit is None or len(text) <= limit else text[:limit] + "…"


def _is_number(type_: Any) -> bool:
    return bool(
        pa.types.is_integer(type_) or pa.types.is_floating(type_) or pa.types.is_decimal(type_)
    )
