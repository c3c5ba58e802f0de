"""Figures of many values: quantiles, means, and how sure one may be of them. Pure."""

import math
from collections.abc import Sequence
from typing import Final

import msgspec

T_975: Final = (
    *(12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131),
    *(2.120, 2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042),
)
"""Student's t, 97.5 %, by degrees of freedom from 1 to 30; beyond them the last one, which is a little wide, is used."""


class Spread(msgspec.Struct, frozen=True):
    """How values are spread."""

    count: int
    mean: float
    p50: float
    p90: float
    p99: float
    most: float


class Interval(msgspec.Struct, frozen=True):
    """A mean of repeats, and where the true one is with 95 % confidence (Student's t)."""

    mean: float
    low: float
    high: float


def quantile(ordered: Sequence[float], share: float) -> float:
    """Of values in ascending order, at least one; between two of them in proportion (type 7 of Hyndman and Fan)."""
    place = (len(ordered) - 1) * share
    below = math.floor(place)
    if below + 1 >= len(ordered):
        return ordered[-1]
    return ordered[below] + (ordered[below + 1] - ordered[below]) * (place - below)


def spread(values: Sequence[float]) -> Spread | None:
    """None where there are no values."""
    if not values:
        return None
    ordered = sorted(values)
    p50, p90, p99 = (quantile(ordered, share) for share in (0.5, 0.9, 0.99))
    return Spread(len(ordered), math.fsum(ordered) / len(ordered), p50, p90, p99, ordered[-1])


def of(told: Spread | None, figure: str) -> float | None:
    """One figure of a spread; None where there is none."""
    return None if told is None else float(getattr(told, figure))


def interval(values: Sequence[float]) -> Interval | None:
    """Of one value a repeat; None where there are fewer than two."""
    count = len(values)
    if count < 2:
        return None
    mean = math.fsum(values) / count
    deviation = math.sqrt(math.fsum((value - mean) ** 2 for value in values) / (count - 1))
    half = T_975[min(count - 1, len(T_975)) - 1] * deviation / math.sqrt(count)
    return Interval(mean, mean - half, mean + half)


def curve(values: Sequence[float], points: int = 100) -> list[float]:
    """The quantiles 0, 1/points, …, 1; empty where there are no values."""
    ordered = sorted(values)
    return [quantile(ordered, number / points) for number in range(points + 1)] if ordered else []
