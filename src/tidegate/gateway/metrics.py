"""What is counted on the data path: plain numbers, turned into Prometheus' format only when somebody asks.

Labels are bounded: models are those of the settings, classes and outcomes are few, statuses that nobody expects are
folded, tenants are named up to `gateway.metrics_tenants_max`. Names made up by clients never become one. Past a bound
the label is `other`. docs/metrics.md tells what each metric means; a test holds it to this file.
"""

import itertools
from collections.abc import Callable, Iterable, Iterator
from typing import Final

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from tidegate.gateway.gpu_metrics import gpu_metrics
from tidegate.gateway.record import Ended
from tidegate.gateway.usage_sums import OTHER
from tidegate.types import ClassReport, GpuReport, Outcome, ReplicaReport

BUCKETS_S: Final = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0)
BUCKETS_TOKENS_PER_S: Final = (1.0, 2.0, 5.0, 10.0, 20.0, 30.0, 50.0, 75.0, 100.0, 150.0, 200.0, 300.0, 500.0, 1000.0)
BUCKETS_TOKENS: Final = tuple(float(1 << power) for power in range(4, 18))
"""16 to 131,072, each twice the one before."""
MODELS_MAX: Final = 200
"""Models ever served by one process: a settings file that is reloaded for years makes no endless series."""
CLASSES_MAX: Final = 50
REFUSALS_MAX: Final = 200
STATUSES: Final = frozenset(
    (0, 200, 400, 401, 403, 404, 405, 408, 409, 413, 415, 422, 429, 431, 500, 501, 502, 503, 504)
)
"""Statuses that keep their number; 0 is a request that ended before an answer had begun. Others become `4xx`."""


class Histogram:
    """Counts by upper bound. The data path adds to `counts` itself: `counts[bisect_left(bounds, value)] += 1`."""

    __slots__ = ("bounds", "counts", "sum")

    def __init__(self, bounds: tuple[float, ...] = BUCKETS_S) -> None:
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.sum = 0.0

    def cumulative(self) -> list[tuple[str, float]]:
        """Buckets as Prometheus wants them."""
        names = (*(f"{bound:g}" for bound in self.bounds), "+Inf")
        return [(name, float(total)) for name, total in zip(names, itertools.accumulate(self.counts), strict=True)]


class Distributions:
    """How long the requests of one model and class took, and how long their prompts and answers were."""

    __slots__ = ("answer", "duration", "first_byte", "prompt", "queue", "speed")

    def __init__(self) -> None:
        self.duration, self.first_byte, self.queue = Histogram(), Histogram(), Histogram()
        self.speed = Histogram(BUCKETS_TOKENS_PER_S)
        self.prompt, self.answer = Histogram(BUCKETS_TOKENS), Histogram(BUCKETS_TOKENS)


class ModelCounters:
    """What a flight itself counts of its model; `Accounting` counts it out."""

    __slots__ = ("in_flight",)

    def __init__(self) -> None:
        self.in_flight = 0


