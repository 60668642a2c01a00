"""What the access to a statement depends on: its kind, its names, what it calls and sets.

DuckDB's lexer gives the names. Every word is taken for a name, and every word before a parenthesis
for a function: a fact may be too much, and never too little.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

from duckdb import StatementType

from swanlake.sql.alteration import Action, parse_alteration
from swanlake.sql.insert import InsertHead
from swanlake.sql.quoting import unquoted
from swanlake.sql.statement import Statement
from swanlake.sql.tokens import Token, TokenReader, find_keyword, tokenize

#: The parser takes these for spaces, and the lexer does not.
_SPACES = dict.fromkeys(
    [0xA0, 0x1680, *range(0x2000, 0x2010), 0x202F, 0x205F, 0x2060, 0x3000, 0xFEFF], " "
)
_STRING = re.compile(r"'((?:[^']|'')*)'|\$(\w*)\$(.*?)\$\2\$", re.DOTALL)
_ANY_STRING = re.compile(r"[eExXbB]?'|\$\w*\$")
_OBJECT_STATEMENTS = (StatementType.CREATE, StatementType.ALTER, StatementType.DROP)
#: Words between the verb and the kind of the object.
_MODIFIERS = (
    "or replace temp temporary persistent local global unique recursive materialized unlogged if "
    "not exists on".split()
)
#: Rows without names, functions, comments and constants with escapes. It cannot backtrack.
_LITERAL_ROWS = re.compile(
    r"""VALUES(?:
        [\s(),]++
      | '[^']*+(?:''[^']*+)*+'
      | [-+]?[\d.]++(?:e[-+]?\d++)?+(?![\w$'"])
      | (?:NULL|TRUE|FALSE|DEFAULT|DATE|TIMESTAMP)(?![\w$("])
    )*+;?\s*+""",
    re.IGNORECASE | re.VERBOSE,
)
_LONG = 4096
_TEMPORARY = ("temp", "temporary")
_SCOPES = ("session", "global", "local")


@dataclass(frozen=True)
class CalledFunction:
    """A function, or another name before a parenthesis."""

    #: In lower case, without its catalog and schema.
    name: str
    #: The constants of its first argument, a text or a list of texts; None if it is anything else.
    texts: tuple[str, ...] | None


@dataclass(frozen=True)
class ChangedSetting:
    """What a SET, RESET, USE or PRAGMA changes."""

    #: In lower case; ``variable`` for a variable of the session.
    name: str
    #: ``session``, ``global``, or nothing.
    scope: str = ""


@dataclass(frozen=True)
class StatementFacts:
    """One statement, as far as access to it matters."""

    type: StatementType
    #: The first word, in lower case.
    verb: str
    #: Names with their qualifiers and every single word, without quotes.
    names: frozenset[str]
    #: Constants; the text of one with escapes is as it is written.
    texts: tuple[str, ...]
    calls: tuple[CalledFunction, ...]
    setting: ChangedSetting | None = None
    #: What a CREATE, ALTER, COMMENT or DROP is about: ``table``, ``secret``, …, and its name.
    object_kind: str = ""
    object_name: tuple[str, ...] = ()
    is_temporary: bool = False
    #: What an ALTER may rename its object to: nothing if it certainly changes something else.
    new_names: frozenset[str] = frozenset()
    #: The table or the other object of a schema that is changed; None if it is not known.
    target: tuple[str, ...] | None = None
    #: True for a COPY, and the constant that names its file.
    copies: bool = False
    copied_file: str | None = None
    copies_out: bool = False
    #: The statement inside an EXPLAIN or PREPARE.
    inner: str | None = None


def read_facts(statement: Statement) -> StatementFacts:
    """The facts of a statement; the same for each statement of its text."""
    if len(statement.text) > _LONG and (head := _literal_insert(statement)) is not None:
        # The lexer would take seconds for megabytes of rows.
        names = frozenset((*head.target, ".".join(head.target)))
        return StatementFacts(statement.type, "insert", names, (), (), target=head.target)
    text = statement.text.translate(_SPACES)
    tokens = statement.tokens if text == statement.text else tokenize(text)
    type_ = statement.type
    verb = tokens[0].text.lower() if tokens else ""
    kind, is_temporary = "", False
    name: tuple[str, ...] = ()
    target = statement.written_table
    new_names: frozenset[str] = frozenset()
    if type_ == StatementType.ALTER:
        alteration = parse_alteration(tokens)
        if alteration is None:
            new_names = frozenset(_names(tokens))
        elif alteration.action is Action.RENAME:
            new_names = frozenset([alteration.new_name])
    if type_ in _OBJECT_STATEMENTS:
        kind, name, is_temporary = _read_object(tokens)
    if type_ in (StatementType.CREATE, StatementType.DROP):
        target = None if is_temporary or kind == "schema" or not name else name
    is_setting = type_ in (StatementType.SET, StatementType.VARIABLE_SET)
    is_copy = type_ == StatementType.COPY
    return StatementFacts(
        type_,
        verb,
        frozenset(_names(tokens)),
        tuple(unquoted_text(token) for token in tokens if _is_text(token)),
        tuple(_calls(tokens)),
        _read_setting(tokens) if is_setting else None,
        kind,
        name,
        is_temporary,
        new_names,
        target,
        copies=is_copy,
        copied_file=_copied_file(tokens) if is_copy else None,
        copies_out=is_copy and not statement.may_write,
        inner=_inner(text, tokens, type_),
    )


def _literal_insert(statement: Statement) -> InsertHead | None:
    """The head of an INSERT of literals; None for every other statement."""
    head = statement.insert_head if statement.type == StatementType.INSERT else None
    if head is None or head.start > 0:
        return None
    _, rows = statement.split_at(head.body, head.body)
    return head if _LITERAL_ROWS.fullmatch(rows) else None


def unquoted_text(token: Token) -> str:
    """The text of a constant; with escapes, as it is written."""
    constant = _STRING.match(token.text)
    if constant is None:
        return token.text
    return constant[3] if constant[1] is None else constant[1].replace("''", "'")


def _is_text(token: Token) -> bool:
    is_constant = not (token.is_operator or token.is_keyword or token.is_name)
    return is_constant and _ANY_STRING.match(token.text) is not None


def _is_exact_text(token: Token) -> bool:
    """True if ``unquoted_text`` is what DuckDB reads."""
    return _is_text(token) and _STRING.match(token.text) is not None


def _is_word(token: Token) -> bool:
    return not token.is_operator and not _is_text(token)


def _names(tokens: list[Token]) -> Iterator[str]:
    dotted: list[str] = []
    for before, token in pairwise([None, *tokens]):
        if token is None or token.text == ".":
            continue
        # DuckDB also takes a constant for the name of a table.
        name = unquoted(token.text) if _is_word(token) else unquoted_text(token)
        if token.is_operator:
            dotted = []
            continue
        yield name
        dotted = [*dotted, name] if before is not None and before.text == "." else [name]
        if len(dotted) > 1:
            yield ".".join(dotted)


def _calls(tokens: list[Token]) -> Iterator[CalledFunction]:
    for place, (token, following) in enumerate(pairwise(tokens)):
        if _is_word(token) and following.is_operator and following.text == "(":
            name = unquoted(token.text).lower()
            yield CalledFunction(name, _first_argument(tokens[place + 2 :]))


def _first_argument(tokens: list[Token]) -> tuple[str, ...] | None:
    """The constants of an argument that is followed by a comma or a parenthesis."""
    if not tokens:
        return None
    if tokens[0].text == "[":
        texts: list[str] = []
        expects_text = True
        for place, token in enumerate(tokens[1:], 1):
            if token.text == "]" and not expects_text:
                after = tokens[place + 1 : place + 2]
                return tuple(texts) if after and after[0].text in (",", ")") else None
            if expects_text and not _is_exact_text(token):
                return None
            if expects_text:
                texts.append(unquoted_text(token))
            elif token.text != ",":
                return None
            expects_text = not expects_text
        return None
    is_whole = len(tokens) > 1 and tokens[1].text in (",", ")")
    return (unquoted_text(tokens[0]),) if is_whole and _is_exact_text(tokens[0]) else None


def _read_object(tokens: list[Token]) -> tuple[str, tuple[str, ...], bool]:
    """The kind and the name of an object, and whether the statement says that it is temporary."""
    reader = TokenReader(tokens[1:])
    is_temporary = False
    while reader.next.is_word(*_MODIFIERS):
        is_temporary |= reader.take().is_word(*_TEMPORARY)
    if tokens[0].is_word("deallocate"):
        return "prepared", (), True
    kind = reader.take().text.lower() if reader.rest else ""
    while reader.next.is_word("if", "not", "exists"):
        reader.take()
    name, _, _ = reader.take_name()
    return kind, name, is_temporary


def _read_setting(tokens: list[Token]) -> ChangedSetting:
    verb, reader = tokens[0], TokenReader(tokens[1:])
    if verb.is_word("use"):
        return ChangedSetting("use")
    scope = reader.take().text.lower() if reader.next.is_word(*_SCOPES) else ""
    if reader.skip("variable"):
        return ChangedSetting("variable", scope)
    if reader.skip("time", "zone"):
        return ChangedSetting("timezone", scope)
    name = unquoted(reader.take().text).lower() if reader.rest else ""
    return ChangedSetting(name, scope)


def _copied_file(tokens: list[Token]) -> str | None:
    """The file of a COPY; None if it is not a constant alone."""
    place = find_keyword(tokens, "to", "from")
    after = [] if place is None else tokens[place + 1 : place + 3]
    if not after or not _is_exact_text(after[0]):
        return None
    is_alone = len(after) == 1 or after[1].text in ("(", ";") or after[1].is_word("with")
    return unquoted_text(after[0]) if is_alone else None


def _inner(text: str, tokens: list[Token], type_: StatementType) -> str | None:
    if type_ == StatementType.EXPLAIN:
        rest = tokens[1:]
        while rest and rest[0].is_word("analyze", "verbose"):
            rest = rest[1:]
        if rest and rest[0].text == "(" and _are_options(rest):
            rest = [token for token in rest[1:] if token.start > _closing(rest)]
    elif type_ == StatementType.PREPARE:
        place = find_keyword(tokens, "as")
        rest = [] if place is None else tokens[place + 1 :]
    else:
        return None
    return text.encode()[rest[0].start :].decode() if rest else None


def _are_options(tokens: list[Token]) -> bool:
    """True for the options of an EXPLAIN, and not for a query in parentheses."""
    return len(tokens) > 1 and tokens[1].is_word("format", "analyze", "verbose", "codegen")


def _closing(tokens: list[Token]) -> int:
    """Where the parenthesis of the first token is closed."""
    depth = tokens[0].depth
    return next(
        (token.start for token in tokens[1:] if token.depth == depth and token.text == ")"), 1 << 62
    )
