"""Gaussian process regression over points of a space, in numpy. Pure.

The kernel is a mean of Matérn 5/2 kernels of one setting each (what a setting does by itself) and one of all settings
together (what they do to each other): Duvenaud et al., Additive Gaussian Processes, 2011; Rasmussen and Williams,
Gaussian Processes for Machine Learning, 2006, chapters 4 and 5.
"""

import math
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

LENGTH: Final = (0.0, 0.6)
"""Mean and deviation of the logarithm of a length, before anything was measured; a setting's ends are 1 apart."""
NOISE: Final = (math.log(0.12), 0.35)
"""The same of the noise's deviation, in deviations of what was measured."""
ALONE: Final = (0.0, 1.2)
"""The same of the odds that what is seen comes from settings by themselves, not from several together."""
SCALE: Final = (0.2, 0.5)
"""The same of the deviation of the process, in deviations of what was measured."""
JITTER: Final = 1e-6


def matern(distance: Array) -> Array:
    """Matérn's kernel of smoothness 5/2 with length 1."""
    root = math.sqrt(5) * distance
    return (1 + root + root * root / 3) * np.exp(-root)


@dataclass(frozen=True)
class Kernel:
    """Parameters as one vector: the logarithms of a length for each setting, of noise and scale, and of the odds."""

    parameters: Array

    @classmethod
    def prior(cls, settings: int, alone: float) -> "Kernel":
        return cls(np.array([LENGTH[0]] * settings + [NOISE[0], SCALE[0], alone]))

    @property
    def noise(self) -> float:
        return float(np.exp(2 * self.parameters[-3])) + JITTER

    @property
    def variance(self) -> float:
        return float(np.exp(2 * self.parameters[-2]))

    def of(self, distances: Array) -> Array:
        """Covariances; `distances` has the settings first."""
        lengths = np.exp(self.parameters[:-3])
        scaled = distances / lengths[:, None, None]
        alone = 1 / (1 + math.exp(-float(self.parameters[-1])))
        together = matern(np.sqrt(np.sum(scaled * scaled, axis=0)))
        covariance: Array = self.variance * (alone * np.mean(matern(scaled), axis=0) + (1 - alone) * together)
        return covariance


def surprise(kernel: Kernel, distances: Array, values: Array) -> float:
    """Negative logarithm of how likely the values and the parameters are together, but for a constant."""
    matrix = kernel.of(distances)
    matrix[np.diag_indices_from(matrix)] += kernel.noise
    lower = np.linalg.cholesky(matrix)
    white = np.linalg.solve(lower, values)
    means = np.array([LENGTH[0]] * len(distances) + [NOISE[0], SCALE[0], ALONE[0]])
    deviations = np.array([LENGTH[1]] * len(distances) + [NOISE[1], SCALE[1], ALONE[1]])
    prior = 0.5 * float(np.sum(((kernel.parameters - means) / deviations) ** 2))
    return 0.5 * float(white @ white) + float(np.sum(np.log(np.diag(lower)))) + prior


def fitted(start: Kernel, distances: Array, values: Array, random: np.random.Generator, steps: int = 25) -> Kernel:
    """The likeliest parameters that a random walk from `start` finds: each step moves some of them, and a step that
    makes the values likelier is kept.
    """
    best, least, reach = start, surprise(start, distances, values), 0.6
    for _ in range(steps):
        moved = random.random(len(best.parameters)) < 0.35
        moved[random.integers(len(moved))] = True
        tried = Kernel(best.parameters + reach * moved * random.standard_normal(len(moved)))
        found = surprise(tried, distances, values)
        if found < least:
            best, least = tried, found
        else:
            reach = max(0.9 * reach, 0.08) if random.random() < 0.5 else reach
    return best


@dataclass(frozen=True)
class Process:
    """What is known once values were seen."""

    kernel: Kernel
    lower: Array
    weights: Array
    middle: float
    spread: float

    @classmethod
    def given(cls, kernel: Kernel, distances: Array, values: Array) -> "Process":
        """`distances` among the points seen: shape (settings, points, points)."""
        middle, spread = float(np.mean(values)), max(float(np.std(values)), 1e-9)
        matrix = kernel.of(distances)
        matrix[np.diag_indices_from(matrix)] += kernel.noise
        lower = np.asarray(np.linalg.cholesky(matrix), dtype=np.float64)
        white = np.linalg.solve(lower, (values - middle) / spread)
        weights: Array = np.linalg.solve(lower.T, white)
        return cls(kernel, lower, weights, middle, spread)

    def at(self, distances: Array) -> tuple[Array, Array]:
        """Means and deviations (without noise) at points whose distances to those seen are given."""
        covariance = self.kernel.of(distances)
        mean = self.middle + self.spread * (covariance @ self.weights)
        white = np.linalg.solve(self.lower, covariance.T)
        variance = np.maximum(self.kernel.variance - np.sum(white * white, axis=0), 1e-12)
        return mean, self.spread * np.sqrt(variance)
