"""Which point to try next, and which of those tried is the best: a Gaussian process over what was measured, another over
where memory sufficed, and the point at which most is to be gained. Pure.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from tidegate.control.tuner.gaussian import Array, Kernel, Process, fitted
from tidegate.control.tuner.space import Point, Space

DRAWN: Final = 300
"""Points looked at, besides the neighbourhood of the best."""
CLIMBS: Final = 3
ROUNDS: Final = 12
LEAST_CHANCE: Final = 0.2
"""A point with less chance to run is not tried."""
LIKELY: Final = 0.5
"""A point with less chance to run is no place to settle."""
HOPE: Final = 1.0
"""Deviations that are added to the mean of a point where the search settles."""
OPINIONS: Final = (1.5, -1.5)
"""Where two fits begin: settings act by themselves, or together. The mean of both is steadier than either."""
TRUST: Final = 0.5
"""Deviation of the noise of a label: memory is a sharp bound, seen through a smooth process."""


@dataclass(frozen=True)
class Seen:
    """A trial as far as the search is concerned: its score, or None where the engine did not run."""

    point: Point
    score: float | None


def _places(points: Sequence[Point]) -> NDArray[np.int64]:
    return np.array(points, dtype=np.int64)


class Guide:
    """What trials have shown. `kernel` is where fitting begins; the one that was found is kept for the next."""

    def __init__(
        self, space: Space, seen: Sequence[Seen], random: np.random.Generator, kernels: Sequence[Kernel]
    ) -> None:
        self._space, self._random = space, random
        self._scored = [(one.point, one.score) for one in seen if one.score is not None]
        self._places = _places([point for point, _ in self._scored])
        values = np.sqrt([score for _, score in self._scored])  # low scores stay apart, and do not hide the high ones
        distances = space.distances(self._places, self._places)
        spread = max(float(np.std(values)), 1e-9)
        scaled = (values - np.mean(values)) / spread
        starts = kernels or [Kernel.prior(len(space.settings), alone) for alone in OPINIONS]
        self.kernels = [fitted(kernel, distances, scaled, random) for kernel in starts]
        self._processes = [Process.given(kernel, distances, values) for kernel in self.kernels]
        self._means, _ = self._at(self._places)
        self._runs = Runs(space, seen)

    def _at(self, places: NDArray[np.int64]) -> tuple[Array, Array]:
        """Means and deviations, of all opinions together."""
        distances = self._space.distances(places, self._places)
        found = [process.at(distances) for process in self._processes]
        means = np.stack([mean for mean, _ in found])
        middle: Array = np.mean(means, axis=0)
        variance = np.mean([deviation**2 for _, deviation in found], axis=0) + np.var(means, axis=0)
        return middle, np.sqrt(variance)

    def best(self) -> Point:
        """Of the points that were measured, the one with the highest mean: what it gave itself, and its neighbours."""
        return self._scored[int(np.argmax(self._means))][0]

    def gain(self, points: Sequence[Point]) -> Array:
        """Expected improvement on the best mean, in logarithms, times the chance that the engine runs at all."""
        places = _places(points)
        mean, deviation = self._at(places)
        away = (mean - float(np.max(self._means))) / deviation
        density = np.exp(-0.5 * away * away) / math.sqrt(2 * math.pi)
        expected = deviation * (away * normal(away) + density)
        chance = self._runs.chance(places)
        gain: Array = np.where(chance < LEAST_CHANCE, 0.0, expected * chance)
        return gain

    def hope(self, points: Sequence[Point]) -> Array:
        """The mean with a part of its deviation: for the last trials, which are to tell the best ones apart."""
        places = _places(points)
        mean, deviation = self._at(places)
        hope: Array = np.where(self._runs.chance(places) < LIKELY, -np.inf, mean + HOPE * deviation)
        return hope

    def next(self, *, settling: bool) -> Point:
        """Where most is to be gained: the best of many, then from neighbour to neighbour for as long as it grows."""
        order = np.argsort(-self._means)[:4]
        near = {self._scored[int(number)][0] for number in order}
        near |= {other for point in list(near) for other in self._space.neighbours(point)}
        points = [*sorted(near), *(self._space.draw(self._random) for _ in range(DRAWN))]
        judge = self.hope if settling else self.gain
        gains = judge(points)
        found = []
        for number in np.argsort(-gains)[:CLIMBS]:
            point, gain = points[int(number)], float(gains[number])
            for _ in range(ROUNDS):
                around = list(self._space.neighbours(point))
                if not around:
                    break
                their = judge(around)
                most = int(np.argmax(their))
                if their[most] <= gain:
                    break
                point, gain = around[most], float(their[most])
            found.append((gain, point))
        return max(found)[1]


class Runs:
    """Where engines run, from where they did and did not."""

    def __init__(self, space: Space, seen: Sequence[Seen]) -> None:
        self._space = space
        self._sizes = np.array([max(len(one.values) - 1, 1) for one in space.settings])
        self._ordered = np.array([one.ordered for one in space.settings])
        self._places = _places([one.point for one in seen])
        labels = np.array([-1.0 if one.score is None else 1.0 for one in seen])
        self._matter = np.array([one.memory or not one.ordered for one in space.settings])
        self._grows = np.array([one.memory for one in space.settings])
        self._ended = self._places[labels < 0]
        self._all_ran = bool(np.all(labels > 0))
        self._prior = 0.3
        matrix = self._covariance(self._places, self._places)
        matrix[np.diag_indices_from(matrix)] += TRUST**2
        self._lower = np.linalg.cholesky(matrix)
        self._weights = np.linalg.solve(self._lower.T, np.linalg.solve(self._lower, labels - self._prior))

    def _covariance(self, some: NDArray[np.int64], others: NDArray[np.int64]) -> Array:
        """Straight lines (more of a size needs more memory) and bends."""
        one = (some / self._sizes - 0.5) * self._ordered
        two = (others / self._sizes - 0.5) * self._ordered
        apart = self._space.distances(some, others)
        bends = np.exp(-np.sum(apart * apart, axis=0) / (2 * 0.8**2))
        covariance: Array = 2.0 * (one @ two.T) + 0.7 * bends
        return covariance

    def chance(self, places: NDArray[np.int64]) -> Array:
        """That an engine runs there, between 0 and 1."""
        if self._all_ran:
            return np.ones(len(places))
        covariance = self._covariance(places, self._places)
        mean = self._prior + covariance @ self._weights
        white = np.linalg.solve(self._lower, covariance.T)
        own = 2.0 * np.sum(((places / self._sizes - 0.5) * self._ordered) ** 2, axis=1) + 0.7
        variance = np.maximum(own - np.sum(white * white, axis=0), 1e-9)
        chance = normal(mean / np.sqrt(variance + 0.05))
        chance[self._any_below(places, self._ended)] = 0.0
        return chance

    def _any_below(self, places: NDArray[np.int64], others: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Whether one of the others has no more of anything that needs memory, and the same kinds of all without order."""
        if not np.any(self._grows) or not len(others):
            return np.zeros(len(places), dtype=bool)
        more = places[:, None, :] - others[None, :, :]
        below: NDArray[np.bool_] = np.any(
            np.all(np.where(self._grows, more >= 0, (more == 0) | ~self._matter), axis=2), axis=1
        )
        return below


def normal(value: Array) -> Array:
    """The standard normal distribution (Abramowitz and Stegun 26.2.17; within 7.5e-8)."""
    magnitude = np.abs(value)
    step = 1 / (1 + 0.2316419 * magnitude)
    series = step * (
        0.319381530 + step * (-0.356563782 + step * (1.781477937 + step * (-1.821255978 + step * 1.330274429)))
    )
    tail = np.exp(-0.5 * magnitude * magnitude) / math.sqrt(2 * math.pi) * series
    chance: Array = np.where(value >= 0, 1 - tail, tail)
    return chance
