"""A comparison as a table for the terminal, as Markdown, and as a page."""

from collections.abc import Callable
from html import escape
from typing import Final

from tidegate.bench.comparing import MEMORY, Arm, Comparison, Verdict, better
from tidegate.bench.page import document
from tidegate.bench.svg import Points, chart
from tidegate.bench.text import machine_line, mebibytes, milliseconds, number, plain

NAMES: Final = {
    "queries_per_s": "queries/s",
    "latency_mean_s": "latency mean",
    "latency_p50_s": "latency P50",
    "latency_p90_s": "latency P90",
    "latency_p99_s": "latency P99",
    "first_token_p50_s": "first token P50",
    "first_token_p99_s": "first token P99",
    "per_output_token_mean_s": "per output token",
    "output_tokens_per_s": "tokens out /s",
    "goodput_per_s": "goodput /s",
    MEMORY: "memory",
}
PRESET_FIGURES: Final = ("queries_per_s", "latency_mean_s", "latency_p99_s", MEMORY)


def show(figure: str, value: float | None) -> str:
    """A figure as it is written."""
    if figure == MEMORY:
        return mebibytes(None if value is None else int(value))
    return milliseconds(value) if figure.endswith("_s") and not figure.endswith("per_s") else number(value)


def _ratio(told: Verdict | None) -> str:
    return "-" if told is None else f"{told.ratio:.2f} ({told.low:.2f} to {told.high:.2f})"


def rows(comparison: Comparison) -> list[list[str]]:
    """The figures' names, and for each arm its mean, and its ratio to the first with an interval.

    The means have none: rounds differ in what they ask, the same for all arms, and only ratios leave that out.
    """
    found = []
    for figure, name in NAMES.items():
        cells = [name]
        for place, arm in enumerate(comparison.arms):
            cells.append(show(figure, arm.mean(figure)))
            if place:
                cells.append(_ratio(comparison.verdicts.get(arm.name, {}).get(figure)))
        if any(cell != "-" for cell in cells[1:]):
            found.append(cells)
    return found


def head(comparison: Comparison) -> list[str]:
    """What stands over the columns of `rows`."""
    first = comparison.arms[0].name
    return ["", first, *(cell for arm in comparison.arms[1:] for cell in (arm.name, f"{arm.name} / {first}"))]


def heading(comparison: Comparison) -> list[str]:
    """What was compared, under which load, on which machine."""
    arms = [f"{arm.name}: {arm.what}" for arm in comparison.arms]
    rounds = f"{comparison.rounds} rounds in turn"
    return [
        *arms,
        f"{comparison.load}; {comparison.workload}; {rounds}",
        machine_line(comparison.date, comparison.machine, comparison.tidegate),
    ]


def sentences(comparison: Comparison) -> list[str]:
    """What was shown, in words, and what was not."""
    found = []
    if comparison.partial:
        found.append("PARTIAL: interrupted. Only rounds that are whole count.")
    first = comparison.arms[0]
    for arm in comparison.arms:
        if arm.fault:
            found.append(
                f"{arm.name} {'has too little memory' if arm.no_memory else 'could not be measured'}: {arm.fault}"
            )
        failed = sum(sum(one.failed.values()) for one in arm.runs if one)
        if failed:
            sent = sum(one.requests for one in arm.runs if one)
            found.append(f"{arm.name}: {failed:,} of {sent:,} requests failed.")
        goodput = arm.values("goodput_per_s")
        if comparison.slo and goodput and not any(goodput):
            best = [one.first_token_s.p50 for one in arm.runs if one and one.first_token_s]
            seen = f"; the best median of first tokens was {milliseconds(min(best))}" if best else ""
            found.append(f"{arm.name}: no request was within the SLO ({comparison.slo}){seen}.")
    for arm in comparison.arms[1:]:
        found += [_verdict(arm, first, figure, told) for figure, told in _main(comparison, arm).items()]
        if not comparison.verdicts.get(arm.name):
            found.append(f"{arm.name} against {first.name}: two whole rounds of both are needed to tell a difference.")
    return [*found, *comparison.notes]


