"""Histograms of durations: cheap to add to, and read as Prometheus has them."""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

#: Upper bounds in seconds, for what usually takes milliseconds.
SHORT = (
    *(0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5),
    *(1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 1800.0),
)
#: The same for what usually takes seconds.
LONG = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 1800.0)


@dataclass(frozen=True)
class HistogramCounts:
    """The observations of a histogram up to a moment."""

    bounds: tuple[float, ...]
    #: Per bucket; the last one has no upper bound.
    counts: tuple[int, ...]
    sum: float = 0.0

    @property
    def count(self) -> int:
        return sum(self.counts)

    @property
    def cumulative(self) -> list[int]:
        """The observations up to each bound, and all of them."""
        return list(accumulate(self.counts))

    def since(self, earlier: HistogramCounts) -> HistogramCounts:
        """The observations after an earlier moment."""
        counts = tuple(new - old for new, old in zip(self.counts, earlier.counts, strict=True))
        return HistogramCounts(self.bounds, counts, self.sum - earlier.sum)

    def quantile(self, share: float) -> float | None:
        """An estimate of the duration that this share does not exceed; None without observations.

        Within a bucket, observations are taken to be spread evenly.
        """
        rank = share * self.count
        if not self.count:
            return None
        below = 0
        for lower, upper, count in zip((0.0, *self.bounds), self.bounds, self.counts, strict=False):
            if count and below + count >= rank:
                return lower + (upper - lower) * max(rank - below, 0.0) / count
            below += count
        return self.bounds[-1]


class Histogram:
    """Counts observations per bucket; safe for many threads."""

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds = tuple(bounds)
        self._lock = threading.Lock()
        self._counts = [0] * (len(self._bounds) + 1)
        self._sum = 0.0

    def observe(self, value: float) -> None:
        """Counts one observation."""
        bucket = bisect_left(self._bounds, value)
        with self._lock:
            self._counts[bucket] += 1
            self._sum += value

    def read(self) -> HistogramCounts:
        """All observations so far."""
        with self._lock:
            return HistogramCounts(self._bounds, tuple(self._counts), self._sum)
