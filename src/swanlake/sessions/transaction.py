"""The state of a session's transaction."""

from __future__ import annotations

from dataclasses import dataclass, field

from swanlake.errors import NotFound, TransactionAborted
from swanlake.lake.metastore.location import LakeLocation
from swanlake.queue.storage.segment_index import SnapshotReader
from swanlake.sessions.ids import new_handle
from swanlake.sql.statement import Kind, Statement


@dataclass
class TransactionState:
    """Whether a transaction is open, whether it failed, and where it wrote."""

    open: bool = False
    aborted: bool = False
    wrote_to: set[LakeLocation] = field(default_factory=set)
    #: The tables to which it wrote, as the statements named them.
    written: list[str] = field(default_factory=list)
    #: Catalog, schema and table from which it may have deleted rows; None if the name is unknown.
    deleted_from: set[tuple[str, str, str] | None] = field(default_factory=set)
    #: The tables whose rows it may have changed, in the same form.
    changed_rows_of: set[tuple[str, str, str] | None] = field(default_factory=set)
    #: The tables and views that it altered, other than by giving them a name.
    altered: set[tuple[str, str, str] | None] = field(default_factory=set)
    #: The tables that it created.
    created: set[tuple[str, str, str] | None] = field(default_factory=set)
    #: The tables whose older rows it can no longer read, with the columns that are the cause; see
    #: ``sessions.execution.alterations``.
    unreadable: dict[tuple[str, str, str] | None, set[str]] = field(default_factory=dict)
    #: Identifies it for Flight clients; a transaction begun by SQL has one too, never sent.
    handle: bytes = b""
    #: Retains the segments that are flushed while the transaction is open.
    queue_reader: SnapshotReader | None = None

    def admit(self, statement: Statement) -> None:
        """Raises for every statement but ROLLBACK in a failed transaction.

        DuckDB would answer a COMMIT with success and roll back.
        """
        if self.aborted and statement.kind is not Kind.ROLLBACK:
            raise TransactionAborted(
                "A statement failed in this transaction, so it can no longer be used; "
                "ROLLBACK ends it."
            )

    def check_handle(self, handle: bytes) -> None:
        """Raises if the handle is not that of the open transaction."""
        if not self.open or handle != self.handle:
            raise NotFound(
                "This session has no such transaction: it ended, or belongs to another session.",
                identifier="TRANSACTION_NOT_FOUND",
            )

    def begin(self, queue_reader: SnapshotReader) -> None:
        """A transaction was opened."""
        self.open, self.handle, self.queue_reader = True, new_handle(), queue_reader
