"""What a statement is: whether it gives rows, may write, opens a transaction, leaves state behind.

DuckDB's parser says what kind of statement a text holds; the few questions it does not answer
(RETURNING, which transaction verb, TEMP) are put to its lexer.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from functools import cached_property
from itertools import dropwhile, pairwise, takewhile

import duckdb
from duckdb import StatementType

from swanlake.errors import Unsupported
from swanlake.sql.tokens import Token, substitute_parameters, tokenize


class Kind(Enum):
    """What a caller gets back from a statement, or what it does to the transaction."""

    QUERY = "query"  # rows
    CHANGE = "change"  # a number of affected rows
    COMMAND = "command"  # nothing
    BEGIN = "begin"
    COMMIT = "commit"
    ROLLBACK = "rollback"


_QUERIES = {
    StatementType.SELECT,
    StatementType.EXPLAIN,
    StatementType.CALL,
    StatementType.EXECUTE,
    StatementType.PRAGMA,
    StatementType.RELATION,
    StatementType.LOGICAL_PLAN,
}
_CHANGES = {
    StatementType.INSERT,
    StatementType.UPDATE,
    StatementType.DELETE,
    StatementType.MERGE_INTO,
    StatementType.COPY,
    StatementType.CREATE,
}
_HARMLESS = {
    StatementType.SELECT,
    StatementType.PRAGMA,
    StatementType.SET,
    StatementType.VARIABLE_SET,
    StatementType.TRANSACTION,
    StatementType.PREPARE,
    StatementType.LOAD,
    StatementType.ATTACH,
    StatementType.DETACH,
}
_DEFINITIONS = {
    StatementType.CREATE,
    StatementType.ALTER,
    StatementType.DROP,
    StatementType.TRANSACTION,
    StatementType.CALL,
}
#: What CREATE makes; before that word stands TEMP, after it names that may be "temp" as well.
_CREATED = ("table", "view", "sequence", "macro", "function", "type", "schema", "index", "secret")
_FILE_NAME = re.compile(r"[/\\:]")
_VERBS = {
    "begin": Kind.BEGIN,
    "start": Kind.BEGIN,
    "commit": Kind.COMMIT,
    "end": Kind.COMMIT,
    "rollback": Kind.ROLLBACK,
    "abort": Kind.ROLLBACK,
}


@dataclass(frozen=True)
class Argument:
    """An argument of a CALL: an expression, and the name it was given for (``at => 3``)."""

    expression: str
    keyword: str = ""


@dataclass(frozen=True)
class Call:
    """A CALL of a procedure by name."""

    name: str
    arguments: tuple[Argument, ...]


@dataclass(frozen=True)
class Statement:
    """One parsed statement."""

    parsed: duckdb.Statement
    #: A prepared statement is asked for this with every batch that is bound to it.
    _over_rows: dict[str, str | None] = field(default_factory=dict, compare=False, repr=False)

    @property
    def text(self) -> str:
        return self.parsed.query

    @cached_property
    def tokens(self) -> list[Token]:
        return tokenize(self.text)

    @property
    def type(self) -> StatementType:
        return self.parsed.type

    @cached_property
    def kind(self) -> Kind:
        if self.type == StatementType.TRANSACTION:
            return _VERBS[self.tokens[0].text.lower()]
        if self.type in _QUERIES or (self.is_change and self._returning is not None):
            return Kind.QUERY
        return Kind.CHANGE if self.is_change else Kind.COMMAND

    @property
    def is_change(self) -> bool:
        """True if it changes rows, whether or not it returns them."""
        return self.type in _CHANGES

    @cached_property
    def parameters(self) -> tuple[str, ...]:
        """The names of the parameters, in order; ``?`` and ``$1`` are named by their number."""
        names = self.parsed.named_parameters
        return tuple(sorted(names, key=lambda name: (int(name) if name.isdigit() else 0, name)))

    @property
    def may_write(self) -> bool:
        """True unless the statement certainly changes nothing that others can see."""
        if self.type == StatementType.COPY:
            return not self._copies_out
        if self.type == StatementType.EXPLAIN:
            return self._explains_by_doing
        return self.type not in _HARMLESS and not self.creates_temporary

    @property
    def _explains_by_doing(self) -> bool:
        """EXPLAIN ANALYZE, which runs the statement that it explains."""
        if self.type != StatementType.EXPLAIN:
            return False
        return any(token.is_word("analyze") for token in self.tokens[1:3])

    @property
    def _copies_out(self) -> bool:
        """COPY … TO a file, as against COPY … FROM one."""
        direction = next(t for t in self.tokens if t.depth == 0 and t.is_kw("to", "from"))
        return direction.is_kw("to")

    @property
    def changes_tables(self) -> bool:
        """True if tables may look different afterwards: made, changed, dropped, or committed so."""
        return self.type in _DEFINITIONS

    @property
    def is_setting(self) -> bool:
        """SET, RESET and USE: what a session repeats on a new connection."""
        return self.type in (StatementType.SET, StatementType.VARIABLE_SET)

    @property
    def is_global(self) -> bool:
        """True for a SET or RESET that is for all sessions."""
        return self.is_setting and any(token.is_word("global") for token in self.tokens[1:2])

    @property
    def setting_name(self) -> str:
        """What a SET, RESET or USE is about, so that the latest one stands for all before it."""
        if self.tokens[0].is_word("use"):
            return "use"
        words = takewhile(lambda t: t.text != "=" and not t.is_word("to"), self.tokens[1:])
        return " ".join(word.text.lower() for word in words)

    @property
    def creates_temporary(self) -> bool:
        if self.type != StatementType.CREATE:
            return False
        before = takewhile(lambda token: not token.is_word(*_CREATED), self.tokens[1:])
        return any(token.is_word("temp", "temporary") for token in before)

    @property
    def attaches(self) -> bool:
        """True for ATTACH, which gives a name to a database."""
        return self.type == StatementType.ATTACH

    @property
    def removes_catalogs(self) -> bool:
        """True for DETACH, and for an ATTACH that takes the place of what is attached."""
        if self.type == StatementType.ATTACH:
            return any(token.is_word("replace") for token in self.tokens[1:3])
        return self.type == StatementType.DETACH

    @cached_property
    def names(self) -> set[str]:
        """Every word or text that could be the name of a catalog, in lower case."""
        words = {token.text.strip("\"'").lower() for token in self.tokens if not token.is_operator}
        if self.type == StatementType.ATTACH:  # without AS, the file gives the database its name
            words |= {_FILE_NAME.split(word)[-1].partition(".")[0] for word in words}
        return words

    @cached_property
    def call(self) -> Call | None:
        """The procedure that a CALL names and its arguments; None for any other statement."""
        if self.type != StatementType.CALL or len(self.tokens) < 4:
            return None
        name, opening = self.tokens[1:3]
        if opening.text != "(":
            return None
        inside = takewhile(lambda t: not (t.depth == 0 and t.text == ")"), self.tokens[3:])
        text = self.text.encode()
        arguments: list[Argument] = []
        for piece in _split(list(inside)):
            keyword = ""
            if len(piece) > 1 and text[piece[1].start :].startswith((b"=>", b":=")):
                value = piece[1].start + 2
                keyword = piece[0].text.lower()
                piece = [token for token in piece if token.start >= value]
            expression = text[piece[0].start : piece[-1].end].decode() if piece else ""
            arguments.append(Argument(expression, keyword))
        return Call(name.text.strip('"').lower(), tuple(arguments))

    @property
    def leaves_state(self) -> bool:
        """True if the connection then holds something that cannot be rebuilt from its text."""
        if self.creates_temporary or self._explains_by_doing:
            return True
        return self.type in (
            StatementType.ATTACH,
            StatementType.PREPARE,
            StatementType.CREATE_FUNC,
        )

    @cached_property
    def _returning(self) -> int | None:
        """The position among the tokens of a RETURNING that belongs to this very statement."""
        if "returning" not in self.text.lower():  # spares the lexer a bulk INSERT of megabytes
            return None
        for position, token in enumerate(self.tokens):
            if token.depth == 0 and token.is_kw("returning"):
                return position
        return None

    @property
    def has_conflict_clause(self) -> bool:
        """True for an INSERT … ON CONFLICT."""
        return any(
            one.depth == 0 and one.is_kw("on") and other.is_word("conflict")
            for one, other in pairwise(self.tokens)
        )

    def probe(self) -> str | None:
        """A query with the same columns as this statement and no rows, or None if there is none."""
        if self.type in (StatementType.SELECT, StatementType.RELATION):
            return f"SELECT * FROM (\n{self.body}\n) LIMIT 0"
        if self._returning is None or self.target is None:
            return None
        clause = self._from(self.tokens[self._returning].end)
        return f"SELECT {clause}\nFROM {self.target} LIMIT 0"

    @cached_property
    def body(self) -> str:
        """The text up to the semicolon that ends it."""
        text = self.text
        end = text.find(";")
        # A comment can stand behind the semicolon, and only the lexer knows one from a value.
        if end >= 0 and any(text.find(comment, end) >= 0 for comment in ("--", "/*")):
            tokens = list(dropwhile(lambda token: token.text == ";", reversed(self.tokens)))
            return text.encode()[: tokens[0].end].decode()
        return text.rstrip("; \t\r\n")

    def _from(self, start: int) -> str:
        return self.body.encode()[start:].decode()

    @cached_property
    def target(self) -> str | None:
        """The table an INSERT, UPDATE or DELETE names, as it is written."""
        if self.type not in (StatementType.INSERT, StatementType.UPDATE, StatementType.DELETE):
            return None
        tokens = iter(self.tokens)
        for token in tokens:
            if token.depth == 0 and token.is_kw("insert", "update", "delete"):
                break
        else:
            return None
        pieces: list[str] = []
        for token in tokens:
            if token.is_operator and token.text == ".":
                pieces.append(".")
            elif not token.is_operator and (not pieces or pieces[-1] == "."):
                if not pieces and token.is_word("into", "from", "or", "replace", "ignore"):
                    continue
                pieces.append(token.text)
            else:
                break
        return "".join(pieces) or None

    def with_parameters(self, replacement: Callable[[str], str]) -> str:
        """The text with every parameter replaced."""
        return substitute_parameters(self.text, replacement)

    def over_rows(self, source: str) -> str | None:
        """``INSERT … VALUES (?, now())`` as one ``INSERT … SELECT source.c0, now() FROM source``.

        The columns of the source are the parameters in order, and called so.

        None where that would not mean the same: more than one VALUES row, DEFAULT or a subquery
        among the values, parameters outside the row, a conflict that replaces what an earlier row
        wrote.
        """
        if source not in self._over_rows:
            columns = {name: f"{source}.c{i}" for i, name in enumerate(self.parameters)}
            self._over_rows[source] = self._find_over_rows(source, columns.__getitem__)
        return self._over_rows[source]

    def _find_over_rows(self, source: str, column: Callable[[str], str]) -> str | None:
        if self.type != StatementType.INSERT:
            return None
        tokens = self.tokens
        start = next(
            (i for i, token in enumerate(tokens) if token.depth == 0 and token.is_kw("values")),
            None,
        )
        if start is None or start + 1 >= len(tokens) or tokens[start + 1].text != "(":
            return None
        close = next(
            (i for i, t in enumerate(tokens) if i > start + 1 and t.depth == 0 and t.text == ")"),
            None,
        )
        if close is None or any(t.is_kw("default", "select") for t in tokens[start + 1 : close]):
            return None
        rest = tokens[close + 1 :]
        if rest and not (rest[0].is_kw("returning", "on") or rest[0].text == ";"):
            return None
        if any(t.is_kw("update", "replace") and t.depth == 0 for t in [*tokens[:start], *rest]):
            return None
        if any(t.is_operator and t.text in ("?", "$") for t in [*tokens[:start], *rest]):
            return None
        text = self.text.encode()
        head = text[: tokens[start].start].decode()
        row = text[tokens[start + 1].end : tokens[close].start].decode()
        tail = text[tokens[close].end :].decode()
        return f"{head}SELECT {substitute_parameters(row, column)}\nFROM {source} {tail}"


def _split(tokens: list[Token]) -> list[list[Token]]:
    """The tokens between the commas of one level of parentheses."""
    pieces: list[list[Token]] = []
    for token in tokens:
        if token.depth == 1 and token.text == ",":
            pieces.append([])
        else:
            pieces = pieces or [[]]
            pieces[-1].append(token)
    return pieces


def parse(connection: duckdb.DuckDBPyConnection, sql: str) -> list[Statement]:
    """The statements of a text, in order; raises DuckDB's own error where it is not SQL."""
    found = connection.extract_statements(sql)
    if any(one.type == StatementType.TRANSACTION and not one.query for one in found):
        raise Unsupported(
            "A PIVOT that finds out its columns by itself cannot be written to a table: name them "
            "with IN (…)."
        )
    return [Statement(_counted_as_written(connection, parsed)) for parsed in found]


def _counted_as_written(
    connection: duckdb.DuckDBPyConnection, parsed: duckdb.Statement
) -> duckdb.Statement:
    """The statement whose first ``?`` is its first parameter.

    DuckDB counts those after the FROM of an UPDATE, or the USING of a DELETE, in another order, and
    would bind the values of one to the other.
    """
    reorders = parsed.type in (StatementType.UPDATE, StatementType.DELETE)
    if not reorders or len(parsed.named_parameters) < 2 or "?" not in parsed.query:
        return parsed
    numbered = substitute_parameters(parsed.query, lambda name: f"${name}")
    return connection.extract_statements(numbered)[0]
