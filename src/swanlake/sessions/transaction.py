"""Where a session stands with its transaction."""

from __future__ import annotations

from dataclasses import dataclass, field

from swanlake.errors import NotFound, TransactionAborted
from swanlake.lake.location import LakeLocation
from swanlake.sessions.ids import new_handle
from swanlake.sql.statement import Kind, Statement


@dataclass
class TransactionState:
    """What the session knows: is a transaction open, has it failed, where did it write."""

    open: bool = False
    aborted: bool = False
    wrote_to: set[LakeLocation] = field(default_factory=set)
    #: The tables to which it wrote, as they were named.
    written: list[str] = field(default_factory=list)
    #: Its name for Flight clients; a transaction begun by SQL has one too, which nobody is told.
    handle: bytes = b""

    def admit(self, statement: Statement) -> None:
        """Refuses everything but ROLLBACK in a failed transaction, COMMIT above all.

        DuckDB answers COMMIT there with success and rolls back: an acknowledgement of nothing.
        """
        if self.aborted and statement.kind is not Kind.ROLLBACK:
            raise TransactionAborted(
                "A statement failed in this transaction, so it can no longer be used; "
                "ROLLBACK ends it."
            )

    def check_handle(self, handle: bytes) -> None:
        """Refuses a statement that names another transaction than the one that is open."""
        if not self.open or handle != self.handle:
            raise NotFound(
                "This session has no such transaction: it ended, or belongs to another session.",
                identifier="TRANSACTION_NOT_FOUND",
            )

    def succeeded(self, statement: Statement) -> None:
        if statement.kind is Kind.BEGIN:
            self.open, self.handle = True, new_handle()
        elif statement.kind in (Kind.COMMIT, Kind.ROLLBACK):
            self.reset()

    def reset(self) -> None:
        self.open = self.aborted = False
        self.wrote_to = set()
        self.written = []
        self.handle = b""
