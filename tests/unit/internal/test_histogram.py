"""Histograms: buckets, differences and estimated quantiles."""

from __future__ import annotations

import threading

import pytest

from swanlake._internal.histogram import SHORT, Histogram


def test_observation_is_counted_in_the_first_bucket_that_holds_it() -> None:
    histogram = Histogram((1.0, 2.0))
    for value in (0.5, 1.0, 1.5, 2.0, 9.0):
        histogram.observe(value)
    counts = histogram.read()
    assert counts.counts == (2, 2, 1)
    assert counts.cumulative == [2, 4, 5]
    assert counts.count == 5
    assert counts.sum == 14.0


def test_difference_has_the_later_observations_only() -> None:
    histogram = Histogram((1.0, 2.0))
    histogram.observe(0.5)
    before = histogram.read()
    histogram.observe(1.5)
    later = histogram.read().since(before)
    assert later.counts == (0, 1, 0)
    assert later.sum == 1.5


@pytest.mark.parametrize(("share", "expected"), [(0.0, 0.0), (0.5, 1.0), (0.75, 1.5), (1.0, 2.0)])
def test_quantile_lies_within_its_bucket(share: float, expected: float) -> None:
    histogram = Histogram((1.0, 2.0))
    for value in (0.1, 0.2, 1.1, 1.2):
        histogram.observe(value)
    assert histogram.read().quantile(share) == pytest.approx(expected)


def test_quantile_beyond_the_last_bound_is_that_bound() -> None:
    histogram = Histogram((1.0, 2.0))
    histogram.observe(100.0)
    assert histogram.read().quantile(0.99) == 2.0
    assert Histogram(SHORT).read().quantile(0.5) is None


def test_observations_of_many_threads_are_all_counted() -> None:
    histogram = Histogram(SHORT)

    def observe() -> None:
        for _ in range(1000):
            histogram.observe(0.001)

    threads = [threading.Thread(target=observe) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert histogram.read().count == 8000
