"""Which tables a query reads, where it is so plain that it means the same on any connection.

A query that says no more than names of tables and columns, literals, and functions that depend on
nothing but their arguments gives the same rows wherever these tables are. Whatever else it says,
nobody here tries to understand it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from swanlake.sql.insert import unquoted
from swanlake.sql.quoting import identifier
from swanlake.sql.tokens import Token, tokenize

#: Functions and types that have nothing to do with the session, its place or its settings.
_PURE = frozenset(
    "abs any_value avg bool_and bool_or cast ceil ceiling coalesce concat contains count count_if "
    "countif decimal dense_rank ends_with first first_value floor greatest if ifnull lag last "
    "last_value lcase lead least left len length lower ltrim max md5 median min mod nullif "
    "numeric pow power product rank replace reverse right round row_number rtrim sign sqrt "
    "starts_with stddev strlen substr sum try_cast ucase upper varchar variance".split()
)
#: After these a parenthesis is no call.
_BEFORE_PARENTHESIS = frozenset(
    "all and any as between by case distinct else except exists filter from having ilike in "
    "intersect is join like limit not offset on or over select some then union using when "
    "where".split()
)
#: Words that name tables, ask the session or the lake for something, or leave it to chance.
_STRANGE = frozenset(
    "at columns current_catalog current_database current_date current_localtime "
    "current_localtimestamp current_role current_schema current_time current_timestamp "
    "current_user describe file_index file_row_number filename insert into lateral localtime "
    "localtimestamp pivot pivot_longer pivot_wider recursive rowid sample session_user show "
    "snapshot_id summarize table tablesample unpivot user with".split()
)
#: What can follow a table that has no other name.
_CLAUSES = frozenset(
    "anti asof cross except full group having inner intersect join left limit natural offset on "
    "order positional qualify right semi union using where window".split()
)
#: What ends the tables of a query.
_AFTER_TABLES = frozenset(
    "except group having intersect limit offset order qualify select union where window".split()
)


@dataclass(frozen=True)
class TableRead:
    """The name of a table in a query: its parts without quotes, and its bytes of the UTF-8 text."""

    parts: tuple[str, ...]
    start: int
    end: int
    #: True if the query calls it by another name.
    has_alias: bool


@dataclass(frozen=True)
class PlainQuery:
    """A query that gives the same rows wherever its tables are."""

    text: str
    #: In the order in which they are named.
    tables: tuple[TableRead, ...]
    #: What stands before a dot elsewhere, in lower case: names of tables, or of more than them.
    qualifiers: frozenset[str]

    def over(self, queries: Sequence[str]) -> str:
        """The text with queries in the places of its tables."""
        content = self.text.encode()
        for table, query in reversed(list(zip(self.tables, queries, strict=True))):
            alias = "" if table.has_alias else f" AS {identifier(table.parts[-1])}"
            content = content[: table.start] + f"({query}){alias}".encode() + content[table.end :]
        return content.decode()


class _TooMuch(Exception):
    """The query says something that is not understood here."""


def is_pure(tokens: Sequence[Token]) -> bool:
    """True if what is computed depends on nothing but the tables."""
    # Quotes make no difference: where there is no such column, they mean the same without them.
    if any(unquoted(token.text).lower() in _STRANGE for token in tokens):
        return False
    return all(
        _may_precede_parenthesis(tokens, place)
        for place, token in enumerate(tokens)
        if token.text == "(" and token.is_operator
    )


def is_alone(tokens: Sequence[Token]) -> bool:
    """True for a change of one table that depends on nothing but that table."""
    return is_pure(tokens) and not any(
        token.is_kw("select", "join")
        or (token.is_kw("from") and place != 1 and not _is_comparison(tokens, place))
        for place, token in enumerate(tokens)
    )


def _asks_in_expressions(tokens: Sequence[Token]) -> bool:
    """True for a query inside an expression: DuckDB calls its column by the text of it."""
    for place, token in enumerate(tokens):
        if not token.is_kw("select", "from") or tokens[place - 1].text != "(":
            continue
        opening = max(0, place - 2)
        is_table = tokens[opening].is_kw("from", "join") and not _is_comparison(tokens, opening)
        if token.is_kw("from") or not is_table:
            return True
    return False


def plain_query(text: str) -> PlainQuery | None:
    """What a SELECT reads; None if it says more than is understood here, or reads no table."""
    tokens = tokenize(text)
    if not tokens or not tokens[0].is_kw("select") or not is_pure(tokens):
        return None
    if _asks_in_expressions(tokens):
        return None
    try:
        tables = tuple(_tables(tokens))
    except _TooMuch:
        return None
    inside = {table.start for table in tables}
    qualifiers = {
        unquoted(token.text).lower()
        for token, following in pairwise(tokens)
        if following.text == "." and not token.is_operator and token.start not in inside
    }
    return PlainQuery(text, tables, frozenset(qualifiers)) if tables else None


def _may_precede_parenthesis(tokens: Sequence[Token], place: int) -> bool:
    if place == 0:
        return True
    before = tokens[place - 1]
    if before.is_operator:
        return True
    if place > 1 and tokens[place - 2].text == ".":
        return False
    word = before.text.lower()
    return word in _PURE or (before.is_keyword and word in _BEFORE_PARENTHESIS)


def _tables(tokens: list[Token]) -> Iterator[TableRead]:
    #: The depths in which a list of tables is going on.
    listing: set[int] = set()
    for place, token in enumerate(tokens):
        listing = {depth for depth in listing if depth <= token.depth}
        if token.is_kw(*_AFTER_TABLES):
            listing.discard(token.depth)
        elif token.text == "," and token.depth in listing:
            raise _TooMuch
        elif token.is_kw("from", "join") and not _is_comparison(tokens, place):
            listing.add(token.depth)
            table = _table(tokens, place + 1)
            if table is not None:
                yield table


def _is_comparison(tokens: Sequence[Token], place: int) -> bool:
    """True for the FROM of IS DISTINCT FROM."""
    before = tokens[max(0, place - 2) : place]
    return len(before) == 2 and before[0].is_kw("is", "not") and before[1].is_kw("distinct")


def _table(tokens: list[Token], place: int) -> TableRead | None:
    """The table at a place; None if a query of its own stands there."""
    rest = tokens[place:]
    if not rest:
        raise _TooMuch
    if rest[0].text == "(":
        if len(rest) > 1 and rest[1].is_kw("select"):
            return None
        raise _TooMuch
    name = [rest[0]]
    after = 1
    while len(rest) > after + 1 and rest[after].text == ".":
        name.append(rest[after + 1])
        after += 2
    if any(token.is_operator or token.text[0] in "'0123456789" for token in name):
        raise _TooMuch
    return TableRead(
        tuple(unquoted(token.text) for token in name),
        name[0].start,
        name[-1].start + len(_written(name[-1].text)),
        _has_alias(rest[after:]),
    )


def _written(name: str) -> bytes:
    """A name as it is written, without a comment that the lexer leaves behind it."""
    quoted = name.startswith('"')
    return (identifier(unquoted(name)) if quoted else unquoted(name)).encode()


def _has_alias(rest: list[Token]) -> bool:
    if not rest or rest[0].text in (")", ";"):
        return False
    if rest[0].is_kw(*_CLAUSES):
        return False
    if rest[0].is_kw("as") or rest[0].is_name:
        return True
    raise _TooMuch
