"""Classifies a statement: whether it returns rows, may write, or changes transaction or session.

DuckDB's parser gives the type of a statement; its lexer answers what the type does not
(RETURNING, the transaction verb, TEMP).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from functools import cached_property
from itertools import dropwhile, pairwise, takewhile

import duckdb
from duckdb import StatementType

from swanlake.sql.alteration import Alteration, parse_alteration
from swanlake.sql.expansion import written_statements
from swanlake.sql.expressions import builtin_functions
from swanlake.sql.insert import QUERY_WORDS, InsertHead, insert_head
from swanlake.sql.quoting import unquoted
from swanlake.sql.tokens import Token, TokenReader, find_keyword, substitute_parameters, tokenize


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
_CHANGES_ROWS = {
    StatementType.INSERT,
    StatementType.UPDATE,
    StatementType.DELETE,
    StatementType.MERGE_INTO,
    StatementType.COPY,
    StatementType.EXECUTE,
}
_DELETES = {
    StatementType.UPDATE,
    StatementType.DELETE,
    StatementType.MERGE_INTO,
    StatementType.EXECUTE,
}
_MAY_ALTER = {StatementType.ALTER, StatementType.EXPLAIN}
#: Settings of one session without a scope, and what a SET of one session begins with.
_SESSION_SETTINGS = frozenset({"use", "schema", "search_path", "timezone"})
_SESSION_SCOPES = ("session", "local", "variable", "time")
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
    StatementType.COPY_DATABASE,
}
#: Kinds of objects in CREATE. TEMP comes before this word; after it, "temp" may be a name.
_CREATED = ("table", "view", "sequence", "macro", "function", "type", "schema", "index", "secret")
#: Keywords before a parenthesis in an expression.
_CALLED_KEYWORDS = frozenset(
    "and between case cast coalesce decimal else if in interval like not nullif numeric or then "
    "try_cast varchar when".split()
)
#: The word before the name of the table that gets the rows.
_BEFORE_WRITTEN = {
    StatementType.MERGE_INTO: "into",
    StatementType.COPY: "copy",
    StatementType.CREATE: "table",
}
_FILE_NAME = re.compile(r"[/\\:]")
#: The line before the body of a query in its probe.
PROBE_LINE = "SELECT * FROM ("
#: Table functions that change nothing, whose columns are known from a query without rows.
_READING_PROCEDURES = frozenset(
    "pragma_collations pragma_database_size pragma_metadata_info pragma_platform pragma_show "
    "pragma_storage_info pragma_table_info pragma_user_agent pragma_version ducklake_snapshots "
    "ducklake_table_info ducklake_list_files ducklake_table_changes ducklake_table_deletions "
    "ducklake_table_insertions ducklake_current_snapshot ducklake_options".split()
)
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
    """An argument of a CALL: an expression, and its keyword if it has one (``at => 3``)."""

    expression: str
    keyword: str = ""


@dataclass(frozen=True)
class Call:
    """A call of a procedure by name, and the byte at which it ends."""

    name: str
    arguments: tuple[Argument, ...]
    end: int


@dataclass(frozen=True)
class Statement:
    """One statement of a client, parsed."""

    #: What DuckDB runs; for an expanded statement the last step, which gives the result.
    parsed: duckdb.Statement
    #: What DuckDB runs before that, if it expanded the statement.
    preparation: tuple[duckdb.Statement, ...] = ()
    #: The text of an expanded statement; its steps have none.
    written: str | None = None
    #: Cached by source: every batch bound to a prepared statement needs it.
    _over_rows: dict[str, str | None] = field(default_factory=dict, compare=False, repr=False)

    @cached_property
    def text(self) -> str:
        return self.parsed.query if self.written is None else self.written

    @property
    def is_expanded(self) -> bool:
        """True if DuckDB runs it as several statements; see ``swanlake.sql.expansion``."""
        return self.written is not None

    @cached_property
    def tokens(self) -> list[Token]:
        return tokenize(self.text)

    @cached_property
    def insert_head(self) -> InsertHead | None:
        """The head of the INSERT, or of the INSERT inside an EXPLAIN."""
        return insert_head(self.text)

    def split_at(self, start: int, end: int) -> tuple[str, str]:
        """The text before and after a range of its UTF-8 bytes."""
        text = self.text.encode()
        return text[:start].decode(), text[end:].decode()

    @cached_property
    def type(self) -> StatementType:
        return StatementType.COPY_DATABASE if self.is_import else self.parsed.type

    @property
    def is_import(self) -> bool:
        """True for IMPORT DATABASE, which DuckDB expands to the statements of a directory."""
        return self.is_expanded and self.tokens[0].is_word("import", "pragma")

    @cached_property
    def kind(self) -> Kind:
        if self.type == StatementType.TRANSACTION:
            return _VERBS[self.tokens[0].text.lower()]
        if self.type in _QUERIES or (self.is_change and self._returning is not None):
            return Kind.QUERY
        return Kind.CHANGE if self.is_change else Kind.COMMAND

    @cached_property
    def is_change(self) -> bool:
        """True if it changes rows, whether or not it returns them."""
        return self.type in _CHANGES

    @cached_property
    def parameters(self) -> tuple[str, ...]:
        """The names of the parameters, in order; ``?`` and ``$1`` are named by their number."""
        names = self.parsed.named_parameters
        return tuple(sorted(names, key=lambda name: (int(name) if name.isdigit() else 0, name)))

    @cached_property
    def may_write(self) -> bool:
        """False only if the statement certainly changes nothing that other sessions can see."""
        if self.type == StatementType.COPY:
            direction = next(t for t in self.tokens if t.depth == 0 and t.is_kw("to", "from"))
            return direction.is_kw("from")
        if self.type == StatementType.EXPLAIN:
            return self._explains_by_doing
        return self.type not in _HARMLESS and not self.creates_temporary

    @cached_property
    def _explains_by_doing(self) -> bool:
        """True for EXPLAIN ANALYZE, which runs the statement that it explains."""
        if self.type != StatementType.EXPLAIN:
            return False
        return any(token.is_word("analyze") for token in self.tokens[1:3])

    @cached_property
    def may_delete_rows(self) -> bool:
        """True if it may delete or replace rows of a table."""
        return self.type in _DELETES

    @cached_property
    def changes_tables(self) -> bool:
        """True if it may create, alter or drop a table, or commit such a change."""
        return self.type in _DEFINITIONS

    @cached_property
    def is_setting(self) -> bool:
        """True for SET, RESET and USE, which a session repeats on a new connection."""
        return self.type in (StatementType.SET, StatementType.VARIABLE_SET)

    @cached_property
    def is_pragma(self) -> bool:
        """True for a PRAGMA that is neither a query nor a setting."""
        return self.type == StatementType.PRAGMA

    @property
    def may_be_global(self) -> bool:
        """True for a SET or RESET that may change a setting of all sessions.

        Without a scope DuckDB sets some settings for all, such as ``default_collation``.
        """
        if not self.is_setting or self.setting_name in _SESSION_SETTINGS:
            return False
        return not any(token.is_word(*_SESSION_SCOPES) for token in self.tokens[1:2])

    @property
    def setting_name(self) -> str:
        """The setting that a SET, RESET or USE changes; a later one replaces an earlier one."""
        if self.tokens[0].is_word("use"):
            return "use"
        words = takewhile(lambda t: t.text != "=" and not t.is_word("to"), self.tokens[1:])
        return " ".join(word.text.lower() for word in words)

    @cached_property
    def creates_temporary(self) -> bool:
        if self.type != StatementType.CREATE:
            return False
        before = takewhile(lambda token: not token.is_word(*_CREATED), self.tokens[1:])
        return any(token.is_word("temp", "temporary") for token in before)

    @cached_property
    def attaches(self) -> bool:
        """True for ATTACH."""
        return self.type == StatementType.ATTACH

    @cached_property
    def removes_catalogs(self) -> bool:
        """True for DETACH, ATTACH OR REPLACE and ALTER DATABASE, which renames."""
        if self.type == StatementType.ATTACH:
            return any(token.is_word("replace") for token in self.tokens[1:3])
        if self.type == StatementType.ALTER:
            return any(token.is_word("database") for token in self.tokens[1:2])
        return self.type == StatementType.DETACH

    @cached_property
    def names(self) -> set[str]:
        """Every word and string that could name a catalog, in lower case."""
        words = {token.text.strip("\"'").lower() for token in self.tokens if not token.is_operator}
        if self.type == StatementType.ATTACH:  # without AS, the database is named after its file
            words |= {_FILE_NAME.split(word)[-1].partition(".")[0] for word in words}
        return words

    @cached_property
    def call(self) -> Call | None:
        """The procedure that a CALL names and its arguments; None for any other statement."""
        if self.type != StatementType.CALL:
            return None
        return read_call(self.text.encode(), self.tokens[1:])

    @cached_property
    def may_call_procedures(self) -> bool:
        """False only if it certainly names no procedure of the server."""
        text = self.text.lower()
        return "swanlake_" in text or "duckling_queue_" in text

    @cached_property
    def creates_session_state(self) -> bool:
        """True if it creates state that a new connection cannot rebuild by repeating it."""
        if self.creates_temporary or self._explains_by_doing:
            return True
        return self.type in (StatementType.ATTACH, StatementType.PREPARE, StatementType.CREATE_FUNC)

    @cached_property
    def may_create_session_macro(self) -> bool:
        """False only if it certainly creates no macro of the session."""
        if not self.creates_session_state or self.type == StatementType.ATTACH:
            return False
        created = next((token for token in self.tokens[1:] if token.is_word(*_CREATED)), None)
        is_macro = created is None or created.is_word("macro", "function")
        return self.type != StatementType.CREATE or is_macro

    @cached_property
    def _returning(self) -> int | None:
        """The token position of the statement's own RETURNING."""
        if "returning" not in self.text.lower():  # spares the lexer a bulk INSERT of megabytes
            return None
        return find_keyword(self.tokens, "returning")

    @property
    def has_conflict_clause(self) -> bool:
        """True for an INSERT … ON CONFLICT."""
        return any(
            one.depth == 0 and one.is_kw("on") and other.is_word("conflict")
            for one, other in pairwise(self.tokens)
        )

    def probe(self) -> str | None:
        """A query that returns the columns of this statement and no rows; None if there is none.

        The body of a SELECT begins in its second line, after ``PROBE_LINE``.
        """
        if self.type in (StatementType.SELECT, StatementType.RELATION):
            return f"{PROBE_LINE}\n{self.body}\n) LIMIT 0"
        if self.call is not None and self.call.name in _READING_PROCEDURES:
            return f"FROM {self._body_after(self.tokens[0])}\nLIMIT 0"
        if self._returning is None or self.target is None:
            return None
        clause = self._body_after(self.tokens[self._returning])
        return f"SELECT {clause}\nFROM {self.target} LIMIT 0"

    def _body_after(self, token: Token) -> str:
        return self.body.encode()[token.end :].decode()

    @cached_property
    def body(self) -> str:
        """The text up to the semicolon that ends it."""
        text = self.text
        end = text.find(";")
        # A comment may follow the semicolon; only the lexer can tell it from a string.
        if end >= 0 and any(text.find(comment, end) >= 0 for comment in ("--", "/*")):
            tokens = list(dropwhile(lambda token: token.text == ";", reversed(self.tokens)))
            return text.encode()[: tokens[0].end].decode()
        return text.rstrip("; \t\r\n")

    @property
    def target(self) -> str | None:
        """The target table of an INSERT, UPDATE or DELETE, as written."""
        if self._target is None:
            return None
        _, start, end = self._target
        return self.text.encode()[start:end].decode()

    @property
    def target_parts(self) -> tuple[str, ...] | None:
        """The parts of the target's name, without quotes."""
        return None if self._target is None else self._target[0]

    @cached_property
    def written_table(self) -> tuple[str, ...] | None:
        """The parts of the name of the table that gets its rows; None if it is not known."""
        if self.type == StatementType.INSERT:  # only its head is read: rows may be megabytes
            return self.insert_head.target if self.insert_head is not None else None
        before = _BEFORE_WRITTEN.get(self.type)
        if before is None:
            return self.target_parts
        word = next((i for i, token in enumerate(self.tokens) if token.is_word(before)), None)
        if word is None:
            return None
        reader = TokenReader(self.tokens[word + 1 :])
        reader.skip("if", "not", "exists")
        parts, _, _ = reader.take_name()
        return parts or None

    @cached_property
    def changes_rows(self) -> bool:
        """True if it may insert, change or delete rows of a table."""
        if self.type == StatementType.CREATE:
            return self.creates_table and find_keyword(self.tokens, "as") is not None
        return self.type in _CHANGES_ROWS or self._explains_by_doing

    @cached_property
    def alteration(self) -> Alteration | None:
        """What an ALTER or a COMMENT changes, or the ALTER inside an EXPLAIN."""
        return parse_alteration(self.tokens) if self.type in _MAY_ALTER else None

    @property
    def creates_table(self) -> bool:
        """True for a CREATE TABLE that is not temporary."""
        if self.type != StatementType.CREATE or self.creates_temporary:
            return False
        created = next((token for token in self.tokens[1:] if token.is_word(*_CREATED)), None)
        return created is not None and created.is_word("table")

    def may_rewrite_files(self, procedures: tuple[str, ...]) -> bool:
        """True for CHECKPOINT, and for a CALL of one of these procedures of DuckLake."""
        if self.type != StatementType.CALL:
            return False
        if not self.tokens[0].is_word("call"):
            return True
        name, _, _ = TokenReader(self.tokens[1:]).take_name()
        return bool(name) and name[-1].lower().removeprefix("ducklake_") in procedures

    @cached_property
    def _target(self) -> tuple[tuple[str, ...], int, int] | None:
        if self.type not in (StatementType.INSERT, StatementType.UPDATE, StatementType.DELETE):
            return None
        verb = find_keyword(self.tokens, "insert", "update", "delete")
        if verb is None:
            return None
        reader = TokenReader(self.tokens[verb + 1 :])
        while reader.next.is_word("into", "from", "or", "replace", "ignore"):
            reader.take()
        name = reader.take_name()
        return name if name[0] else None

    def with_parameters(self, replacement: Callable[[str], str]) -> str:
        """The text with every parameter replaced."""
        return substitute_parameters(self.text, replacement)

    def over_rows(self, source: str) -> str | None:
        """``INSERT … VALUES (?, now())`` as one ``INSERT … SELECT source.c0, now() FROM source``.

        The columns of the source are the parameters in order: ``c0``, ``c1``, …

        None if the meaning might differ: several VALUES rows, DEFAULT, a subquery or an unknown
        function among the values, parameters outside the row, or a conflict clause that updates an
        earlier row.
        """
        if source not in self._over_rows:
            columns = {name: f"{source}.c{i}" for i, name in enumerate(self.parameters)}
            self._over_rows[source] = self._find_over_rows(source, columns.__getitem__)
        return self._over_rows[source]

    def _find_over_rows(self, source: str, column: Callable[[str], str]) -> str | None:
        if self.type != StatementType.INSERT:
            return None
        tokens = self.tokens
        start = find_keyword(tokens, "values")
        if start is None or start + 1 >= len(tokens) or tokens[start + 1].text != "(":
            return None
        close = next(
            (i for i, t in enumerate(tokens) if i > start + 1 and t.depth == 0 and t.text == ")"),
            None,
        )
        if close is None or not _are_independent(tokens[start + 1 : close]):
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


