"""Waits end when their event comes, at their deadline, or when the caller gives up."""

from __future__ import annotations

import threading
import time

import pytest

from swanlake._internal.waiting import polling, wait


def test_wait_returns_true_at_once_when_the_event_is_set() -> None:
    event = threading.Event()
    event.set()
    assert wait(event.wait, deadline=time.monotonic() - 1)


def test_wait_returns_false_at_the_deadline() -> None:
    assert not wait(threading.Event().wait, deadline=time.monotonic() + 0.01)


def test_wait_raises_the_error_of_its_check() -> None:
    checks = 0

    def check() -> None:
        nonlocal checks
        checks += 1
        if checks == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        wait(lambda seconds: False, check)


def test_polling_tests_the_condition_again_after_a_pause() -> None:
    answers = iter([False, False, True])
    assert wait(polling(lambda: next(answers)))
