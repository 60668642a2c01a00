"""The journal of flushes."""

from __future__ import annotations

from itertools import count

from swanlake.queue.flush import journal as journal_module
from swanlake.queue.flush.flusher import FlushReport
from swanlake.queue.flush.journal import FlushJournal
from tests.unit.queue.samples import queue_table


def test_running_flushes_come_before_ended_ones_each_newest_first() -> None:
    times = count(10)
    journal = FlushJournal(lambda: float(next(times)))
    first, second, third, fourth = (journal.begin(queue_table(name), []) for name in "abcd")
    report = FlushReport(first.table, rows=3)
    journal.end(first, report)
    journal.end(second, error="no space")
    listed = journal.list_all()
    assert [(run.table.name, run.state) for run in listed] == [
        ("d", "running"),
        ("c", "running"),
        ("b", "failed"),
        ("a", "done"),
    ]
    assert (listed[3].report, listed[3].started_at, listed[3].finished_at) == (report, 10.0, 14.0)
    assert (listed[2].report, listed[2].error) == (None, "no space")
    assert listed[:2] == [fourth, third]


def test_oldest_ended_flushes_are_forgotten() -> None:
    journal = FlushJournal(lambda: 0.0)
    for _ in range(journal_module._REMEMBERED + 5):
        journal.end(journal.begin(queue_table(), []))
    assert len(journal.list_all()) == journal_module._REMEMBERED
