"""What an ALTER or a COMMENT changes: a table or a view, and which of its columns."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from swanlake.sql.tokens import Token, TokenReader


class Action(Enum):
    """What happens to the object or to its column."""

    ADD_COLUMN = "add column"
    DROP_COLUMN = "drop column"
    RENAME_COLUMN = "rename column"
    COMMENT_COLUMN = "comment on column"
    CHANGE_TYPE = "alter column type"
    RENAME = "rename"
    #: A default, a constraint, partition keys, a comment on the object, …
    OTHER = "other"


@dataclass(frozen=True)
class Alteration:
    """One change of a table or a view."""

    #: The parts of the name of the table or view, without quotes.
    target: tuple[str, ...]
    action: Action
    #: The column, or the path to a field of it, if the action is one of a column.
    column: tuple[str, ...] = ()
    #: The name after a RENAME.
    new_name: str = ""


def parse_alteration(tokens: list[Token]) -> Alteration | None:
    """The change of an ALTER or a COMMENT, with or without EXPLAIN; None for other objects."""
    start = next((i for i, token in enumerate(tokens) if token.is_word("alter", "comment")), None)
    if start is None:
        return None
    reader = TokenReader(tokens[start:])
    if reader.skip("comment", "on"):
        return _comment(reader)
    reader.skip("alter")
    if not reader.skip("table") and not reader.skip("view"):
        return None
    reader.skip("if", "exists")
    target, _, _ = reader.take_name()
    if reader.skip("add"):
        reader.skip("column")
        reader.skip("if", "not", "exists")
        return Alteration(target, Action.ADD_COLUMN, _name(reader))
    if reader.skip("drop"):
        reader.skip("column")
        reader.skip("if", "exists")
        return Alteration(target, Action.DROP_COLUMN, _name(reader))
    if reader.skip("rename"):
        return _rename(reader, target)
    if reader.skip("alter"):
        reader.skip("column")
        column = _name(reader)
        reader.skip("set", "data")
        if reader.skip("type"):
            return Alteration(target, Action.CHANGE_TYPE, column)
        return Alteration(target, Action.OTHER, column)
    return Alteration(target, Action.OTHER)


def _comment(reader: TokenReader) -> Alteration | None:
    if reader.skip("column"):
        *target, column = _name(reader)
        return Alteration(tuple(target), Action.COMMENT_COLUMN, (column,))
    if reader.skip("table") or reader.skip("view"):
        return Alteration(_name(reader), Action.OTHER)
    return None


def _rename(reader: TokenReader, target: tuple[str, ...]) -> Alteration:
    if reader.skip("to"):
        return Alteration(target, Action.RENAME, new_name=_name(reader)[-1])
    reader.skip("column")
    column = _name(reader)
    reader.skip("to")
    return Alteration(target, Action.RENAME_COLUMN, column, _name(reader)[-1])


def _name(reader: TokenReader) -> tuple[str, ...]:
    parts, _, _ = reader.take_name()
    return parts