def _main(comparison: Comparison, arm: Arm) -> dict[str, Verdict]:
    """The figures that are told in words."""
    told = comparison.verdicts.get(arm.name, {})
    wanted = ("goodput_per_s", "queries_per_s", "latency_p99_s", "first_token_p50_s", MEMORY)
    return {figure: told[figure] for figure in wanted if figure in told}


def _verdict(arm: Arm, first: Arm, figure: str, told: Verdict) -> str:
    name, range_ = NAMES[figure], f"({told.low:.2f} to {told.high:.2f}, {told.rounds} rounds)"
    does_better = better(figure, told)
    if does_better is None:
        return f"{name}: no difference shown between {arm.name} and {first.name} {range_}."
    return f"{name}: {arm.name} is at {told.ratio:.2f} times {first.name}, {'better' if does_better else 'worse'} {range_}."


def table(comparison: Comparison) -> str:
    """For a terminal."""
    cells = [head(comparison), *rows(comparison)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    lines = [
        "  ".join(f"{cell:<{width}}" if not place else f"{cell:>{width}}" for place, (cell, width) in enumerate(zip(row, widths, strict=True)))
        for row in cells
    ]  # fmt: skip
    return "\n".join([*heading(comparison), "", *lines, "", *sentences(comparison)]).rstrip() + "\n"


def markdown(comparison: Comparison) -> str:
    """For a document."""
    lines = [*(plain(line) for line in heading(comparison)), "", f"`{comparison.command}`", ""]
    lines += _markdown_table(head(comparison), rows(comparison))
    lines += ["", *(f"- {plain(sentence)}" for sentence in sentences(comparison))]
    return "\n".join(lines) + "\n"


def preset_table(comparison: Comparison) -> str:
    """Queries/s, mean, P99 and memory of each arm, as Markdown."""
    cells = [[arm.name, *(show(figure, arm.mean(figure)) for figure in PRESET_FIGURES)] for arm in comparison.arms]
    return "\n".join(_markdown_table(["", *(NAMES[figure] for figure in PRESET_FIGURES)], cells)) + "\n"


def _markdown_table(columns: list[str], cells: list[list[str]]) -> list[str]:
    shown = [f"| {' | '.join(plain(cell) for cell in row)} |" for row in cells]
    return [f"| {' | '.join(plain(cell) for cell in columns)} |", "|---" * len(columns) + "|", *shown]


def html_table(comparison: Comparison) -> str:
    """The table alone, as markup."""
    top = "".join(f"<th>{escape(cell)}</th>" for cell in head(comparison))
    body = "".join(f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in row)}</tr>" for row in rows(comparison))
    return f'<div class="wide"><table><tr>{top}</tr>{body}</table></div>'


def page(comparison: Comparison) -> str:
    """One HTML page that needs nothing else."""
    parts = [f"<p>{escape(line)}</p>" for line in heading(comparison)]
    parts.append(f"<p><code>{escape(comparison.command)}</code></p>")
    parts.append(html_table(comparison))
    parts += [f"<p>{escape(sentence)}</p>" for sentence in sentences(comparison)]
    per_round: tuple[tuple[str, str, str, Callable[[float], float]], ...] = (
        ("Queries/s by round", "queries_per_s", "1/s", lambda value: value),
        ("Latency P99 by round", "latency_p99_s", "ms", lambda value: value * 1000),
    )
    for title, figure, unit, scale in per_round:
        series: list[tuple[str, Points]] = [
            (arm.name, [(float(number), scale(value)) for number, value in enumerate(arm.values(figure), 1)])
            for arm in comparison.arms
        ]
        if any(points for _, points in series):
            parts.append(chart(title, series, across="round", up=unit))
    return document(f"{' and '.join(arm.name for arm in comparison.arms)} compared", parts)
