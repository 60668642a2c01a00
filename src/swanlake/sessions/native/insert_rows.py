"""Matches the rows of an INSERT with the columns of its table, and reads literal rows."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from datetime import date, datetime
from decimal import Decimal
from functools import lru_cache
from typing import Any

import pyarrow as pa

from swanlake.lake.model.layout import Column, DefaultKind, Table, folded
from swanlake.lake.model.type_registry import decimal_size, find_type
from swanlake.sql.insert import InsertHead
from swanlake.sql.quoting import literal
from swanlake.sql.statement import Kind, Statement

_MAX_LENGTH = 64 * 1024
_NUMBER = r"[+-]?[0-9]++(?:\.[0-9]++)?+"
_TEXT = r"'[^']*+(?:''[^']*+)*+'"
_VALUE = rf"(?:{_NUMBER}|{_TEXT}|NULL\b|TRUE\b|FALSE\b)"
_FLAGS = re.IGNORECASE | re.ASCII
_LITERAL = re.compile(_VALUE, _FLAGS)
_ROW = re.compile(rf"\s*\(\s*({_VALUE}(?:\s*,\s*{_VALUE})*+)\s*\)\s*(,|;?\s*\Z)", _FLAGS)
_VALUES = re.compile(r"\s*VALUES\b", re.IGNORECASE)

_INTEGER = re.compile(r"[+-]?[0-9]{1,18}")
_POINT = re.compile(r"[+-]?([0-9]+)(?:\.([0-9]+))?")
_DATE = re.compile(r"'[0-9]{4}-[0-9]{2}-[0-9]{2}'")
_TIMESTAMP = re.compile(
    r"'[0-9]{4}-[0-9]{2}-[0-9]{2}[ T](?:[01][0-9]|2[0-3]):[0-9]{2}:[0-9]{2}(?:\.[0-9]{1,6})?'"
)
#: A number of so many digits is the same in every type that can hold it.
_SAFE_DIGITS = 15


class _NeedsDuckDB(Exception):
    """A literal that only DuckDB can convert to its column's type."""


def match_columns(
    table: Table, head: InsertHead, inserted: Sequence[str]
) -> list[int | None] | None:
    """The position among the inserted columns for each column of the table.

    The position is None for a column that gets its default. The result is None if DuckDB must
    refuse the INSERT.
    """
    columns = [folded(column.name) for column in table.columns]
    if head.by_name:
        names = [folded(name) for name in inserted]
    elif head.columns is not None:
        names = [folded(name) for name in head.columns]
    else:
        names = columns
    if head.by_name and head.columns is not None:
        return None
    is_duplicate = len(set(names)) < len(names)
    if len(names) != len(inserted) or is_duplicate or not set(columns) >= set(names):
        return None
    positions = {name: position for position, name in enumerate(names)}
    return [positions.get(name) for name in columns]


def literal_insert(statement: Statement, head: InsertHead, table: Table) -> pa.Table | None:
    """The rows of an INSERT of nothing but literals, without RETURNING; None for any other."""
    text = statement.body.encode()
    if statement.kind is Kind.QUERY or text[: head.start].strip():
        return None
    return literal_table(text[head.body :].decode(), head, table)


def literal_rows(values: str) -> list[list[str]] | None:
    """The literals of ``VALUES (1, 'a'), (-2, NULL)``; None if there is anything else.

    Comments, more parentheses, and rows of different lengths count as anything else.
    """
    start = _VALUES.match(values) if len(values) <= _MAX_LENGTH else None
    match = None if start is None else _ROW.match(values, start.end())
    rows: list[list[str]] = []
    while match is not None:
        rows.append(_LITERAL.findall(match[1]))
        if len(rows[-1]) != len(rows[0]):
            return None
        if match[2] != ",":
            return rows
        match = _ROW.match(values, match.end())
    return None


def literal_table(values: str, head: InsertHead, table: Table) -> pa.Table | None:
    """The rows that an INSERT of literals inserts, with all columns of the table.

    None if only DuckDB can convert a value, or must refuse it. Each literal must already be of its
    column's type, so that no setting of a session matters.
    """
    rows = None if head.by_name else literal_rows(values)
    positions = None if rows is None else match_columns(table, head, rows[0])
    if rows is None or positions is None:
        return None
    try:
        columns = [
            _column(column, [_default(column)] * len(rows))
            if position is None
            else _column(column, [row[position] for row in rows])
            for position, column in zip(positions, table.columns, strict=True)
        ]
    except (_NeedsDuckDB, ValueError):  # the thirtieth of February
        return None
    return pa.table(columns, names=[column.name for column in table.columns])


def _column(column: Column, literals: list[str]) -> pa.Array:
    type_, read = _reading(column.type)
    values = [None if text.lower() == "null" else read(text) for text in literals]
    if not column.nullable and None in values:
        raise _NeedsDuckDB
    return pa.array(values, type_)


def _default(column: Column) -> str:
    if column.default is None:
        return "NULL"
    if column.default.kind is DefaultKind.EXPRESSION:
        raise _NeedsDuckDB
    text = column.default.text
    return literal(text) if column.type in ("varchar", "date", "timestamp") else text


@lru_cache(maxsize=256)
def _reading(type_: str) -> tuple[pa.DataType, Callable[[str], Any]]:
    """The Arrow type of a column, and what reads its literals."""
    if size := decimal_size(type_):
        return pa.decimal128(*size), lambda text: _decimal(text, *size)
    known = find_type(type_)
    if known is None or known.arrow is None:
        raise _NeedsDuckDB
    if known.range is not None:
        low, high = known.range
        return pa.type_for_alias(known.arrow), lambda text: _integer(text, low, high)
    if type_ not in _READERS:
        raise _NeedsDuckDB
    return pa.type_for_alias(known.arrow), _READERS[type_]


def _integer(text: str, low: int, high: int) -> int:
    value = int(text) if _INTEGER.fullmatch(text) else None
    if value is None or not low <= value <= high:
        raise _NeedsDuckDB
    return value


def _float(text: str) -> float:
    found = _POINT.fullmatch(text)
    if found is None or len(found[1]) + len(found[2] or "") > _SAFE_DIGITS:
        raise _NeedsDuckDB
    return float(text) + 0.0  # to DuckDB, -0.0 is a decimal, which has no negative zero


def _decimal(text: str, width: int, scale: int) -> Decimal:
    found = _POINT.fullmatch(text)
    if found is None or len(found[1]) > width - scale or len(found[2] or "") > scale:
        raise _NeedsDuckDB
    return Decimal(text)


def _boolean(text: str) -> bool:
    if text.lower() not in ("true", "false"):
        raise _NeedsDuckDB
    return text.lower() == "true"


def _text(text: str) -> str:
    if not text.startswith("'") or "\0" in text:
        raise _NeedsDuckDB
    return text[1:-1].replace("''", "'")


def _date(text: str) -> date:
    return date.fromisoformat(_of_form(_DATE, text))


def _timestamp(text: str) -> datetime:
    return datetime.fromisoformat(_of_form(_TIMESTAMP, text))


def _of_form(form: re.Pattern[str], text: str) -> str:
    if form.fullmatch(text) is None:
        raise _NeedsDuckDB
    return text[1:-1]


_READERS: dict[str, Callable[[str], Any]] = {
    "boolean": _boolean,
    "float64": _float,
    "varchar": _text,
    "date": _date,
    "timestamp": _timestamp,
}
