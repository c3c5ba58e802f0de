"""What is counted on the data path: plain numbers, turned into Prometheus' format only when somebody asks.

Labels are bounded: models are those of the settings, outcomes and statuses are few. Names made up by clients never
become one.
"""

from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator
from typing import Final

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from tidegate.types import Outcome, ReplicaReport

BUCKETS_S: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0)


class Histogram:
    """Counts by upper bound."""

    __slots__ = ("counts", "sum")

    def __init__(self) -> None:
        self.counts = [0] * (len(BUCKETS_S) + 1)
        self.sum = 0.0

    def observe(self, value: float) -> None:
        self.counts[bisect_left(BUCKETS_S, value)] += 1
        self.sum += value

    def cumulative(self) -> list[tuple[str, float]]:
        """Buckets as Prometheus wants them."""
        total, buckets = 0, []
        for bound, count in zip((*(f"{b:g}" for b in BUCKETS_S), "+Inf"), self.counts, strict=True):
            total += count
            buckets.append((bound, float(total)))
        return buckets


class ModelCounters:
    """What is counted for one model."""

    __slots__ = ("duration", "ended_by", "first_byte", "in_flight")

    def __init__(self) -> None:
        self.in_flight = 0
        self.ended_by: dict[str, dict[int, int]] = {outcome.value: {} for outcome in Outcome}
        """Ended requests, by outcome and status."""
        self.duration = Histogram()
        self.first_byte = Histogram()

    def ended(self, outcome: Outcome, status: int, *, total_s: float, first_s: float | None) -> None:
        """A request that was counted in has ended."""
        self.in_flight -= 1
        by_status = self.ended_by[outcome.value]
        by_status[status] = by_status.get(status, 0) + 1
        self.duration.observe(total_s)
        if first_s is not None:
            self.first_byte.observe(first_s)


class Metrics(Collector):
    """All counters of this process."""

    def __init__(self) -> None:
        self._models: dict[str, ModelCounters] = {}
        self.refused: dict[tuple[int, str], int] = {}
        self.connections: Callable[[], int] = int
        self.replicas: Callable[[], Iterable[ReplicaReport]] = tuple

    def model(self, name: str) -> ModelCounters:
        """The counters of a model that exists."""
        counters = self._models.get(name)
        if counters is None:
            counters = self._models[name] = ModelCounters()
        return counters

    def refusal(self, status: int, code: str | None) -> None:
        """A request was answered with an error before any replica was asked."""
        key = (status, code or "error")
        self.refused[key] = self.refused.get(key, 0) + 1

    @property
    def in_flight(self) -> int:
        return sum(counters.in_flight for counters in self._models.values())

    def by_outcome(self) -> dict[str, int]:
        """Ended requests by outcome."""
        models = self._models.values()
        return {o.value: sum(sum(model.ended_by[o.value].values()) for model in models) for o in Outcome}

    def collect(self) -> Iterator[Metric]:
        """Prometheus' view of it all."""
        requests = CounterMetricFamily(
            "tidegate_requests", "Requests that ended.", labels=("model", "outcome", "status")
        )
        in_flight = GaugeMetricFamily("tidegate_requests_in_flight", "Requests being answered.", labels=("model",))
        duration = HistogramMetricFamily(
            "tidegate_request_duration_seconds", "From the whole request to the last byte.", labels=("model",)
        )
        first = HistogramMetricFamily(
            "tidegate_time_to_first_byte_seconds",
            "From the whole request to the answer's first byte.",
            labels=("model",),
        )
        for name, counters in self._models.items():
            in_flight.add_metric((name,), counters.in_flight)
            for outcome, by_status in counters.ended_by.items():
                for status, count in by_status.items():
                    requests.add_metric((name, outcome, str(status)), count)
            for family, histogram in ((duration, counters.duration), (first, counters.first_byte)):
                family.add_metric((name,), buckets=histogram.cumulative(), sum_value=histogram.sum)
        yield from (requests, in_flight, duration, first)
        refused = CounterMetricFamily(
            "tidegate_requests_refused",
            "Requests answered with an error before a replica was asked.",
            labels=("status", "code"),
        )
        for (status, code), count in self.refused.items():
            refused.add_metric((str(status), code), count)
        yield refused
        yield GaugeMetricFamily("tidegate_connections", "Open client connections.", value=self.connections())
        yield from self._collect_replicas()

    def _collect_replicas(self) -> Iterator[Metric]:
        busy = GaugeMetricFamily("tidegate_replica_in_flight", "Requests on a replica.", labels=("replica",))
        asked = CounterMetricFamily("tidegate_replica_requests", "Times a replica was asked.", labels=("replica",))
        failed = CounterMetricFamily("tidegate_replica_failures", "Answers a replica broke off.", labels=("replica",))
        reachable = GaugeMetricFamily(
            "tidegate_replica_reachable", "1 while it can be connected to.", labels=("replica",)
        )
        healthy = GaugeMetricFamily("tidegate_replica_healthy", "1 while it may be asked.", labels=("replica",))
        outs = CounterMetricFamily(
            "tidegate_replica_outs", "Times a replica was taken out.", labels=("replica", "reason")
        )
        for report in self.replicas():
            label = (report.id,)
            healthy.add_metric(label, float(not report.health))
            for reason, count in report.outs.items():
                outs.add_metric((report.id, reason), count)
            busy.add_metric(label, report.in_flight)
            asked.add_metric(label, report.requests)
            failed.add_metric(label, report.failures)
            reachable.add_metric(label, float(report.reachable))
        yield from (busy, asked, failed, reachable, healthy, outs)
