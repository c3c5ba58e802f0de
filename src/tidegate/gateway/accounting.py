"""Every request is counted here, once, at its end: for the metrics, the usage table and the access log.

On the data path an end costs an append: ends are counted `BATCH` at a time, and given their lines in the access log,
which costs a third of what it does one by one between other work. What is added up stays beside the counters of
`Metrics` until somebody reads them, or a second has passed (`settle`).

Usage is handed on as differences: `take_usage()` gives what was used since the last time, and forgets it. Whoever took
it and could not deliver it calls `give_back()`, so that nothing is lost while control is away, and nothing is counted
twice. What waits is bounded (see `UsageSums`).
"""

from bisect import bisect_left
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Final

from tidegate.gateway.access_log import Refused
from tidegate.gateway.metrics import BUCKETS_S, BUCKETS_TOKENS, BUCKETS_TOKENS_PER_S, Metrics
from tidegate.gateway.record import Caller, Ended
from tidegate.gateway.request_files import RequestFiles
from tidegate.gateway.usage_sums import UsageSums
from tidegate.types import FleetSnapshot, Outcome, UsageCount

DAY_S: Final = 86_400
BATCH: Final = 16
"""Requests that are counted together: 0.1 ms in which nothing else runs."""
CELLS_MAX: Final = 4096
"""Combinations of labels that the data path keeps at hand."""
REFUSED_LINES_PER_S: Final = 20
"""Refused requests that get a line in the access log; a scanner's others are only counted."""


class _Cell:
    """Requests of one combination of labels that ended since the last `settle`."""

    __slots__ = (
        "answer",
        "completion_tokens",
        "distributions",
        "duration",
        "engine_s",
        "first_byte",
        "prompt",
        "prompt_tokens",
        "queued",
        "record",
        "requests",
        "speed",
    )

    def __init__(self, record: Ended, metrics: Metrics) -> None:
        self.record = record
        """One of them, for its labels."""
        self.requests = self.queued = self.prompt_tokens = self.completion_tokens = 0
        self.engine_s = 0.0
        self.distributions = metrics.distributions(record.model, record.klass)
        self.duration = self.distributions.duration.counts
        self.first_byte = self.distributions.first_byte.counts
        self.speed = self.distributions.speed.counts
        self.prompt = self.distributions.prompt.counts
        self.answer = self.distributions.answer.counts


