"""Small changes of a module's syntax tree, each of which a test should notice.

Not changed are texts, annotations, decorators, assertions, log messages, and the numbers of
module-level constants: a test that reads such a constant is right for each of its values.
"""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from types import CodeType

_COMPARISONS: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
}
_OPERATORS: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Div,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult,
    ast.BitAnd: ast.BitOr,
    ast.BitOr: ast.BitAnd,
}
_FUNCTIONS = {"min": "max", "max": "min", "all": "any", "any": "all"}
_SKIPPED_FIELDS = {"annotation", "returns", "decorator_list", "type_params"}
_SKIPPED_NODES = (ast.JoinedStr, ast.Assert, ast.Import, ast.ImportFrom)
_FUNCTION_NODES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)


@dataclass(frozen=True)
class Mutation:
    """One change: where it is, what it says, and the changed module."""

    line: int
    #: The qualified name of the function or class; empty on module level.
    scope: str
    #: ``before -> after``; with ``#2`` for the second of the same texts in a scope.
    text: str
    code: CodeType


@dataclass(frozen=True)
class _Place:
    """A node and the attribute of its parent that holds it."""

    parent: ast.AST
    name: str
    index: int | None
    scope: str

    @property
    def node(self) -> ast.AST:
        value = getattr(self.parent, self.name)
        found: ast.AST = value if self.index is None else value[self.index]
        return found

    def replace(self, node: ast.AST) -> None:
        if self.index is None:
            setattr(self.parent, self.name, node)
        else:
            getattr(self.parent, self.name)[self.index] = node


def mutations(source: str, path: str) -> Iterator[Mutation]:
    """All changes of a module, in the order of their lines."""
    tree = ast.parse(source)
    places = sorted(_places(tree, ""), key=lambda place: getattr(place.node, "lineno", 0))
    seen = {ast.dump(tree)}
    counts: Counter[tuple[str, str]] = Counter()
    for place in places:
        node = place.node
        for changed in _variants(place):
            place.replace(ast.copy_location(changed, node))
            # Two changes can give the same module: `not (a == b)` and `a != b`.
            dump = ast.dump(ast.parse(ast.unparse(tree)))
            if dump not in seen:
                seen.add(dump)
                text = f"{_text(node)} -> {_text(changed)}"
                counts[place.scope, text] += 1
                number = counts[place.scope, text]
                text = text if number == 1 else f"{text} #{number}"
                code = compile(ast.fix_missing_locations(tree), path, "exec")
                yield Mutation(getattr(node, "lineno", 0), place.scope, text, code)
            place.replace(node)


def _places(parent: ast.AST, scope: str) -> Iterator[_Place]:
    for name, value in ast.iter_fields(parent):
        if name in _SKIPPED_FIELDS or (name == "iter" and not isinstance(value, ast.AST)):
            continue
        children = enumerate(value) if isinstance(value, list) else [(None, value)]
        for index, child in children:
            if not isinstance(child, ast.AST) or isinstance(child, _SKIPPED_NODES):
                continue
            place = _Place(parent, name, index, scope)
            if _is_skipped(place, child):
                continue
            yield place
            inner = scope
            if isinstance(child, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                inner = f"{scope}.{child.name}".lstrip(".")
            yield from _places(child, inner)


def _is_skipped(place: _Place, node: ast.AST) -> bool:
    if isinstance(node, ast.Expr):
        if isinstance(node.value, ast.Constant):
            return True  # a docstring
        return _called_name(node.value).startswith("log.")
    if isinstance(node, ast.If) and _text(node.test) == "TYPE_CHECKING":
        return True
    if isinstance(node, ast.Call):
        return _called_name(node) in ("field", "TypeVar")
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitOr):
        # A union of types, which may also be the value of an alias.
        return all(_is_type(part) for part in (node.left, node.right))
    is_constant = isinstance(node, ast.Constant) and not isinstance(node.value, bool)
    return is_constant and isinstance(place.parent, ast.Assign) and not place.scope


