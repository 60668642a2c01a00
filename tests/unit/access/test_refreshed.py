"""Values that are loaded again: their age, wrong guesses, and outages."""

from __future__ import annotations

import threading

import pytest

from swanlake.access.refreshed import Refreshed
from swanlake.errors import ServerUnavailable
from tests.waiting import eventually


class Source:
    """Counts its loads, and can fail."""

    def __init__(self) -> None:
        self.loads = 0
        self.is_broken = False
        self.now = 0.0

    def load(self) -> int:
        self.loads += 1
        if self.is_broken:
            raise OSError("the source is gone")
        return self.loads


@pytest.fixture
def source() -> Source:
    return Source()


def refreshed(source: Source, outage: float = 100.0) -> Refreshed[int]:
    return Refreshed(
        "The numbers",
        source.load,
        max_age=2.0,
        min_age=0.5,
        outage=outage,
        clock=lambda: source.now,
    )


def test_value_is_loaded_once_per_max_age(source: Source) -> None:
    value = refreshed(source)
    assert [value.get() for _ in range(5)] == [1] * 5
    source.now = 2.0
    assert value.get() == 1
    source.now = 2.1
    assert value.get() == 2


def test_value_of_a_slow_load_is_used(source: Source) -> None:
    def slow() -> int:
        source.now += 10.0
        return source.load()

    value = refreshed(source, outage=0.0)
    value._load = slow
    assert value.get() == 1


def test_misses_load_at_most_once_per_min_age(source: Source) -> None:
    value = refreshed(source)
    assert [value.get_newer() for _ in range(5)] == [1] * 5
    source.now = 0.6
    assert [value.get_newer() for _ in range(5)] == [2] * 5


def test_old_value_is_used_until_the_outage_is_too_long(source: Source) -> None:
    value = refreshed(source)
    assert value.get() == 1
    source.is_broken = True
    source.now = 50.0
    assert value.get() == 1
    source.now = 100.1
    with pytest.raises(ServerUnavailable, match=r"The numbers .*: the source is gone"):
        value.get()
    source.is_broken = False
    source.now = 101.0
    assert value.get() == source.loads


def test_failed_load_is_not_repeated_at_once(source: Source) -> None:
    source.is_broken = True
    value = refreshed(source)
    for _ in range(3):
        with pytest.raises(ServerUnavailable):
            value.get()
    assert source.loads == 1


def test_failing_source_does_not_keep_callers_waiting(source: Source) -> None:
    value = refreshed(source)
    assert value.get() == 1
    source.is_broken, source.now = True, 3.0
    assert value.get() == 1
    hanging, go_on = threading.Event(), threading.Event()

    def hang() -> int:
        hanging.set()
        assert go_on.wait(240)
        return 7

    value._load = hang
    source.now = 4.0
    assert value.get() == 1, "the load hangs, and the caller does not wait for it"
    assert hanging.wait(240)
    go_on.set()
    eventually(lambda: value.get() == 7)


def test_concurrent_callers_share_a_load(source: Source) -> None:
    loading, go_on = threading.Event(), threading.Event()
    results: list[int] = []

    def slow() -> int:
        loading.set()
        assert go_on.wait(240)
        return source.load()

    value = refreshed(source)
    value._load = slow
    threads = [threading.Thread(target=lambda: results.append(value.get())) for _ in range(4)]
    for thread in threads:
        thread.start()
    assert loading.wait(240)
    go_on.set()
    for thread in threads:
        thread.join(240)
    assert results == [1, 1, 1, 1]
