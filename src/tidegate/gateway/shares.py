"""How the engines' room is shared between classes, told from what was seen lately. Pure: time is handed in.

Classes that yield (batch work, long prompts) have answers that hold a slot for long. If they took every slot that is
free at the moment, those who come next would wait for a whole such answer. So they have what the demand of the others
leaves: the others' arrivals per second times how long one of theirs holds a slot, and some more for chance.
"""

import math
from typing import Final

from tidegate.types import ClassView

ARRIVALS_S: Final = 2.5
"""Over about so many seconds arrivals are counted."""
DURATION_WEIGHT: Final = 0.05
ASSUMED_S: Final = 1.0
"""How long a request holds its slot, until the first has ended: short, so that a slow engine refuses nobody by mistake."""
SPARE: Final = 0.3
"""Room beside the demand, in standard deviations of a Poisson number of requests: what chance asks for."""
NO_DEMAND: Final = 0.01
"""Slots; less is nothing."""
IDLE_SHARE: Final = 0.15
"""Of all slots: with more of them idle, and none of the others waiting, those that yield may have one more."""
IDLE_SPREAD: Final = 0.75
"""The same in standard deviations of a Poisson number of requests: few slots are idle by chance more often."""
REGULAR: Final = 0.25
"""Times whose standard deviation is less than so much of their mean are much the same."""
WAIT_SHARE: Final = 1 / 3
"""Of the time that an answer takes: nobody is refused for a wait shorter than that, however slow the engines are."""
UNKNOWN_PAUSE_S: Final = 0.1
RETURN_SHARE: Final = 0.35
"""Of the rate of service: how many of the refused are told to come again in a second."""
RUSH_S: Final = 5.0
"""A rush is not over when its first request has been refused: nobody is told to come again sooner."""
AFTER_RUSH: Final = 0.7
"""Of all slots: what those that yield will have when a rush of the others is over, which is when they are to return."""


class Arrivals:
    """Requests a second, over the last seconds."""

    __slots__ = ("_at_s", "_begun_s", "_sum", "count")

    def __init__(self) -> None:
        self.count = 0
        """Those that have come since somebody last asked; whoever sees one come adds to it."""
        self._sum = 0.0
        self._at_s = self._begun_s = float("-inf")

    def rate(self, now: float) -> float:
        """Requests a second. Those that came since the last call count as spread evenly over the time between."""
        count, self.count = self.count, 0
        if self._begun_s == float("-inf"):
            if not count:
                return 0.0
            self._begun_s = self._at_s = now
        passed = max(0.0, now - self._at_s) / ARRIVALS_S
        kept = math.exp(-passed)
        self._sum = self._sum * kept + (count * (1.0 - kept) / passed if passed > 1e-6 else count)
        self._at_s = now
        seen_s = ARRIVALS_S * -math.expm1((self._begun_s - now) / ARRIVALS_S)
        return self._sum / max(seen_s, 0.5)


