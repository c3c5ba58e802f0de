"""Which replica gets a request. Pure: a function from what is in flight to a choice."""

from collections.abc import Callable, Sequence
from hashlib import blake2b
from typing import Protocol, TypeVar


class Loaded(Protocol):
    """Something with work in flight."""

    @property
    def in_flight(self) -> int: ...


class Named(Loaded, Protocol):
    """Something that keeps its name."""

    @property
    def name(self) -> bytes: ...


class Ranked(Loaded, Protocol):
    """Something that is better or worse than others."""

    @property
    def rank(self) -> int: ...


Candidate = TypeVar("Candidate", bound=Loaded)
Choice = TypeVar("Choice", bound=Ranked)
Home = TypeVar("Home", bound=Named)

BOUND = 1.25
"""How much more than the average one may have before its conversations go elsewhere."""


def best(candidates: Sequence[Choice]) -> list[Choice]:
    """Those of the lowest rank there is."""
    lowest = min((candidate.rank for candidate in candidates), default=0)
    return [candidate for candidate in candidates if candidate.rank == lowest]


def least_work_of_two(candidates: Sequence[Candidate], random: Callable[[], float]) -> Candidate | None:
    """The less loaded of two chosen at random; None where there is nobody to choose.

    Two choices come close to knowing the whole fleet, and many gateways that do not talk to each other never herd onto
    one replica. Source: Mitzenmacher, The Power of Two Choices in Randomized Load Balancing, 2001.

    `random` gives numbers in [0, 1).
    """
    count = len(candidates)
    if count < 2:
        return candidates[0] if count else None
    first = int(random() * count)
    second = int(random() * (count - 1))
    second += second >= first
    one, other = candidates[first], candidates[second]
    return other if other.in_flight < one.in_flight else one


def at_home(candidates: Sequence[Home], key: bytes) -> Home | None:
    """The one where a conversation of this key is at home, or the next that has not too much; None without any.

    Its prompt's beginning is in that engine's cache. Every gateway comes to the same answer, and few conversations move
    when a replica comes or goes. Sources: Thaler, Ravishankar: A Name-Based Mapping Scheme for Rendezvous, 1996;
    Mirrokni, Thorup, Zadimoghaddam: Consistent Hashing with Bounded Loads, 2018.
    """
    if len(candidates) < 2:
        return candidates[0] if candidates else None
    bound = BOUND * (sum(one.in_flight for one in candidates) + 1) / len(candidates)
    fit = [one for one in candidates if one.in_flight < bound] or candidates
    return max(fit, key=lambda one: blake2b(key + one.name, digest_size=8).digest())
