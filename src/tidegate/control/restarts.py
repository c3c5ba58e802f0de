"""When a process that died is started again: at once, then ever later, and not at all once it dies again and again.

Pure: the time and the random number are handed in.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class RestartPolicy:
    """Back-off of restarts. A process that dies at once every time waits 0.1, 0.5, 2.5 and 12.5 s between its lives."""

    first_s: float = 0.1
    factor: float = 5.0
    longest_s: float = 30.0
    jitter: float = 0.2
    """Share of the delay by which it may be shorter or longer, so that many replicas do not come back in step."""
    forget_s: float = 60.0
    """A process that was well for this long starts with a clean record."""
    give_up: int | None = 5
    """Deaths in a row after which it is left alone; None: never."""
    give_up_unready: int | None = 3
    """The same for one that was never ready: it most likely cannot be."""


@dataclass(frozen=True)
class Restart:
    """Start it again, `delay_s` from now."""

    delay_s: float


@dataclass(frozen=True)
class GiveUp:
    """Leave it: it died `deaths` times in a row."""

    deaths: int


def next_step(deaths: int, policy: RestartPolicy, chance: float, *, ever_ready: bool) -> Restart | GiveUp:
    """What follows so many deaths in a row (see `in_a_row`). `chance` is a random number in [0, 1)."""
    limit = policy.give_up if ever_ready else policy.give_up_unready
    if limit is not None and deaths >= limit:
        return GiveUp(deaths)
    delay = min(policy.first_s * policy.factor ** max(deaths - 1, 0), policy.longest_s)
    return Restart(delay * (1 + policy.jitter * (2 * chance - 1)))


def in_a_row(earlier: int, ready_since: float | None, now: float, policy: RestartPolicy) -> int:
    """Deaths in a row after one at `now` of a process that was well since `ready_since` (None: never was)."""
    well_s = 0.0 if ready_since is None else now - ready_since
    return 1 if well_s >= policy.forget_s else earlier + 1
