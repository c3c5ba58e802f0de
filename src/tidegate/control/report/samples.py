"""What is kept of a minute: enough for the report, the same size whether it was calm or busy. Pure.

Histograms are counts by the bounds of `tidegate.gateway.metrics`, of requests that ended in the minute.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import msgspec

from tidegate.control.sums import Sums
from tidegate.gateway.metrics import BUCKETS_S, BUCKETS_TOKENS
from tidegate.gateway.usage_sums import OTHER
from tidegate.types import DataReport, Spread

TENANTS_MAX: Final = 200
"""In one sample; the others are added up as `other`."""
Counts = tuple[int, ...]


class ClassSample(msgspec.Struct, frozen=True, omit_defaults=True):
    """One class in one minute."""

    requests: dict[str, int] = {}
    """Ended, by outcome."""
    refused: int = 0
    """Told to come again later."""
    first_s: Counts = ()
    duration_s: Counts = ()
    queue_s: Counts = ()
    prompt_tokens: Counts = ()
    answer_tokens: Counts = ()


class ReplicaSample(msgspec.Struct, frozen=True, omit_defaults=True):
    """One replica in one minute."""

    limit: int | None = None
    """At its end."""
    in_flight: float = 0.0
    """In the middle."""
    busy_s: float = 0.0
    """Seconds with any request."""
    waiting: float = 0.0
    """Sequences that waited inside the engine, in the middle."""


class TenantSample(msgspec.Struct, frozen=True, omit_defaults=True):
    """One tenant in one minute."""

    requests: int = 0
    prompt_tokens: int = 0
    answer_tokens: int = 0
    engine_s: float = 0.0
    """Seconds that its requests were with engines, added up."""


class Sample(msgspec.Struct, frozen=True, omit_defaults=True):
    """One minute, or what there was of it."""

    at_s: float
    """Unix time of its beginning."""
    seconds: float
    classes: dict[str, ClassSample] = {}
    replicas: dict[str, ReplicaSample] = {}
    tenants: dict[str, TenantSample] = {}
    gpus: dict[str, float] = {}
    """Share of the time in which each computed, 0..1, where that is known."""
    queued: float = 0.0
    """Requests that waited in gateways, in the middle."""


class Gathering:
    """Takes in what comes until `take` makes a sample of it."""

    def __init__(self) -> None:
        self._begin()

    def _begin(self) -> None:
        self._classes: dict[str, ClassSample] = {}
        self._tenants: dict[str, TenantSample] = {}
        self._replicas: dict[str, list[tuple[float, int, int]]] = {}
        self._limits: dict[str, int | None] = {}
        self._gpus: dict[str, list[float]] = {}
        self._queued: list[tuple[float, int]] = []

    def __bool__(self) -> bool:
        return bool(self._classes or self._tenants or self._queued)

    def add(self, report: DataReport) -> None:
        """Once for each report of each gateway."""
        for one in report.usage:
            name = one.tenant if one.tenant in self._tenants or len(self._tenants) < TENANTS_MAX else OTHER
            tenant = self._tenants.get(name, TenantSample())
            self._tenants[name] = TenantSample(
                tenant.requests + one.requests,
                tenant.prompt_tokens + one.prompt_tokens,
                tenant.answer_tokens + one.completion_tokens,
                tenant.engine_s + one.engine_s,
            )
            klass = ClassSample(requests={one.outcome.value: one.requests})
            self._classes[one.klass] = added(self._classes.get(one.klass, ClassSample()), klass)
        for spread in filter(_known, report.spreads):
            klass = ClassSample(
                {},
                spread.refused,
                spread.first_s,
                spread.duration_s,
                spread.queue_s,
                spread.prompt_tokens,
                spread.answer_tokens,
            )
            self._classes[spread.klass] = added(self._classes.get(spread.klass, ClassSample()), klass)

    def look(self, sums: Sums, seconds: float) -> None:
        """How it is now, which stands for the `seconds` since the last look."""
        self._queued.append((seconds, sums.queued))
        for one in sums.replicas:
            self._replicas.setdefault(one.id, []).append((seconds, one.in_flight, one.waiting or 0))
            self._limits[one.id] = one.limit
        for gpu in sums.gpus:
            if gpu.use is not None:
                self._gpus.setdefault(gpu.id, []).append(gpu.use)

    def take(self, at_s: float, seconds: float) -> Sample:
        """The sample, and begin anew."""
        replicas = {
            name: ReplicaSample(
                self._limits[name],
                _mean([(weight, busy) for weight, busy, _ in looks]),
                round(sum(weight for weight, busy, _ in looks if busy), 3),
                _mean([(weight, waiting) for weight, _, waiting in looks]),
            )
            for name, looks in self._replicas.items()
        }
        sample = Sample(
            round(at_s, 3),
            round(seconds, 3),
            self._classes,
            replicas,
            {
                name: msgspec.structs.replace(one, engine_s=round(one.engine_s, 4))
                for name, one in self._tenants.items()
            },
            {name: round(sum(uses) / len(uses), 4) for name, uses in self._gpus.items()},
            _mean(self._queued),
        )
        self._begin()
        return sample


def _known(spread: Spread) -> bool:
    """Whether it has the bounds that are known here; a gateway of another release may have others."""
    seconds = (spread.first_s, spread.duration_s, spread.queue_s)
    tokens = (spread.prompt_tokens, spread.answer_tokens)
    return {*map(len, seconds)} == {len(BUCKETS_S) + 1} and {*map(len, tokens)} == {len(BUCKETS_TOKENS) + 1}


def _mean(looks: Sequence[tuple[float, float]]) -> float:
    weight = sum(weight for weight, _ in looks)
    return round(sum(weight * value for weight, value in looks) / weight, 4) if weight > 0 else 0.0


def added(one: ClassSample, other: ClassSample) -> ClassSample:
    """Both together."""
    return ClassSample(
        {name: one.requests.get(name, 0) + other.requests.get(name, 0) for name in {**one.requests, **other.requests}},
        one.refused + other.refused,
        add_counts(one.first_s, other.first_s),
        add_counts(one.duration_s, other.duration_s),
        add_counts(one.queue_s, other.queue_s),
        add_counts(one.prompt_tokens, other.prompt_tokens),
        add_counts(one.answer_tokens, other.answer_tokens),
    )


def add_counts(one: Counts, other: Counts) -> Counts:
    """Two histograms of the same bounds; an empty one has nothing to add."""
    if not one or not other:
        return one or other
    return tuple(mine + theirs for mine, theirs in zip(one, other, strict=True))


def by_class(samples: Iterable[Sample]) -> Mapping[str, ClassSample]:
    """Of all the time together."""
    found: dict[str, ClassSample] = {}
    for sample in samples:
        for name, one in sample.classes.items():
            found[name] = added(found.get(name, ClassSample()), one)
    return dict(sorted(found.items()))


def share_within(counts: Counts, bounds: Sequence[float], value: float) -> float | None:
    """Share of what was counted that is at most `value`; even within a bucket. None of nothing.

    Where `value` is above all bounds, what is past the last one counts as above it.
    """
    total = sum(counts)
    if not total:
        return None
    below, lower = 0.0, 0.0
    for bound, count in zip(bounds, counts, strict=False):
        if value < bound:
            below += count * max(0.0, value - lower) / (bound - lower)
            break
        below, lower = below + count, bound
    return below / total


def quantile(counts: Counts, bounds: Sequence[float], share: float) -> float | None:
    """The value that `share` of what was counted does not exceed, even within a bucket; the last bound at most."""
    total = sum(counts)
    if not total:
        return None
    wanted, below, lower = share * total, 0.0, 0.0
    for bound, count in zip(bounds, counts, strict=False):
        if count and below + count >= wanted:
            return lower + (bound - lower) * (wanted - below) / count
        below, lower = below + count, bound
    return bounds[-1]
