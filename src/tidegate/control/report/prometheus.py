"""The same samples, out of a Prometheus that scrapes gateways: range queries of our metrics, by HTTP."""

import re
from collections import defaultdict
from collections.abc import Callable, Mapping
from typing import Any, Final

import httpx
import msgspec

from tidegate.control.report.samples import ClassSample, Counts, ReplicaSample, Sample, TenantSample
from tidegate.errors import OperatorError
from tidegate.gateway.metrics import BUCKETS_S, BUCKETS_TOKENS

TIMEOUT_S: Final = 30.0
MOST_BYTES: Final = 64 * 1024 * 1024
"""Of one answer."""
MINUTE_S: Final = 60.0
COARSE_FROM_S: Final = 8 * 86_400.0
"""Of a longer time, samples are of five minutes."""
HISTOGRAMS: Final = {
    "first_s": ("tidegate_time_to_first_byte_seconds", BUCKETS_S),
    "duration_s": ("tidegate_request_duration_seconds", BUCKETS_S),
    "queue_s": ("tidegate_queue_seconds", BUCKETS_S),
    "prompt_tokens": ("tidegate_prompt_length_tokens", BUCKETS_TOKENS),
    "answer_tokens": ("tidegate_answer_length_tokens", BUCKETS_TOKENS),
}
TENANTS: Final = {
    "prompt_tokens": "tidegate_prompt_tokens_total",
    "answer_tokens": "tidegate_completion_tokens_total",
    "engine_s": "tidegate_engine_seconds_total",
}
Labels = Mapping[str, str]


class Prometheus:
    """One server. Blocks."""

    def __init__(self, url: str) -> None:
        if not url.startswith(("http://", "https://")):
            raise OperatorError(f"--prometheus: {url!r} is no URL", hint="as in http://127.0.0.1:9090")
        self._asked = url.rstrip("/")
        self.url = re.sub(r"//[^/@]*@", "//", self._asked)
        """Without a password: as it may be shown."""

    def read(self, since_s: float, until_s: float, whole_s: float) -> list[Sample]:
        """Samples of [since_s, until_s), a part of a report on `whole_s`. Raises OperatorError.

        What a counter grew by in each step is Prometheus's `increase`, which sees gateways begin anew; it is rounded, as
        Prometheus draws it out to the ends of the step. Tenants' requests are not among the metrics; they are shared out
        by their tokens.
        """
        step_s = MINUTE_S if whole_s <= COARSE_FROM_S else 5 * MINUTE_S
        found: dict[float, _Minute] = defaultdict(_Minute)
        over = f"[{step_s:.0f}s]"

        def ask(query: str, take: Callable[[_Minute, Labels, float], None]) -> None:
            for labels, points in self._range(query, since_s + step_s, until_s, step_s):
                for at_s, value in points:
                    take(found[at_s], labels, value)

        ask(f"sum by (class, outcome) (increase(tidegate_requests_total{over}))", _Minute.ended)
        ask(f"sum by (class) (increase(tidegate_requests_refused_busy_total{over}))", _Minute.refused)
        for field, (metric, bounds) in HISTOGRAMS.items():
            names = [*(f"{bound:g}" for bound in bounds), "+Inf"]
            places = {name: place for place, name in enumerate(names)} | {
                f"{bound:.1f}": place for place, bound in enumerate(bounds)
            }
            ask(
                f"sum by (class, le) (increase({metric}_bucket{over}))",
                lambda minute, labels, value, field=field, places=places: minute.bucket(field, places, labels, value),  # type: ignore[misc]  # mypy takes the defaults for arguments
            )
        for field, metric in TENANTS.items():
            ask(
                f"sum by (tenant) (increase({metric}{over}))",
                lambda minute, labels, value, field=field: minute.tenant(field, labels, value),  # type: ignore[misc]  # likewise
            )
        ask("sum by (replica) (tidegate_replica_limit)", _Minute.limit)
        ask(f"sum by (replica) (avg_over_time(tidegate_replica_in_flight{over}))", _Minute.in_flight)
        ask(f"max by (replica) (avg_over_time(tidegate_engine_waiting{over}))", _Minute.waiting)
        ask(
            f"max by (replica) (avg_over_time((tidegate_replica_in_flight > bool 0)[{step_s:.0f}s:5s]))",
            lambda minute, labels, value: minute.busy(labels, value * step_s),
        )
        ask(f"sum(avg_over_time(tidegate_queue_requests{over}))", _Minute.queued)
        ask(f"max by (gpu) (avg_over_time(tidegate_gpu_use{over}))", _Minute.gpu)
        return [minute.sample(at_s - step_s, step_s) for at_s, minute in sorted(found.items())]

    def _range(self, query: str, since_s: float, until_s: float, step_s: float) -> list[tuple[Labels, list[Any]]]:
        asked = {"query": query, "start": f"{since_s:.3f}", "end": f"{until_s:.3f}", "step": f"{step_s:.0f}"}
        try:
            answer = httpx.post(f"{self._asked}/api/v1/query_range", data=asked, timeout=TIMEOUT_S)
        except httpx.HTTPError as error:
            raise OperatorError(
                f"Prometheus at {self.url} cannot be asked: {error}", hint="is it its own URL, as in http://HOST:9090?"
            ) from None
        if len(answer.content) > MOST_BYTES:
            raise OperatorError(
                f"Prometheus at {self.url} answers with too much", hint="ask for a shorter time: --since"
            )
        try:
            told = msgspec.json.decode(answer.content, type=_Answer)
        except msgspec.DecodeError:
            raise OperatorError(
                f"{self.url} does not answer as Prometheus does: status {answer.status_code}",
                hint="is it its own URL, as in http://HOST:9090?",
            ) from None
        if told.status != "success" or told.data is None:
            raise OperatorError(f"Prometheus at {self.url} refuses: {told.error[:300]}")
        return [(one.metric, [(at_s, float(value)) for at_s, value in one.values]) for one in told.data.result]