class Accounting:
    """What one process has counted. Called from the event loop only."""

    def __init__(self, metrics: Metrics, files: RequestFiles | None = None) -> None:
        self._metrics = metrics
        self._files = files
        self._ended: list[Ended] = []
        """Requests that are yet to be counted."""
        self._refused: list[Refused] = []
        """Refused ones, which are counted, but have no line yet."""
        self._cells: dict[tuple[str, str, str, Outcome, int], _Cell] = {}
        self._usage = UsageSums()
        self._day = ""
        self._day_begins_s = self._day_ends_s = 0
        self._refused_second = 0
        self._refused_lines = 0
        metrics.settle = self.settle
        if files is not None:
            metrics.dropped_lines = lambda: dict(files.access.dropped)
            metrics.dropped_trace = lambda: dict(files.trace.dropped)

    def apply(self, snapshot: FleetSnapshot) -> None:
        """Take in what the settings say of counting."""
        self._metrics.tenants_max = snapshot.options.metrics_tenants_max
        if self._files is not None:
            self._files.apply(snapshot)

    def ended(self, record: Ended) -> None:
        """Count a request that has ended."""
        ended = self._ended
        ended.append(record)
        if len(ended) >= BATCH:
            self._count()

    def _count(self) -> None:
        """Count those that have ended, and have lines written for them."""
        ended, self._ended = self._ended, []
        refused, self._refused = self._refused, []
        for record in ended:
            self._count_one(record)
        files = self._files
        if files is None:
            return
        if files.access.wanted and (ended or refused):
            files.access.add(sorted([*ended, *refused], key=_at_s) if refused else [*ended])
        if files.trace.wanted and ended:
            files.trace.add(ended)

    def _count_one(self, record: Ended) -> None:
        if not self._day_begins_s <= record.at_s < self._day_ends_s:
            self._turn_day(record.at_s)
        key = (record.caller.tenant, record.klass, record.model, record.outcome, record.status)
        cell = self._cells.get(key)
        if cell is None:
            cell = self._new_cell(key, record)
        cell.requests += 1
        total_s, first_s = record.total_s, record.first_s
        distributions = cell.distributions
        cell.duration[bisect_left(BUCKETS_S, total_s)] += 1
        distributions.duration.sum += total_s
        if first_s is not None:
            cell.first_byte[bisect_left(BUCKETS_S, first_s)] += 1
            distributions.first_byte.sum += first_s
        if record.queue_s > 0.0:  # the others are added to the first bucket all at once
            cell.queued += 1
            distributions.queue.counts[bisect_left(BUCKETS_S, record.queue_s)] += 1
            distributions.queue.sum += record.queue_s
        if record.replica:
            cell.engine_s += total_s - record.queue_s
        if record.prompt_tokens is not None:
            cell.prompt_tokens += record.prompt_tokens
            cell.prompt[bisect_left(BUCKETS_TOKENS, record.prompt_tokens)] += 1
            distributions.prompt.sum += record.prompt_tokens
        tokens = record.completion_tokens
        if tokens is not None:
            cell.completion_tokens += tokens
            cell.answer[bisect_left(BUCKETS_TOKENS, tokens)] += 1
            distributions.answer.sum += tokens
            if record.stream and tokens > 1 and first_s is not None and total_s > first_s:
                per_s = (tokens - 1) / (total_s - first_s)
                cell.speed[bisect_left(BUCKETS_TOKENS_PER_S, per_s)] += 1
                distributions.speed.sum += per_s

    def refused(
        self, *, at_s: float, request_id: str, caller: Caller, path: str, status: int, code: str, client: str = ""
    ) -> None:
        """Count a request that was answered with an error before any replica was asked."""
        self._metrics.refusal(status, code)
        if self._files is None or not self._files.access.wanted:
            return
        second = int(at_s)
        if second != self._refused_second:
            self._refused_second, self._refused_lines = second, 0
        self._refused_lines += 1
        if self._refused_lines > REFUSED_LINES_PER_S:
            self._files.access.dropped["rate"] += 1
        else:
            self._refused.append(Refused(at_s, request_id, caller, path, status, code, client))

    def settle(self) -> None:
        """Add what the data path counted to the metrics and to the usage that waits; at least once a second."""
        self._count()
        for cell in self._cells.values():
            if cell.requests:
                record = cell.record
                self._metrics.count(
                    record,
                    cell.requests,
                    queued=cell.queued,
                    prompt_tokens=cell.prompt_tokens,
                    completion_tokens=cell.completion_tokens,
                    engine_s=cell.engine_s,
                )
                key = (self._day, record.caller.tenant, record.klass, record.model, record.outcome)
                self._usage.add(key, cell.requests, cell.prompt_tokens, cell.completion_tokens, cell.engine_s)
                cell.engine_s = 0.0
                cell.requests = cell.queued = cell.prompt_tokens = cell.completion_tokens = 0

    def take_usage(self) -> tuple[UsageCount, ...]:
        """What was used since the last time, once. Who cannot deliver it gives it back."""
        self.settle()
        return self._usage.take()

    def give_back(self, usage: Iterable[UsageCount]) -> None:
        """Keep for the next `take_usage` what could not be delivered."""
        self._usage.add_all(usage)

    def _new_cell(self, key: tuple[str, str, str, Outcome, int], record: Ended) -> _Cell:
        if len(self._cells) >= CELLS_MAX:
            self.settle()
            self._cells.clear()
        cell = self._cells[key] = _Cell(record, self._metrics)
        return cell

    def _turn_day(self, at_s: float) -> None:
        self.settle()
        self._day_begins_s = int(at_s // DAY_S) * DAY_S
        self._day_ends_s = self._day_begins_s + DAY_S
        self._day = datetime.fromtimestamp(self._day_begins_s, UTC).date().isoformat()


def _at_s(record: Ended | Refused) -> float:
    return record.at_s