def _are_independent(values: list[Token]) -> bool:
    """True if the values certainly do not depend on rows inserted earlier."""
    if any(token.is_kw("default", *QUERY_WORDS) for token in values):
        return False
    names = builtin_functions("scalar") | _CALLED_KEYWORDS
    for index, token in enumerate(values):
        if not (index and token.is_operator and token.text == "("):
            continue
        called = values[index - 1]
        is_qualified = index > 1 and values[index - 2].text == "."
        if not called.is_operator and (is_qualified or called.text.lower() not in names):
            return False
    return True


def read_call(text: bytes, tokens: Sequence[Token]) -> Call | None:
    """The call ``name(…)`` with which the tokens begin; None if they begin with none."""
    if len(tokens) < 3 or tokens[1].text != "(":
        return None
    name, opening = tokens[:2]
    inside = list(takewhile(lambda t: not (t.depth == opening.depth and t.text == ")"), tokens[2:]))
    if len(inside) + 2 == len(tokens):
        return None
    arguments: list[Argument] = []
    for piece in _split(inside, opening.depth + 1):
        keyword = ""
        if len(piece) > 1 and text[piece[1].start :].startswith((b"=>", b":=")):
            value = piece[1].start + 2
            keyword = unquoted(piece[0].text).lower()
            piece = [token for token in piece if token.start >= value]
        expression = text[piece[0].start : piece[-1].end].decode() if piece else ""
        arguments.append(Argument(expression, keyword))
    return Call(name.text.strip('"').lower(), tuple(arguments), tokens[len(inside) + 2].end)


