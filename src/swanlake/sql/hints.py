"""Finds the column that each parameter of an INSERT … VALUES is for.

A parameter that is a whole value of a row has the type of its column, which needs no plan of the
statement. For all other parameters see ``parameter_types``.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from duckdb import StatementType

from swanlake.sql.statement import Statement
from swanlake.sql.tokens import Token, find_keyword, find_parameters


@dataclass(frozen=True)
class ParameterHints:
    """The column of each parameter, by its position among the inserted columns."""

    #: The column list of the INSERT, as written; None without one.
    inserted: list[str] | None = None
    by_place: dict[str, int] = field(default_factory=dict)


def parameter_hints(statement: Statement) -> ParameterHints:
    """The columns of those parameters that are whole values of an INSERT."""
    if statement.type != StatementType.INSERT:
        return ParameterHints()
    tokens = statement.tokens
    names = {parameter.position: parameter.name for parameter in find_parameters(statement.text)}
    return ParameterHints(_column_list(tokens), _value_places(tokens, names))


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
