"""SQLAlchemy types for DuckDB's types."""

from __future__ import annotations

import datetime as dt
import re
import uuid
from collections.abc import Callable, Iterator, Mapping
from decimal import Decimal
from typing import Any

import pyarrow as pa
from sqlalchemy import types as sqltypes
from sqlalchemy.engine.processors import to_decimal_processor_factory
from sqlalchemy.sql.sqltypes import _AbstractInterval
from sqlalchemy.sql.type_api import NativeForEmulated
from sqlalchemy.types import TypeEngine, UserDefinedType
from sqlalchemy.util import warn

Processor = Callable[[Any], Any]


def _is(coltype: Any, predicate: Callable[[Any], bool]) -> bool:
    """True if a result's column has such an Arrow type; False if its type is unknown."""
    return isinstance(coltype, pa.DataType) and predicate(coltype)


class _Named(UserDefinedType[Any]):
    """A type that is only a name in SQL."""

    cache_ok = True

    def get_col_spec(self, **kw: Any) -> str:
        return type(self).__name__


class TINYINT(_Named, sqltypes.SmallInteger):
    """An integer of 8 bits."""


class UTINYINT(_Named, sqltypes.SmallInteger):
    """An unsigned integer of 8 bits."""


class USMALLINT(_Named, sqltypes.Integer):
    """An unsigned integer of 16 bits."""


class UINTEGER(_Named, sqltypes.BigInteger):
    """An unsigned integer of 32 bits."""


class UBIGINT(_Named, sqltypes.Integer):
    """An unsigned integer of 64 bits."""


class HUGEINT(_Named, sqltypes.Integer):
    """An integer of 128 bits, sent as a decimal or as digits."""

    def result_processor(self, dialect: Any, coltype: Any) -> Processor | None:
        if _is(coltype, pa.types.is_integer):
            return None
        return lambda value: None if value is None else int(value)


class UHUGEINT(HUGEINT):
    """An unsigned integer of 128 bits."""


class BIGNUM(HUGEINT):
    """An integer of any size."""


class BIT(_Named, sqltypes.String):
    """A string of zeros and ones."""


class TIMESTAMP_S(_Named, sqltypes.DateTime):
    """A timestamp in whole seconds."""


class TIMESTAMP_MS(_Named, sqltypes.DateTime):
    """A timestamp in milliseconds."""


class TIMESTAMP_NS(_Named, sqltypes.DateTime):
    """A timestamp in nanoseconds; a pandas Timestamp in Python."""


class VARIANT(_Named):
    """A value of any type; cast it to read it."""


class GEOMETRY(_Named):
    """A geometry, as WKT text or WKB bytes."""


class STRUCT(UserDefinedType[dict[str, Any]]):
    """Named fields: ``STRUCT({"x": Integer(), "y": Double()})``; a dict in Python."""

    cache_ok = False
    _keyword = "STRUCT"

    def __init__(self, fields: Mapping[str, TypeEngine[Any]]) -> None:
        self.fields = dict(fields)

    def spec(self, compiler: Any) -> str:
        """The type in SQL."""
        quote = compiler.dialect.identifier_preparer.quote
        inner = (f"{quote(name)} {compiler.process(kind)}" for name, kind in self.fields.items())
        return f"{self._keyword}({', '.join(inner)})"


class UNION(STRUCT):
    """One of several named types; the value itself in Python."""

    _keyword = "UNION"


class MAP(UserDefinedType[list[tuple[Any, Any]]]):
    """Keys and values: ``MAP(String(), Integer())``; a list of pairs in Python."""

    cache_ok = False

    def __init__(self, key: TypeEngine[Any], value: TypeEngine[Any]) -> None:
        self.key = key
        self.value = value

    def spec(self, compiler: Any) -> str:
        """The type in SQL."""
        return f"MAP({compiler.process(self.key)}, {compiler.process(self.value)})"


class Interval(NativeForEmulated, _AbstractInterval):
    """DuckDB's INTERVAL; a timedelta unless it has months, whose length varies."""

    __visit_name__ = "INTERVAL"

    @classmethod
    def adapt_emulated_to_native(cls, impl: Any, **kw: Any) -> Interval:
        return cls()

    def bind_processor(self, dialect: Any) -> None:
        return None

    def literal_processor(self, dialect: Any) -> Processor:
        return _interval_literal

    def result_processor(self, dialect: Any, coltype: Any) -> Processor:
        return _timedelta


