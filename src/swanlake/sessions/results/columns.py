"""Flight SQL's metadata of columns: the SQL type, its precision and its scale."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Any

import pyarrow as pa

PREFIX = "ARROW:FLIGHT:SQL:"
_INTEGERS = {
    "TINYINT": 3,
    "UTINYINT": 3,
    "SMALLINT": 5,
    "USMALLINT": 5,
    "INTEGER": 10,
    "UINTEGER": 10,
    "BIGINT": 19,
    "UBIGINT": 20,
    "HUGEINT": 38,  # sent as a decimal, which has no more digits
    "UHUGEINT": 39,
}
#: The precision of types without arguments: decimal digits, binary digits of floats, characters of
#: the text of other types.
PRECISIONS: Mapping[str, int] = _INTEGERS | {
    "BOOLEAN": 1,
    "DECIMAL": 38,
    "FLOAT": 24,
    "DOUBLE": 53,
    "UUID": 36,
    "DATE": 10,
    "TIME": 15,
    "TIMESTAMP": 26,
    "TIMESTAMP WITH TIME ZONE": 32,
    "INTERVAL": 32,
}
_DECIMAL = re.compile(r"DECIMAL\((\d+),\s*(\d+)\)")


@lru_cache(maxsize=1024)
def type_metadata(sql_type: str) -> Any:
    """The metadata of columns of a type as DuckDB prints it."""
    # DuckDB prints all values of an enumeration, which can be thousands.
    name = "ENUM" if sql_type.startswith("ENUM(") else sql_type
    precision, scale = PRECISIONS.get(name), 0 if name in _INTEGERS else None
    if (decimal := _DECIMAL.fullmatch(name)) is not None:
        precision, scale = int(decimal[1]), int(decimal[2])
    values = {"TYPE_NAME": name, "PRECISION": precision, "SCALE": scale}
    return pa.KeyValueMetadata(
        {f"{PREFIX}{key}": str(value) for key, value in values.items() if value is not None}
    )


def with_column_metadata(schema: Any, sql_types: Iterable[object]) -> Any:
    """The schema of a result, with the metadata of the columns' types."""
    return pa.schema(
        [
            field.with_metadata(type_metadata(str(sql_type)))
            for field, sql_type in zip(schema, sql_types, strict=True)
        ]
    )
