"""Statements that DuckDB's parser expands into several, which are one statement to their client.

A PIVOT without a list of columns first creates an ENUM of its values. An ALTER TABLE that adds a
column with a computed default adds the column, fills it, and then sets the default. IMPORT and COPY
FROM DATABASE are one statement for each table. Most of the expanded statements have no text.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import duckdb
from duckdb import StatementType

from swanlake.sql.tokens import tokenize

Extract = Callable[[str], list[duckdb.Statement]]


@dataclass(frozen=True)
class WrittenStatement:
    """One statement as its client wrote it, and the steps in which DuckDB runs it."""

    text: str
    #: At least one. The last one has the parameters, and gives the result.
    steps: tuple[duckdb.Statement, ...]


def written_statements(sql: str, extract: Extract) -> list[WrittenStatement]:
    """The statements of a text; ``extract`` gives DuckDB's own list and raises its errors."""
    extracted = extract(sql)
    if _has_only_written(sql, extracted):
        return [WrittenStatement(one.query, (one,)) for one in extracted]
    written = []
    for text in split_text(sql):
        extracted = extract(text)
        steps = tuple(one for one in extracted if not _is_bracket(one))
        if len(extracted) == 1:  # DuckDB's text: it replaces some PRAGMAs by a query
            text = extracted[0].query
        if steps:
            written.append(WrittenStatement(text, steps))
    return written


def split_text(sql: str) -> list[str]:
    """The text of each statement, without its semicolon."""
    text = sql.encode()
    pieces: list[str] = []
    start, is_empty = 0, True
    for token in tokenize(sql):
        if token.is_operator and token.text == ";":
            if not is_empty:
                pieces.append(text[start : token.start].decode())
            start, is_empty = token.start + 1, True
        else:
            is_empty = False
    return pieces if is_empty else [*pieces, text[start:].decode()]


def _has_only_written(sql: str, extracted: Sequence[duckdb.Statement]) -> bool:
    """True if each statement is a part of the text; a single one may stand for a PRAGMA."""
    if len(extracted) == 1:
        return True
    position = 0
    for statement in extracted:
        position = sql.find(statement.query, position) if statement.query else -1
        if position < 0:
            return False
        position += len(statement.query)
    return True


def _is_bracket(statement: duckdb.Statement) -> bool:
    """True for what DuckDB adds around the steps to make them one.

    That is a transaction, or inside of a transaction a setting by which any error aborts it. The
    session does the same itself, whether or not a transaction is open when the text is parsed.
    """
    is_added = statement.type in (StatementType.TRANSACTION, StatementType.SET)
    return is_added and not statement.query
