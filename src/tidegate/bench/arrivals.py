"""When requests come, drawn before the first of them is sent. Pure; without end, in ascending order, seconds from the start."""

import re
from collections.abc import Callable, Iterator
from random import Random

from tidegate.errors import SettingError

Arrivals = Callable[[float, Random], Iterator[float]]
"""From requests a second on the average to their times."""


def poisson(rate: float, random: Random) -> Iterator[float]:
    """As of many people who do not know one another."""
    at = 0.0
    while True:
        at += random.expovariate(rate)
        yield at


def steady(rate: float, _random: Random) -> Iterator[float]:
    """One after the other, evenly."""
    number = 0
    while True:
        yield number / rate
        number += 1


def bursts(size: int) -> Arrivals:
    """So many at the same moment; the moments come as `poisson`."""

    def arrivals(rate: float, random: Random) -> Iterator[float]:
        for at in poisson(rate / size, random):
            for _ in range(size):
                yield at

    return arrivals


def parse(written: str) -> Arrivals:
    """`poisson`, `steady` or `bursts:SIZE`. Raises SettingError."""
    if written == "poisson":
        return poisson
    if written == "steady":
        return steady
    found = re.fullmatch(r"bursts:([1-9]\d{0,5})", written)
    if found is None:
        raise SettingError("--arrivals", f"{written!r} is neither poisson, steady nor bursts:SIZE, as in bursts:20")
    return bursts(int(found[1]))


class Ramp:
    """Rates in equal steps, each of them a run of its own."""

    def __init__(self, first: float, last: float, steps: int) -> None:
        self.first, self.last, self.steps = first, last, steps

    def rates(self) -> list[float]:
        if self.steps == 1:
            return [self.last]
        return [self.first + (self.last - self.first) * number / (self.steps - 1) for number in range(self.steps)]

    @classmethod
    def parse(cls, written: str) -> "Ramp":
        """`FROM:TO[:STEPS]`, in requests a second; 8 steps where none are named. Raises SettingError."""
        found = re.fullmatch(r"(\d+(?:\.\d+)?):(\d+(?:\.\d+)?)(?::([1-9]\d?))?", written)
        if found is None or not 0 < float(found[1]) < float(found[2]):
            raise SettingError(
                "--ramp", f"{written!r} is not FROM:TO or FROM:TO:STEPS with FROM below TO, as in 5:50:10"
            )
        return cls(float(found[1]), float(found[2]), int(found[3] or 8))
