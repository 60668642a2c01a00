"""What the rows of an INSERT are to the columns of its table, as far as its text tells.

>>> literal_table("VALUES (1, 'swan'), (2, NULL)", head, table)
pyarrow.Table
...
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from datetime import date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa

from swanlake.lake.layout import Column, DefaultKind, Table, folded
from swanlake.sql.insert import InsertHead
from swanlake.sql.quoting import literal

_LONGEST = 64 * 1024
_NUMBER = r"[+-]?[0-9]++(?:\.[0-9]++)?+"
_TEXT = r"'[^']*+(?:''[^']*+)*+'"
_ONE = rf"(?:{_NUMBER}|{_TEXT}|NULL\b|TRUE\b|FALSE\b)"
_FLAGS = re.IGNORECASE | re.ASCII
_LITERAL = re.compile(_ONE, _FLAGS)
_ROW = re.compile(rf"\s*\(\s*({_ONE}(?:\s*,\s*{_ONE})*+)\s*\)\s*(,|;?\s*\Z)", _FLAGS)
_VALUES = re.compile(r"\s*VALUES\b", re.IGNORECASE)

_INTEGER = re.compile(r"[+-]?[0-9]{1,18}")
_POINT = re.compile(r"[+-]?([0-9]+)(?:\.([0-9]+))?")
_DATE = re.compile(r"'[0-9]{4}-[0-9]{2}-[0-9]{2}'")
_TIMESTAMP = re.compile(
    r"'[0-9]{4}-[0-9]{2}-[0-9]{2}[ T](?:[01][0-9]|2[0-3]):[0-9]{2}:[0-9]{2}(?:\.[0-9]{1,6})?'"
)
_DECIMAL = re.compile(r"decimal\(([0-9]+),\s*([0-9]+)\)")
#: So many digits are the same number in every type that can hold it.
_SAFE_DIGITS = 15


class _Unsure(Exception):
    """A literal that does not say at a glance what it becomes in its column."""


def placed(table: Table, head: InsertHead, given: Sequence[str]) -> list[int | None] | None:
    """For each column of the table which of the given ones it gets; None if DuckDB must refuse it.

    A column that gets none of them has its default.
    """
    columns = [folded(column.name) for column in table.columns]
    if head.by_name:
        names = [folded(name) for name in given]
    elif head.columns is not None:
        names = [folded(name) for name in head.columns]
    else:
        names = columns
    if head.by_name and head.columns is not None:
        return None
    if len(names) != len(given) or len(set(names)) < len(names) or not set(columns) >= set(names):
        return None
    places = {name: number for number, name in enumerate(names)}
    return [places.get(name) for name in columns]


def literal_rows(values: str) -> list[list[str]] | None:
    """The literals of ``VALUES (1, 'a'), (-2, NULL)``; None if there is anything else.

    That are also comments, more parentheses, and rows of different lengths.
    """
    start = _VALUES.match(values) if len(values) <= _LONGEST else None
    found = None if start is None else _ROW.match(values, start.end())
    rows: list[list[str]] = []
    while found is not None:
        rows.append(_LITERAL.findall(found[1]))
        if len(rows[-1]) != len(rows[0]):
            return None
        if found[2] != ",":
            return rows
        found = _ROW.match(values, found.end())
    return None


def literal_table(values: str, head: InsertHead, table: Table) -> pa.Table | None:
    """The rows that an INSERT of literals inserts, with all columns of the table.

    None if it takes DuckDB to tell what becomes of a value, or to refuse it. Only literals are read
    that are of their column's type already, so no setting of a session matters.
    """
    rows = None if head.by_name else literal_rows(values)
    places = None if rows is None else placed(table, head, rows[0])
    if rows is None or places is None:
        return None
    try:
        columns = [
            _column(column, [_default(column)] * len(rows))
            if place is None
            else _column(column, [row[place] for row in rows])
            for place, column in zip(places, table.columns, strict=True)
        ]
    except (_Unsure, ValueError):  # the thirtieth of February
        return None
    return pa.table(columns, names=[column.name for column in table.columns])


def _column(column: Column, literals: list[str]) -> pa.Array:
    type_, read = _reading(column.type)
    values = [None if text.lower() == "null" else read(text) for text in literals]
    if not column.nullable and None in values:
        raise _Unsure
    return pa.array(values, type_)


def _default(column: Column) -> str:
    if column.default is None:
        return "NULL"
    if column.default.kind is DefaultKind.EXPRESSION:
        raise _Unsure
    text = column.default.text
    return literal(text) if column.type in ("varchar", "date", "timestamp") else text


def _reading(type_: str) -> tuple[pa.DataType, Callable[[str], Any]]:
    """The Arrow type of a column, and what reads its literals."""
    if found := _DECIMAL.fullmatch(type_):
        width, scale = int(found[1]), int(found[2])
        return pa.decimal128(width, scale), lambda text: _decimal(text, width, scale)
    if type_ not in _READINGS:
        raise _Unsure
    return _READINGS[type_]


def _integers(type_: pa.DataType, low: int, high: int) -> tuple[pa.DataType, Callable[[str], int]]:
    def read(text: str) -> int:
        value = int(text) if _INTEGER.fullmatch(text) else None
        if value is None or not low <= value <= high:
            raise _Unsure
        return value

    return type_, read


def _float(text: str) -> float:
    found = _POINT.fullmatch(text)
    if found is None or len(found[1]) + len(found[2] or "") > _SAFE_DIGITS:
        raise _Unsure
    return float(text) + 0.0  # to DuckDB, -0.0 is a decimal, which has no negative zero


def _decimal(text: str, width: int, scale: int) -> Decimal:
    found = _POINT.fullmatch(text)
    if found is None or len(found[1]) > width - scale or len(found[2] or "") > scale:
        raise _Unsure
    return Decimal(text)


def _boolean(text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise _Unsure
    return text.lower() == "true"


def _text(text: str) -> str:
    if not text.startswith("'") or "\0" in text:
        raise _Unsure
    return text[1:-1].replace("''", "'")


def _date(text: str) -> date:
    return date.fromisoformat(_of_form(_DATE, text))


def _timestamp(text: str) -> datetime:
    return datetime.fromisoformat(_of_form(_TIMESTAMP, text))


def _of_form(form: re.Pattern[str], text: str) -> str:
    if form.fullmatch(text) is None:
        raise _Unsure
    return text[1:-1]


_READINGS: dict[str, tuple[pa.DataType, Callable[[str], Any]]] = {
    "boolean": (pa.bool_(), _boolean),
    "int8": _integers(pa.int8(), -(2**7), 2**7 - 1),
    "int16": _integers(pa.int16(), -(2**15), 2**15 - 1),
    "int32": _integers(pa.int32(), -(2**31), 2**31 - 1),
    "int64": _integers(pa.int64(), -(2**63), 2**63 - 1),
    "uint8": _integers(pa.uint8(), 0, 2**8 - 1),
    "uint16": _integers(pa.uint16(), 0, 2**16 - 1),
    "uint32": _integers(pa.uint32(), 0, 2**32 - 1),
    "uint64": _integers(pa.uint64(), 0, 2**64 - 1),
    "float64": (pa.float64(), _float),
    "varchar": (pa.string(), _text),
    "date": (pa.date32(), _date),
    "timestamp": (pa.timestamp("us"), _timestamp),
}