def _split(tokens: list[Token], depth: int) -> list[list[Token]]:
    """Splits tokens at the commas of one level of parentheses."""
    pieces: list[list[Token]] = []
    for token in tokens:
        if token.depth == depth and token.text == ",":
            pieces.append([])
        else:
            pieces = pieces or [[]]
            pieces[-1].append(token)
    return pieces


def parse(connection: duckdb.DuckDBPyConnection, sql: str) -> list[Statement]:
    """The statements of a text, in order; raises DuckDB's error if it is not SQL."""
    return [_counted_as_written(connection, one) for one in _parse(connection, sql)]


def _parse(connection: duckdb.DuckDBPyConnection, sql: str) -> list[Statement]:
    statements = []
    for written in written_statements(sql, connection.extract_statements):
        *preparation, last = written.steps
        text = written.text if preparation else None
        statements.append(Statement(last, tuple(preparation), text))
    return statements


def _counted_as_written(connection: duckdb.DuckDBPyConnection, statement: Statement) -> Statement:
    """The statement with its ``?`` parameters numbered in text order.

    DuckDB numbers those after the FROM of an UPDATE or the USING of a DELETE in another order, and
    would bind values to the wrong parameters.
    """
    reorders = statement.type in (StatementType.UPDATE, StatementType.DELETE)
    if not reorders or len(statement.parameters) < 2 or "?" not in statement.text:
        return statement
    [numbered] = _parse(connection, statement.with_parameters(lambda name: f"${name}"))
    return numbered
