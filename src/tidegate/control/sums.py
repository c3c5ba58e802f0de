"""What all gateways report, as one: totals, the longest wait, rates, and times to the first token. Pure.

A rate is what a counter grew by over the reports of the last `WINDOW_S` seconds. A counter that is smaller than before
has begun anew, and counts from 0 (as Prometheus's `increase` has it). What an engine says of itself is not added up: all
gateways ask the same engine, and the latest of them that heard it is believed.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from itertools import pairwise
from typing import TypeVar

import msgspec

from tidegate.types import ClassReport, DataReport, GpuReport, Outcome, ReplicaReport

WINDOW_S = 10.0
"""Long enough for a steady figure at a request a second, short enough to see a change at once."""
SILENT_S = 5.0
"""A gateway not heard for so long, of those that report every second, has no part in the rates."""


Number = TypeVar("Number", int, float)


class Told(msgspec.Struct, frozen=True):
    """A report, and when it came, by the clock of control."""

    at_s: float
    report: DataReport


class FirstToken(msgspec.Struct, frozen=True):
    """Times to the first token of the last `WINDOW_S` seconds; None without any."""

    p50_s: float | None = None
    p99_s: float | None = None
    samples: int = 0


class ClassSum(msgspec.Struct, frozen=True):
    """One class, over all gateways. Counters count from the start of each gateway."""

    name: str
    queued: int = 0
    wait_s: float = 0.0
    """The longest that a request which came now would wait."""
    in_flight: int = 0
    refused: int = 0
    done: int = 0
    tokens: int = 0
    requests_per_s: float = 0.0
    refused_per_s: float = 0.0
    tokens_per_s: float = 0.0
    first_token: FirstToken = FirstToken()


class ReplicaSum(msgspec.Struct, frozen=True):
    """One replica, as all gateways together see it."""

    id: str
    limit: int | None = None
    """Of all gateways together; None while one of them has no limit for it."""
    in_flight: int = 0
    by_class: dict[str, int] = {}
    requests: int = 0
    failures: int = 0
    requests_per_s: float = 0.0
    failures_per_s: float = 0.0
    running: int | None = None
    waiting: int | None = None
    kv_usage: float | None = None
    """As the engine says itself."""
    health: tuple[str, ...] = ()
    """Why gateways do not ask it."""


class Sums(msgspec.Struct, frozen=True):
    """Everything at one moment."""

    gateways: int = 0
    connections: int = 0
    in_flight: int = 0
    queued: int = 0
    requests_per_s: float = 0.0
    """Requests that ended, refused ones too."""
    failed_per_s: float = 0.0
    refused_per_s: float = 0.0
    tokens_per_s: float = 0.0
    first_token: FirstToken = FirstToken()
    classes: tuple[ClassSum, ...] = ()
    replicas: tuple[ReplicaSum, ...] = ()
    gpus: tuple[GpuReport, ...] = ()
    """Of control's machine, and of others as gateways there reported them last."""


Series = Sequence[Told]
"""The reports of one gateway, oldest first."""


def add_up(
    gateways: Iterable[Series],
    *,
    now: float,
    classes: Sequence[str] = (),
    replicas: Sequence[str] = (),
    gpus: Sequence[GpuReport] = (),
) -> Sums:
    """The sums at `now`. Names in `classes` and `replicas` come first, in that order, whether reported or not.

    `gpus` are those that control reads itself.
    """
    series = [one for one in gateways if one]
    latest = [one[-1].report for one in series]
    live = [list(_recent(one, now)) for one in series if now - one[-1].at_s <= SILENT_S]
    class_names = _names(classes, (one.name for report in latest for one in report.classes))
    replica_names = _names(replicas, (one.id for report in latest for one in report.replicas))
    class_sums = tuple(_class(name, latest, live) for name in class_names)
    by_age = sorted(series, key=lambda one: one[-1].at_s)
    return Sums(
        gateways=len(series),
        connections=sum(report.connections for report in latest),
        in_flight=sum(report.in_flight for report in latest),
        queued=sum(one.queued for one in class_sums),
        requests_per_s=_rate(live, lambda report: sum(report.requests.values())),
        failed_per_s=_rate(live, lambda report: report.requests.get(Outcome.FAILED, 0)),
        refused_per_s=sum(one.refused_per_s for one in class_sums),
        tokens_per_s=sum(one.tokens_per_s for one in class_sums),
        first_token=_first_token(live, lambda _: True),
        classes=class_sums,
        replicas=tuple(_replica(name, [one[-1].report for one in by_age], live) for name in replica_names),
        gpus=_gpus(gpus, [one[-1].report for one in by_age]),
    )