def _interval_literal(value: dt.timedelta) -> str:
    # Parquet stores the time of an interval in 32 bits of milliseconds: days are apart.
    time = (value - dt.timedelta(value.days)) // dt.timedelta(microseconds=1)
    return f"(to_days({value.days}) + to_microseconds({time}))"


def _timedelta(value: Any) -> Any:
    if value is None or isinstance(value, dt.timedelta) or value.months:
        return value
    return dt.timedelta(days=value.days, microseconds=value.nanoseconds // 1000)


class Uuid(sqltypes.Uuid[Any]):
    """A UUID, sent as text; without hyphens if it is not DuckDB's own type."""

    def bind_processor(self, dialect: Any) -> Processor | None:
        if not self.native_uuid:
            return super().bind_processor(dialect)
        return lambda value: None if value is None else str(value)

    def result_processor(self, dialect: Any, coltype: Any) -> Any:
        if not self.native_uuid:
            return super().result_processor(dialect, coltype)  # type: ignore[no-untyped-call]
        if not self.as_uuid:
            return None
        return lambda value: None if value is None else uuid.UUID(value)


class Time(sqltypes.Time):
    """A time of day; sent as text if it has a time zone."""

    def result_processor(self, dialect: Any, coltype: Any) -> Processor | None:
        if _is(coltype, pa.types.is_time):
            return None
        return lambda value: dt.time.fromisoformat(value) if isinstance(value, str) else value


class Float(sqltypes.Float[Any]):
    """A float; converted only if the result has another type."""

    def result_processor(self, dialect: Any, coltype: Any) -> Any:
        if not self.asdecimal and _is(coltype, pa.types.is_floating):
            return None
        return super().result_processor(dialect, coltype)  # type: ignore[no-untyped-call]


class Numeric(sqltypes.Numeric[Any]):
    """A decimal; quotients and averages of decimals arrive as floats."""

    def result_processor(self, dialect: Any, coltype: Any) -> Any:
        if not self.asdecimal:
            return super().result_processor(dialect, coltype)  # type: ignore[no-untyped-call]
        if _is(coltype, pa.types.is_decimal):
            return None
        return to_decimal_processor_factory(Decimal, self._effective_decimal_return_scale)


class LargeBinary(sqltypes.LargeBinary):
    """Bytes; their literals are hexadecimal."""

    def literal_processor(self, dialect: Any) -> Processor:
        return lambda value: f"from_hex('{bytes(value).hex()}')"


class _JsonPath:
    """Always sent as a JSON path, because a plain key may look like one."""

    def bind_processor(self, dialect: Any) -> Processor:
        return _json_path

    def literal_processor(self, dialect: Any) -> Processor:
        return lambda value: "'" + _json_path(value).replace("'", "''") + "'"


def _json_path(value: Any) -> str:
    steps = value if isinstance(value, list | tuple) else [value]
    return "$" + "".join(f"[{step}]" if isinstance(step, int) else f'."{step}"' for step in steps)


class JSONIndexType(_JsonPath, sqltypes.JSON.JSONIndexType):
    """A key or an index of a JSON document."""


class JSONPathType(_JsonPath, sqltypes.JSON.JSONPathType):
    """A path of keys and indexes."""


COLSPECS: dict[type[Any], type[Any]] = {
    sqltypes.JSON.JSONIndexType: JSONIndexType,
    sqltypes.JSON.JSONPathType: JSONPathType,
    sqltypes.Interval: Interval,
    sqltypes.Uuid: Uuid,
    sqltypes.Float: Float,
    sqltypes.Numeric: Numeric,
    sqltypes.Time: Time,
    sqltypes.LargeBinary: LargeBinary,
}


_SIMPLE: dict[str, Callable[[], TypeEngine[Any]]] = {
    "BOOLEAN": sqltypes.BOOLEAN,
    "TINYINT": TINYINT,
    "SMALLINT": sqltypes.SMALLINT,
    "INTEGER": sqltypes.INTEGER,
    "BIGINT": sqltypes.BIGINT,
    "HUGEINT": HUGEINT,
    "UTINYINT": UTINYINT,
    "USMALLINT": USMALLINT,
    "UINTEGER": UINTEGER,
    "UBIGINT": UBIGINT,
    "UHUGEINT": UHUGEINT,
    "BIGNUM": BIGNUM,
    "FLOAT": sqltypes.REAL,
    "DOUBLE": sqltypes.DOUBLE,
    "VARCHAR": sqltypes.VARCHAR,
    "BLOB": sqltypes.BLOB,
    "BIT": BIT,
    "DATE": sqltypes.DATE,
    "TIME": sqltypes.TIME,
    "TIME WITH TIME ZONE": lambda: sqltypes.TIME(timezone=True),
    "TIMESTAMP": sqltypes.TIMESTAMP,
    "TIMESTAMP WITH TIME ZONE": lambda: sqltypes.TIMESTAMP(timezone=True),
    "TIMESTAMP_S": TIMESTAMP_S,
    "TIMESTAMP_MS": TIMESTAMP_MS,
    "TIMESTAMP_NS": TIMESTAMP_NS,
    "INTERVAL": Interval,
    "UUID": sqltypes.UUID,
    "JSON": sqltypes.JSON,
    "VARIANT": VARIANT,
    "GEOMETRY": GEOMETRY,
    '"NULL"': sqltypes.NullType,
}
_CALLED = re.compile(r"(DECIMAL|STRUCT|UNION|MAP|ENUM)\((.*)\)", re.DOTALL)
_LIST = re.compile(r"(.*)\[\d*\]", re.DOTALL)
_NAMED = re.compile(r'("(?:[^"]|"")*"|[^\s"]+) (.*)', re.DOTALL)


def parse_type(text: str) -> TypeEngine[Any]:
    """The type for DuckDB's name of it.

    >>> parse_type("STRUCT(a DECIMAL(10,2), b VARCHAR[])").fields["a"]
    DECIMAL(precision=10, scale=2)
    """
    if text in _SIMPLE:
        return _SIMPLE[text]()
    if (array := _LIST.fullmatch(text)) is not None:
        return _array_of(parse_type(array[1]))
    if (called := _CALLED.fullmatch(text)) is not None:
        return _parse_call(called[1], list(_split(called[2])))
    warn(f"DuckDB's type {text} has no counterpart in SQLAlchemy.")
    return sqltypes.NullType()


def _array_of(item: TypeEngine[Any]) -> TypeEngine[Any]:
    # SQLAlchemy's arrays do not nest: they have dimensions.
    if isinstance(item, sqltypes.ARRAY):
        return sqltypes.ARRAY(item.item_type, dimensions=(item.dimensions or 1) + 1)
    return sqltypes.ARRAY(item, dimensions=1)


def _parse_call(name: str, arguments: list[str]) -> TypeEngine[Any]:
    match name:
        case "DECIMAL":
            return sqltypes.DECIMAL(int(arguments[0]), int(arguments[1]))
        case "ENUM":
            return sqltypes.Enum(*(value[1:-1].replace("''", "'") for value in arguments))
        case "MAP":
            return MAP(parse_type(arguments[0]), parse_type(arguments[1]))
    fields = {}
    for argument in arguments:
        named = _NAMED.fullmatch(argument)
        if named is None:  # the fields of a row() have no names
            return sqltypes.NullType()
        field = named[1][1:-1].replace('""', '"') if named[1].startswith('"') else named[1]
        fields[field] = parse_type(named[2])
    return UNION(fields) if name == "UNION" else STRUCT(fields)


def _split(text: str) -> Iterator[str]:
    """Splits at commas outside of parentheses and quotes."""
    depth, quote, start = 0, "", 0
    for position, character in enumerate(text):
        if quote:
            quote = "" if character == quote else quote  # the second of two quotes reopens it
        elif character in "'\"":
            quote = character
        elif character in "()":
            depth += 1 if character == "(" else -1
        elif character == "," and depth == 0:
            yield text[start:position].strip()
            start = position + 1
    yield text[start:].strip()
