"""The conditions of a query that bound the columns of its tables, from its serialized tree.

Only conditions that every row of the result must satisfy count: comparisons of a column with
constants or parameters, joined by AND in a WHERE. A caller may leave out rows that do not satisfy
them; whatever is not understood bounds nothing.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime
from decimal import Decimal
from enum import Enum
from typing import Any

#: ``DATE '2026-01-01'`` and ``TIMESTAMP '2026-01-01 10:00:00'``: other forms bound nothing.
_DATE = re.compile(r"\d{4}-\d\d-\d\d")
_TIMESTAMP = re.compile(r"(\d{4}-\d\d-\d\d)[ T](\d\d:\d\d:\d\d(\.\d{1,6})?)")
_INTEGERS = frozenset({"TINYINT", "SMALLINT", "INTEGER", "BIGINT"})

#: A value that a column is compared with; a text may be that of a date.
Value = int | str | float | Decimal | date | datetime


class Comparison(Enum):
    """How a column is compared with a value; NULL satisfies none but ``IS_NULL``."""

    EQUAL = "COMPARE_EQUAL"
    LESS = "COMPARE_LESSTHAN"
    LESS_OR_EQUAL = "COMPARE_LESSTHANOREQUALTO"
    GREATER = "COMPARE_GREATERTHAN"
    GREATER_OR_EQUAL = "COMPARE_GREATERTHANOREQUALTO"
    IS_NULL = "OPERATOR_IS_NULL"


_BY_NAME = {comparison.value: comparison for comparison in Comparison}
_MIRRORED = {
    Comparison.EQUAL: Comparison.EQUAL,
    Comparison.LESS: Comparison.GREATER,
    Comparison.LESS_OR_EQUAL: Comparison.GREATER_OR_EQUAL,
    Comparison.GREATER: Comparison.LESS,
    Comparison.GREATER_OR_EQUAL: Comparison.LESS_OR_EQUAL,
}


@dataclass(frozen=True)
class Parameter:
    """A value that is bound when the query runs."""

    name: str


Operand = Value | Parameter


@dataclass(frozen=True)
class Filter:
    """A condition on one column: its comparison with at least one of the operands holds."""

    #: As written, in lower case, perhaps behind the name of its table.
    column: tuple[str, ...]
    comparison: Comparison
    operands: tuple[Operand, ...] = ()

    def values(self, bound: Mapping[str, Any]) -> list[Value] | None:
        """The operands with these parameters; None if one of them is of another type."""
        values: list[Value] = []
        for operand in self.operands:
            value = bound.get(operand.name) if isinstance(operand, Parameter) else operand
            if isinstance(value, bool) or not isinstance(value, Value):
                return None
            values.append(value)
        return values


@dataclass(frozen=True)
class TableFilters:
    """The conditions on one table of a query."""

    #: The place of the table's name in the text.
    start: int
    #: What the query calls the table, in lower case.
    name: str
    filters: tuple[Filter, ...]
    #: The places and names of all tables among whose columns a plain name is looked for.
    neighbours: tuple[tuple[int, str], ...]
    #: False if a plain name may also mean the column of a subquery, or an alias.
    takes_plain_names: bool

    def of_table(self, columns: Mapping[int, frozenset[str]]) -> Iterator[tuple[str, Filter]]:
        """The conditions that are certainly about this table, with the name of the column.

        ``columns`` has the columns of every table, in lower case, by its place in the text.
        """
        own = columns[self.start]
        for condition in self.filters:
            *qualifier, column = condition.column
            if column not in own:
                continue
            if qualifier:
                if qualifier == [self.name]:
                    yield column, condition
            elif self.takes_plain_names and not any(
                column in columns.get(start, own)
                for start, _ in self.neighbours
                if start != self.start
            ):
                yield column, condition


def find_filters(nodes: Iterator[dict[str, Any]]) -> tuple[TableFilters, ...]:
    """The conditions on the tables of a query; ``nodes`` are all objects of its tree."""
    found: list[TableFilters] = []
    for node in nodes:
        if node.get("type") == "SELECT_NODE" and node.get("where_clause"):
            found += _of_select(node)
    return tuple(found)


def _of_select(node: dict[str, Any]) -> list[TableFilters]:
    source = _source(node["from_table"])
    if source is None:
        return []
    tables, has_subquery, keeps_all_null = source
    names = [name for _, name in tables]
    if len(set(names)) < len(names):
        return []  # which of them a qualified name means is not known
    aliases = {item["alias"].lower() for item in node["select_list"] if item.get("alias")}
    conditions = [
        condition
        for condition in _conjuncts(node["where_clause"])
        if condition.column[-1] not in aliases
        and (keeps_all_null or condition.comparison is not Comparison.IS_NULL)
    ]
    if not conditions:
        return []
    return [
        TableFilters(start, name, tuple(conditions), tuple(tables), not has_subquery)
        for start, name in tables
    ]


def _source(node: dict[str, Any]) -> tuple[list[tuple[int, str]], bool, bool] | None:
    """The tables of a FROM, whether it has subqueries, and whether no join adds NULL.

    None if rows that a WHERE leaves out may decide about others: those of joins by position, or
    with the nearest row.
    """
    if node["type"] == "BASE_TABLE":
        if node.get("column_name_alias"):
            return [], True, True
        name = (node["alias"] or node["table_name"]).lower()
        return [(node["query_location"], name)], False, True
    if node["type"] == "SUBQUERY":
        return [], True, True
    if node["type"] != "JOIN" or node["ref_type"] not in ("REGULAR", "CROSS", "NATURAL"):
        return None
    if node["join_type"] not in ("INNER", "LEFT", "RIGHT", "FULL", "OUTER"):
        return None
    left, right = _source(node["left"]), _source(node["right"])
    if left is None or right is None:
        return None
    is_inner = node["join_type"] == "INNER"
    return left[0] + right[0], left[1] or right[1], is_inner and left[2] and right[2]


def _conjuncts(node: dict[str, Any]) -> Iterator[Filter]:
    """The conditions that hold whenever an expression is true."""
    kind = node.get("type")
    if kind == "CONJUNCTION_AND":
        for child in node["children"]:
            yield from _conjuncts(child)
    elif kind == "COMPARE_BETWEEN":
        column = _column(node["input"])
        for side, comparison in (
            ("lower", Comparison.GREATER_OR_EQUAL),
            ("upper", Comparison.LESS_OR_EQUAL),
        ):
            yield from _comparison(column, comparison, [node[side]])
    elif kind == "COMPARE_IN":
        first, *rest = node["children"]
        yield from _comparison(_column(first), Comparison.EQUAL, rest)
    elif kind == "OPERATOR_IS_NULL":
        if (column := _column(node["children"][0])) is not None:
            yield Filter(column, Comparison.IS_NULL)
    elif kind in _BY_NAME:
        comparison = _BY_NAME[kind]
        yield from _comparison(_column(node["left"]), comparison, [node["right"]])
        yield from _comparison(_column(node["right"]), _MIRRORED[comparison], [node["left"]])


def _comparison(
    column: tuple[str, ...] | None, comparison: Comparison, nodes: Sequence[dict[str, Any]]
) -> Iterator[Filter]:
    if column is None:
        return
    operands = [_operand(node) for node in nodes]
    known = [operand for operand in operands if operand is not None]
    if len(known) == len(operands):
        yield Filter(column, comparison, tuple(known))


def _column(node: dict[str, Any]) -> tuple[str, ...] | None:
    if node.get("class") != "COLUMN_REF":
        return None
    names = tuple(name.lower() for name in node["column_names"])
    return names if len(names) <= 2 else None


def _operand(node: dict[str, Any]) -> Operand | None:
    if node.get("class") == "PARAMETER":
        return Parameter(node["identifier"])
    if node.get("class") == "CAST" and not node.get("try_cast"):
        return _typed(_operand(node["child"]), node["cast_type"]["id"])
    if node.get("class") != "CONSTANT" or node["value"]["is_null"]:
        return None
    type_, value = node["value"]["type"], node["value"]["value"]
    if type_["id"] in _INTEGERS and isinstance(value, int):
        return value
    if type_["id"] == "VARCHAR" and isinstance(value, str):
        return value
    if type_["id"] == "DECIMAL" and isinstance(value, int):
        return Decimal(value).scaleb(-type_["type_info"]["scale"])
    return None


def _typed(value: Operand | None, type_: str) -> Operand | None:
    """A constant that is cast to a date or timestamp."""
    if not isinstance(value, str):
        return None
    if type_ == "DATE":
        return parse_date(value)
    return parse_timestamp(value) if type_ == "TIMESTAMP" else None


def parse_date(text: str) -> date | None:
    """The date of a text in ISO form; None for every other text."""
    try:
        return date.fromisoformat(text) if _DATE.fullmatch(text) else None
    except ValueError:
        return None


def parse_timestamp(text: str) -> datetime | None:
    """The timestamp of a text in ISO form, perhaps without a time; None for every other text."""
    day = parse_date(text)
    if day is not None:
        return datetime(day.year, day.month, day.day)
    parts = _TIMESTAMP.fullmatch(text)
    try:
        return datetime.fromisoformat(f"{parts[1]} {parts[2]}") if parts else None
    except ValueError:
        return None
