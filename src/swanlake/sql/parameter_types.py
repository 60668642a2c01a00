"""The SQL types of a statement's parameters, as DuckDB's binder infers them.

DuckDB does not list these types. ``json_serialize_plan`` binds a text without running it, but gives
no plan if one parameter has no type of its own, as in ``SELECT ?``. So each parameter is replaced
by a marker, a string constant: it too takes the type that its place demands, and the plan shows the
cast. A parameter of LIMIT or OFFSET stays one, because DuckDB evaluates a constant there at once.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from functools import partial
from itertools import dropwhile
from typing import Any

from swanlake.sql.quoting import identifier
from swanlake.sql.statement import Statement
from swanlake.sql.syntax_tree import MAX_LENGTH, walk
from swanlake.sql.tokens import Parameter, Token, find_parameters

_MARKER = "__swanlake_parameter_"
_ARITHMETIC = ("+", "-", "*", "/", "%")
#: Types that are written as the plan names them.
_SCALARS = frozenset(
    {"BOOLEAN", "TINYINT", "SMALLINT", "INTEGER", "BIGINT", "HUGEINT", "UTINYINT", "USMALLINT"}
    | {"UINTEGER", "UBIGINT", "UHUGEINT", "FLOAT", "DOUBLE", "VARCHAR", "BLOB", "BIT", "UUID"}
    | {"DATE", "TIME", "TIME_NS", "TIME WITH TIME ZONE", "TIMESTAMP", "TIMESTAMP_S"}
    | {"TIMESTAMP_MS", "TIMESTAMP_NS", "TIMESTAMP WITH TIME ZONE", "INTERVAL"}
)

#: Gives the JSON plan of a text, or the JSON error of one that DuckDB cannot bind.
Plan = Callable[[str], str]


def infer_types(statement: Statement, plan: Plan) -> dict[str, str]:
    """The SQL types of the parameters, by name; without those that could not be inferred."""
    if len(statement.text) > MAX_LENGTH or statement.is_expanded:
        return {}
    for text in _marked_texts(statement):
        types = _types_in(plan(text))
        if types is not None:
            return types
    if len(statement.parameters) == 1:
        return {}
    # One of them is in a place for which no constant will do: each is tried alone.
    found: dict[str, str] = {}
    for parameter in statement.parameters:
        alone = statement.with_parameters(partial(_marker_or_null, parameter))
        found |= _types_in(plan(alone)) or {}
    return found


def _marked_texts(statement: Statement) -> Iterator[str]:
    """The statement with markers; first with operands that have the type of the other operand.

    DuckDB finds ``id + 'text'`` ambiguous, and infers a type for ``id + coalesce('text', id)``.
    """
    parameters = find_parameters(statement.text)
    folded = {parameter.name for parameter in parameters if _is_folded(statement, parameter)}
    text = statement.body.encode()
    operands = {
        parameter.name: operand
        for parameter in parameters
        if (operand := _other_operand(statement.tokens, parameter, text)) is not None
    }

    def replace(name: str, operand: str | None) -> str:
        if name in folded:
            return f"${name}"
        return _marker(name) if operand is None else f"coalesce({_marker(name)}, {operand})"

    if operands:
        yield statement.with_parameters(lambda name: replace(name, operands.get(name)))
    yield statement.with_parameters(lambda name: replace(name, None))


def _marker(name: str) -> str:
    return f"'{_MARKER}{name}'"


def _marker_or_null(marked: str, name: str) -> str:
    return _marker(name) if name == marked else "NULL"


def _is_folded(statement: Statement, parameter: Parameter) -> bool:
    before = statement.tokens[: parameter.position]
    return bool(before) and before[-1].is_kw("limit", "offset")


def _other_operand(tokens: list[Token], parameter: Parameter, text: bytes) -> str | None:
    """The column or constant in ``column + ?`` or ``? + column``, as written."""
    before = tokens[: parameter.position]
    if len(before) > 1 and _is_arithmetic(before[-1]) and not before[-2].is_operator:
        name = list(_dotted(before[-2::-1]))
        return text[name[-1].start : name[0].end].decode()
    after = list(dropwhile(lambda token: token.start < parameter.end, tokens[parameter.position :]))
    if len(after) > 1 and _is_arithmetic(after[0]) and not after[1].is_operator:
        name = list(_dotted(after[1:]))
        return text[name[0].start : name[-1].end].decode()
    return None


def _is_arithmetic(token: Token) -> bool:
    return token.is_operator and token.text in _ARITHMETIC


def _dotted(tokens: list[Token]) -> Iterator[Token]:
    """The parts of a name with which the tokens begin, read in their order."""
    for position, token in enumerate(tokens):
        if token.is_operator != (position % 2 == 1) or (token.is_operator and token.text != "."):
            return
        yield token


def _types_in(plan: str) -> dict[str, str] | None:
    """The types of the parameters in a plan; None if it is an error."""
    try:
        serialized = json.loads(plan)
    except RecursionError:  # an expression of a thousand operators
        return None
    if serialized["error"]:
        return None
    types: dict[str, str] = {}
    for node in walk(serialized["plans"]):
        name, kind = _typed_parameter(node)
        # A parameter may be used twice: text can become anything, so another type says more.
        if name is not None and kind is not None and types.get(name, "VARCHAR") == "VARCHAR":
            types[name] = kind
    return types


def _typed_parameter(node: dict[str, Any]) -> tuple[str | None, str | None]:
    """The name and the type of the parameter that an expression is, or that it casts."""
    expression = node.get("expression_class")
    if expression == "BOUND_PARAMETER":
        return node["identifier"], _sql_type(node["return_type"])
    if expression == "BOUND_CONSTANT":
        return _marked(node), "VARCHAR"
    if expression == "BOUND_CAST":
        return _marked(node["child"]), _sql_type(node["return_type"])
    return None, None


def _marked(node: dict[str, Any]) -> str | None:
    """The name in a marker; None for every other expression."""
    if node.get("expression_class") != "BOUND_CONSTANT":
        return None
    value = node["value"].get("value")
    if not isinstance(value, str) or not value.startswith(_MARKER):
        return None
    return value.removeprefix(_MARKER)


def _sql_type(kind: dict[str, Any]) -> str | None:
    """A type of a plan, as SQL; None for the types that have no simple name."""
    name, info = kind["id"], kind["type_info"]
    if name in _SCALARS:
        return str(name)
    if name == "DECIMAL":
        return f"DECIMAL({info['width']},{info['scale']})"
    if name in ("LIST", "ARRAY"):
        child = _sql_type(info["child_type"])
        return child and f"{child}[{info.get('size', '')}]"
    if name == "STRUCT":
        fields = [(one["first"], _sql_type(one["second"])) for one in info["child_types"]]
        if all(child and field for field, child in fields):
            return f"STRUCT({', '.join(f'{identifier(field)} {child}' for field, child in fields)})"
    if name == "MAP":
        key, value = (_sql_type(one["second"]) for one in _fields(info))
        return f"MAP({key}, {value})" if key and value else None
    return None


def _fields(info: dict[str, Any]) -> list[dict[str, Any]]:
    """Key and value of a MAP, which is a list of structs."""
    fields: list[dict[str, Any]] = info["child_type"]["type_info"]["child_types"]
    return fields
