"""A report as a table for the terminal, and as Markdown."""

from collections.abc import Callable, Sequence
from typing import Final

from tidegate.bench.figures import Interval, Spread, of
from tidegate.bench.results import Machine, Report, Run

LATE_S: Final = 0.01
"""A load generator whose 99th percentile is later than that is not to be believed without a look."""


def milliseconds(seconds: float | None) -> str:
    if seconds is None:
        return "-"
    value = seconds * 1000
    return f"{value:,.0f} ms" if value >= 100 else f"{value:.3g} ms"


def share(value: float | None) -> str:
    return "-" if value is None else f"{value * 100:.3g} %"


def number(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:,.0f}" if value >= 1000 else f"{value:.3g}"


def mebibytes(value: int | None) -> str:
    return "-" if value is None else f"{value / 1024**2:,.0f} MiB"


FIGURES: Final = {"mean": "mean", "P50": "p50", "P90": "p90", "P99": "p99"}
"""Of a spread, as they are told."""


def _told(pick: Callable[[Run], Spread | None], figure: str) -> Callable[[Run], str]:
    return lambda one: milliseconds(of(pick(one), figure))


def rows(report: Report) -> list[tuple[str, list[str]]]:
    """Names of figures, and the figure of each run."""
    told: list[tuple[str, Callable[[Run], str]]] = [
        ("requests", lambda one: f"{one.requests:,}"),
        ("answered", lambda one: f"{one.answered:,}"),
        ("failed", lambda one: f"{sum(one.failed.values()):,}"),
        ("offered /s", lambda one: number(one.offered_per_s)),
        ("queries/s", lambda one: number(one.queries_per_s)),
    ]
    for name, pick in (
        ("latency", lambda one: one.latency_s),
        ("first token", lambda one: one.first_token_s),
        ("per output token", lambda one: one.per_output_token_s),
        ("inter-token", lambda one: one.inter_token_s),
    ):
        told += [(f"{name} {what}", _told(pick, figure)) for what, figure in FIGURES.items()]
    told += [
        (f"over {report.bound_s:g} s", lambda one: share(one.over_bound)),
        ("tokens in /s", lambda one: number(one.prompt_tokens_per_s)),
        ("tokens out /s", lambda one: number(one.output_tokens_per_s)),
        ("tokens a prompt", lambda one: number(one.prompt_tokens / one.answered if one.answered else None)),
        ("tokens an answer", lambda one: number(one.output_tokens / one.answered if one.answered else None)),
    ]
    if report.slo:
        told += [
            ("within the SLO", lambda one: share(one.within_slo)),
            ("goodput /s", lambda one: number(one.goodput_per_s)),
        ]
    told += [
        ("most at once", lambda one: str(one.most_in_flight)),
        ("sent late P99", lambda one: milliseconds(of(one.sent_late_s, "p99"))),
    ]
    if any(one.use.pid for one in report.runs):
        told += [
            ("server's memory", lambda one: mebibytes(one.use.most_resident_bytes)),
            ("server's cores", lambda one: number(one.use.mean_cores)),
        ]
    if any(one.use.gpus for one in report.runs):
        told.append(("GPU busy", lambda one: share(max(one.use.gpus.values(), default=None))))
        told.append(("GPU memory", lambda one: mebibytes(max(one.use.gpu_memory_bytes.values(), default=None))))
    found = [(name, [read(one) for one in report.runs]) for name, read in told]
    return [(name, cells) for name, cells in found if any(cell != "-" for cell in cells)]


def sentences(report: Report) -> list[str]:
    """What the table does not say: the knee, an SLO that nobody met, failures, what is doubtful."""
    found = []
    if report.partial:
        found.append("PARTIAL: interrupted. What was on its way is counted neither as answered nor as failed.")
    if report.knee is not None:
        most = f"at most {number(report.knee.most_answered)} answers/s"
        if report.knee.rate is None:
            found.append(f"Knee: below {number(report.runs[0].offered_per_s)}/s, the lowest rate; {most}.")
        elif report.knee.ended:
            found.append(f"Knee: it keeps up with {number(report.knee.rate)}/s, and not with the next rate; {most}.")
        else:
            found.append(f"Knee: beyond {number(report.knee.rate)}/s, the highest rate; {most}.")
    if report.slo and report.runs and not any(one.within_slo for one in report.runs):
        found.append(f"No request was within the SLO ({report.slo}). {_best(report.runs)}")
    for kind, (count, text) in _failures(report.runs).items():
        found.append(f"{count:,} × {kind}{f': {text}' if text else ''}")
    if any("no usage" in one.failed for one in report.runs):
        found.append("--count-events takes each event of a stream for a token, where the server does not count.")
    late = max((one.sent_late_s.p99 for one in report.runs if one.sent_late_s is not None), default=0.0)
    if late > LATE_S and any(one.offered_per_s for one in report.runs):
        found.append(
            f"Requests left up to {milliseconds(late)} (P99) after their time, connecting included: "
            "the load generator or the machine was short of time."
        )
    return [*found, *report.notes]


