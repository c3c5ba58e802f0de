"""How requests of each class spread, handed to control as differences: as usage is, each is told once."""

from collections.abc import Iterable, Sequence
from typing import Final

from tidegate.gateway.metrics import Distributions, Metrics
from tidegate.types import Spread

FIELDS: Final = ("first_byte", "duration", "queue", "prompt", "answer")
"""Histograms of `Distributions`, in the order of `Spread`'s counts."""

Counts = tuple[tuple[int, ...], ...]


class Spreads:
    """What `Metrics` has counted by class since the last `take`."""

    def __init__(self, metrics: Metrics) -> None:
        self._metrics = metrics
        self._told: dict[str, tuple[Counts, int]] = {}

    def take(self) -> tuple[Spread, ...]:
        """What is new, once. Who cannot deliver it gives it back."""
        self._metrics.settle()
        refused = {one.name: one.refused for one in self._metrics.classes()}
        counted = self._metrics.by_class()
        found = []
        for name in dict.fromkeys((*counted, *refused)):
            counts, turned_away = _added(counted.get(name) or [Distributions()]), refused.get(name, 0)
            before = self._told.get(name)
            if before == (counts, turned_away):
                continue
            self._told[name] = (counts, turned_away)
            new = counts if before is None else _less(counts, before[0])
            since = turned_away - before[1] if before is not None and turned_away >= before[1] else turned_away
            if since or any(map(any, new)):
                first, duration, queue, prompt, answer = new
                found.append(Spread(name, first, duration, queue, prompt, answer, since))
        return tuple(found)

    def give_back(self, spreads: Iterable[Spread]) -> None:
        """Keep for the next `take` what could not be delivered."""
        for one in spreads:
            counts, refused = self._told[one.klass]
            lost = (one.first_s, one.duration_s, one.queue_s, one.prompt_tokens, one.answer_tokens)
            self._told[one.klass] = (_less(counts, lost), refused - one.refused)


def _added(models: Sequence[Distributions]) -> Counts:
    return tuple(tuple(map(sum, zip(*(getattr(one, field).counts for one in models), strict=True))) for field in FIELDS)


def _less(counts: Counts, others: Counts) -> Counts:
    return tuple(
        tuple(one - other for one, other in zip(mine, theirs, strict=True))
        for mine, theirs in zip(counts, others, strict=True)
    )
