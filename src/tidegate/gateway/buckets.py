"""Amounts that are used up and come back: a token bucket, and a day's allowance. Pure: time is handed in.

Between any two moments a bucket of `capacity` units that fills at `per_s` gives away at most
`capacity + per_s * seconds`, whatever was given back meanwhile and in whatever order. For that, what comes back is
worth no more than it would be had it never been taken: a bucket that has been full since, or would have been, holds no
more for it.
"""

from typing import Final, Protocol

DAY_S: Final = 86400
MAX_PEAKS: Final = 16
"""Of a bucket's past; what is left out makes what comes back worth less, never more."""
SLACK: Final = 1e-6
"""Units by which sums of floats may be off."""


class Meter(Protocol):
    """An amount of which requests take. Times in seconds; `now_s` never goes back."""

    @property
    def limit(self) -> int:
        """What clients are told the limit is."""

    @property
    def most(self) -> int:
        """The most that can ever be taken at once."""

    def wait_s(self, units: int, now_s: float) -> float:
        """0.0 if so much can be taken at once, else the seconds until it can, if nobody else takes any."""

    def take(self, units: int, now_s: float) -> int:
        """Take what `wait_s` has just allowed. Returns what `settle` has to be told."""

    def settle(self, unused: int, taken: int, now_s: float) -> None:
        """Give back what was not needed of the amount that `take` called `taken`; negative: so much more was used."""

    def left(self, now_s: float) -> int:
        """Whole units that can be taken now."""

    def full_in_s(self, left: int, now_s: float) -> float:
        """Seconds until the whole limit can be taken again, where `left` of it can be taken now."""


class Bucket:
    """A token bucket, full at first. A debt (more was used than was taken) is paid before anything is given again."""

    __slots__ = ("_at_s", "_level", "_peaks", "_takes", "capacity", "limit", "per_s")

    def __init__(self, limit: int, period_s: float, now_s: float, *, share: float = 1.0) -> None:
        """`limit` units each `period_s`, all of them at once if so wished. `share` of it is ours to give."""
        self.limit = limit
        self.capacity = max(1.0, limit * share)
        self.per_s = limit * share / period_s
        self._level = self.capacity
        self._at_s = now_s
        self._takes = 0
        self._peaks: list[list[float]] = []
        """Number of a take, and the most there was from the take of the entry before until this one."""

    @property
    def most(self) -> int:
        return int(self.capacity)

    def resized(self, limit: int, period_s: float, now_s: float, *, share: float) -> "Bucket":
        """A bucket of another size, from which as much has been taken as from this one."""
        other = Bucket(limit, period_s, now_s, share=share)
        used = self.capacity - self._fill(now_s)
        other._level = max(min(0.0, self._level), other.capacity - used)
        change = other._level - self._level
        other._takes = self._takes
        other._peaks = [[number, min(other.capacity, level + change)] for number, level in self._peaks]
        return other

    def _fill(self, now_s: float) -> float:
        if now_s > self._at_s:
            self._level = min(self.capacity, self._level + (now_s - self._at_s) * self.per_s)
            self._at_s = now_s
        return self._level

    def wait_s(self, units: int, now_s: float) -> float:
        level = self._level
        if units <= level:
            return 0.0
        missing = units - self._fill(now_s)
        return 0.0 if missing <= SLACK else missing / self.per_s

    def take(self, units: int, now_s: float) -> int:
        level, peaks = self._fill(now_s), self._peaks
        self._level = level - units
        self._takes = number = self._takes + 1
        while peaks and peaks[-1][1] <= level:
            peaks.pop()
        peaks.append([number, level])
        if len(peaks) > MAX_PEAKS:
            peaks[1][1] = max(peaks[0][1], peaks[1][1])
            del peaks[0]
        return number

    def settle(self, unused: int, taken: int, now_s: float) -> None:
        level = self._fill(now_s)
        if unused < 0:
            self._level = level + unused
            return
        since = [peak for peak in self._peaks if peak[0] > taken]
        back = min(unused, self.capacity - max([level, *(peak[1] for peak in since)]))
        if back > 0:
            self._level = level + back
            for peak in since:
                peak[1] += back

    def left(self, now_s: float) -> int:
        return max(0, int(self._fill(now_s) + SLACK))

    def full_in_s(self, left: int, now_s: float) -> float:  # noqa: ARG002 - the same at any time
        return max(0.0, self.capacity - left) / self.per_s


class Day:
    """So many units each UTC day. Here `now_s` is Unix time."""

    __slots__ = ("_day", "_used", "allowance", "limit")

    def __init__(self, limit: int, now_s: float, *, share: float = 1.0) -> None:
        self.limit = limit
        self.allowance = max(1, int(limit * share))
        self._used = 0
        self._day = now_s // DAY_S

    @property
    def most(self) -> int:
        return self.allowance

    def resized(self, limit: int, now_s: float, *, share: float) -> "Day":
        """Another allowance, of which as much has been used as of this one."""
        other = Day(limit, now_s, share=share)
        other._used = self._used_on(now_s)
        return other

    def _used_on(self, now_s: float) -> int:
        if now_s // DAY_S > self._day:
            self._day = now_s // DAY_S
            self._used = 0
        return self._used

    def wait_s(self, units: int, now_s: float) -> float:
        if self._used_on(now_s) + units <= self.allowance:
            return 0.0
        return (self._day + 1) * DAY_S - now_s

    def take(self, units: int, now_s: float) -> int:
        self._used = self._used_on(now_s) + units
        return int(self._day)

    def settle(self, unused: int, taken: int, now_s: float) -> None:
        used = self._used_on(now_s)
        if unused < 0 or taken == self._day:
            self._used = max(0, used - unused)

    def left(self, now_s: float) -> int:
        return max(0, self.allowance - self._used_on(now_s))

    def full_in_s(self, left: int, now_s: float) -> float:
        return 0.0 if left >= self.allowance else (self._day + 1) * DAY_S - now_s
