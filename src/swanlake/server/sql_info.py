"""GetSqlInfo: the server's name, version and SQL features."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pyarrow as pa

from swanlake._version import __version__

_VALUE_FIELDS = [
    pa.field("string_value", pa.string()),
    pa.field("bool_value", pa.bool_()),
    pa.field("bigint_value", pa.int64()),
    pa.field("int32_bitmask", pa.int32()),
    pa.field("string_list", pa.list_(pa.string())),
    pa.field("int32_to_int32_list_map", pa.map_(pa.int32(), pa.list_(pa.int32()))),
]
_STRING, _BOOL, _BIGINT, _BITMASK, _LIST, _MAP = range(len(_VALUE_FIELDS))
SQL_INFO = pa.schema(
    [
        pa.field("info_name", pa.uint32(), nullable=False),
        pa.field("value", pa.dense_union(_VALUE_FIELDS), nullable=False),
    ]
)

_UNLIMITED = 0
_KEYWORDS = """
    ANTI ASOF ATTACH COLUMNS DETACH EXCLUDE LAMBDA MACRO PIVOT POSITIONAL PRAGMA QUALIFY
    REPLACE SEMI SUMMARIZE UNPIVOT
""".split()
_NUMERIC = """
    abs acos asin atan atan2 cbrt ceil cos cot degrees exp floor ln log log10 log2 mod pi
    pow power radians random round sign sin sqrt tan trunc
""".split()
_TEXT = """
    ascii chr concat concat_ws contains format left length lower lpad ltrim regexp_extract
    regexp_matches regexp_replace repeat replace reverse right rpad rtrim split starts_with
    strlen strpos substring translate trim upper
""".split()
_SYSTEM = """
    coalesce current_catalog current_database current_schema ifnull nullif typeof version
""".split()
_DATETIME = """
    age current_date current_timestamp date_add date_diff date_part date_sub date_trunc
    dayname epoch extract last_day make_date make_timestamp monthname now strftime strptime
    time_bucket
""".split()
#: DuckDB casts between all types, by way of text if there is no direct cast.
_CONVERSIONS = [(source, list(range(20))) for source in range(20)]

# Bitmasks: bit n stands for the value n of the enumeration in the specification.
_VALUES: dict[int, tuple[int, Any]] = {
    0: (_STRING, "SwanLake"),
    1: (_STRING, __version__),
    2: (_STRING, pa.__version__),
    3: (_BOOL, False),  # read only
    4: (_BOOL, True),  # SQL
    5: (_BOOL, False),  # Substrait
    6: (_STRING, ""),
    7: (_STRING, ""),
    8: (_BITMASK, 1),  # transactions, no savepoints
    9: (_BOOL, True),  # cancel
    10: (_BOOL, True),  # bulk ingestion
    11: (_BOOL, True),  # ingestion inside a transaction
    100: (_BITMASK, _UNLIMITED),  # statement timeout: set by query_timeout_seconds
    101: (_BITMASK, _UNLIMITED),
    500: (_BOOL, True),  # CREATE and DROP of catalogs (ATTACH), schemas, tables
    501: (_BOOL, True),
    502: (_BOOL, True),
    503: (_BIGINT, 1),  # names are case-insensitive and stored as written
    504: (_STRING, '"'),
    505: (_BIGINT, 1),
    506: (_BOOL, True),
    507: (_BIGINT, 3),  # NULLs sort last
    508: (_LIST, _KEYWORDS),
    509: (_LIST, _NUMERIC),
    510: (_LIST, _TEXT),
    511: (_LIST, _SYSTEM),
    512: (_LIST, _DATETIME),
    513: (_STRING, "\\"),
    514: (_STRING, ""),
    515: (_BOOL, True),
    516: (_BOOL, True),
    517: (_MAP, _CONVERSIONS),
    518: (_BOOL, True),
    519: (_BOOL, False),
    520: (_BOOL, True),
    521: (_BOOL, True),
    522: (_BITMASK, 0b11),  # GROUP BY unrelated, and beyond the select list
    523: (_BOOL, True),
    524: (_BOOL, True),
    525: (_BITMASK, 0b111),  # minimum, core and extended grammar
    526: (_BITMASK, 0b111),  # SQL-92 entry, intermediate, full
    527: (_BOOL, False),
    528: (_BITMASK, 0b110),  # limited and full outer joins
    529: (_STRING, "schema"),
    530: (_STRING, "function"),
    531: (_STRING, "catalog"),
    532: (_BIGINT, 1),
    533: (_BITMASK, 0b011),  # schemas in calls and index definitions
    534: (_BITMASK, 0b011),
    535: (_BITMASK, 0),
    536: (_BOOL, False),
    537: (_BOOL, False),
    538: (_BITMASK, 0b1111),  # subqueries in comparisons, EXISTS, IN, quantified
    539: (_BOOL, True),
    540: (_BITMASK, 0b11),  # UNION and UNION ALL
    **{name: (_BIGINT, _UNLIMITED) for name in range(541, 562) if name != 556},
    556: (_BOOL, True),
    562: (_BIGINT, 3),  # snapshot isolation: repeatable read is the nearest name
    563: (_BOOL, True),
    564: (_BITMASK, 0b01000),
    565: (_BOOL, False),
    566: (_BOOL, False),
    567: (_BITMASK, 0b0010),  # forward only
    568: (_BITMASK, 0b010),
    569: (_BITMASK, 0b010),
    570: (_BITMASK, 0),
    571: (_BITMASK, 0),
    572: (_BOOL, True),
    573: (_BOOL, False),
    574: (_BOOL, True),
    575: (_BOOL, False),
    576: (_BOOL, False),
}


def sql_info(wanted: Iterable[int]) -> Any:
    """The requested values, or all of them; unknown ones are omitted."""
    names = [name for name in (wanted or _VALUES) if name in _VALUES]
    children: list[list[Any]] = [[] for _ in _VALUE_FIELDS]
    offsets = []
    for name in names:
        child, value = _VALUES[name]
        offsets.append(len(children[child]))
        children[child].append(value)
    value_array = pa.UnionArray.from_dense(
        pa.array([_VALUES[name][0] for name in names], pa.int8()),
        pa.array(offsets, pa.int32()),
        [
            pa.array(values, field.type)
            for values, field in zip(children, _VALUE_FIELDS, strict=True)
        ],
        [field.name for field in _VALUE_FIELDS],
    )
    return pa.Table.from_arrays([pa.array(names, pa.uint32()), value_array], schema=SQL_INFO)
