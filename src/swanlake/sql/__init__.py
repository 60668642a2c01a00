"""Reads SQL text: what a statement is, which parts it has, and what it depends on.

Nothing here executes a statement of a client. DuckDB does the parsing: its lexer (``tokens``) for
the parts of statements whose shape is known, its statement type (``statement``), and its syntax
tree (``syntax_tree``) for everything about queries and expressions.
"""

__all__ = [
    "alteration",
    "builtins",
    "expansion",
    "expressions",
    "facts",
    "filters",
    "fingerprint",
    "heads",
    "hints",
    "insert",
    "last_commit",
    "parameter_types",
    "quoting",
    "reads",
    "references",
    "safe_text",
    "statement",
    "syntax_tree",
    "table_functions",
    "tokens",
]
