"""When a trial is given up before its end. Pure.

A trial is measured in rungs, each longer than the one before. After a rung, its goodput is a count over a time: how far the
true one may be above it is bounded by Poisson's law (as a normal distribution of the root, which Anscombe showed to have
the same spread everywhere). It is hopeless when even that is below what the best trial has for sure.
"""

import math
from typing import Final

SURE: Final = 2.58
"""Deviations: one trial in a hundred is given up wrongly on one side, at most."""
UNEVEN: Final = 0.05
"""What a run differs from the next one beyond counting, as a share: another place in memory, a neighbour."""


def most(answers: int, seconds: float) -> float:
    """The most answers a second that `answers` in `seconds` are still likely for."""
    return (math.sqrt(answers + 0.375) + SURE / 2) ** 2 / seconds * (1 + UNEVEN)


def least(answers: int, seconds: float) -> float:
    """The fewest that they are still likely for."""
    return max(math.sqrt(answers + 0.375) - SURE / 2, 0.0) ** 2 / seconds * (1 - UNEVEN)


def hopeless(answers: int, seconds: float, best_answers: int, best_seconds: float) -> bool:
    """Whether good answers of a rung rule out that this trial beats the best one, measured to its end."""
    return most(answers, seconds) < least(best_answers, best_seconds)
