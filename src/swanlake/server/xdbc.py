"""GetXdbcTypeInfo: DuckDB's types as ODBC and JDBC describe them."""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from swanlake.sessions.results.columns import PRECISIONS

XDBC_TYPE_INFO = pa.schema(
    [
        pa.field("type_name", pa.string(), nullable=False),
        pa.field("data_type", pa.int32(), nullable=False),
        pa.field("column_size", pa.int32()),
        pa.field("literal_prefix", pa.string()),
        pa.field("literal_suffix", pa.string()),
        pa.field("create_params", pa.list_(pa.field("item", pa.string(), nullable=False))),
        pa.field("nullable", pa.int32(), nullable=False),
        pa.field("case_sensitive", pa.bool_(), nullable=False),
        pa.field("searchable", pa.int32(), nullable=False),
        pa.field("unsigned_attribute", pa.bool_()),
        pa.field("fixed_prec_scale", pa.bool_(), nullable=False),
        pa.field("auto_increment", pa.bool_()),
        pa.field("local_type_name", pa.string()),
        pa.field("minimum_scale", pa.int32()),
        pa.field("maximum_scale", pa.int32()),
        pa.field("sql_data_type", pa.int32(), nullable=False),
        pa.field("datetime_subcode", pa.int32()),
        pa.field("num_prec_radix", pa.int32()),
        pa.field("interval_precision", pa.int32()),
    ]
)

_NULLABLE, _SEARCHABLE_FULL, _SEARCHABLE_BASIC = 1, 3, 2
_DATETIME, _INTERVAL = 9, 10


def _row(name: str, data_type: int, **more: Any) -> dict[str, Any]:
    return {
        "type_name": name,
        "data_type": data_type,
        "column_size": PRECISIONS.get(name),
        "nullable": _NULLABLE,
        "case_sensitive": False,
        "searchable": _SEARCHABLE_BASIC,
        "fixed_prec_scale": False,
        "local_type_name": name,
        "sql_data_type": data_type,
        **more,
    }


def _integer(name: str, data_type: int) -> dict[str, Any]:
    return _row(
        name,
        data_type,
        unsigned_attribute=name.startswith("U"),
        auto_increment=False,
        minimum_scale=0,
        maximum_scale=0,
        num_prec_radix=10,
    )


def _quoted(name: str, data_type: int, **more: Any) -> dict[str, Any]:
    quotes = {"literal_prefix": "'", "literal_suffix": "'"}
    return _row(name, data_type, **quotes | more)


def _datetime(name: str, data_type: int, subcode: int) -> dict[str, Any]:
    return _quoted(
        name,
        data_type,
        sql_data_type=_DATETIME,
        datetime_subcode=subcode,
        literal_prefix=f"{name} '",
    )


_ROWS = [
    _row("BOOLEAN", -7),
    _integer("TINYINT", -6),
    _integer("UTINYINT", -6),
    _integer("BIGINT", -5),
    _integer("UBIGINT", -5),
    _quoted("BLOB", -4),
    _quoted("UUID", 1),
    _integer("HUGEINT", 2),
    _integer("UHUGEINT", 2),
    _row(
        "DECIMAL",
        3,
        create_params=["precision", "scale"],
        unsigned_attribute=False,
        minimum_scale=0,
        maximum_scale=38,
        num_prec_radix=10,
    ),
    _integer("INTEGER", 4),
    _integer("UINTEGER", 4),
    _integer("SMALLINT", 5),
    _integer("USMALLINT", 5),
    _row("FLOAT", 7, unsigned_attribute=False, num_prec_radix=2),
    _row("DOUBLE", 8, unsigned_attribute=False, num_prec_radix=2),
    _quoted("INTERVAL", _INTERVAL, literal_prefix="INTERVAL '", interval_precision=6),
    _quoted("VARCHAR", 12, case_sensitive=True, searchable=_SEARCHABLE_FULL),
    _quoted("JSON", 12, case_sensitive=True, searchable=_SEARCHABLE_FULL),
    _datetime("DATE", 91, 1),
    _datetime("TIME", 92, 2),
    _datetime("TIMESTAMP", 93, 3),
    _datetime("TIMESTAMP WITH TIME ZONE", 93, 5),
]


def xdbc_type_info(data_type: int | None) -> Any:
    """All types, or those of one XDBC type, sorted by type and name."""
    rows = [row for row in _ROWS if data_type is None or row["data_type"] == data_type]
    rows.sort(key=lambda row: (row["data_type"], row["type_name"]))
    return pa.Table.from_pylist(rows, schema=XDBC_TYPE_INFO)