class ClassState:
    """What is known of one class at one model."""

    __slots__ = (
        "_ended",
        "_first_s",
        "_next_return_s",
        "_variance",
        "arrivals",
        "done",
        "duration_s",
        "first_tokens_s",
        "in_flight",
        "refused",
        "tokens",
        "view",
    )

    def __init__(self, view: ClassView) -> None:
        self.view = view
        self.in_flight = 0
        self.duration_s = 0.0
        """How long one of its requests holds its permit, on average; 0 while none has ended."""
        self.refused = self.done = self.tokens = 0
        self.first_tokens_s: list[float] = []
        """Of the last second."""
        self.arrivals = Arrivals()
        self._next_return_s = float("-inf")
        self._ended = 0
        self._variance = 0.0
        self._first_s = 0.0

    def ended(self, duration_s: float) -> None:
        """One has ended well after so many seconds with a permit."""
        self._ended += 1
        weight, off_s = max(DURATION_WEIGHT, 1 / self._ended), duration_s - self.duration_s
        self.duration_s += weight * off_s
        self._variance += weight * (off_s * off_s - self._variance) if self._ended > 1 else 0.0

    def ends_within(self, seconds: float, now: float, granted_s: float, begun_s: float | None) -> float:
        """How likely it is that one of its requests ends within so many seconds.

        Where they take much the same time, that tells when; where they do not, one is as likely to end as another. One
        that waits inside its engine is not on its way yet: an answer's age counts from its first word (`begun_s`; 0
        before, None where it does not show).
        """
        holds_s = self.holds_s
        if begun_s == 0.0 and holds_s > 2.0 * self._first_s + seconds:
            return 0.0
        age_s = now - granted_s if not begun_s else now - begun_s + self._first_s
        if self._ended > 1 and self._variance < (REGULAR * holds_s) ** 2:
            return float(age_s + seconds >= holds_s)
        return min(1.0, seconds / holds_s)

    def demand(self, now: float) -> float:
        """Slots that its arrivals fill on average."""
        return self.arrivals.rate(now) * self.holds_s

    @property
    def holds_s(self) -> float:
        """How long one of its requests holds a slot, as far as is known."""
        return self.duration_s or ASSUMED_S

    def began(self, seconds: float) -> None:
        """One had its first token so long after its permit."""
        self._first_s += (seconds - self._first_s) * (DURATION_WEIGHT if self._first_s else 1.0)

    @property
    def max_wait_s(self) -> float:
        """Longest wait in the queue: what the first token takes after it is left to the target."""
        view = self.view
        most_s = view.max_wait_s
        if view.first_token_s is not None:
            most_s = min(most_s, view.first_token_s - self._first_s)
        return max(most_s, WAIT_SHARE * self.duration_s)

    def retry_after_s(self, wait_s: float, rate: float, now: float) -> float:
        """When one that is refused should come again: all of them at different times, as they could be served, and not
        before a rush may be over.

        While none of its class has ended nobody knows how long they take: those come soon, to be told better.
        """
        pause_s, rush_s = UNKNOWN_PAUSE_S, 0.0
        if rate > 0 and self._ended:
            pause_s, rush_s = 1.0 / (RETURN_SHARE * rate), RUSH_S
        if self._next_return_s < now:
            self._next_return_s = now + rush_s
        self._next_return_s = max(self._next_return_s, now + wait_s) + pause_s
        return self._next_return_s - now


def room_for_yielding(total: float, demand: float, queued: int, least_share: float, idle: float = 0.0) -> int:
    """Slots that classes which yield may have together, of `total`; those that are `idle` now they may fill.

    `demand` in slots and `queued` in requests are those of the others. With no demand they may have all of them.
    """
    if idle >= max(IDLE_SHARE * total, IDLE_SPREAD * math.sqrt(total)) and not queued:
        return math.floor(total)
    least = max(1, math.ceil(least_share * total)) if least_share > 0 else 0
    if demand < NO_DEMAND and not queued:
        return math.floor(total)
    return max(least, math.floor(total - demand - SPARE * math.sqrt(demand)))


def service_rate(
    view: ClassView, states: dict[str, ClassState], total: float, now: float, queued: dict[str, int]
) -> float:
    """Requests of a class that are served in a second while some wait.

    The engines free so many slots a second; of these the class gets what others leave who have less to do than their
    share by weight, and its own share at least.
    """
    own = states[view.name]
    others = [state for state in states.values() if state is not own and state.view.yields == view.yields]
    if view.yields:
        firm = [state for state in states.values() if not state.view.yields]
        demand = sum(state.demand(now) for state in firm)
        waiting = sum(queued.get(state.view.name, 0) for state in firm)
        slots = min(total, room_for_yielding(total, demand, waiting, view.least_share))
    else:
        least = sum(
            state.view.least_share for state in states.values() if state.view.yields and queued.get(state.view.name)
        )
        slots = total * (1.0 - least)
    busy = [state for state in others if state.demand(now) >= NO_DEMAND or queued.get(state.view.name)]
    weights = view.weight + sum(state.view.weight for state in busy)
    taken = sum(min(state.demand(now), slots * state.view.weight / weights) for state in busy)
    return max(slots - taken, slots * view.weight / weights) / own.holds_s
