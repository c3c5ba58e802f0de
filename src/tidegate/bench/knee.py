"""The greatest rate that a server keeps up with, of those it was asked for. Pure."""

from collections.abc import Sequence
from typing import Final

import msgspec

KEPT: Final = 0.95
"""Share of the requests sent that has to be answered as fast as they come, or within the SLO."""
FAILED: Final = 0.01
SLOWER: Final = 3.0
"""Without an SLO: how much longer than at the lowest rate the 90th percentile may be. Waiting grows without bound beyond."""


class Step(msgspec.Struct, frozen=True):
    """What one rate showed. `good` is the share of requests within the SLO, None without one.

    `kept` is how fast it answered by how fast it was asked, where that is known better than by the two rates: a short
    run ends with answers that were still on their way, and draws a few requests more or less.
    """

    offered: float
    answered: float
    failed: float
    p90_s: float
    good: float | None = None
    kept: float | None = None


class Knee(msgspec.Struct, frozen=True):
    """`rate` is None where even the lowest was too much; `ended` says whether a rate beyond it was seen to be too much."""

    rate: float | None
    ended: bool
    most_answered: float
    """Answers a second at the best of all rates."""


def keeps_up(step: Step, lowest: Step) -> bool:
    kept = step.answered / step.offered if step.kept is None else step.kept
    if step.failed > FAILED or kept < KEPT:
        return False
    if step.good is not None:
        return step.good >= KEPT
    return step.p90_s <= SLOWER * lowest.p90_s


def knee(steps: Sequence[Step]) -> Knee:
    """Of rates in ascending order, at least one: the last before the first that is too much."""
    rate = None
    most = max(step.answered for step in steps)
    for step in steps:
        if not keeps_up(step, steps[0]):
            return Knee(rate, ended=True, most_answered=most)
        rate = step.offered
    return Knee(rate, ended=False, most_answered=most)
