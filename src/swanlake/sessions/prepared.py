"""Prepared statements: parsed once, described without being executed, bound and run many times."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import pyarrow as pa

from swanlake.errors import InvalidRequest
from swanlake.sessions.ids import new_handle
from swanlake.sql.statement import Kind, Statement

EMPTY_SCHEMA = pa.schema([])


@dataclass
class PreparedStatement:
    """A text a session has parsed for a client, and the parameters bound to it so far."""

    sql: str
    statements: list[Statement]
    handle: bytes = field(default_factory=new_handle)
    dataset_schema: Any = EMPTY_SCHEMA
    parameter_schema: Any = EMPTY_SCHEMA
    bound: list[Any] | None = None

    def __post_init__(self) -> None:
        if any(statement.parameters for statement in self.statements[:-1]):
            raise InvalidRequest("Only the last statement of a text can take parameters.")

    @property
    def last(self) -> Statement:
        return self.statements[-1]

    @property
    def is_update(self) -> bool:
        return self.last.kind is not Kind.QUERY