class Metrics(Collector):
    """All counters of this process."""

    def __init__(self) -> None:
        self.requests: dict[tuple[str, str, str, str], int] = {}
        """Ended requests, by model, class, outcome, status."""
        self.tokens: dict[tuple[str, str, str], list[int]] = {}
        """Of the prompt, and of the answer, by tenant, class, model."""
        self.engine_s: dict[tuple[str, str, str], float] = {}
        """Seconds with engines, likewise."""
        self.refused: dict[tuple[int, str], int] = {}
        self.tenants_max = 0
        self.connections: Callable[[], int] = int
        self.replicas: Callable[[], Iterable[ReplicaReport]] = tuple
        self.classes: Callable[[], Iterable[ClassReport]] = tuple
        """What waits, by class."""
        self.gpus: Callable[[], Iterable[GpuReport]] = tuple
        """Of this machine, where no control reads them."""
        self.settle: Callable[[], None] = lambda: None
        """Adds what was counted and is not in here yet."""
        self.dropped_lines: Callable[[], dict[str, int]] = dict
        """Lines that are missing in the access log, by reason."""
        self.dropped_trace: Callable[[], dict[str, int]] = dict
        """Likewise, in the trace."""
        self._models: dict[str, ModelCounters] = {}
        self._distributions: dict[tuple[str, str], Distributions] = {}
        self._labels: dict[str, set[str]] = {"model": set(), "class": set(), "tenant": set()}

    def model(self, name: str) -> ModelCounters:
        """The counters of a model that exists."""
        name = self._label("model", name, MODELS_MAX)
        counters = self._models.get(name)
        if counters is None:
            counters = self._models[name] = ModelCounters()
        return counters

    def distributions(self, model: str, klass: str) -> Distributions:
        """Of a model that exists and a class."""
        key = (self._label("model", model, MODELS_MAX), self._label("class", klass, CLASSES_MAX))
        found = self._distributions.get(key)
        if found is None:
            found = self._distributions[key] = Distributions()
        return found

    def count(
        self,
        record: Ended,
        requests: int,
        *,
        queued: int,
        prompt_tokens: int,
        completion_tokens: int,
        engine_s: float,
    ) -> None:
        """So many requests like this one have ended; `queued` of them had waited and are in their histogram."""
        model = self._label("model", record.model, MODELS_MAX)
        klass = self._label("class", record.klass, CLASSES_MAX)
        key = (model, klass, record.outcome.value, _status(record.status))
        self.requests[key] = self.requests.get(key, 0) + requests
        self.distributions(model, klass).queue.counts[0] += requests - queued
        if prompt_tokens or completion_tokens or engine_s:
            tenant = self._label("tenant", record.caller.tenant, self.tenants_max)
            whose = (tenant, klass, model)
            self.engine_s[whose] = self.engine_s.get(whose, 0.0) + engine_s
            tokens = self.tokens.setdefault(whose, [0, 0])
            tokens[0] += prompt_tokens
            tokens[1] += completion_tokens

    def refusal(self, status: int, code: str | None) -> None:
        """A request was answered with an error before any replica was asked."""
        key = (status, code or "error")
        if key not in self.refused and len(self.refused) >= REFUSALS_MAX:
            key = (status, OTHER)
        self.refused[key] = self.refused.get(key, 0) + 1

    def by_class(self) -> dict[str, list[Distributions]]:
        """Of each class, one for each model."""
        found: dict[str, list[Distributions]] = {}
        for (_, klass), one in self._distributions.items():
            found.setdefault(klass, []).append(one)
        return found

    @property
    def in_flight(self) -> int:
        return sum(counters.in_flight for counters in self._models.values())

    def by_outcome(self) -> dict[str, int]:
        """Ended requests by outcome."""
        self.settle()
        totals = {outcome.value: 0 for outcome in Outcome}
        for (_, _, outcome, _), count in self.requests.items():
            totals[outcome] += count
        return totals

    def _label(self, kind: str, value: str, most: int) -> str:
        """The value, if it is one of the first `most` of its kind."""
        known = self._labels[kind]
        if value in known:
            return value
        if len(known) >= most:
            return OTHER
        known.add(value)
        return value

    def collect(self) -> Iterator[Metric]:
        """Prometheus' view of it all."""
        self.settle()
        yield from self._collect_requests()
        yield from self._collect_distributions()
        yield from self._collect_tokens()
        refused = CounterMetricFamily(
            "tidegate_requests_refused",
            "Requests answered with an error before a replica was asked.",
            labels=("status", "code"),
        )
        for (status, code), count in self.refused.items():
            refused.add_metric((str(status), code), count)
        yield refused
        yield GaugeMetricFamily("tidegate_connections", "Open client connections.", value=self.connections())
        for name, where, counts in (
            ("tidegate_access_log_dropped", "access log", self.dropped_lines()),
            ("tidegate_trace_dropped", "trace", self.dropped_trace()),
        ):
            dropped = CounterMetricFamily(name, f"Lines that are missing in the {where}.", labels=("reason",))
            for reason, count in counts.items():
                dropped.add_metric((reason,), count)
            yield dropped
        yield from self._collect_classes()
        yield from self._collect_replicas()
        yield from gpu_metrics(self.gpus())

    def _collect_requests(self) -> Iterator[Metric]:
        requests = CounterMetricFamily(
            "tidegate_requests", "Requests that ended.", labels=("model", "class", "outcome", "status")
        )
        in_flight = GaugeMetricFamily("tidegate_requests_in_flight", "Requests being answered.", labels=("model",))
        for key, count in self.requests.items():
            requests.add_metric(key, count)
        for name, counters in self._models.items():
            in_flight.add_metric((name,), counters.in_flight)
        yield from (requests, in_flight)

    def _collect_distributions(self) -> Iterator[Metric]:
        labels = ("model", "class")
        duration = HistogramMetricFamily(
            "tidegate_request_duration_seconds", "From the whole request to the last byte.", labels=labels
        )
        first = HistogramMetricFamily(
            "tidegate_time_to_first_byte_seconds", "From the whole request to the answer's first byte.", labels=labels
        )
        queue = HistogramMetricFamily("tidegate_queue_seconds", "Time in the gateway's queue.", labels=labels)
        speed = HistogramMetricFamily(
            "tidegate_stream_tokens_per_second", "Of a stream, after its first byte.", labels=labels
        )
        prompt = HistogramMetricFamily("tidegate_prompt_length_tokens", "Of one prompt.", labels=labels)
        answer = HistogramMetricFamily("tidegate_answer_length_tokens", "Of one answer.", labels=labels)
        families = (duration, first, queue, speed, prompt, answer)
        for key, one in self._distributions.items():
            histograms = (one.duration, one.first_byte, one.queue, one.speed, one.prompt, one.answer)
            for family, histogram in zip(families, histograms, strict=True):
                family.add_metric(key, buckets=histogram.cumulative(), sum_value=histogram.sum)
        yield from families

    def _collect_tokens(self) -> Iterator[Metric]:
        labels = ("tenant", "class", "model")
        prompt = CounterMetricFamily("tidegate_prompt_tokens", "Tokens of prompts, as engines count.", labels=labels)
        completion = CounterMetricFamily(
            "tidegate_completion_tokens", "Tokens of answers, as engines count.", labels=labels
        )
        for key, (prompt_tokens, completion_tokens) in self.tokens.items():
            prompt.add_metric(key, prompt_tokens)
            completion.add_metric(key, completion_tokens)
        engine = CounterMetricFamily(
            "tidegate_engine_seconds", "Seconds that requests were with engines.", labels=labels
        )
        for key, seconds in self.engine_s.items():
            engine.add_metric(key, seconds)
        yield from (prompt, completion, engine)

    def _collect_classes(self) -> Iterator[Metric]:
        waiting = GaugeMetricFamily("tidegate_queue_requests", "Requests that wait for a replica.", labels=("class",))
        foreseen = GaugeMetricFamily(
            "tidegate_queue_wait_seconds", "What a request that came now would wait.", labels=("class",)
        )
        busy = CounterMetricFamily(
            "tidegate_requests_refused_busy", "Requests told to come again later.", labels=("class",)
        )
        for report in self.classes():
            label = (self._label("class", report.name, CLASSES_MAX),)
            waiting.add_metric(label, report.queued)
            foreseen.add_metric(label, report.wait_s)
            busy.add_metric(label, report.refused)
        yield from (waiting, foreseen, busy)

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
        limit = GaugeMetricFamily("tidegate_replica_limit", "Most requests it may have at once.", labels=("replica",))
        permits = GaugeMetricFamily(
            "tidegate_replica_permits", "Requests it has, by class.", labels=("replica", "class")
        )
        running = GaugeMetricFamily("tidegate_engine_running", "Sequences an engine computes.", labels=("replica",))
        waiting = GaugeMetricFamily("tidegate_engine_waiting", "Sequences that wait in it.", labels=("replica",))
        cache = GaugeMetricFamily("tidegate_engine_kv_usage", "Share of its KV cache in use.", labels=("replica",))
        for report in self.replicas():
            label = (report.id,)
            healthy.add_metric(label, float(not report.health))
            for reason, count in report.outs.items():
                outs.add_metric((report.id, reason), count)
            busy.add_metric(label, report.in_flight)
            asked.add_metric(label, report.requests)
            failed.add_metric(label, report.failures)
            reachable.add_metric(label, float(report.reachable))
            for name, count in report.by_class.items():
                permits.add_metric((report.id, self._label("class", name, CLASSES_MAX)), count)
            for family, value in (
                (limit, report.limit),
                (running, report.running),
                (waiting, report.waiting),
                (cache, report.kv_usage),
            ):
                if value is not None:
                    family.add_metric(label, float(value))
        yield from (busy, asked, failed, reachable, healthy, outs, limit, permits, running, waiting, cache)


def _status(status: int) -> str:
    return str(status) if status in STATUSES else f"{status // 100}xx"
