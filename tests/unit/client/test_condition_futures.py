"""Futures that are done when a condition holds."""

from __future__ import annotations

from swanlake.client.transport.condition_futures import ConditionFutures, resolve


def test_future_is_done_when_its_condition_holds() -> None:
    state = {"ready": False}
    futures = ConditionFutures()
    future = futures.add(lambda: state["ready"])
    assert futures.pop_ready() == []
    assert futures
    state["ready"] = True
    resolve(futures.pop_ready())
    assert future.done()
    assert not futures


def test_future_is_done_at_once_if_its_condition_holds() -> None:
    futures = ConditionFutures()
    assert futures.add(lambda: True).done()
    assert not futures


def test_cancelled_future_is_dropped() -> None:
    futures = ConditionFutures()
    assert futures.add(lambda: False).cancel()
    resolve(futures.pop_ready())
    assert not futures
