"""A search as a page: the verdict, the proof, and every trial. Pure."""

from html import escape

from tidegate.bench.page import document
from tidegate.bench.svg import chart
from tidegate.control.tuner.search import Found
from tidegate.control.tuner.trials import Trial


def summary(found: Found) -> list[str]:
    """What the trials were, in sentences."""
    trials = found.trials
    counts = {what: sum(one.outcome == what for one in trials) for what in ("out of memory", "failed", "stopped early")}
    ends = ", ".join(f"{count} {what}" for what, count in counts.items() if count)
    lines = [
        f"{len(trials)} of {found.wanted} trials{f' ({ends})' if ends else ''}{': partial' if found.partial else ''}."
    ]
    most = max((one.goodput_per_s or 0.0 for one in trials), default=0.0)
    if most:
        alone = found.random_best
        drawn = sum(one.random for one in trials)
        told = f"{alone:.2f}" if alone else "none"
        lines.append(f"Most goodput in a trial: {most:.2f}/s; the {drawn} trials drawn at random had {told}/s.")
    else:
        served = max((one.queries_per_s or 0.0 for one in trials), default=0.0)
        lines.append(f"No trial kept the SLO in any answer; the most answers a second were {served:.2f}.")
    return lines


def whole(found: Found, verdict: list[str], proof: str) -> str:
    """The page. `proof` is markup, empty where there was none."""
    points: list[tuple[str, list[tuple[float, float | None]]]] = [
        ("drawn at random", [_place(number, one) for number, one in enumerate(found.trials, 1) if one.random]),
        ("guided", [_place(number, one) for number, one in enumerate(found.trials, 1) if not one.random]),
    ]
    names = list(found.trials[0].settings) if found.trials else []
    head = "".join(f"<th>{escape(name)}</th>" for name in ("trial", *names, "goodput/s", "answers/s", "how it ended"))
    rows = "".join(f"<tr>{_cells(number, one)}</tr>" for number, one in enumerate(found.trials, 1))
    parts = [f"<p>{escape(line)}</p>" for line in (*verdict, *summary(found))]
    parts += [proof, chart("Goodput by trial", points, across="trial", up="1/s")]
    parts.append(f'<div class="wide"><table><tr>{head}</tr>{rows}</table></div>')
    return document("Tuning", parts)


def _place(number: int, one: Trial) -> tuple[float, float | None]:
    return float(number), one.goodput_per_s


def _cells(number: int, one: Trial) -> str:
    told = one.outcome + (f": {one.cause}" if one.cause else "")
    figures = ("-" if value is None else f"{value:.2f}" for value in (one.goodput_per_s, one.queries_per_s))
    cells = (str(number), *map(str, one.settings.values()), *figures, told)
    return "".join(f"<td>{escape(cell)}</td>" for cell in cells)
