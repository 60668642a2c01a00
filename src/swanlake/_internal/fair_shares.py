"""Fair shares of one limited resource: what each holder has, and whether it may have more."""

from __future__ import annotations

from collections.abc import Hashable

#: A holder may have at most this many times what is free. One alone can fill four fifths, two that
#: take all they get four ninths each; something is always left for the next.
TIMES_FREE = 4


def is_fair(limit: int, held: int, own: int, amount: int, times_free: int = TIMES_FREE) -> bool:
    """True if a holder of ``own`` may have ``amount`` more, while all together hold ``held``."""
    return own + amount <= times_free * (limit - held - amount)


class FairShares:
    """What each holder has of a resource. Pure bookkeeping: callers hold a lock."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.held = 0
        self._by_holder: dict[Hashable, int] = {}

    def __getitem__(self, holder: Hashable) -> int:
        """What a holder has."""
        return self._by_holder.get(holder, 0)

    def as_dict(self) -> dict[Hashable, int]:
        """The holders that have something, and how much."""
        return dict(self._by_holder)

    def fits(self, holder: Hashable, amount: int, times_free: int = TIMES_FREE) -> bool:
        """True if the holder may have that much more."""
        return is_fair(self.limit, self.held, self[holder], amount, times_free)

    def could_fit(self, amount: int) -> bool:
        """True if a holder could have that much if nothing else were held."""
        return is_fair(self.limit, 0, 0, amount)

    def add(self, holder: Hashable, amount: int) -> None:
        """Adds to what the holder has, or takes from it, without a check of the share."""
        own = self[holder] + amount
        assert own >= 0, "more was given back than taken"
        self.held += amount
        if own:
            self._by_holder[holder] = own
        else:
            self._by_holder.pop(holder, None)
