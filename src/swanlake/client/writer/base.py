"""The parts of a writer that do not depend on how its callers wait."""

from __future__ import annotations

import logging
import warnings
from collections.abc import Callable, Iterable
from dataclasses import replace
from functools import partial
from typing import Any, TypeAlias

from swanlake.client.api.options import WriterOptions
from swanlake.client.transport.address import Address
from swanlake.client.transport.connection import Connection
from swanlake.client.transport.deadline import Deadline
from swanlake.client.writer.batching import RowChunk, WriterReport
from swanlake.client.writer.rows import TargetTable
from swanlake.client.writer.sender import WriteSender
from swanlake.errors import RowRefused, RowsNotWritten, WriterTimeout

log = logging.getLogger("swanlake.client")

Connect: TypeAlias = Callable[[Address], Connection]

#: Rows are converted in groups of this size before the lock is taken to add them.
CHUNKS_PER_ADD = 1000
#: How long ``close`` waits for the connection to be closed when all rows are settled.
DISCONNECT_TIMEOUT = 2.0


class WriterBase:
    """A sender, and what a writer says about it."""

    def __init__(
        self,
        address: Address,
        table: str,
        options: WriterOptions | None,
        connect: Connect,
        run_callback: Callable[[Callable[[], object]], None],
        overrides: dict[str, Any],
    ) -> None:
        options = replace(options or WriterOptions(), **overrides)
        if options.catalog is not None:  # the writer's own session can use the table's catalog
            address = replace(address, catalog=options.catalog)
        self._address = address
        self._options = options
        # The sender has no reference to the writer, so that an abandoned writer is collected.
        self._sender = WriteSender(partial(connect, address), table, options, run_callback)

    @property
    def producer(self) -> str:
        """The name under which the server knows the batches."""
        return self._sender.producer

    @property
    def closed(self) -> bool:
        return self._sender.closing

    def report(self) -> WriterReport:
        """How many rows are acknowledged, failed and pending so far."""
        return self._sender.report()

    def _take_now(self, row: Any) -> bool:
        """Takes a row if that needs no wait and raises nothing; False if it was not taken."""
        table = self._sender.table
        if table is None:
            return False
        try:
            chunk = table.convert_row(row, self._options.columns)
        except RowRefused:
            return False
        return self._sender.add_now(chunk)

    def _convert(self, table: TargetTable, rows: Any, *, is_arrow: bool) -> Iterable[RowChunk]:
        options = self._options
        if is_arrow:
            return table.convert_arrow(rows, options.max_rows, options.max_bytes)
        return [table.convert_row(rows, options.columns)]

    def _timeout_error(self, deadline: Deadline) -> WriterTimeout:
        return WriterTimeout(
            f"The server did not acknowledge enough of {self.report().rows_pending} pending rows "
            f"for {self._sender.table_name} within {deadline.timeout:g} s."
            f"{self._sender.last_error_text}"
        )

    def _add_failures(self, error: BaseException | None) -> None:
        """Raises RowsNotWritten for unreported failures, or adds it as a note to ``error``."""
        try:
            self._sender.raise_failures()
        except RowsNotWritten as lost:
            raise_or_note(lost, error)

    def __del__(self) -> None:
        sender = getattr(self, "_sender", None)
        if sender is not None and not sender.closing:
            sender.stop_accepting()
            warnings.warn(f"{self!r} was not closed", ResourceWarning, stacklevel=1, source=self)

    def __repr__(self) -> str:
        state = "closed" if self.closed else "open"
        return (
            f"<{type(self).__name__} of {self._sender.table_name} at {self._address.url} {state}>"
        )


def raise_or_note(lost: RowsNotWritten, error: BaseException | None) -> None:
    """Raises ``lost``; if another error is on its way, adds ``lost`` to it as a note instead."""
    if error is None:
        raise lost
    log.error("%s", lost)
    error.add_note(str(lost))
