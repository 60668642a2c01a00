"""Finds the column that each parameter of a statement is for.

Drivers that bind by the parameter schema (such as JDBC) need types, which DuckDB knows only after
values are bound. A parameter that is a whole value of an INSERT has the type of its column;
one that is assigned to or compared with a column has that column's type.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from duckdb import StatementType

from swanlake.sql.statement import Statement
from swanlake.sql.tokens import Token, find_keyword, find_parameters

_COMPARISONS = ("=", "<", ">", "!")


@dataclass(frozen=True)
class ParameterHints:
    """The column of each parameter, by name or by position among the inserted columns."""

    #: The column list of an INSERT, as written; None without one.
    inserted: list[str] | None = None
    by_place: dict[str, int] = field(default_factory=dict)
    by_name: dict[str, str] = field(default_factory=dict)


def parameter_hints(statement: Statement) -> ParameterHints:
    """The columns of those parameters for which the text shows one."""
    tokens = statement.tokens
    names = {parameter.position: parameter.name for parameter in find_parameters(statement.text)}
    by_name = {
        name: column
        for position, name in names.items()
        if (column := _compared_column(tokens, position)) is not None
    }
    if statement.type != StatementType.INSERT:
        return ParameterHints(by_name=by_name)
    return ParameterHints(_column_list(tokens), _value_places(tokens, names), by_name)


def _compared_column(tokens: list[Token], position: int) -> str | None:
    """The column in ``column = ?``, ``column >= ?``, ``column LIKE ?``."""
    before = position - 1
    if before >= 0 and tokens[before].is_kw("like", "ilike"):
        before -= 1
    else:
        start = before
        while before >= 0 and tokens[before].is_operator and tokens[before].text in _COMPARISONS:
            before -= 1
        if before == start:
            return None
    return tokens[before].text if before >= 0 and tokens[before].is_name else None


def _column_list(tokens: list[Token]) -> list[str] | None:
    """The names in ``INSERT INTO t (a, b) VALUES``."""
    values = find_keyword(tokens, "values")
    if values is None or tokens[values - 1].text != ")":
        return None
    listed = []
    for token in reversed(tokens[: values - 1]):
        if token.depth == 0:
            break
        if not token.is_operator:
            listed.append(token.text)
    return listed[::-1]


def _value_places(tokens: list[Token], names: dict[int, str]) -> dict[str, int]:
    """The position in the row of each parameter that is a whole value."""
    values = find_keyword(tokens, "values")
    if values is None:
        return {}
    places: dict[str, int] = {}
    place = 0
    for position, token in enumerate(tokens[values + 1 :], values + 1):
        if token.depth == 0 and token.is_operator and token.text == "(":
            place = 0
        elif token.depth == 1 and token.is_operator and token.text == ",":
            place += 1
        elif token.depth == 0 and token.is_keyword:
            break
        if position in names and tokens[position - 1].text in ("(", ","):
            width = 2 if token.text == "$" and not names[position].isdigit() else 1
            after = tokens[position + width].text if position + width < len(tokens) else ""
            if token.depth == 1 and after in (")", ","):
                places[names[position]] = place
    return places
