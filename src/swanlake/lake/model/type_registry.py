"""Every type that a column of the lake can have, declared once.

The other modules derive their tables from here. The registry imports neither DuckDB, Arrow nor
Spark: the SQLite worker starts without them, so it names their types instead.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from enum import Enum, auto
from functools import lru_cache
from typing import Any

#: Types with children; they have no entry of their own.
NESTED = ("struct", "list", "map")

_DECIMAL = re.compile(r"decimal\(([0-9]+),\s*([0-9]+)\)", re.IGNORECASE)


class StatsOrder(Enum):
    """How the bounds of a column, which statistics hold as text, are compared."""

    INTEGER = auto()
    BOOLEAN = auto()
    FLOAT = auto()
    DECIMAL = auto()
    #: Dates, times and timestamps, any era and the infinities included.
    TIME = auto()
    #: By code point, which is the order of UTF-8; bounds may be cut off.
    TEXT = auto()
    #: By the text of the bound itself.
    BYTES = auto()
    #: Bounds are never stored.
    NONE = auto()


@dataclass(frozen=True)
class Inlined:
    """The column types that the stock extension chooses for inlined rows."""

    postgres: str
    sqlite: str

    @property
    def is_integer(self) -> bool:
        """True if both databases store, and their drivers return, integers."""
        return self.postgres in ("smallint", "integer", "bigint")


@dataclass(frozen=True)
class LakeType:
    """One type without children."""

    #: DuckLake's name, as the catalog stores it.
    name: str
    #: DuckDB's name, as SQL.
    duckdb: str
    order: StatsOrder = StatsOrder.NONE
    #: pyarrow's alias of the type that holds its values, below any extension type.
    arrow: str | None = None
    #: The class in ``pyspark.sql.types``; None if values travel as ``spark_as``.
    spark: str | None = None
    #: The lake type that carries every value through Spark.
    spark_as: str | None = None
    #: None if values, or their statistics, do not survive in the metadata.
    inlined: Inlined | None = None
    #: False if a driver's type cannot hold all values, or prints them in another way.
    is_scannable: bool = True
    #: Inclusive bounds of an integer type.
    range: tuple[int, int] | None = None
    #: Resolution of a timestamp.
    units_per_second: int | None = None
    #: False if only other programs create columns of it.
    is_creatable: bool = True
    #: False if Parquet cannot store it at all.
    is_storable: bool = True
    #: SQL that is true for the values that Parquet can store; ``{0}`` is the value.
    storable_if: str | None = None
    #: SQL that is true for the values that DuckDB silently stores as others in Parquet.
    changed_if: str | None = None
    #: False if Parquet silently stores less than the type holds.
    is_exact_in_files: bool = True
    #: DuckDB's type that files store in its place; readers cast it back.
    stored_as: str | None = None


_TEXT = "varchar"
_AS_TEXT, _AS_BYTES = Inlined(_TEXT, _TEXT), Inlined("bytea", _TEXT)


#: The largest number of DECIMAL(38,0), the widest integer that Parquet stores exactly.
_WIDEST_STORED = 10**38 - 1


def _integer(bits: int, duckdb: str, inlined: str | None, **more: Any) -> LakeType:
    unsigned = duckdb.startswith("U")
    name = f"{'u' if unsigned else ''}int{bits}"
    sqlite = _TEXT if inlined == _TEXT else "bigint"
    return LakeType(
        name,
        duckdb,
        StatsOrder.INTEGER,
        arrow=name if bits <= 64 else None,
        inlined=Inlined(inlined, sqlite) if inlined else None,
        range=(0, 2**bits - 1) if unsigned else (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1),
        **more,
    )


def _wide_integer(duckdb: str) -> LakeType:
    """An integer of 128 bits: DuckDB writes it to files as DOUBLE, which loses digits.

    The stock extension stores no bounds of it, so files with and without them cannot be merged.
    """
    lowest = 0 if duckdb.startswith("U") else -_WIDEST_STORED
    return replace(
        _integer(128, duckdb, None, spark_as="varchar"),
        order=StatsOrder.NONE,
        storable_if=f"{{0}} BETWEEN {lowest} AND {_WIDEST_STORED}",
        stored_as="DECIMAL(38,0)",
    )


def _timestamp(name: str, duckdb: str, unit: str, per_second: int, **more: Any) -> LakeType:
    return LakeType(
        name,
        duckdb,
        StatsOrder.TIME,
        arrow=f"timestamp[{unit}]",
        inlined=_AS_TEXT,
        units_per_second=per_second,
        **more,
    )


#: Parquet has 32 bits for the time of an interval, in milliseconds beside its months and days.
_TOO_LONG_FOR_PARQUET = (
    "extract('hour' FROM {0}) * 3600000 + extract('minute' FROM {0}) * 60000 "
    "+ extract('millisecond' FROM {0}) >= 4294967296"
)

_TYPES = (
    LakeType(
        "boolean",
        "BOOLEAN",
        StatsOrder.BOOLEAN,
        "bool",
        spark="BooleanType",
        inlined=Inlined("boolean", "bigint"),
    ),
    _integer(8, "TINYINT", "smallint", spark="ByteType"),
    _integer(16, "SMALLINT", "smallint", spark="ShortType"),
    _integer(32, "INTEGER", "integer", spark="IntegerType"),
    _integer(64, "BIGINT", "bigint", spark="LongType"),
    _wide_integer("HUGEINT"),
    _integer(8, "UTINYINT", "integer", spark_as="int16"),
    _integer(16, "USMALLINT", "integer", spark_as="int32"),
    _integer(32, "UINTEGER", "bigint", spark_as="int64"),
    _integer(64, "UBIGINT", _TEXT, spark_as="decimal(20,0)"),
    _wide_integer("UHUGEINT"),
    LakeType(
        "float32",
        "FLOAT",
        StatsOrder.FLOAT,
        "float",
        spark="FloatType",
        inlined=Inlined("real", _TEXT),
    ),
    LakeType(
        "float64",
        "DOUBLE",
        StatsOrder.FLOAT,
        "double",
        spark="DoubleType",
        inlined=Inlined("double precision", _TEXT),
    ),
    LakeType("date", "DATE", StatsOrder.TIME, "date32", spark="DateType", inlined=_AS_TEXT),
    LakeType(
        "time",
        "TIME",
        StatsOrder.TIME,
        "time64[us]",
        spark_as="varchar",
        inlined=Inlined("time", _TEXT),
        is_scannable=False,
    ),
    LakeType("timetz", "TIME WITH TIME ZONE", spark_as="varchar", is_exact_in_files=False),
    _timestamp("timestamp", "TIMESTAMP", "us", 10**6, spark="TimestampNTZType"),
    _timestamp(
        "timestamp_s", "TIMESTAMP_S", "s", 1, spark_as="timestamp", storable_if="isfinite({0})"
    ),
    _timestamp("timestamp_ms", "TIMESTAMP_MS", "ms", 10**3, spark_as="timestamp"),
    _timestamp("timestamp_ns", "TIMESTAMP_NS", "ns", 10**9, spark_as="varchar"),
    _timestamp("timestamptz", "TIMESTAMP WITH TIME ZONE", "us", 10**6, spark="TimestampType"),
    LakeType(
        "interval",
        "INTERVAL",
        spark_as="varchar",
        storable_if=f"NOT contains({{0}}::VARCHAR, '-') AND NOT ({_TOO_LONG_FOR_PARQUET})",
        changed_if=_TOO_LONG_FOR_PARQUET,
        is_exact_in_files=False,
    ),
    LakeType(
        "varchar", "VARCHAR", StatsOrder.TEXT, "string", spark="StringType", inlined=_AS_BYTES
    ),
    LakeType(
        "json",
        "JSON",
        StatsOrder.TEXT,
        "string",
        spark_as="varchar",
        inlined=_AS_BYTES,
        is_scannable=False,
    ),
    LakeType(
        "blob",
        "BLOB",
        StatsOrder.BYTES,
        "binary",
        spark="BinaryType",
        inlined=Inlined("bytea", "blob"),
        is_scannable=False,
    ),
    LakeType("uuid", "UUID", StatsOrder.BYTES, spark_as="varchar", inlined=Inlined("uuid", _TEXT)),
    LakeType("variant", "VARIANT"),
    LakeType("geometry", "GEOMETRY"),
    LakeType(
        "timestamp_us", "TIMESTAMP", StatsOrder.TIME, spark_as="timestamp", is_creatable=False
    ),
    # DuckLake names it, and DuckDB cannot write it to Parquet.
    LakeType("time_ns", "TIME_NS", StatsOrder.TIME, is_creatable=False, is_storable=False),
)

#: By DuckLake's name; decimals, which have parameters, are not in it.
LAKE_TYPES = {type_.name: type_ for type_ in _TYPES}
#: By DuckDB's name, for columns of new tables.
CREATABLE_TYPES = {type_.duckdb: type_ for type_ in _TYPES if type_.is_creatable}


@lru_cache(maxsize=1024)
def find_type(name: str) -> LakeType | None:
    """The type with DuckLake's name ``name``; None for nested and unknown ones."""
    if size := decimal_size(name):
        return LakeType(
            name,
            f"DECIMAL({size[0]},{size[1]})",
            StatsOrder.DECIMAL,
            spark="DecimalType",
            inlined=Inlined("numeric", _TEXT),
        )
    return LAKE_TYPES.get(name)


def decimal_size(name: str) -> tuple[int, int] | None:
    """The precision and scale of ``decimal(10,2)``; None for every other type."""
    found = _DECIMAL.fullmatch(name)
    return (int(found[1]), int(found[2])) if found else None