class _Series(msgspec.Struct):
    metric: dict[str, str]
    values: list[tuple[float, str]]


class _Data(msgspec.Struct):
    result: list[_Series]


class _Answer(msgspec.Struct):
    status: str
    data: _Data | None = None
    error: str = ""


class _Minute:
    """What is put together of one step."""

    def __init__(self) -> None:
        self._requests: dict[str, dict[str, int]] = defaultdict(dict)
        self._refused: dict[str, int] = {}
        self._buckets: dict[str, dict[str, dict[int, float]]] = defaultdict(lambda: defaultdict(dict))
        self._sizes: dict[str, int] = {}
        self._tenants: dict[str, dict[str, float]] = defaultdict(dict)
        self._replicas: dict[str, dict[str, float]] = defaultdict(dict)
        self._gpus: dict[str, float] = {}
        self._queued = 0.0

    def ended(self, labels: Labels, value: float) -> None:
        self._requests[labels["class"]][labels["outcome"]] = round(value)

    def refused(self, labels: Labels, value: float) -> None:
        self._refused[labels["class"]] = round(value)

    def bucket(self, field: str, places: Mapping[str, int], labels: Labels, value: float) -> None:
        place = places.get(labels["le"])
        if place is not None:  # a release with other bounds wrote it
            self._sizes[field] = max(places.values()) + 1
            self._buckets[labels["class"]][field][place] = value

    def tenant(self, field: str, labels: Labels, value: float) -> None:
        self._tenants[labels["tenant"]][field] = value

    def limit(self, labels: Labels, value: float) -> None:
        self._replicas[labels["replica"]]["limit"] = value

    def in_flight(self, labels: Labels, value: float) -> None:
        self._replicas[labels["replica"]]["in_flight"] = value

    def waiting(self, labels: Labels, value: float) -> None:
        self._replicas[labels["replica"]]["waiting"] = value

    def busy(self, labels: Labels, value: float) -> None:
        self._replicas[labels["replica"]]["busy_s"] = value

    def queued(self, _: Labels, value: float) -> None:
        self._queued = value

    def gpu(self, labels: Labels, value: float) -> None:
        self._gpus[labels["gpu"]] = value

    def sample(self, at_s: float, seconds: float) -> Sample:
        """All of it."""
        classes = {
            name: ClassSample(
                {outcome: count for outcome, count in self._requests[name].items() if count},
                self._refused.get(name, 0),
                **{field: self._counts(name, field) for field in HISTOGRAMS},
            )
            for name in sorted({*self._requests, *self._refused, *self._buckets})
        }
        requests = sum(sum(one.requests.values()) for one in classes.values())
        tokens = sum(_tokens(one) for one in self._tenants.values())
        tenants = {
            name: TenantSample(
                round(requests * _tokens(one) / tokens) if tokens else 0,
                round(one.get("prompt_tokens", 0.0)),
                round(one.get("answer_tokens", 0.0)),
                round(one.get("engine_s", 0.0), 4),
            )
            for name, one in self._tenants.items()
        }
        replicas = {
            name: ReplicaSample(
                round(one["limit"]) if "limit" in one else None,
                round(one.get("in_flight", 0.0), 4),
                round(one.get("busy_s", 0.0), 3),
                round(one.get("waiting", 0.0), 4),
            )
            for name, one in self._replicas.items()
        }
        return Sample(at_s, seconds, classes, replicas, tenants, self._gpus, round(self._queued, 4))

    def _counts(self, name: str, field: str) -> Counts:
        """Counts of buckets, out of what lies below their bounds."""
        cumulative = self._buckets[name][field]
        if not cumulative:
            return ()
        heights = [round(cumulative.get(place, 0.0)) for place in range(self._sizes[field])]
        return tuple(max(0, after - before) for before, after in zip([0, *heights], heights, strict=False))


def _tokens(tenant: Mapping[str, float]) -> float:
    return tenant.get("prompt_tokens", 0.0) + tenant.get("answer_tokens", 0.0)
