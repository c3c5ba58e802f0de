"""Which of several servers does better, from runs in turn. Pure.

Each round measures every one of them under the same requests, every other round in the opposite order, so that what
drifts (a machine that grows warm, a neighbour) falls on all alike. A round gives one ratio of a figure, and the ratios of
several rounds an interval: of their logarithms, by Student's t, because half as fast and twice as fast are equally far
from the same.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Final

import msgspec

from tidegate.bench.figures import interval
from tidegate.bench.results import Machine, Run
from tidegate.bench.summary import FIGURES

MEMORY: Final = "memory_bytes"
COMPARED: Final[Mapping[str, Callable[[Run], float | None]]] = {
    **FIGURES,
    MEMORY: lambda one: None if one.use.most_resident_bytes is None else float(one.use.most_resident_bytes),
}
MORE_IS_BETTER: Final = frozenset({"queries_per_s", "output_tokens_per_s", "goodput_per_s"})


class Verdict(msgspec.Struct, frozen=True):
    """A figure of one server as a multiple of the first one's."""

    ratio: float
    """Geometric mean over the rounds."""
    low: float
    high: float
    """Where the true one is with 95 % confidence."""
    rounds: int

    @property
    def shown(self) -> bool:
        """Whether a difference was shown: the interval leaves out 1."""
        return self.low > 1.0 or self.high < 1.0


class Arm(msgspec.Struct, frozen=True):
    """One of the compared."""

    name: str
    what: str
    """What was compared, in words: a URL, or an engine with its options."""
    runs: list[Run | None]
    """By round; None where it could not be measured."""
    fault: str = ""
    """Why it could not."""
    no_memory: bool = False
    """Whether that was for want of memory: then it is a result, and no mistake."""

    def values(self, figure: str) -> list[float]:
        """Of the whole rounds that have the figure."""
        read = COMPARED[figure]
        return [value for one in self.runs if one and not one.partial and (value := read(one)) is not None]

    def mean(self, figure: str) -> float | None:
        """Over the whole rounds."""
        values = self.values(figure)
        return math.fsum(values) / len(values) if values else None


class Comparison(msgspec.Struct, frozen=True):
    """All of one command."""

    tidegate: str
    command: str
    date: str
    machine: Machine
    load: str
    workload: str
    slo: str
    rounds: int
    partial: bool
    arms: list[Arm]
    verdicts: dict[str, dict[str, Verdict]]
    """By name of an arm and by figure: as multiples of the first arm's."""
    notes: list[str] = []


def turns(arms: int, rounds: int) -> list[tuple[int, int]]:
    """Round and arm of each turn: A B C, C B A, A B C …"""
    orders = (range(arms), range(arms - 1, -1, -1))
    return [(number, arm) for number in range(rounds) for arm in orders[number % 2]]


def verdict(first: Sequence[float | None], other: Sequence[float | None]) -> Verdict | None:
    """From a figure of two servers, by round; None where fewer than two rounds have it of both.

    A zero is a round in which nothing was answered: then no ratio tells the truth, and there is none.
    """
    pairs = [(a, b) for a, b in zip(first, other, strict=True) if a is not None and b is not None]
    if any(a <= 0 or b <= 0 for a, b in pairs):
        return None
    logs = [math.log(b / a) for a, b in pairs]
    told = interval(logs)
    if told is None:
        return None
    return Verdict(math.exp(told.mean), math.exp(told.low), math.exp(told.high), len(logs))


def verdicts(arms: Sequence[Arm]) -> dict[str, dict[str, Verdict]]:
    """Of every arm but the first."""
    found: dict[str, dict[str, Verdict]] = {}
    for arm in arms[1:]:
        figures = {}
        for figure, read in COMPARED.items():
            pair = (
                [(read(one) or 0.0) if one and not one.partial else None for one in each.runs]
                for each in (arms[0], arm)
            )
            told = verdict(*pair)
            if told is not None:
                figures[figure] = told
        found[arm.name] = figures
    return found


def better(figure: str, told: Verdict) -> bool | None:
    """Whether a server does better than the first one in a figure; None where no difference was shown."""
    if not told.shown:
        return None
    return (told.low > 1.0) == (figure in MORE_IS_BETTER)
