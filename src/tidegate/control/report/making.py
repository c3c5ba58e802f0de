"""The whole report, from samples. Pure."""

from typing import Final

from tidegate.control.report import capacity, drift, service
from tidegate.control.report.chapters import Asked, Report, ended

CHAPTERS: Final = (
    service.load,
    service.attainment,
    service.over_1_s,
    service.refusals,
    capacity.limits,
    capacity.gpus,
    drift.lengths,
    capacity.engines,
    capacity.costs,
    drift.outdated,
)
WHOLE: Final = 0.95
"""Share of the time; with samples of less the report is partial."""


def make(asked: Asked) -> Report:
    """Every chapter, in order. What is missing is said in `partial`."""
    span_s = asked.until_s - asked.since_s
    covered = min(1.0, sum(one.seconds for one in asked.samples) / span_s) if span_s > 0 else 0.0
    partial = list(asked.partial)
    if covered < WHOLE:
        partial.append(f"there are samples of {100 * covered:.1f} % of the time")
    return Report(
        since_s=asked.since_s,
        until_s=asked.until_s,
        source=asked.source,
        covered=round(covered, 4),
        partial=tuple(partial),
        requests=sum(ended(one.requests) for sample in asked.samples for one in sample.classes.values()),
        chapters=tuple(chapter(asked) for chapter in CHAPTERS),
    )
