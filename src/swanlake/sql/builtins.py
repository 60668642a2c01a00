"""Functions of DuckDB's own, named so that they are found without a search.

A name without a schema is looked for in the session's catalog first. That is a lake, and the look
takes milliseconds, which an insert of one row with a ``now()`` does not otherwise need.
"""

from __future__ import annotations

import re

from swanlake.sql.tokens import tokenize

#: Functions without arguments that people put into rows, as the system catalog calls them.
ROW_FUNCTIONS = frozenset(
    "now get_current_timestamp transaction_timestamp today uuid gen_random_uuid uuidv4 uuidv7 "
    "random".split()
)
_ANY = re.compile(rf"\b({'|'.join(ROW_FUNCTIONS)})\s*\(", re.IGNORECASE)
_LONGEST = 4096


def with_builtins(text: str) -> str:
    """The text with such functions in their full names; a long text is left as it is."""
    if len(text) > _LONGEST or not _ANY.search(text):
        return text
    content = text.encode()
    tokens = tokenize(text)
    for place in range(len(tokens) - 1, -1, -1):
        token = tokens[place]
        word = token.text.lower()
        if token.is_operator or (place and tokens[place - 1].text == "."):
            continue
        following = [after.text for after in tokens[place + 1 : place + 3]]
        if word in ROW_FUNCTIONS and following == ["(", ")"]:
            content = content[: token.start] + b"system.main." + content[token.start :]
    return content.decode()