def _is_type(node: ast.AST) -> bool:
    if isinstance(node, ast.BinOp):
        return _is_type(node.left) and _is_type(node.right)
    name = _text(node.value if isinstance(node, ast.Subscript) else node).rpartition(".")[2]
    return name == "None" or (name[:1].isupper() and not name.isupper())


def _called_name(node: ast.AST) -> str:
    return _text(node.func) if isinstance(node, ast.Call) else ""


def _variants(place: _Place) -> Iterator[ast.AST]:
    """The changes of one node."""
    node = place.node
    if isinstance(node, ast.expr):
        yield from _changed_expressions(node)
        if place.name in ("test", "ifs"):
            yield _negated(node)
    elif isinstance(node, ast.stmt):
        yield from _changed_statements(place, node)


def _changed_expressions(node: ast.expr) -> Iterator[ast.expr]:
    match node:
        case ast.Compare(ops=[operator]) if type(operator) in _COMPARISONS:
            yield ast.Compare(node.left, [_COMPARISONS[type(operator)]()], node.comparators)
        case ast.Compare(ops=operators):  # a < b < c
            for index, operator in enumerate(operators):
                changed = [
                    *operators[:index],
                    _COMPARISONS[type(operator)](),
                    *operators[index + 1 :],
                ]
                yield ast.Compare(node.left, changed, node.comparators)
        case ast.BoolOp(op=operator, values=values):
            other = ast.Or() if isinstance(operator, ast.And) else ast.And()
            yield ast.BoolOp(other, values)
            for index in range(len(values)):
                rest = [*values[:index], *values[index + 1 :]]
                yield rest[0] if len(rest) == 1 else ast.BoolOp(operator, rest)
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            yield operand
        case ast.UnaryOp(op=ast.USub(), operand=operand):
            yield operand
        case ast.BinOp(op=operator) if type(operator) in _OPERATORS:
            yield ast.BinOp(node.left, _OPERATORS[type(operator)](), node.right)
        case ast.Call(func=ast.Name(id=name)) if name in _FUNCTIONS:
            yield ast.Call(ast.Name(_FUNCTIONS[name], ast.Load()), node.args, node.keywords)
        case ast.Constant(value=bool(value)):
            yield ast.Constant(not value)
        case ast.Constant(value=int(value) | float(value)):
            yield ast.Constant(value + 1)
            yield ast.Constant(value - 1)


def _changed_statements(place: _Place, node: ast.stmt) -> Iterator[ast.stmt]:
    match node:
        case ast.AugAssign(op=operator) if type(operator) in _OPERATORS:
            yield ast.AugAssign(node.target, _OPERATORS[type(operator)](), node.value)
            yield ast.Pass()
        case ast.Return() if place.parent.__class__ not in _FUNCTION_NODES or not _is_last(place):
            yield ast.Pass()
        case ast.Raise() | ast.Continue() | ast.Break() | ast.Expr() | ast.Delete():
            yield ast.Pass()
        case ast.Assign(targets=targets) if place.scope and any(map(_is_state, targets)):
            yield ast.Pass()


def _is_last(place: _Place) -> bool:
    return place.index == len(getattr(place.parent, place.name)) - 1


def _is_state(target: ast.expr) -> bool:
    """True for what outlives the function; without a local name the function could not run."""
    if isinstance(target, ast.Tuple):
        return all(_is_state(element) for element in target.elts)
    return isinstance(target, ast.Attribute | ast.Subscript)


def _negated(node: ast.expr) -> ast.expr:
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        return node.operand
    if isinstance(node, ast.Compare) and len(node.ops) == 1:
        opposites = {ast.Lt: ast.GtE, ast.GtE: ast.Lt, ast.Gt: ast.LtE, ast.LtE: ast.Gt}
        operator = type(node.ops[0])
        opposite = opposites.get(operator) or _COMPARISONS[operator]
        return ast.Compare(node.left, [opposite()], node.comparators)
    return ast.UnaryOp(ast.Not(), node)


def _text(node: ast.AST) -> str:
    return " ".join(ast.unparse(node).split())
