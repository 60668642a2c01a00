"""The commit gate: one at a time, in order, with a deadline."""

from __future__ import annotations

import threading
from functools import partial

import pytest

from swanlake.errors import QueryCancelled, ServerUnavailable
from swanlake.lake.gate import CommitGate
from tests.flight import eventually


def nothing() -> None:
    pass


def has_length(gate: CommitGate, length: int) -> bool:
    return len(gate.waiting) == length


class Waiter(threading.Thread):
    """Takes the gate, notes its name, and holds the gate until told to go on."""

    def __init__(self, gate: CommitGate, name: str, order: list[str]) -> None:
        super().__init__(daemon=True)
        self._gate = gate
        self._label = name
        self._order = order
        self.entered = threading.Event()
        self.may_leave = threading.Event()

    def run(self) -> None:
        with self._gate.turn(nothing):
            self._order.append(self._label)
            self.entered.set()
            self.may_leave.wait(10)


def test_waiters_enter_in_the_order_of_arrival() -> None:
    gate = CommitGate(timeout_seconds=10)
    order: list[str] = []
    waiters = [Waiter(gate, str(number), order) for number in range(5)]
    for number, waiter in enumerate(waiters):
        waiter.start()
        eventually(partial(has_length, gate, number + 1))
    for waiter in waiters:
        eventually(waiter.entered.is_set)
        waiter.may_leave.set()
    for waiter in waiters:
        waiter.join()
    assert order == ["0", "1", "2", "3", "4"]
    assert len(gate.waiting) == 0


def test_a_waiter_gives_up_at_its_deadline_and_blocks_nobody() -> None:
    gate = CommitGate(timeout_seconds=0.1)
    with gate.turn(nothing):
        with pytest.raises(ServerUnavailable, match="was not run") as caught:
            with gate.turn(nothing):
                pass
        assert caught.value.identifier == "COMMIT_LOCK_TIMEOUT"
    with gate.turn(nothing):
        pass


def test_a_cancelled_waiter_leaves_the_queue() -> None:
    gate = CommitGate(timeout_seconds=10)

    def cancelled() -> None:
        raise QueryCancelled("no longer wanted")

    with gate.turn(nothing):
        with pytest.raises(QueryCancelled):
            with gate.turn(cancelled):
                pass
        assert len(gate.waiting) == 1


def test_an_error_inside_passes_the_turn_on() -> None:
    gate = CommitGate(timeout_seconds=10)
    with pytest.raises(RuntimeError), gate.turn(nothing):
        raise RuntimeError
    with gate.turn(nothing):
        pass
