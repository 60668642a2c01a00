"""Names of tables that come as text, in the arguments of procedures."""

from __future__ import annotations

import re

from swanlake.errors import InvalidRequest
from swanlake.sql.insert import unquoted

#: A name that holds a dot stands in quotes, as in SQL: ``main."a.b"``.
_PART = re.compile(r'"(?:[^"]|"")*"|[^."]+')
_NAME = re.compile(rf"(?:{_PART.pattern})(?:\.(?:{_PART.pattern})){{,2}}")


def split_name(name: str) -> list[str]:
    """The parts of ``t``, ``schema.t`` or ``catalog.schema.t``, without their quotes."""
    if not _NAME.fullmatch(name):
        raise InvalidRequest(f"{name!r} is not the name of a table: write catalog.schema.table.")
    return [unquoted(part) for part in _PART.findall(name)]