def trim(series: list[Told], now: float) -> None:
    """Forget what is too old to matter, but never the latest."""
    while len(series) > 1 and now - series[0].at_s > WINDOW_S:
        del series[0]


def quantile(values: Sequence[float], share: float) -> float | None:
    """The least of `values` that at least `share` of them do not exceed (nearest rank); None of none."""
    if not values:
        return None
    return sorted(values)[max(0, math.ceil(share * len(values)) - 1)]


def _recent(series: Series, now: float) -> Iterable[Told]:
    return (told for told in series if now - told.at_s <= WINDOW_S)


def _names(first: Iterable[str], reported: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys((*first, *reported)))


def _rate(live: Sequence[Series], counter: Callable[[DataReport], int]) -> float:
    """What a counter grows by each second, over all gateways."""
    total = 0.0
    for series in live:
        seconds = series[-1].at_s - series[0].at_s if series else 0.0
        if seconds > 0:
            counts = [counter(told.report) for told in series]
            total += sum(after - before if after >= before else after for before, after in pairwise(counts)) / seconds
    return total


def _class(name: str, latest: Sequence[DataReport], live: Sequence[Series]) -> ClassSum:
    mine = [one for report in latest for one in report.classes if one.name == name]
    return ClassSum(
        name=name,
        queued=sum(one.queued for one in mine),
        wait_s=max((one.wait_s for one in mine), default=0.0),
        in_flight=sum(one.in_flight for one in mine),
        refused=sum(one.refused for one in mine),
        done=sum(one.done for one in mine),
        tokens=sum(one.tokens for one in mine),
        requests_per_s=_rate(live, _of_class(name, lambda one: one.done)),
        refused_per_s=_rate(live, _of_class(name, lambda one: one.refused)),
        tokens_per_s=_rate(live, _of_class(name, lambda one: one.tokens)),
        first_token=_first_token(live, lambda one: one.name == name),
    )


def _replica(name: str, latest: Sequence[DataReport], live: Sequence[Series]) -> ReplicaSum:
    mine = [one for report in latest for one in report.replicas if one.id == name]
    limits = [one.limit for one in mine]
    by_class: dict[str, int] = {}
    for one in mine:
        for klass, count in one.by_class.items():
            by_class[klass] = by_class.get(klass, 0) + count
    return ReplicaSum(
        id=name,
        limit=sum(limit for limit in limits if limit is not None) if limits and None not in limits else None,
        in_flight=sum(one.in_flight for one in mine),
        by_class=by_class,
        requests=sum(one.requests for one in mine),
        failures=sum(one.failures for one in mine),
        requests_per_s=_rate(live, _of_replica(name, lambda one: one.requests)),
        failures_per_s=_rate(live, _of_replica(name, lambda one: one.failures)),
        running=_last([one.running for one in mine]),
        waiting=_last([one.waiting for one in mine]),
        kv_usage=_last([one.kv_usage for one in mine]),
        health=tuple(sorted({one.health for one in mine if one.health})),
    )


def _gpus(own: Sequence[GpuReport], latest: Sequence[DataReport]) -> tuple[GpuReport, ...]:
    known = {gpu.id for gpu in own}
    others = {gpu.id: gpu for report in latest for gpu in report.gpus if gpu.id not in known}
    return (*own, *others.values())


def _last(values: Sequence[Number | None]) -> Number | None:
    return next((value for value in reversed(values) if value is not None), None)


def _of_class(name: str, counter: Callable[[ClassReport], int]) -> Callable[[DataReport], int]:
    return lambda report: sum(counter(one) for one in report.classes if one.name == name)


def _of_replica(name: str, counter: Callable[[ReplicaReport], int]) -> Callable[[DataReport], int]:
    return lambda report: sum(counter(one) for one in report.replicas if one.id == name)


def _first_token(live: Sequence[Series], wanted: Callable[[ClassReport], bool]) -> FirstToken:
    samples = [
        sample
        for series in live
        for told in series
        for one in told.report.classes
        if wanted(one)
        for sample in one.first_token_s
    ]
    return FirstToken(quantile(samples, 0.5), quantile(samples, 0.99), len(samples))
