"""Names of tables in a statement that begin with a given catalog, and putting others in place."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from swanlake.sql.insert import unquoted
from swanlake.sql.quoting import identifier
from swanlake.sql.tokens import Token, tokenize


@dataclass(frozen=True)
class Reference:
    """A dotted name: its parts without quotes, and its bytes of the UTF-8 text."""

    parts: tuple[str, ...]
    tokens: tuple[Token, ...]

    def end_of(self, count: int) -> int:
        """Where the first parts of the name end."""
        return self.tokens[count - 1].end

    @property
    def start(self) -> int:
        return self.tokens[0].start


def references(text: str, catalog: str) -> list[Reference]:
    """Every name of at least two parts whose first is the catalog's."""
    return list(_references(tokenize(text), catalog))


def _references(tokens: list[Token], catalog: str) -> Iterator[Reference]:
    place = 0
    while place < len(tokens):
        name = [tokens[place]]
        after = place + 1
        while (
            after + 1 < len(tokens)
            and tokens[after].is_operator
            and tokens[after].text == "."
            and not tokens[after + 1].is_operator
        ):
            name.append(tokens[after + 1])
            after += 2
        first = name[0]
        if len(name) > 1 and not first.is_operator and unquoted(first.text).lower() == catalog:
            yield Reference(tuple(unquoted(token.text) for token in name), tuple(name))
        place = after


@dataclass(frozen=True)
class Replacement:
    """What stands for the first parts of a reference: a table, which others call by an alias."""

    reference: Reference
    parts: int
    table: str
    alias: str


def replaced(text: str, replacements: list[Replacement], is_sql: Callable[[str], bool]) -> str:
    """The text with other tables in place.

    A table keeps its name as an alias where it has no other, and columns are called by it. Whether
    it has one is left to the parser: two aliases in a row are no SQL.
    """
    chosen: list[tuple[Replacement, bool]] = [(one, False) for one in replacements]
    for place, (one, _) in enumerate(chosen):
        if len(one.reference.parts) > one.parts:
            continue  # the name of a column
        chosen[place] = (one, True)
        if not is_sql(_put(text, chosen)):
            chosen[place] = (one, False)
    return _put(text, chosen)


def _put(text: str, chosen: list[tuple[Replacement, bool]]) -> str:
    content = text.encode()
    for one, with_alias in reversed(chosen):
        end = one.reference.end_of(one.parts)
        if len(one.reference.parts) > one.parts:
            new = identifier(one.alias)
        elif with_alias:
            new = f"{one.table} AS {identifier(one.alias)}"
        else:
            new = one.table
        content = content[: one.reference.start] + new.encode() + content[end:]
    return content.decode()
