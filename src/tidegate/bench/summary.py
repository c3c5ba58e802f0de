"""From samples to what a run has shown. Pure."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

from tidegate.bench.driver import UNFINISHED
from tidegate.bench.figures import Interval, curve, interval, of, quantile, spread
from tidegate.bench.knee import Step
from tidegate.bench.results import Part, Run, Second, Use
from tidegate.bench.samples import Sample
from tidegate.bench.slo import Slo

MOST_STEPS: Final = 120
"""Of a time line."""


class Observed:
    """What a run left behind."""

    def __init__(
        self,
        samples: Sequence[Sample],
        gaps: Sequence[float],
        explained: Mapping[str, str],
        *,
        partial: bool,
        most_in_flight: int,
        use: Use,
    ) -> None:
        self.samples, self.gaps, self.explained = samples, gaps, explained
        self.partial, self.most_in_flight, self.use = partial, most_in_flight, use


def run(
    name: str, observed: Observed, *, offered_per_s: float | None, slo: Slo | None, bound_s: float, warmup_s: float
) -> Run:
    """Without what was to be sent before `warmup_s`; with what was given up only as a number."""
    all_samples = [one for one in observed.samples if one.at >= warmup_s]
    samples = [one for one in all_samples if one.kind != UNFINISHED]
    answers = [one for one in samples if not one.kind]
    seconds = _seconds(samples)
    failed = _failed(samples)
    good = sum(map(slo.met, answers)) if slo is not None else None
    prompt, output = sum(one.prompt_tokens for one in answers), sum(one.output_tokens for one in answers)
    latencies = [one.latency for one in answers]
    firsts = [one.ttft for one in answers if one.first]
    paces = [pace for one in answers if (pace := one.tpot) is not None]
    return Run(
        name=name,
        offered_per_s=offered_per_s,
        partial=observed.partial,
        requests=len(all_samples),
        answered=len(answers),
        failed=failed,
        explained={kind: text for kind, text in observed.explained.items() if kind in failed},
        unfinished=len(all_samples) - len(samples),
        seconds=seconds,
        sending_s=max(one.at for one in samples) - min(one.at for one in samples) if samples else 0.0,
        queries_per_s=_rate(len(answers), seconds),
        latency_s=spread(latencies),
        first_token_s=spread(firsts),
        per_output_token_s=spread(paces),
        inter_token_s=spread(observed.gaps),
        over_bound=_share(sum(one > bound_s for one in latencies), len(latencies)),
        prompt_tokens=prompt,
        output_tokens=output,
        prompt_tokens_per_s=_rate(prompt, seconds),
        output_tokens_per_s=_rate(output, seconds),
        within_slo=_share(good, len(samples)) if good is not None else None,
        goodput_per_s=_rate(good, seconds) if good is not None else None,
        sent_late_s=spread([one.sent - one.at for one in samples if one.kind not in {"not sent", "no connection"}]),
        most_in_flight=observed.most_in_flight,
        classes=_classes(samples, seconds, slo),
        time_line=time_line(samples),
        curves={
            name: curve(values)
            for name, values in (("latency", latencies), ("first token", firsts), ("time per output token", paces))
            if values
        },
        use=observed.use,
    )


def _failed(samples: Iterable[Sample]) -> dict[str, int]:
    counts: dict[str, int] = {}
    for one in samples:
        if one.kind:
            counts[one.kind] = counts.get(one.kind, 0) + 1
    return dict(sorted(counts.items(), key=lambda count: -count[1]))


def _seconds(samples: Sequence[Sample]) -> float:
    return max(one.end for one in samples) - min(one.at for one in samples) if samples else 0.0


def _rate(count: float, seconds: float) -> float:
    return count / seconds if seconds > 0 else 0.0


def _share(count: int, of: int) -> float:
    return count / of if of else 0.0


def _classes(samples: Sequence[Sample], seconds: float, slo: Slo | None) -> dict[str, Part]:
    parts = {}
    for name in sorted({one.klass for one in samples} - {""}):
        mine = [one for one in samples if one.klass == name]
        answers = [one for one in mine if not one.kind]
        parts[name] = Part(
            requests=len(mine),
            answered=len(answers),
            queries_per_s=_rate(len(answers), seconds),
            latency_s=spread([one.latency for one in answers]),
            first_token_s=spread([one.ttft for one in answers if one.first]),
            within_slo=_share(sum(map(slo.met, answers)), len(mine)) if slo is not None else None,
        )
    return parts


def time_line(samples: Sequence[Sample]) -> list[Second]:
    """In steps of a second, or of several where there were more than `MOST_STEPS`."""
    if not samples:
        return []
    last = max(one.end for one in samples)
    step = max(1, math.ceil(last / MOST_STEPS))
    count = int(last // step) + 1
    sent, failed = [0] * count, [0] * count
    ended: list[list[float]] = [[] for _ in range(count)]
    for one in samples:
        sent[min(int(one.at // step), count - 1)] += 1
        place = int(one.end // step)
        if one.kind:
            failed[place] += 1
        else:
            ended[place].append(one.latency)
    line = []
    for place, latencies in enumerate(ended):
        latencies.sort()
        line.append(
            Second(
                at_s=float(place * step),
                sent_per_s=sent[place] / step,
                answered_per_s=len(latencies) / step,
                failed_per_s=failed[place] / step,
                p50_s=quantile(latencies, 0.5) if latencies else None,
                p99_s=quantile(latencies, 0.99) if latencies else None,
            )
        )
    return line


def step(one: Run) -> Step:
    """What a run of a ramp says about its rate."""
    kept = _share(one.answered, one.requests)
    if one.latency_s is not None and one.sending_s > 0:
        kept *= min(1.0, one.sending_s / max(one.seconds - one.latency_s.p50, one.sending_s))
    return Step(
        offered=one.offered_per_s or 0.0,
        kept=kept,
        answered=one.queries_per_s,
        failed=_share(sum(one.failed.values()), one.requests),
        p90_s=one.latency_s.p90 if one.latency_s is not None else math.inf,
        good=one.within_slo,
    )


FIGURES: Final[Mapping[str, Callable[[Run], float | None]]] = {
    "queries_per_s": lambda one: one.queries_per_s,
    "latency_mean_s": lambda one: of(one.latency_s, "mean"),
    "latency_p50_s": lambda one: of(one.latency_s, "p50"),
    "latency_p90_s": lambda one: of(one.latency_s, "p90"),
    "latency_p99_s": lambda one: of(one.latency_s, "p99"),
    "first_token_p50_s": lambda one: of(one.first_token_s, "p50"),
    "first_token_p99_s": lambda one: of(one.first_token_s, "p99"),
    "per_output_token_mean_s": lambda one: of(one.per_output_token_s, "mean"),
    "output_tokens_per_s": lambda one: one.output_tokens_per_s,
    "goodput_per_s": lambda one: one.goodput_per_s,
}
"""What intervals over repeats are told of."""


def intervals(runs: Sequence[Run]) -> dict[str, dict[str, Interval]]:
    """By name of those that were repeated. Of a figure that some repeat lacks there is none."""
    found: dict[str, dict[str, Interval]] = {}
    for name in dict.fromkeys(one.name for one in runs):
        repeats = [one for one in runs if one.name == name and not one.partial]
        figures = {}
        for figure, read in FIGURES.items():
            values = [value for one in repeats if (value := read(one)) is not None]
            told = interval(values)
            if told is not None and len(values) == len(repeats):
                figures[figure] = told
        if figures:
            found[name] = figures
    return found