def _failures(runs: Sequence[Run]) -> dict[str, tuple[int, str]]:
    found: dict[str, tuple[int, str]] = {}
    for one in runs:
        for kind, count in one.failed.items():
            before, text = found.get(kind, (0, ""))
            found[kind] = (before + count, text or one.explained.get(kind, ""))
    return found


def _best(runs: Sequence[Run]) -> str:
    """The least that was seen of each term."""
    terms = {
        "first token": [one.first_token_s.p50 for one in runs if one.first_token_s],
        "per output token": [one.per_output_token_s.p50 for one in runs if one.per_output_token_s],
        "whole answer": [one.latency_s.p50 for one in runs if one.latency_s],
    }
    seen = [f"{name} {milliseconds(min(values))}" for name, values in terms.items() if values]
    return f"The best medians seen: {', '.join(seen)}." if seen else "There was no answer at all."


def _confident(told: Interval, figure: str) -> str:
    show = milliseconds if figure.endswith("_s") and not figure.endswith("per_s") else number
    return f"{show(told.mean)} ({show(told.low)} to {show(told.high)})"


def repeats(report: Report) -> list[tuple[str, str, str]]:
    """Run, figure, and its mean with an interval."""
    return [
        (name, figure.removesuffix("_s").replace("_", " "), _confident(told, figure))
        for name, figures in report.intervals.items()
        for figure, told in figures.items()
    ]


def machine_line(date: str, machine: Machine, tidegate: str) -> str:
    """When and where it was measured."""
    return (
        f"{date}, {machine.processor}, {machine.cores} cores, load {machine.load:.1f}, {machine.system}, "
        f"Python {machine.python}, Tidegate {tidegate}"
    )


def heading(report: Report) -> list[str]:
    """What was measured, on which machine."""
    return [
        f"{report.url}, model {report.model}: {report.load}; {report.workload}",
        machine_line(report.date, report.machine, report.tidegate),
    ]


def table(report: Report) -> str:
    """For a terminal."""
    columns = [name for one in report.runs for name in [one.name + (" (partial)" if one.partial else "")]]
    told = rows(report)
    first = max((len(name) for name, _ in told), default=0)
    widths = [max([len(column), *(len(cells[place]) for _, cells in told)]) for place, column in enumerate(columns)]
    lines = [*heading(report), "", " " * first + "".join(f"  {c:>{w}}" for c, w in zip(columns, widths, strict=True))]
    for name, cells in told:
        lines.append(f"{name:<{first}}" + "".join(f"  {c:>{w}}" for c, w in zip(cells, widths, strict=True)))
    for name, part in ((name, part) for one in report.runs[-1:] for name, part in one.classes.items()):
        within = f", within the SLO {share(part.within_slo)}" if part.within_slo is not None else ""
        p50, p99 = (part.latency_s.p50, part.latency_s.p99) if part.latency_s else (None, None)
        lines.append(
            f"class {name}: {part.answered:,} of {part.requests:,} answered, P50 {milliseconds(p50)}, "
            f"P99 {milliseconds(p99)}{within}"
        )
    told_repeats = repeats(report)
    if told_repeats:
        lines += ["", "over the repeats, 95 %:"]
        lines += [f"  {name}  {figure}: {value}" for name, figure, value in told_repeats]
    return "\n".join([*lines, "", *sentences(report)]).rstrip() + "\n"


def markdown(report: Report) -> str:
    """For a document."""
    lines = [*heading(report), "", f"`{report.command}`", ""]
    lines += ["| | " + " | ".join(one.name for one in report.runs) + " |", "|---|" + "---|" * len(report.runs)]
    lines += [f"| {name} | " + " | ".join(cells) + " |" for name, cells in rows(report)]
    told_repeats = repeats(report)
    if told_repeats:
        lines += ["", "| run | figure | mean (95 % interval over repeats) |", "|---|---|---|"]
        lines += [f"| {name} | {figure} | {value} |" for name, figure, value in told_repeats]
    said = sentences(report)
    if said:
        lines += ["", *(f"- {plain(sentence)}" for sentence in said)]
    return "\n".join(lines) + "\n"


def plain(text: str) -> str:
    """A server's own words must not become markup."""
    return "".join(f"\\{letter}" if letter in "\\`*_[]<>|#" else letter for letter in text)
