"""Converts Python values to Arrow types without loss."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Mapping
from datetime import date, datetime, time
from decimal import Decimal
from functools import lru_cache
from typing import Any
from uuid import UUID

import pyarrow as pa

#: What pyarrow raises for a value that does not fit a type.
CONVERSION_ERRORS = (pa.ArrowException, TypeError, ValueError, OverflowError, AttributeError)

_types = pa.types
_FROM_TEXT: list[tuple[Callable[[Any], bool], Callable[[str], Any]]] = [
    (_types.is_timestamp, datetime.fromisoformat),
    (_types.is_date, date.fromisoformat),
    (_types.is_time, time.fromisoformat),
    (_types.is_decimal, Decimal),
]


@lru_cache(maxsize=256)
def field_names(kind: Any) -> tuple[str, ...]:
    """The fields of a dataclass."""
    return tuple(field.name for field in dataclasses.fields(kind))


def size_check(type_: Any) -> Callable[[Any], int]:
    """A fast check for values of a type: the bytes of a value that certainly fits, else -1.

    Every value of a row is checked, and converting a single value with pyarrow takes ten times as
    long.
    """
    if _types.is_string(type_):
        return lambda value: len(value) if type(value) is str and value.isascii() else -1
    if _types.is_binary(type_):
        return lambda value: len(value) if type(value) is bytes else -1
    if _types.is_integer(type_):
        width = type_.bit_width // 8
        low = -(1 << (type_.bit_width - 1)) if _types.is_signed_integer(type_) else 0
        high = low + (1 << type_.bit_width)
        return lambda value: width if type(value) is int and low <= value < high else -1
    plain = {pa.float64(): float, pa.bool_(): bool, pa.date32(): date, pa.timestamp("us"): datetime}
    if type_ in plain:
        kind, width = plain[type_], max(1, type_.bit_width // 8)
        return lambda value: width if type(value) is kind else -1
    return lambda value: -1


def convert_value(value: Any, type_: Any) -> tuple[Any, int]:
    """A value that pyarrow accepts for a type, and its bytes; raises CONVERSION_ERRORS."""
    value = coerce(value, type_)
    array = pa.array([value], type_)
    scalar = array[0]
    if _types.is_integer(type_) and scalar.as_py() != value:
        raise ValueError("it is not a whole number")  # pyarrow would truncate it
    if _types.is_nested(type_) or isinstance(value, bytearray | memoryview):
        value = scalar.as_py()  # a copy: the caller may change the original
    return value, array.nbytes


def coerce(value: Any, type_: Any) -> Any:
    """A value in the Python type that pyarrow expects for an Arrow type, where that is obvious."""
    if value is None:
        return None
    if _types.is_nested(type_):
        return _coerce_nested(value, type_)
    if _types.is_string(type_):
        return _as_text(value)
    if _types.is_decimal(type_) and isinstance(value, float):
        return round(Decimal(repr(float(value))), type_.scale)  # as DuckDB does
    if isinstance(value, str):
        for is_type, parse in _FROM_TEXT:
            if is_type(type_):
                return parse(value)
    return value


def _coerce_nested(value: Any, type_: Any) -> Any:
    if _types.is_map(type_):
        pairs = value.items() if isinstance(value, Mapping) else value
        key_type, item_type = type_.key_type, type_.item_type
        return [(coerce(key, key_type), coerce(item, item_type)) for key, item in pairs]
    if _types.is_struct(type_):
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            value = {name: getattr(value, name) for name in field_names(type(value))}
        fields = {field.name: field.type for field in type_.fields}
        unknown = [name for name in value if name not in fields]
        if unknown:  # pyarrow would drop them silently
            raise ValueError(f"it has no field {unknown[0]!r}, only {', '.join(fields)}")
        return {name: coerce(item, fields[name]) for name, item in value.items()}
    if _types.is_dictionary(type_):
        return coerce(value, type_.value_type)
    if isinstance(value, str | bytes):
        raise TypeError("it is not a list")
    return [coerce(item, type_.value_type) for item in value]


def _as_text(value: Any) -> Any:
    """The text of a value; also for types that the server returns as text, such as UUID."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float | Decimal | UUID | date | time):
        return str(value)
    if isinstance(value, dict | list):
        return json.dumps(value, default=_as_text)
    return value
